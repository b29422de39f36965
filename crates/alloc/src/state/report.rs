//! What is held, as plain values.

use super::{Held, NONE, Record, State};
use crate::Backend;
use crate::snapshot::{BlockInfo, BlockState, SegmentInfo};

impl<B: Backend> State<B> {
    /// Adds all segments of a pool; of an arena each mapped stretch, and
    /// each stitched block.
    pub(crate) fn report(&self, pool: u64, segments: &mut Vec<SegmentInfo>) {
        for segment in self.segments.iter().flatten() {
            let mut block = segment.first;
            let mut stretch: Option<SegmentInfo> = None;
            while block != NONE {
                let record = &self.records[block];
                match block_info(record, self.records.held(block)) {
                    Some(info) => {
                        stretch.get_or_insert_with(|| self.segment_info(record, pool)).push(info);
                    }
                    None => segments.extend(stretch.take()),
                }
                block = record.next;
            }
            segments.extend(stretch);
        }
        for &block in self.stitched.keys() {
            let record = &self.records[block];
            let mut segment = self.segment_info(record, pool);
            if let Some(info) = block_info(record, self.records.held(block)) {
                segment.push(info);
            }
            segments.push(segment);
        }
    }

    fn segment_info(&self, first: &Record, pool: u64) -> SegmentInfo {
        SegmentInfo {
            address: first.address,
            stream: self.stream_id,
            segment_type: first.kind,
            segment_pool_id: (0, pool),
            is_expandable: first.arena || first.stitched,
            ..SegmentInfo::default()
        }
    }

    /// The largest free block, in bytes.
    pub(crate) fn largest_free(&self) -> usize {
        let largest = self.pools.iter().filter_map(|pool| pool.largest(&self.records));
        largest.map(|block| self.records[block].size).max().unwrap_or(0)
    }

    /// Bytes of all segments; of arenas those that are mapped.
    pub(crate) fn reserved(&self) -> usize {
        let mut segments = Vec::new();
        self.report(0, &mut segments);
        segments.iter().map(|segment| segment.total_size).sum()
    }
}

/// `None` for addresses without memory.
fn block_info(record: &Record, held: Held) -> Option<BlockInfo> {
    let state = match held {
        Held::Allocated => BlockState::Allocated,
        Held::AwaitingFree => BlockState::AwaitingFree,
        Held::Free => BlockState::Free,
        Held::Unmapped | Held::Growing | Held::Lent | Held::Away => return None,
    };
    let Record { address, size, requested: requested_size, .. } = *record;
    Some(BlockInfo { address, size, requested_size, state, ..BlockInfo::default() })
}
