//! Segments and their blocks.

use super::Frame;
use crate::PoolKind;

/// One allocation of the backend, or one mapped stretch of an expandable segment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentInfo {
    /// The device's ordinal.
    pub device: usize,
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
    /// The private pool it belongs to; `(0, 0)` is none.
    pub segment_pool_id: (u64, u64),
    /// Whether its pages come and go.
    pub is_expandable: bool,
    /// Who caused it, the innermost call first; empty unless a trace was on.
    pub frames: Vec<Frame>,
    /// Its blocks, by address; they cover it.
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
    /// Appends the next block and counts it in the sizes.
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
    /// Where it starts.
    pub address: u64,
    /// Its size in bytes.
    pub size: usize,
    /// What was asked for, of the last request it served; in bytes.
    pub requested_size: usize,
    /// Who holds it.
    pub state: BlockState,
    /// Who asked for it, the innermost call first; empty unless a trace was on.
    pub frames: Vec<Frame>,
}

/// Who holds a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// A caller (`active_allocated`).
    Allocated,
    /// Freed, but another stream may still use it (`active_awaiting_free`).
    AwaitingFree,
    /// Nobody (`inactive`).
    #[default]
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
