//! What is held, as plain values.

use super::{Held, NONE, Record, State};
use crate::Backend;
use crate::snapshot::{BlockInfo, BlockState, SegmentInfo};

impl<B: Backend> State<B> {
    /// All segments; of an arena each mapped stretch.
    pub(crate) fn snapshot(&self, segments: &mut Vec<SegmentInfo>) {
        for segment in self.segments.iter().flatten() {
            let mut block = segment.first;
            let mut open = false;
            while block != NONE {
                let record = &self.records[block as usize];
                if let Some(info) = block_info(record) {
                    if !open {
                        segments.push(self.segment_info(record));
                    }
                    if let Some(segment) = segments.last_mut() {
                        add(segment, info);
                    }
                    open = true;
                } else {
                    open = false;
                }
                block = record.next;
            }
        }
    }

    fn segment_info(&self, first: &Record) -> SegmentInfo {
        SegmentInfo {
            address: first.address,
            total_size: 0,
            allocated_size: 0,
            active_size: 0,
            requested_size: 0,
            stream: self.stream_id,
            segment_type: first.kind,
            is_expandable: first.arena,
            blocks: Vec::new(),
        }
    }
}

fn add(segment: &mut SegmentInfo, block: BlockInfo) {
    segment.total_size += block.size;
    if block.state != BlockState::Free {
        segment.active_size += block.size;
        segment.requested_size += block.requested_size;
    }
    if block.state == BlockState::Allocated {
        segment.allocated_size += block.size;
    }
    segment.blocks.push(block);
}

/// `None` for addresses without memory.
fn block_info(record: &Record) -> Option<BlockInfo> {
    let state = match record.held {
        Held::Allocated => BlockState::Allocated,
        Held::AwaitingFree => BlockState::AwaitingFree,
        Held::Free => BlockState::Free,
        Held::Unmapped | Held::Growing => return None,
    };
    let Record { address, size, requested: requested_size, .. } = *record;
    Some(BlockInfo { address, size, requested_size, state })
}
