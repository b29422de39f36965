//! Giving memory back to the backend.

use super::{Held, Holding, NONE, Request, Segment, State};
use crate::trace::TraceAction;
use crate::{Backend, PoolKind};

/// A segment that is off the books; the caller drops it without the lock.
pub(crate) struct Released<M> {
    pub(crate) kind: PoolKind,
    pub(crate) size: usize,
    pub(crate) oversize: bool,
    /// Whether the backend refused it before.
    pub(crate) refused: bool,
    /// Whose it was.
    pub(crate) stream: u64,
    pub(crate) memory: M,
}

/// A large segment that is wholly free.
pub(crate) struct Idle {
    pub(crate) block: u32,
    /// Searches since it was freed.
    pub(crate) age: u64,
}

impl<B: Backend> State<B> {
    /// All segments that are wholly free.
    pub(crate) fn take_cached(&mut self) -> Vec<Released<B::Memory>> {
        let mut whole = self.whole_free(PoolKind::Large);
        whole.append(&mut self.whole_free(PoolKind::Small));
        whole.into_iter().filter_map(|block| self.release(block)).collect()
    }

    fn whole_free(&self, kind: PoolKind) -> Vec<u32> {
        let whole = self.free_blocks(kind).filter(|(_, free)| !free.is_split() && !free.arena);
        whole.map(|(block, _)| block).collect()
    }

    /// The large segments that garbage collection may take.
    pub(crate) fn idle_segments(&self, now: u64) -> Vec<Idle> {
        let whole = self.whole_free(PoolKind::Large).into_iter();
        whole
            .map(|block| {
                let record = &self.records[block];
                Idle { block, age: now.saturating_sub(record.idle_since) }
            })
            .collect()
    }

    /// With `max_split_size`: one free segment that is large enough, else as many oversize ones,
    /// largest first, as are together. Takes them into `released`; false if they are not enough.
    pub(crate) fn take_oversize(
        &mut self,
        request: Request,
        released: &mut Vec<Released<B::Memory>>,
    ) -> bool {
        let Some(max_split) = self.config.max_split_size else { return false };
        let wanted = request.size.max(max_split);
        let kind = request.kind as usize;
        if let Some(block) = self.pools[kind].best_fit(&self.records, wanted)
            && let Some(memory) = self.release(block)
        {
            released.push(memory);
            return true;
        }
        let mut total = 0;
        while total < wanted
            && let Some(block) = self.pools[kind].largest(&self.records)
            && self.records[block].size >= max_split
            && let Some(memory) = self.release(block)
        {
            total += memory.size;
            released.push(memory);
        }
        total >= wanted
    }

    /// Takes a wholly free segment off the books. `None` if the block is only a part of one.
    pub(crate) fn release(&mut self, block: u32) -> Option<Released<B::Memory>> {
        let record = self.records[block];
        if record.is_split() || !self.records.is(block, Held::Free) || record.arena {
            return None;
        }
        let at = record.segment as usize;
        let segment = self.segments.get_mut(at)?.take()?;
        let Segment { holding: Holding::Whole(memory), oversize, refused, .. } = segment else {
            return None;
        };
        self.unused_segments.push(at as u32);
        self.pools[record.kind as usize].remove(&mut self.records, block);
        self.records.vacate(block);
        self.trace(TraceAction::SegmentFree, record.address, record.size, None);
        let (kind, size, stream) = (record.kind, record.size, self.stream_id);
        Some(Released { kind, size, oversize, refused, stream, memory })
    }

    /// Makes a segment free again that the backend refused to take back.
    ///
    /// # Errors
    /// The segment, if it cannot serve here any more.
    pub(crate) fn restore(
        &mut self,
        released: Released<B::Memory>,
    ) -> Result<(), Released<B::Memory>> {
        // With no memory at all the shard may have been given another stream.
        if released.stream != self.stream_id || self.retired || !self.config.caching {
            return Err(released);
        }
        let Released { kind, size, oversize, memory, .. } = released;
        let address = B::address(&memory);
        let holding = Holding::Whole(memory);
        let segment = Segment { holding, first: NONE, oversize, refused: true };
        let block = self.add_chain(segment, kind, address, size, Held::Free);
        self.join_pool(block);
        self.trace(TraceAction::SegmentAlloc, address, size, None);
        Ok(())
    }
}
