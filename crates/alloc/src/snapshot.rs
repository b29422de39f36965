//! What the allocator holds, as plain values.

use crate::PoolKind;

/// One allocation of the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Where it starts.
    pub address: u64,
    /// Its size in bytes.
    pub total_size: usize,
    /// Bytes in callers' hands.
    pub allocated_size: usize,
    /// Bytes in callers' hands or awaiting other streams.
    pub active_size: usize,
    /// Bytes that callers asked for, of the active ones.
    pub requested_size: usize,
    /// The id of the stream it serves.
    pub stream: u64,
    /// The pool it belongs to.
    pub segment_type: PoolKind,
    /// Whether it is a mapped stretch of a range whose pages come and go.
    pub is_expandable: bool,
    /// Its blocks, by address; they cover it.
    pub blocks: Vec<BlockInfo>,
}

/// One block of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Where it starts.
    pub address: u64,
    /// Its size in bytes.
    pub size: usize,
    /// What was asked for, of the last request it served; in bytes.
    pub requested_size: usize,
    /// Who holds it.
    pub state: BlockState,
}

/// Who holds a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// A caller (`active_allocated`).
    Allocated,
    /// Freed, but another stream may still use it (`active_awaiting_free`).
    AwaitingFree,
    /// Nobody (`inactive`).
    Free,
}

impl BlockState {
    /// PyTorch's name for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocated => "active_allocated",
            Self::AwaitingFree => "active_awaiting_free",
            Self::Free => "inactive",
        }
    }
}
