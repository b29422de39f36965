//! The contents of a heap as snapshot values.

use super::{Heap, NONE, Record, Status};
use crate::PoolKind;
use crate::snapshot::{BlockInfo, BlockState, SegmentInfo};

impl<M> Heap<M> {
    /// Adds a [`SegmentInfo`] for each segment, each mapped range of an arena, and each alias.
    /// `pool` is the number of the heap's private pool.
    pub(crate) fn report(&self, pool: u64, segments: &mut Vec<SegmentInfo>) {
        for region in self.regions.iter().flatten() {
            let mut block = region.first;
            let mut stretch: Option<SegmentInfo> = None;
            while block != NONE {
                let record = &self.records[block];
                match block_info(record, self.records.status(block)) {
                    Some(info) => {
                        stretch.get_or_insert_with(|| self.segment_info(record, pool)).push(info);
                    }
                    None => segments.extend(stretch.take()),
                }
                block = record.next;
            }
            segments.extend(stretch);
        }
        for block in self.aliases() {
            let record = &self.records[block];
            let mut segment = self.segment_info(record, pool);
            if let Some(info) = block_info(record, self.records.status(block)) {
                segment.push(info);
            }
            segments.push(segment);
        }
    }

    fn segment_info(&self, first: &Record, pool: u64) -> SegmentInfo {
        SegmentInfo {
            address: first.address,
            stream: self.stream,
            segment_type: first.kind,
            segment_pool_id: (0, pool),
            is_expandable: first.arena || first.alias,
            ..SegmentInfo::default()
        }
    }

    /// Returns the size of the largest free block, in bytes.
    pub(crate) fn largest_free(&self) -> usize {
        let largest = [PoolKind::Small, PoolKind::Large].map(|kind| self.largest(kind));
        largest.into_iter().flatten().map(|block| self.records[block].size).max().unwrap_or(0)
    }

    /// Returns the memory of the heap, in bytes: all segments, mapped ranges of arenas and aliases.
    pub(crate) fn reserved(&self) -> usize {
        let mut segments = Vec::new();
        self.report(0, &mut segments);
        segments.iter().map(|segment| segment.total_size).sum()
    }
}

/// Describes a block. `None` for addresses without memory.
fn block_info(record: &Record, status: Status) -> Option<BlockInfo> {
    let state = match status {
        Status::Allocated => BlockState::Allocated,
        Status::PendingFree => BlockState::AwaitingFree,
        Status::Free => BlockState::Free,
        Status::Unmapped | Status::Claimed | Status::Migrated | Status::Aliased => return None,
    };
    let Record { address, size, requested: requested_size, .. } = *record;
    Some(BlockInfo { address, size, requested_size, state, ..BlockInfo::default() })
}
