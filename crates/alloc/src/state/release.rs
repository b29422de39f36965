//! Giving memory back to the backend.

use super::{Request, State};
use crate::snapshot::BlockState;
use crate::{Backend, PoolKind};

impl<B: Backend> State<B> {
    /// All segments that are wholly free. The caller drops them without the lock.
    pub(crate) fn take_cached(&mut self) -> Vec<B::Memory> {
        let mut whole = self.whole_free(PoolKind::Large);
        whole.append(&mut self.whole_free(PoolKind::Small));
        whole.into_iter().filter_map(|block| self.release(block)).collect()
    }

    fn whole_free(&self, kind: PoolKind) -> Vec<u32> {
        let streams = self.streams.iter().flatten();
        let free = streams.flat_map(|stream| stream.pools[kind as usize].iter());
        let whole = free.filter(|free| !self.records[free.block as usize].is_split());
        whole.map(|free| free.block).collect()
    }

    /// Large segments that have been idle longer than the mean, until no more than `threshold`
    /// bytes are reserved.
    pub(crate) fn take_garbage(&mut self, threshold: usize) -> Vec<B::Memory> {
        let mut garbage = Vec::new();
        let Some(target) = self.reserved.checked_sub(threshold).filter(|target| *target > 0) else {
            return garbage;
        };
        let mut idle: Vec<(u32, u64, usize)> = self
            .whole_free(PoolKind::Large)
            .into_iter()
            .map(|block| {
                let record = &self.records[block as usize];
                (block, self.searches - record.idle_since, record.size)
            })
            .collect();
        let mut reclaimed = 0;
        while reclaimed < target && !idle.is_empty() {
            let total: u64 = idle.iter().map(|(_, age, _)| age).sum();
            let mean = total as f64 / idle.len() as f64;
            // The oldest is never under the mean, so this ends.
            idle.retain(|&(block, age, size)| {
                let old = age as f64 >= mean;
                if old {
                    reclaimed += size;
                    garbage.extend(self.release(block));
                }
                !old
            });
        }
        garbage
    }

    /// With `max_split_size`: one free segment of the stream that is large enough, else as many
    /// oversize ones, largest first, as are together. Takes them into `released`; false if they are not
    /// enough.
    pub(crate) fn take_oversize(
        &mut self,
        request: &Request,
        released: &mut Vec<B::Memory>,
    ) -> bool {
        let Some(max_split) = self.config.max_split_size else { return false };
        let Some(slot) = self.stream_slot(request.stream) else { return false };
        let wanted = request.size.max(max_split);
        let kind = request.kind as usize;
        let pool = |state: &Self| state.streams[slot].as_ref().map(|s| s.pools[kind].largest());
        let fit = self.streams[slot].as_ref().and_then(|s| s.pools[kind].best_fit(wanted));
        if let Some((_, free)) = fit
            && let Some(memory) = self.release(free.block)
        {
            released.push(memory);
            return true;
        }
        let mut total = 0;
        while total < wanted
            && let Some(Some(free)) = pool(self)
            && free.size >= max_split
            && let Some(memory) = self.release(free.block)
        {
            total += free.size;
            released.push(memory);
        }
        total >= wanted
    }

    /// Takes a wholly free segment off the books. `None` if the block is only a part of one.
    fn release(&mut self, block: u32) -> Option<B::Memory> {
        let record = &self.records[block as usize];
        if record.is_split() || record.state != BlockState::Free {
            return None;
        }
        let (kind, size, address) = (record.kind, record.size, record.address);
        let (slot, at) = (record.stream as usize, record.segment as usize);
        let segment = self.segments.get_mut(at)?.take()?;
        self.unused_segments.push(at as u32);
        self.unused.push(block);
        if let Some(stream) = &mut self.streams[slot] {
            stream.pools[kind as usize].remove(size, address);
            stream.segments -= 1;
            if stream.segments == 0 {
                self.streams[slot] = None;
            }
        }
        self.reserved -= size;
        self.counters.segment.decrease(kind, 1);
        self.counters.reserved_bytes.decrease(kind, size as i64);
        self.counters.oversize_segments.decrease(i64::from(segment.oversize));
        self.counters.num_device_free += 1;
        Some(segment.memory)
    }
}
