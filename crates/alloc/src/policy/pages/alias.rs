//! Serves a request for which enough memory is free, but not in one piece: the pieces are mapped
//! once more, one behind the other, in a window.
//!
//! Pieces are taken by address, because a repeating program then finds its windows again. An alias
//! of more than 16 pages takes the shortest pieces instead, so that long free pieces stay whole.
//! When the block is freed, its pieces are free again and the window stays.

use super::{MovablePages, Need};
use crate::core::DeviceWait;
use crate::growth::Miss;
use crate::heap::{ArenaKind, Extent, Pages};
use crate::shard::Granted;
use crate::{AllocError, Backend, PoolKind};

/// Aliases of more pages are made of the shortest free pieces, so that what is free in one piece
/// stays so. Those of so few take the first, as which a program that repeats itself finds again.
const FEW_PAGES: usize = 16;

impl<B: Backend> MovablePages<B> {
    /// Serves a request by a window whose memory is free.
    pub(super) fn reuse_window(&self, need: &Need<'_, B>) -> Option<Granted> {
        let miss = need.miss;
        let kind = miss.request.kind;
        let mut state = miss.shard.lock();
        if state.heap.windows.is_empty() || kind == PoolKind::Small {
            return None;
        }
        let free = state.heap.free_extents(need.arenas, kind);
        let (address, pieces) =
            self.windows.find(&self.arenas, &state.heap.windows, miss.request.size, &free)?;
        let detached = state.heap.detach_pieces(need.arenas, kind, &pieces);
        drop(state);
        Some(hand_out(miss, address, &pieces, detached))
    }

    /// Serves a request by a new window. `None` if too little is free, or nothing can be mapped for
    /// want of memory.
    pub(super) fn alias(&mut self, need: &Need<'_, B>) -> Result<Option<Granted>, AllocError> {
        let miss = need.miss;
        self.retire_windows(miss);
        let (kind, size) = (miss.request.kind, miss.request.size);
        let count = size.div_ceil(need.page_size());
        let (pieces, detached) = {
            let mut state = miss.shard.lock();
            let heap = &mut state.heap;
            let pieces = heap.plan_pieces(need.arenas, kind, size, count > FEW_PAGES);
            let Some(pieces) = pieces else { return Ok(None) };
            let detached = heap.detach_pieces(need.arenas, kind, &pieces);
            (pieces, detached)
        };
        let opened = self.open_window(need, count, &pieces);
        if let Ok(Some(window)) = opened {
            self.count_remaps(miss, count);
            return Ok(Some(hand_out(miss, window.start, &pieces, detached)));
        }
        miss.shard.lock().heap.return_pieces(&detached);
        opened.map(|_| None)
    }

    /// Maps these pieces behind each other. `None` if that is impossible for want of memory.
    fn open_window(
        &mut self,
        need: &Need<'_, B>,
        count: usize,
        pieces: &[Extent],
    ) -> Result<Option<Pages>, AllocError> {
        let Need { miss, memory, arenas: ArenaKind { page_size, .. }, .. } = *need;
        let mut windows = miss.shard.lock().heap.windows.clone();
        // Under other options there may have been windows of other pages.
        windows.retain(|&window| self.arenas.page_size(window) == page_size);
        let mut room = self.clear_room(need, &windows, count);
        if room.is_none()
            && let Some(arena) = self.arenas.reserve(miss, memory, count * page_size, page_size)?
        {
            miss.shard.lock().heap.windows.push(arena.number);
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

    /// Addresses for a new window at which nothing is mapped any more.
    fn clear_room(&mut self, need: &Need<'_, B>, windows: &[u32], count: usize) -> Option<Pages> {
        let Need { miss, memory, .. } = *need;
        let mut unmaps = !miss.core.is_capturing();
        loop {
            let room = self.windows.room(&self.arenas, windows, count, unmaps)?;
            // The stream is done with what was retired. Others may have used it that nobody told
            // of: once for all that was retired until now, the device is waited for.
            if self.windows.is_retired_since_wait(&self.arenas, room) {
                match miss.core.wait_for_device() {
                    DeviceWait::Done => self.windows.waited(),
                    DeviceWait::Unsupported => {}
                    DeviceWait::Failed => {
                        unmaps = false;
                        continue;
                    }
                }
            }
            // What the backend refuses to unmap is not vacant any more.
            let cleared = self.windows.clear(&mut self.arenas, memory, room);
            self.arenas.count_refused(miss.core);
            if cleared {
                return Some(room);
            }
        }
    }

    /// Gives up windows where there are too many, once the stream is done with them.
    fn retire_windows(&mut self, miss: &Miss<'_, B>) {
        let state = miss.shard.lock();
        let (windows, stream) = (state.heap.windows.clone(), state.stream.clone());
        if miss.core.is_capturing() || !self.windows.are_many(self.arenas.pages, &windows) {
            return;
        }
        let in_use = state.heap.windows_in_use();
        drop(state);
        // A window that is not in use stays so: only requests that get here take one.
        if let Ok(event) = miss.core.backend.record(&stream) {
            self.windows.retire(&mut self.arenas, &windows, &in_use, event);
        }
    }
}

/// Hands out the alias at a window's address that is made of these pieces.
fn hand_out<B: Backend>(
    miss: &Miss<'_, B>,
    address: u64,
    pieces: &[Extent],
    detached: Vec<u32>,
) -> Granted {
    let mut to = address;
    for piece in pieces {
        miss.core.hooks.moved(piece.start, to, piece.size);
        to += piece.size as u64;
    }
    miss.shard.lock().hand_out_alias(address, detached, miss.request)
}
