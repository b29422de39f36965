//! Serves a request if enough memory is free, but scattered: maps the free pieces a second time,
//! next to each other, in a window.
//!
//! Pieces are taken in order of address, so that a repeating program finds its windows again. An
//! alias of more than 16 pages takes the shortest pieces instead, which leaves long free pieces
//! whole. When the block is freed, its pieces are free again, and the window stays.

use super::{MovablePages, PageRequest};
use crate::core::DeviceWait;
use crate::growth::Miss;
use crate::heap::{ArenaKind, Extent, Pages};
use crate::shard::AllocatedBlock;
use crate::{AllocError, Backend, PoolKind};

/// Maximum size of an alias that takes pieces in order of address, in pages. Larger aliases take
/// the shortest pieces first.
const FEW_PAGES: usize = 16;

impl<B: Backend> MovablePages<B> {
    /// Serves a request from the start of a window, if the memory of enough pages there is free.
    pub(super) fn reuse_window(&self, need: &PageRequest<'_, B>) -> Option<AllocatedBlock> {
        let miss = need.miss;
        let kind = miss.request.kind;
        let mut state = miss.shard.lock();
        if state.heap.window_arenas.is_empty() || kind == PoolKind::Small {
            return None;
        }
        let free = state.heap.free_extents(need.arenas, kind);
        let (address, pieces) =
            self.windows.find(&self.arenas, &state.heap.window_arenas, miss.request.size, &free)?;
        let claimed = state.heap.claim_pieces(need.arenas, kind, &pieces);
        drop(state);
        Some(allocate_alias(miss, address, &pieces, claimed))
    }

    /// Serves a request from a new window. `None` if too little memory is free, or if mapping fails
    /// because memory is exhausted.
    pub(super) fn alias(
        &mut self,
        need: &PageRequest<'_, B>,
    ) -> Result<Option<AllocatedBlock>, AllocError> {
        let miss = need.miss;
        self.retire_windows(miss);
        let (kind, size) = (miss.request.kind, miss.request.size);
        let count = size.div_ceil(need.page_size());
        let (pieces, claimed) = {
            let mut state = miss.shard.lock();
            let heap = &mut state.heap;
            let pieces = heap.plan_pieces(need.arenas, kind, size, count > FEW_PAGES);
            let Some(pieces) = pieces else { return Ok(None) };
            let claimed = heap.claim_pieces(need.arenas, kind, &pieces);
            (pieces, claimed)
        };
        let opened = self.open_window(need, count, &pieces);
        if let Ok(Some(window)) = opened {
            self.count_remaps(miss, count);
            return Ok(Some(allocate_alias(miss, window.start, &pieces, claimed)));
        }
        miss.shard.lock().heap.return_pieces(&claimed);
        opened.map(|_| None)
    }

    /// Maps these pieces next to each other. `None` if memory is exhausted.
    fn open_window(
        &mut self,
        need: &PageRequest<'_, B>,
        count: usize,
        pieces: &[Extent],
    ) -> Result<Option<Pages>, AllocError> {
        let PageRequest { miss, memory, arenas: ArenaKind { page_size, .. }, .. } = *need;
        let mut window_arenas = miss.shard.lock().heap.window_arenas.clone();
        // Earlier options may have left arenas with other page sizes.
        window_arenas.retain(|&arena| self.arenas.page_size(arena) == page_size);
        let mut room = self.clear_room(need, &window_arenas, count);
        if room.is_none()
            && let Some(arena) = self.arenas.reserve(miss, memory, count * page_size, page_size)?
        {
            miss.shard.lock().heap.window_arenas.push(arena.number);
            room = self.windows.room(&self.arenas, &[arena.number], count, false);
        }
        let Some(window) = room else { return Ok(None) };
        let mapped = self.windows.open(&mut self.arenas, memory, window, pieces);
        self.arenas.count_refused(miss.core);
        match mapped {
            Ok(()) => Ok(Some(window)),
            Err(error) => miss.out_of_memory(page_size, error).map(|()| None),
        }
    }

    /// Returns addresses for a new window, after removing retired mappings there.
    fn clear_room(
        &mut self,
        need: &PageRequest<'_, B>,
        window_arenas: &[u32],
        count: usize,
    ) -> Option<Pages> {
        let PageRequest { miss, memory, .. } = *need;
        let mut unmaps = !miss.core.is_capturing();
        loop {
            let room = self.windows.room(&self.arenas, window_arenas, count, unmaps)?;
            // The stream has completed its work with the retired mappings. Other streams may still
            // use them without a record, so wait for the device. One wait covers all windows
            // retired so far.
            if self.windows.is_retired_since_wait(&self.arenas, room) {
                match miss.core.wait_for_device() {
                    DeviceWait::Done => self.windows.record_device_wait(),
                    DeviceWait::Unsupported => {}
                    DeviceWait::Failed => {
                        unmaps = false;
                        continue;
                    }
                }
            }
            // Slots that the backend refuses to unmap are no longer vacant, so the next search
            // skips them.
            let cleared = self.windows.clear(&mut self.arenas, memory, room);
            self.arenas.count_refused(miss.core);
            if cleared {
                return Some(room);
            }
        }
    }

    /// Retires unused windows if there are too many. Their addresses are reused when the stream has
    /// completed its work so far.
    fn retire_windows(&mut self, miss: &Miss<'_, B>) {
        let state = miss.shard.lock();
        let (window_arenas, stream) = (state.heap.window_arenas.clone(), state.stream.clone());
        if miss.core.is_capturing() || !self.windows.exceed_limit(self.arenas.pages, &window_arenas)
        {
            return;
        }
        let in_use = state.heap.windows_in_use();
        drop(state);
        // An unused window stays unused after the lock is released, because only misses use
        // windows, and one miss runs at a time.
        if let Ok(event) = miss.core.backend.record(&stream) {
            self.windows.retire(&mut self.arenas, &window_arenas, &in_use, event);
        }
    }
}

/// Allocates an alias of these pieces at a window's address, and reports the moves.
fn allocate_alias<B: Backend>(
    miss: &Miss<'_, B>,
    address: u64,
    pieces: &[Extent],
    claimed: Vec<u32>,
) -> AllocatedBlock {
    let mut to = address;
    for piece in pieces {
        miss.core.hooks.notify_moved(piece.start, to, piece.size);
        to += piece.size as u64;
    }
    miss.shard.lock().allocate_alias(address, claimed, miss.request)
}
