//! What is held, as plain values.

use super::{NONE, State};
use crate::Backend;
use crate::snapshot::{BlockInfo, BlockState, SegmentInfo};

impl<B: Backend> State<B> {
    /// All segments, by address.
    pub(crate) fn snapshot(&self) -> Vec<SegmentInfo> {
        let mut segments: Vec<SegmentInfo> = self
            .segments
            .iter()
            .flatten()
            .map(|segment| self.segment_info(segment.first))
            .collect();
        segments.sort_by_key(|segment| segment.address);
        segments
    }

    fn segment_info(&self, first: u32) -> SegmentInfo {
        let record = &self.records[first as usize];
        let mut info = SegmentInfo {
            address: record.address,
            total_size: 0,
            allocated_size: 0,
            active_size: 0,
            requested_size: 0,
            stream: self.streams[record.stream as usize].as_ref().map_or(0, |stream| stream.id),
            segment_type: record.kind,
            ..SegmentInfo::default()
        };
        let mut block = first;
        while block != NONE {
            let record = &self.records[block as usize];
            info.total_size += record.size;
            if record.state != BlockState::Free {
                info.active_size += record.size;
                info.requested_size += record.requested;
            }
            if record.state == BlockState::Allocated {
                info.allocated_size += record.size;
            }
            info.blocks.push(BlockInfo {
                address: record.address,
                size: record.size,
                requested_size: record.requested,
                state: record.state,
                ..BlockInfo::default()
            });
            block = record.next;
        }
        info
    }
}
