//! Segments and their blocks.

use super::Frame;
use crate::PoolKind;

/// One allocation of the backend, one mapped range of an arena, or one alias.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentInfo {
    /// Index of the device.
    pub device: usize,
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub total_size: usize,
    /// Bytes in allocated blocks.
    pub allocated_size: usize,
    /// Bytes in blocks that are allocated or still used by other streams.
    pub active_size: usize,
    /// Requested bytes of the active blocks.
    pub requested_size: usize,
    /// The id of the segment's stream.
    pub stream: u64,
    /// The pool of the segment.
    pub segment_type: PoolKind,
    /// The private pool of the segment. `(0, 0)`: none.
    pub segment_pool_id: (u64, u64),
    /// Whether the segment is an address range in which pages are mapped and unmapped.
    pub is_expandable: bool,
    /// Stack of the request that caused the segment, the innermost call first. Empty unless a trace
    /// was on.
    pub frames: Vec<Frame>,
    /// Blocks in order of address. They cover the segment.
    pub blocks: Vec<BlockInfo>,
}

impl Default for SegmentInfo {
    fn default() -> Self {
        Self {
            device: 0,
            address: 0,
            total_size: 0,
            allocated_size: 0,
            active_size: 0,
            requested_size: 0,
            stream: 0,
            segment_type: PoolKind::Small,
            segment_pool_id: (0, 0),
            is_expandable: false,
            frames: Vec::new(),
            blocks: Vec::new(),
        }
    }
}

impl SegmentInfo {
    /// Appends the next block and adds it to the sizes.
    pub fn push(&mut self, block: BlockInfo) {
        self.total_size += block.size;
        if block.state != BlockState::Free {
            self.active_size += block.size;
            self.requested_size += block.requested_size;
        }
        if block.state == BlockState::Allocated {
            self.allocated_size += block.size;
        }
        self.blocks.push(block);
    }
}

/// One block of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockInfo {
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub size: usize,
    /// Requested size of the last request that the block served, in bytes.
    pub requested_size: usize,
    /// State of the block.
    pub state: BlockState,
    /// Stack of the request, the innermost call first. Empty unless a trace was on.
    pub frames: Vec<Frame>,
}

/// State of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// Allocated (`active_allocated`).
    Allocated,
    /// Freed, but other streams may still use it (`active_awaiting_free`).
    AwaitingFree,
    /// Free (`inactive`).
    #[default]
    Free,
}

impl BlockState {
    /// Returns PyTorch's name of the state.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocated => "active_allocated",
            Self::AwaitingFree => "active_awaiting_free",
            Self::Free => "inactive",
        }
    }
}
