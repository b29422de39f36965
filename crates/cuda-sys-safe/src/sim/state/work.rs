//! Work that streams run and graphs repeat.

use std::panic::Location;
use std::sync::Arc;

use super::graph::ConditionalWork;
use super::launch::OwnedLaunch;
use crate::nccl::Collective;
use crate::nccl::sim::Participant;
use crate::sim::CallKind;
use crate::*;

/// A boxed host function.
pub(crate) type HostFn = Box<dyn FnOnce() + Send>;

/// The key of a stream: its raw handle, or a small number for a default stream.
pub(crate) type StreamKey = u64;

/// The end of a stream's first `position` operations. Events and waits refer to points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) stream: StreamKey,
    pub(crate) position: u64,
}

/// The name of an operation and the line that asked for it, for error reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    pub(crate) call: CallKind,
    pub(crate) op: &'static str,
    pub(crate) location: Option<&'static Location<'static>>,
}

impl Label {
    pub(crate) fn of(call: CallKind) -> Self {
        Self { call, op: call.name(), location: None }
    }
}

/// Work that a graph can repeat.
#[derive(Clone)]
pub(crate) enum DeviceWork {
    Copy(CopyWork),
    Memset(MemsetWork),
    Kernel(Arc<OwnedLaunch>),
    Group(Arc<CallGroup>),
    /// A conditional node. Only in graphs.
    Conditional(Arc<ConditionalWork>),
}

impl DeviceWork {
    pub(crate) fn is_of(&self, participant: &Arc<Participant>) -> bool {
        matches!(self, Self::Group(group) if Arc::ptr_eq(&group.participant, participant))
    }

    /// Returns the handle of the work's communicator.
    pub(crate) fn communicator(&self) -> Option<u64> {
        match self {
            Self::Group(group) => Some(group.comm),
            _ => None,
        }
    }
}

#[derive(Clone)]
pub(crate) struct CopyWork {
    pub(crate) dst: QueuedCopyEnd,
    pub(crate) src: QueuedCopyEnd,
    pub(crate) bytes: usize,
}

/// One end of an enqueued copy.
#[derive(Clone)]
pub(crate) enum QueuedCopyEnd {
    /// Host memory, accessed when the copy runs.
    Host(usize),
    /// Bytes of pageable host memory, read during the call.
    Staged(Arc<[u8]>),
    Device(usize, u64),
}

impl CopyWork {
    pub(crate) fn on_one_device(&self) -> bool {
        matches!((&self.dst, &self.src), (QueuedCopyEnd::Device(a, _), QueuedCopyEnd::Device(b, _)) if a == b)
    }
}

#[derive(Clone)]
pub(crate) struct MemsetWork {
    pub(crate) dst: u64,
    pub(crate) value: MemsetValue,
    pub(crate) count: usize,
}

/// Calls that begin together.
pub(crate) struct CallGroup {
    pub(crate) comm: u64,
    pub(crate) participant: Arc<Participant>,
    pub(crate) calls: Vec<Collective>,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
}

/// A driver's record of one of its ranks in a communicator.
pub(crate) struct CommRecord {
    pub(crate) participant: Arc<Participant>,
    /// The end of the latest operation of the communicator. The next operation runs after it.
    pub(crate) latest: Option<Point>,
}
