//! Windows: addresses behind which pages are mapped that are at home elsewhere, in any order, so
//! that a block can be made of memory that lies apart. A window stays when its block is freed, for
//! the next request that it fits.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use crate::pages::{Arena, Arenas, Slot};
use crate::state::{Extent, Pages};
use crate::{Backend, VirtualMemory};

/// So many times as many mappings as there are pages all windows together may have before a shard
/// gives up those that it does not use, if it has more than its share.
const MAX_MAPPED: usize = 8;
/// And however many pages there are, so many: the system keeps books of each.
const MOST_MAPPED: usize = 1 << 14;

/// Pages that were mapped behind each other for one block.
pub(super) struct Window {
    /// The number of the first, and how many there are.
    first: usize,
    count: usize,
}

impl Window {
    fn slots(&self) -> Range<usize> {
        self.first..self.first + self.count
    }
}

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
        let count = bytes.div_ceil(page_size);
        let mut long = self.all_windows(windows).filter(|(_, window)| window.count >= count);
        long.find_map(|(arena, window)| {
            let mut pieces: Vec<Extent> = Vec::new();
            let mut left = bytes;
            for slot in &arena.slots[window.first..window.first + count] {
                let size = left.min(page_size);
                let piece = self.free_part(slot, size, extents)?;
                match pieces.last_mut() {
                    Some(last) if last.start + last.size as u64 == piece.start => last.size += size,
                    _ => pieces.push(piece),
                }
                left -= size;
            }
            Some((arena.start(window.first), pieces))
        })
    }

    /// The windows in these arenas, oldest first in each.
    fn all_windows(&self, arenas: &[u32]) -> impl Iterator<Item = (&Arena, &Window)> {
        let arenas = arenas.iter().filter_map(|&number| self.arenas[number as usize].as_ref());
        arenas.flat_map(|arena| arena.windows.iter().map(move |window| (arena, window)))
    }

    /// The first bytes of the page that is mapped here, if they are in one of these extents.
    fn free_part(&self, slot: &Slot, size: usize, extents: &[Extent]) -> Option<Extent> {
        let Slot::Alias { number, .. } = slot else { return None };
        let (arena, at) = self.homes[*number as usize];
        let start = self.arenas[arena as usize].as_ref()?.start(at);
        let extent = extents[..extents.partition_point(|it| it.start <= start)].last()?;
        let free = start + size as u64 <= extent.start + extent.size as u64;
        free.then_some(Extent { arena, start, size })
    }

    /// Addresses for `count` pages in one of these arenas, at which nothing is in use. What is
    /// mapped there and may be unmapped counts if it is to.
    pub(crate) fn window_room(&self, windows: &[u32], count: usize, unmaps: bool) -> Option<Pages> {
        windows.iter().find_map(|&window| {
            let arena = self.arenas[window as usize].as_ref()?;
            let mut first = 0;
            let vacant = arena.slots.iter().enumerate().any(|(at, slot)| {
                let vacant = match slot {
                    Slot::Unmapped => true,
                    Slot::Retired { retirement, .. } => {
                        unmaps && !self.retirements.contains_key(retirement)
                    }
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

    /// Whether work that was given before the device was waited for last may use what is mapped at
    /// these addresses, although nobody said so.
    pub(crate) fn is_retired_since(&self, window: Pages) -> bool {
        let Some(arena) = &self.arenas[window.arena as usize] else { return false };
        let mut slots = self.numbers(window).filter_map(|at| arena.slots.get(at));
        slots.any(
            |slot| matches!(slot, Slot::Retired { retirement, .. } if *retirement >= self.waited),
        )
    }

    /// All work was waited for that the device was given.
    pub(crate) fn waited(&mut self) {
        self.waited = self.next_retirement;
        self.retirements.clear();
    }

    /// Unmaps what was retired at these addresses. False if the backend refuses: then they are not
    /// vacant any more.
    pub(crate) fn clear(&mut self, memory: &dyn VirtualMemory<B::Error>, window: Pages) -> bool {
        let start = Instant::now();
        let refused =
            self.numbers(window).filter(|&at| self.unmap(memory, window.arena, at).is_err());
        let cleared = refused.count() == 0;
        self.spent += start.elapsed();
        cleared
    }

    /// Maps the pages in which these pieces lie, one after another, at vacant addresses. On an error
    /// none is, but for what the backend then refuses to unmap.
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
            numbers.for_each(|at| {
                let _ = self.unmap(memory, window.arena, at);
            });
        } else if let Some(arena) = &mut self.arenas[window.arena as usize] {
            arena.windows.push(Window { first: numbers.start, count: numbers.len() });
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

    /// Whether there are so many windows in these arenas that those not in use should go.
    pub(crate) fn are_many(&self, windows: &[u32]) -> bool {
        let mapped = |arena: &Arena| arena.windows.iter().map(|window| window.count).sum();
        let all: Vec<usize> = self.arenas.iter().flatten().map(mapped).filter(|&n| n > 0).collect();
        let here: usize = self.all_windows(windows).map(|(_, window)| window.count).sum();
        let most = (MAX_MAPPED * (self.pages + 32)).min(MOST_MAPPED);
        all.iter().sum::<usize>() > most && here > most / all.len()
    }

    /// Gives up the windows in these arenas, but for those in use. What they have mapped is
    /// unmapped once the event has come.
    pub(crate) fn retire(&mut self, windows: &[u32], in_use: &[Range<u64>], event: B::Event) {
        let retirement = self.next_retirement;
        self.next_retirement += 1;
        self.retirements.insert(retirement, event);
        for &number in windows {
            let Some(arena) = &mut self.arenas[number as usize] else { continue };
            let (base, size) = (arena.base, arena.page_size);
            arena.windows.retain(|window| {
                let start = base + (window.first * size) as u64;
                let used = in_use.iter().any(|range| range.contains(&start));
                if !used {
                    for slot in &mut arena.slots[window.slots()] {
                        *slot = match std::mem::replace(slot, Slot::Unmapped) {
                            Slot::Alias { mapping, number } => {
                                Slot::Retired { mapping, number, retirement }
                            }
                            other => other,
                        };
                    }
                }
                used
            });
        }
    }

    /// Unmaps pages that are at home in these arenas from where they are not, but for the addresses
    /// that are in use. Nothing may use the others any more. Answers the numbers of those that are
    /// still mapped somewhere.
    pub(crate) fn forget_aliases(
        &mut self,
        memory: &dyn VirtualMemory<B::Error>,
        in_use: &[Range<u64>],
        homes: &BTreeSet<u32>,
    ) -> BTreeSet<u32> {
        let start = Instant::now();
        let mut elsewhere = BTreeSet::new();
        for arena in 0..self.arenas.len() as u32 {
            for at in 0..self.arenas[arena as usize].as_ref().map_or(0, |it| it.slots.len()) {
                let Some(Slot::Alias { number, .. } | Slot::Retired { number, .. }) =
                    self.slot(arena, at)
                else {
                    continue;
                };
                let number = *number;
                let address = self.arenas[arena as usize].as_ref().map_or(0, |it| it.start(at));
                let used = in_use.iter().any(|range| range.contains(&address));
                let (home, _) = self.homes[number as usize];
                if used || !homes.contains(&home) || self.unmap(memory, arena, at).is_err() {
                    elsewhere.insert(number);
                }
            }
            let Some(arena) = &mut self.arenas[arena as usize] else { continue };
            // A window is as long as the block that uses it, or as what is left of it.
            let slots = &arena.slots;
            arena.windows.retain_mut(|window| {
                let mapped = |at: &usize| matches!(slots[*at], Slot::Alias { .. });
                window.count = window.slots().take_while(mapped).count();
                window.count > 0
            });
        }
        self.spent += start.elapsed();
        elsewhere
    }

    /// Whether a page that is at home elsewhere is mapped among these.
    pub(crate) fn has_aliases(&self, pages: Pages) -> bool {
        let Some(arena) = &self.arenas[pages.arena as usize] else { return false };
        let mut slots = self.numbers(pages).filter_map(|at| arena.slots.get(at));
        slots.any(|slot| matches!(slot, Slot::Alias { .. }))
    }

    /// Whether nothing is mapped in an arena.
    pub(crate) fn is_vacant(&self, arena: u32) -> bool {
        let Some(arena) = &self.arenas[arena as usize] else { return true };
        arena.slots.iter().all(|slot| matches!(slot, Slot::Unmapped))
    }

    /// Learns which retired windows are out of use.
    pub(crate) fn poll(&mut self, backend: &B) {
        self.retirements.retain(|_, event| {
            !backend.query(event).unwrap_or_else(|error| backend.is_lost(&error))
        });
    }
}
