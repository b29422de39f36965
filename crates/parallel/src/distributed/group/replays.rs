//! Replays of graphs that hold captured calls of a group.
//!
//! A graph keeps the groups of its calls (`collective::Replays`) and launches its replays through these groups. On each
//! group, a replay counts as one call. This call is done when the entire replay is done, and its number marks the
//! results of the captured calls. Replays are not compared between ranks, because their calls were compared when they
//! were captured.

use std::panic::Location;
use std::sync::{Arc, PoisonError};

use warpline::cuda::Stream;
use warpline::{Error, ErrorKind, Result, Site};
use warpline_runtime::{Calls, Completion, Replays};

use super::super::GroupError;
use super::super::record::State;
use super::super::signature::Signature;
use super::{Handle, is_of_comm, launched};

const NAME: &str = "replay";

/// Converts the group's failure to the error of a replay, whose results cannot be used. Returns other errors unchanged.
fn refused(error: Error, location: &'static Location<'static>) -> Error {
    match error.find::<GroupError>() {
        // The failure of another group, whose results the replay reads, names its own call.
        Some(failure) if matches!(error.kind(), ErrorKind::ProcessGroup) => {
            let site = Site { op: NAME, location };
            Error::new(ErrorKind::Collective, site).with_source(Arc::new(failure.clone()))
        }
        _ => error,
    }
}

/// Replays are not compared in debug mode, because their calls were compared when they were captured.
impl Replays for Handle {
    fn replay(
        &self,
        calls: &Calls,
        stream: &Stream,
        location: &'static Location<'static>,
        launch: &mut dyn FnMut(&Completion, u64) -> Result<()>,
    ) -> Result<()> {
        let shared = &self.0;
        let _in_order = shared.launching.lock().unwrap_or_else(PoisonError::into_inner);
        shared.check_alive().map_err(|failed| refused(failed, location))?;
        let (id, completion) = {
            let mut ring = shared.ring();
            let (id, _) = ring.begin(Signature::new(NAME).calls(calls), location);
            (id, ring.completion().clone())
        };
        let enqueued = launch(&completion, id + 1);
        match enqueued.and_then(|()| launched(stream)) {
            Ok(event) => shared.ring().set(id, State::Launched(event)),
            // The record of the replay stays for the other ranks.
            Err(error) if is_of_comm(&error) => {
                return Err(refused(shared.explained(error), location));
            }
            Err(error) => {
                shared.ring().undo(id);
                return Err(refused(error, location));
            }
        }
        Ok(())
    }
}
