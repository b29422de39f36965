//! Replays of graphs that hold captured calls of a group.
//!
//! A graph keeps the groups of its calls (`CollectiveWatcher`) and launches its replays through these groups. On each
//! group, a replay counts as one call, which is done when the entire replay is done. The results of the captured calls
//! are marked with the number of the replay's call. Replays are not compared between ranks, because their calls were
//! compared when they were captured.

use std::panic::Location;
use std::sync::{Arc, PoisonError};

use warpline::cuda::Stream;
use warpline::{Error, ErrorKind, Result, Site};
use warpline_runtime::{CallNames, CollectiveWatcher, Completion};

use super::super::GroupError;
use super::super::flight_recorder::CallState;
use super::super::signature::Signature;
use super::{GroupHandle, is_nccl_error, last_op_event};

const NAME: &str = "replay";

/// Converts a failure of this group to [`ErrorKind::Collective`], because the results of the replay cannot be used.
/// Returns other errors unchanged.
fn replay_error(error: Error, location: &'static Location<'static>) -> Error {
    match error.find::<GroupError>() {
        // Errors of other kinds report the failure of another group, whose results the replay reads. They already name
        // that group's call.
        Some(failure) if matches!(error.kind(), ErrorKind::ProcessGroup) => {
            let site = Site { op: NAME, location };
            Error::new(ErrorKind::Collective, site).with_source(Arc::new(failure.clone()))
        }
        _ => error,
    }
}

impl CollectiveWatcher for GroupHandle {
    fn replay(
        &self,
        calls: &CallNames,
        stream: &Stream,
        location: &'static Location<'static>,
        launch: &mut dyn FnMut(&Completion, u64) -> Result<()>,
    ) -> Result<()> {
        let shared = &self.0;
        let _in_order = shared.launching.lock().unwrap_or_else(PoisonError::into_inner);
        shared.check_alive().map_err(|failed| replay_error(failed, location))?;
        let (id, completion) = {
            let mut recorder = shared.recorder();
            let (id, _) = recorder.begin(Signature::new(NAME).calls(calls), location);
            (id, recorder.completion().clone())
        };
        let enqueued = launch(&completion, id + 1);
        match enqueued.and_then(|()| last_op_event(stream)) {
            Ok(event) => shared.recorder().set_state(id, CallState::Launched(event)),
            // Keep the record: the watchdog publishes it to the other ranks.
            Err(error) if is_nccl_error(&error) => {
                return Err(replay_error(shared.error_or_failure(error), location));
            }
            Err(error) => {
                shared.recorder().remove_refused(id);
                return Err(replay_error(error, location));
            }
        }
        Ok(())
    }
}
