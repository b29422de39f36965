//! The default policy where enough is free, but not in one piece: it is mapped once more, piece
//! after piece, behind addresses of a window.

use crate::allocator::Shared;
use crate::core::Slow;
use crate::remap::Need;
use crate::shard::lock;
use crate::state::{Extent, Granted, Pages};
use crate::{AllocError, Backend, PoolKind};

impl<B: Backend> Shared<B> {
    /// Serves a request by a window whose memory is free.
    pub(crate) fn reuse_window(&self, slow: &Slow<B>, need: &Need<'_, B>) -> Option<Granted> {
        let (kind, page_size) = (need.request.kind, need.page_size);
        let mut state = need.shard().lock();
        if state.windows.is_empty() || kind == PoolKind::Small {
            return None;
        }
        let free = state.free_extents(kind, page_size);
        let (address, pieces) =
            slow.arenas.find_window(&state.windows, need.request.size, &free, page_size)?;
        let taken = state.take_pieces(kind, &pieces);
        drop(state);
        Some(self.hand_out_window(need, address, &pieces, taken))
    }

    /// Makes a window of free memory and serves a request by it. `None` if too little is free, or
    /// nothing can be mapped for want of memory.
    pub(crate) fn stitch(
        &self,
        slow: &mut Slow<B>,
        need: &Need<'_, B>,
    ) -> Result<Option<Granted>, AllocError> {
        let (kind, page_size) = (need.request.kind, need.page_size);
        self.retire_windows(slow, need);
        let (pieces, taken, mut windows) = {
            let mut state = need.shard().lock();
            let pieces = state.plan_pieces(kind, need.request.size, page_size);
            let Some(pieces) = pieces else { return Ok(None) };
            let taken = state.take_pieces(kind, &pieces);
            (pieces, taken, state.windows.clone())
        };
        let count = need.request.size.div_ceil(page_size);
        let mut window = self.window_room(slow, need, &windows, count);
        let mut opened = Ok(());
        if window.is_none() {
            let bytes = count * page_size;
            let reserved = self.reserve(slow, need.memory, need.request, bytes, page_size);
            opened = reserved.map(|arena| {
                windows = arena.iter().map(|arena| arena.number).collect();
                need.shard().lock().windows.extend(&windows);
                window = slow.arenas.window_room(&windows, count, false);
            });
        }
        if let (Some(window), Ok(())) = (window, &opened) {
            let mapped = slow.arenas.open_window(need.memory, window, &pieces);
            self.count_refused(slow);
            match mapped {
                Ok(()) => {
                    lock(&self.core.global).num_remaps += count as i64;
                    slow.slack.remapped(count);
                    return Ok(Some(self.hand_out_window(need, window.start, &pieces, taken)));
                }
                Err(error) if self.core.backend.is_out_of_memory(&error) => {}
                Err(error) => opened = Err(AllocError::from_backend(page_size, error)),
            }
        }
        need.shard().lock().return_pieces(&taken);
        opened.map(|()| None)
    }

    /// Addresses for a new window at which nothing is mapped any more.
    fn window_room(
        &self,
        slow: &mut Slow<B>,
        need: &Need<'_, B>,
        windows: &[u32],
        count: usize,
    ) -> Option<Pages> {
        let mut unmaps = !self.core.is_capturing();
        loop {
            let room = slow.arenas.window_room(windows, count, unmaps)?;
            // The stream is done with what was retired. Others may have used it that nobody told
            // of: once for all that was retired until now, the device is waited for.
            if slow.arenas.is_retired_since(room) {
                match self.core.wait_for_device() {
                    Some(true) => slow.arenas.waited(),
                    Some(false) => {}
                    None => {
                        unmaps = false;
                        continue;
                    }
                }
            }
            // What the backend refuses to unmap is not vacant any more.
            let cleared = slow.arenas.clear(need.memory, room);
            self.count_refused(slow);
            if cleared {
                return Some(room);
            }
        }
    }

    fn hand_out_window(
        &self,
        need: &Need<'_, B>,
        address: u64,
        pieces: &[Extent],
        taken: Vec<u32>,
    ) -> Granted {
        let mut to = address;
        for piece in pieces {
            self.core.hooks.moved(piece.start, to, piece.size);
            to += piece.size as u64;
        }
        need.shard().lock().hand_out_stitched(address, taken, need.request)
    }

    /// Gives up windows where there are too many, once the stream is done with them.
    fn retire_windows(&self, slow: &mut Slow<B>, need: &Need<'_, B>) {
        let state = need.shard().lock();
        let (windows, stream) = (state.windows.clone(), state.stream.clone());
        if self.core.is_capturing() || !slow.arenas.are_many(&windows) {
            return;
        }
        let in_use = state.windows_in_use(need.page_size);
        drop(state);
        // A window that is not in use stays so: only requests that get here take one.
        if let Ok(event) = self.core.backend.record(&stream) {
            slow.arenas.retire(&windows, &in_use, event);
        }
    }
}
