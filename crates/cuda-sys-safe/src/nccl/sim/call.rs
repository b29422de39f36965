//! Descriptions of a rank's calls, without addresses: the parts on which ranks must agree.

use std::fmt;

use crate::DevicePtr;
use crate::nccl::{Collective, NcclType, ReduceOp};

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollectiveKind {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    Send,
    Recv,
}

/// The description of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallDesc {
    pub(super) kind: CollectiveKind,
    pub(super) count: usize,
    pub(super) dtype: NcclType,
    pub(super) op: Option<ReduceOp>,
    /// The root, or the peer of a send or receive.
    pub(super) rank: Option<usize>,
}

/// The memory that a call uses: address and size in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallBuffers {
    pub(crate) read: Option<(DevicePtr, usize)>,
    pub(crate) write: Option<(DevicePtr, usize)>,
}

impl CallDesc {
    pub(crate) fn of(call: &Collective) -> Self {
        let desc = |kind, count, dtype, op, rank| Self { kind, count, dtype, op, rank };
        match *call {
            Collective::AllReduce { count, dtype, op, .. } => {
                desc(CollectiveKind::AllReduce, count, dtype, Some(op), None)
            }
            Collective::Broadcast { count, dtype, root, .. } => {
                desc(CollectiveKind::Broadcast, count, dtype, None, Some(root))
            }
            Collective::Reduce { count, dtype, op, root, .. } => {
                desc(CollectiveKind::Reduce, count, dtype, Some(op), Some(root))
            }
            Collective::AllGather { count, dtype, .. } => {
                desc(CollectiveKind::AllGather, count, dtype, None, None)
            }
            Collective::ReduceScatter { count, dtype, op, .. } => {
                desc(CollectiveKind::ReduceScatter, count, dtype, Some(op), None)
            }
            Collective::Send { count, dtype, peer, .. } => {
                desc(CollectiveKind::Send, count, dtype, None, Some(peer))
            }
            Collective::Recv { count, dtype, peer, .. } => {
                desc(CollectiveKind::Recv, count, dtype, None, Some(peer))
            }
        }
    }

    pub(crate) fn kind(&self) -> CollectiveKind {
        self.kind
    }

    /// Returns the root, or the peer of a send or receive.
    pub(crate) fn root(&self) -> Option<usize> {
        self.rank
    }

    /// Returns the size of the call's elements: of one rank's part for an all-gather or reduce-scatter.
    pub(crate) fn bytes(&self) -> usize {
        self.count.saturating_mul(self.dtype.size())
    }

    /// Returns `true` for a send or a receive.
    pub(super) fn is_between_two(&self) -> bool {
        matches!(self.kind, CollectiveKind::Send | CollectiveKind::Recv)
    }

    /// Returns `true` for a collective without elements, which has no effect on any rank. An empty
    /// send or receive still waits for its peer.
    pub(crate) fn is_nothing(&self) -> bool {
        self.count == 0 && !self.is_between_two()
    }

    /// Returns the reason if the call is invalid on a communicator of `ranks` ranks.
    pub(crate) fn refusal(&self, ranks: usize) -> Option<String> {
        if let Some(rank) = self.rank.filter(|&rank| rank >= ranks) {
            return Some(format!("{self}: there is no rank {rank} among {ranks} ranks"));
        }
        let bytes = self.count.checked_mul(self.dtype.size()).and_then(|n| n.checked_mul(ranks));
        match bytes.filter(|&bytes| isize::try_from(bytes).is_ok()) {
            Some(_) => None,
            None => Some(format!("{self}: its memory is larger than the address space")),
        }
    }

    /// Returns the memory that a rank reads and writes in a call.
    pub(crate) fn memory(call: &Collective, rank: usize, ranks: usize) -> CallBuffers {
        let desc = Self::of(call);
        let part = desc.count * desc.dtype.size();
        let only = |root: usize, is: (DevicePtr, usize)| (root == rank).then_some(is);
        let (read, write) = match *call {
            Collective::AllReduce { send, recv, .. } => (Some((send, part)), Some((recv, part))),
            Collective::Broadcast { send, recv, root, .. } => {
                (only(root, (send, part)), Some((recv, part)))
            }
            Collective::Reduce { send, recv, root, .. } => {
                (Some((send, part)), only(root, (recv, part)))
            }
            Collective::AllGather { send, recv, .. } => {
                (Some((send, part)), Some((recv, part * ranks)))
            }
            Collective::ReduceScatter { send, recv, .. } => {
                (Some((send, part * ranks)), Some((recv, part)))
            }
            Collective::Send { send, .. } => (Some((send, part)), None),
            Collective::Recv { recv, .. } => (None, Some((recv, part))),
        };
        let some = |memory: Option<(DevicePtr, usize)>| memory.filter(|&(_, bytes)| bytes > 0);
        CallBuffers { read: some(read), write: some(write) }
    }
}

impl fmt::Display for CallDesc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({} of {:?}", self.kind, self.count, self.dtype)?;
        if let Some(op) = self.op {
            write!(f, ", {op:?}")?;
        }
        match (self.kind, self.rank) {
            (CollectiveKind::Send, Some(peer)) => write!(f, ", to rank {peer}")?,
            (CollectiveKind::Recv, Some(peer)) => write!(f, ", from rank {peer}")?,
            (_, Some(root)) => write!(f, ", root {root}")?,
            (_, None) => {}
        }
        f.write_str(")")
    }
}
