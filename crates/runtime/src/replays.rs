//! Replays of captured collectives, which are watched as calls are.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use warpline_cuda_sys_safe::owned::Communicator;
use warpline_stream::Stream;

use crate::completion::{Completion, Pending};
use crate::storage::{Source, Sources};
use crate::{Result, Site};

/// Who watches the calls on a communicator, as a process group does: graphs in which some were
/// captured keep it, and launch their replays through it.
pub trait Replays: Send + Sync {
    /// Calls `launch` once, with the replay's number among the communicator's calls. It enqueues the
    /// replay of `calls`, which are the captured ones' names in their order, on the stream.
    ///
    /// # Errors
    /// Those of `launch`; [`crate::ErrorKind::Collective`] where the communicator can be used no more.
    fn replay(
        &self,
        calls: &Calls,
        stream: &Stream,
        location: &'static Location<'static>,
        launch: &mut dyn FnMut(&Completion, u64) -> Result<()>,
    ) -> Result<()>;
}

/// Names of captured calls.
pub type Calls = Arc<[&'static str]>;

/// A communicator that takes part in a graph.
#[derive(Clone)]
pub(crate) struct Captured {
    pub(crate) comm: Communicator,
    /// Who watches it, and the names of its calls.
    pub(crate) watched: Option<(Arc<dyn Replays>, Calls)>,
}

impl fmt::Debug for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captured").field("comm", &self.comm).finish_non_exhaustive()
    }
}

/// Calls `launch`, which enqueues a replay in which the communicators take part, while all who watch
/// them know of it. It is given what the replay is on each of these.
#[track_caller]
pub(crate) fn watched(
    communicators: &[Captured],
    stream: &Stream,
    site: Site,
    numbers: &mut Sources,
    launch: &mut dyn FnMut(&Sources) -> Result<()>,
) -> Result<()> {
    let Some((first, rest)) = communicators.split_first() else { return launch(numbers) };
    let Some((replays, calls)) = &first.watched else {
        return watched(rest, stream, site, numbers, launch);
    };
    replays.replay(calls, stream, site.location, &mut |completion, number| {
        let replay = Pending::new((completion, number), site.op, site.location);
        numbers.push(Source::Collective(replay));
        watched(rest, stream, site, numbers, launch)
    })
}
