//! Windows: addresses behind which pages are mapped that are at home elsewhere, in any order, so
//! that a block can be made of memory that lies apart. A window stays when its block is freed, for
//! the next request that it fits.

use std::ops::Range;
use std::time::Instant;

use crate::pages::{Arenas, Slot};
use crate::state::{Extent, Pages};
use crate::{Backend, VirtualMemory};

/// So many times as many mappings as pages there may be before windows that are not in use are given up.
const MAX_ALIASES: usize = 8;

/// How much of each page is free from its beginning on, in bytes, by its number.
struct FreePages(Vec<usize>);

impl<B: Backend> Arenas<B> {
    /// The oldest window for `bytes` bytes of which all memory is in these extents, which are
    /// sorted by address. Answers its address, and where the memory is.
    pub(crate) fn find_window(
        &self,
        windows: &[u32],
        bytes: usize,
        extents: &[Extent],
        page_size: usize,
    ) -> Option<(u64, Vec<Extent>)> {
        if windows.is_empty() {
            return None;
        }
        let free = self.free_pages(extents);
        let count = bytes.div_ceil(page_size);
        let rest = bytes - (count - 1) * page_size;
        let mut seen = vec![0; free.0.len()];
        let (window, first) = windows.iter().find_map(|&window| {
            let slots = &self.arenas[window as usize].as_ref()?.slots;
            seen.fill(0);
            // Pages from here on are free, and no two of them are the same.
            let mut first = 0;
            let found = slots.iter().enumerate().position(|(at, slot)| {
                let Slot::Alias { number, .. } = slot else {
                    first = at + 1;
                    return false;
                };
                let (free, seen) = (free.0[*number as usize], &mut seen[*number as usize]);
                first = first.max(*seen);
                if at + 1 >= first + count && free >= rest {
                    return true;
                }
                *seen = at + 1;
                if free < page_size {
                    first = at + 1;
                }
                false
            });
            Some((window, found? + 1 - count))
        })?;
        let arena = self.arenas[window as usize].as_ref()?;
        let mut pieces: Vec<Extent> = Vec::new();
        for (at, slot) in arena.slots[first..first + count].iter().enumerate() {
            let Slot::Alias { number, .. } = slot else { return None };
            let (home, there) = self.homes[*number as usize];
            let size = if at + 1 == count { rest } else { page_size };
            let start = self.arenas[home as usize].as_ref()?.start(there);
            match pieces.last_mut() {
                Some(last) if last.start + last.size as u64 == start => last.size += size,
                _ => pieces.push(Extent { arena: home, start, size }),
            }
        }
        Some((arena.start(first), pieces))
    }

    /// How much of each page these extents leave free from its beginning on.
    fn free_pages(&self, extents: &[Extent]) -> FreePages {
        let mut free = FreePages(vec![0; self.homes.len()]);
        for extent in extents {
            let Some(arena) = &self.arenas[extent.arena as usize] else { continue };
            let end = extent.start + extent.size as u64 - arena.base;
            let first = ((extent.start - arena.base) as usize).div_ceil(arena.page_size);
            let slots = arena.slots.iter().enumerate().skip(first);
            for (at, slot) in slots.take_while(|(at, _)| ((at * arena.page_size) as u64) < end) {
                if let Slot::Mapped { number, .. } = slot {
                    let bytes = end as usize - at * arena.page_size;
                    free.0[*number as usize] = bytes.min(arena.page_size);
                }
            }
        }
        free
    }

    /// Addresses for `count` pages in one of these arenas, at which nothing is in use.
    pub(crate) fn window_room(&self, windows: &[u32], count: usize) -> Option<Pages> {
        windows.iter().find_map(|&window| {
            let arena = self.arenas[window as usize].as_ref()?;
            let mut first = 0;
            let vacant = arena.slots.iter().enumerate().any(|(at, slot)| {
                let vacant = match slot {
                    Slot::Unmapped => true,
                    Slot::Retired { retirement, .. } => *retirement < self.settled,
                    Slot::Mapped { .. } | Slot::Alias { .. } => false,
                };
                if !vacant {
                    first = at + 1;
                }
                at + 1 >= first + count
            });
            (vacant || first + count <= arena.room).then(|| Pages {
                arena: window,
                start: arena.start(first),
                size: count * arena.page_size,
            })
        })
    }

    /// Maps the pages in which these pieces lie, one after another. On an error none is mapped.
    pub(crate) fn open_window(
        &mut self,
        memory: &dyn VirtualMemory<B::Error>,
        window: Pages,
        pieces: &[Extent],
    ) -> Result<(), B::Error> {
        let start = Instant::now();
        let numbers = self.numbers(window);
        let Some(arena) = &mut self.arenas[window.arena as usize] else { return Ok(()) };
        if arena.slots.len() < numbers.end {
            arena.slots.resize_with(numbers.end, || Slot::Unmapped);
        }
        // What was retired is unmapped.
        arena.slots[numbers.clone()].fill_with(|| Slot::Unmapped);
        let mut result = Ok(());
        let mut at = numbers.start;
        'pieces: for piece in pieces {
            let size = piece.size.next_multiple_of(self.page_size(piece.arena));
            for from in self.numbers(Pages { arena: piece.arena, start: piece.start, size }) {
                if let Err(error) = self.alias(memory, window.arena, at, (piece.arena, from)) {
                    result = Err(error);
                    break 'pieces;
                }
                at += 1;
            }
        }
        if result.is_err() {
            if let Some(arena) = &mut self.arenas[window.arena as usize] {
                arena.slots[numbers].fill_with(|| Slot::Unmapped);
            }
        }
        self.spent += start.elapsed();
        result
    }

    /// Maps a page where it is not at home.
    fn alias(
        &mut self,
        memory: &dyn VirtualMemory<B::Error>,
        window: u32,
        at: usize,
        (home, from): (u32, usize),
    ) -> Result<(), B::Error> {
        let arena = self.arenas[home as usize].as_ref();
        let Some(Slot::Mapped { page, number, .. }) = arena.and_then(|it| it.slots.get(from))
        else {
            return Ok(());
        };
        let Some(arena) = &self.arenas[window as usize] else { return Ok(()) };
        let number = *number;
        let mapping = memory.map(&arena.range, at * arena.page_size, page)?;
        let Some(arena) = &mut self.arenas[window as usize] else { return Ok(()) };
        arena.slots[at] = Slot::Alias { mapping, number };
        Ok(())
    }

    /// Whether there are so many windows that those not in use should go.
    pub(crate) fn has_many_windows(&self) -> bool {
        let slots = self.arenas.iter().flatten().flat_map(|arena| &arena.slots);
        let aliases = slots.filter(|slot| matches!(slot, Slot::Alias { .. })).count();
        aliases > MAX_ALIASES * (self.pages + 32)
    }

    /// Gives up the windows in these arenas, but for the addresses in use. What they have mapped is
    /// unmapped once the event has come.
    pub(crate) fn retire(&mut self, windows: &[u32], in_use: &[Range<u64>], event: B::Event) {
        let retirement = self.settled + self.retirements.len() as u64;
        self.retirements.push_back(event);
        for &window in windows {
            let Some(arena) = &mut self.arenas[window as usize] else { continue };
            let (base, size) = (arena.base, arena.page_size);
            for (at, slot) in arena.slots.iter_mut().enumerate() {
                let address = base + (at * size) as u64;
                if in_use.iter().any(|range| range.contains(&address)) {
                    continue;
                }
                *slot = match std::mem::replace(slot, Slot::Unmapped) {
                    Slot::Alias { mapping, .. } => Slot::Retired { _mapping: mapping, retirement },
                    other => other,
                };
            }
        }
    }

    /// Learns which retired windows are out of use.
    pub(crate) fn poll(&mut self, backend: &B) {
        while let Some(event) = self.retirements.front() {
            let come = backend.query(event).unwrap_or_else(|error| backend.is_lost(&error));
            if !come {
                return;
            }
            self.retirements.pop_front();
            self.settled += 1;
        }
    }
}
