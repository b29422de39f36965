//! Replays of captured collectives. The watcher of a communicator launches them and counts them as
//! calls on the communicator.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use warpline_cuda_sys_safe::owned::Communicator;
use warpline_stream::Stream;

use crate::completion::{Completion, PendingCollective};
use crate::storage::{Dependencies, Dependency};
use crate::{Result, Site};

/// A watcher of the calls on a communicator, such as a process group. Graphs that captured some of
/// these calls keep the watcher and launch their replays through it.
pub trait CollectiveWatcher: Send + Sync {
    /// Calls `launch` once, with the replay's number among the communicator's calls. `launch`
    /// enqueues the replay on the stream. `calls` are the names of the captured calls, in order.
    ///
    /// # Errors
    /// Errors of `launch`, and [`crate::ErrorKind::Collective`] if the communicator can no longer
    /// be used.
    fn replay(
        &self,
        calls: &CallNames,
        stream: &Stream,
        location: &'static Location<'static>,
        launch: &mut dyn FnMut(&Completion, u64) -> Result<()>,
    ) -> Result<()>;
}

/// Names of captured calls, in order.
pub type CallNames = Arc<[&'static str]>;

/// A communicator that a graph uses.
#[derive(Clone)]
pub(crate) struct CapturedCommunicator {
    pub(crate) comm: Communicator,
    /// The watcher, and the names of its calls.
    pub(crate) watched: Option<(Arc<dyn CollectiveWatcher>, CallNames)>,
}

impl fmt::Debug for CapturedCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturedCommunicator").field("comm", &self.comm).finish_non_exhaustive()
    }
}

/// Launches a replay through the watchers of all its communicators. `launch` enqueues the replay;
/// it receives the replay's number on each watched communicator.
#[track_caller]
pub(crate) fn replay_watched(
    communicators: &[CapturedCommunicator],
    stream: &Stream,
    site: Site,
    numbers: &mut Dependencies,
    launch: &mut dyn FnMut(&Dependencies) -> Result<()>,
) -> Result<()> {
    let Some((first, rest)) = communicators.split_first() else { return launch(numbers) };
    let Some((replays, calls)) = &first.watched else {
        return replay_watched(rest, stream, site, numbers, launch);
    };
    replays.replay(calls, stream, site.location, &mut |completion, number| {
        let replay = PendingCollective::new((completion, number), site.op, site.location);
        numbers.push(Dependency::Collective(replay));
        replay_watched(rest, stream, site, numbers, launch)
    })
}
