//! Windows: addresses behind which pages with homes elsewhere are mapped, in any order, so that a
//! block can be made of scattered memory.
//!
//! A window stays when its block is freed, for the next request that it fits. When all windows
//! together have eight times as many mappings as there are pages, or 16 Ki mappings, a shard that
//! has more than its share gives up its unused windows. The addresses are reused, and the old
//! mappings removed, when the work that the stream had by then is done.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Instant;

use crate::heap::{Extent, Pages};
use crate::policy::arenas::{Arenas, PageSlot};
use crate::{Backend, VirtualMemory};

/// So many times as many mappings as there are pages all windows together may have before a shard
/// gives up those that it does not use, if it has more than its share.
const MAX_MAPPED: usize = 8;
/// And however many pages there are, so many: the system has to keep track of each.
const MOST_MAPPED: usize = 1 << 14;

/// Pages that were mapped behind each other for one block.
struct Window {
    /// The slot of the first, and how many there are.
    first: usize,
    count: usize,
}

impl Window {
    fn slots(&self) -> Range<usize> {
        self.first..self.first + self.count
    }
}

/// All windows, and when those that were given up are out of use.
pub(super) struct Windows<B: Backend> {
    /// By arena, oldest first.
    windows: BTreeMap<u32, Vec<Window>>,
    /// Events of retirements, by number, that have not come: until then those windows are in use.
    retirements: BTreeMap<u64, B::Event>,
    /// The number of the next one.
    next_retirement: u64,
    /// From this one on the device was not waited for since.
    waited: u64,
}

impl<B: Backend> Default for Windows<B> {
    fn default() -> Self {
        Self {
            windows: BTreeMap::new(),
            retirements: BTreeMap::new(),
            next_retirement: 0,
            waited: 0,
        }
    }
}

impl<B: Backend> Windows<B> {
    /// The oldest window for `bytes` bytes, in these arenas, of which all memory is in these
    /// extents, which are sorted by address. Returns its address, and where the memory is.
    pub(super) fn find(
        &self,
        arenas: &Arenas,
        windows: &[u32],
        bytes: usize,
        extents: &[Extent],
    ) -> Option<(u64, Vec<Extent>)> {
        self.windows_in(windows).find_map(|(arena, window)| {
            let page_size = arenas.page_size(arena);
            let count = bytes.div_ceil(page_size);
            if window.count < count {
                return None;
            }
            let mut pieces: Vec<Extent> = Vec::new();
            let mut left = bytes;
            for slot in &arenas.slots(arena)[window.first..window.first + count] {
                let size = left.min(page_size);
                let piece = free_part(arenas, slot, size, extents)?;
                match pieces.last_mut() {
                    Some(last) if last.start + last.size as u64 == piece.start => last.size += size,
                    _ => pieces.push(piece),
                }
                left -= size;
            }
            Some((arenas.address((arena, window.first)), pieces))
        })
    }

    /// The windows in these arenas, oldest first in each.
    fn windows_in(&self, arenas: &[u32]) -> impl Iterator<Item = (u32, &Window)> {
        arenas.iter().flat_map(|&arena| {
            self.windows.get(&arena).into_iter().flatten().map(move |window| (arena, window))
        })
    }

    /// Addresses for `count` pages in one of these arenas, at which nothing is in use. What is
    /// mapped there and may be unmapped counts if it is to.
    pub(super) fn room(
        &self,
        arenas: &Arenas,
        windows: &[u32],
        count: usize,
        unmaps: bool,
    ) -> Option<Pages> {
        windows.iter().find_map(|&arena| {
            let mut first = 0;
            let vacant = arenas.slots(arena).iter().enumerate().any(|(at, slot)| {
                let vacant = match slot {
                    PageSlot::Unmapped => true,
                    PageSlot::Retired { retirement, .. } => {
                        unmaps && !self.retirements.contains_key(retirement)
                    }
                    PageSlot::Home { .. } | PageSlot::Alias { .. } => false,
                };
                if !vacant {
                    first = at + 1;
                }
                at + 1 >= first + count
            });
            (vacant || first + count <= arenas.room(arena)).then(|| Pages {
                arena,
                start: arenas.address((arena, first)),
                size: count * arenas.page_size(arena),
            })
        })
    }

    /// Unmaps what was retired at these addresses. False if the backend refuses: then they are not
    /// vacant any more.
    pub(super) fn clear(
        &self,
        arenas: &mut Arenas,
        memory: &dyn VirtualMemory<B::Error>,
        room: Pages,
    ) -> bool {
        let start = Instant::now();
        let slots = arenas.slots_of(room);
        let refused = slots.filter(|&at| arenas.unmap(memory, (room.arena, at)).is_err()).count();
        arenas.spent += start.elapsed();
        refused == 0
    }

    /// Maps the pages in which these pieces lie, one after another, at vacant addresses. On an error
    /// none is, but for what the backend then refuses to unmap.
    pub(super) fn open(
        &mut self,
        arenas: &mut Arenas,
        memory: &dyn VirtualMemory<B::Error>,
        room: Pages,
        pieces: &[Extent],
    ) -> Result<(), B::Error> {
        let start = Instant::now();
        let slots = arenas.slots_of(room);
        let pages = |piece: &Extent| {
            let size = piece.size.next_multiple_of(arenas.page_size(piece.arena));
            let slots = arenas.slots_of(Pages { arena: piece.arena, start: piece.start, size });
            let arena = piece.arena;
            slots.map(move |slot| (arena, slot))
        };
        let homes: Vec<_> = pieces.iter().flat_map(pages).collect();
        let mut to_map = slots.clone().zip(homes);
        let result =
            to_map.try_for_each(|(at, home)| arenas.map_alias(memory, (room.arena, at), home));
        if result.is_ok() {
            let window = Window { first: slots.start, count: slots.len() };
            self.windows.entry(room.arena).or_default().push(window);
        } else {
            slots.for_each(|at| drop(arenas.unmap(memory, (room.arena, at))));
        }
        arenas.spent += start.elapsed();
        result
    }

    // ---- giving up windows --------------------------------------------------------------

    /// Whether there are so many windows in these arenas that those not in use should go, while
    /// there are so many pages.
    pub(super) fn are_many(&self, pages: usize, windows: &[u32]) -> bool {
        let mapped = |windows: &Vec<Window>| windows.iter().map(|window| window.count).sum();
        let all: Vec<usize> = self.windows.values().map(mapped).filter(|&n| n > 0).collect();
        let here: usize = self.windows_in(windows).map(|(_, window)| window.count).sum();
        let most = (MAX_MAPPED * (pages + 32)).min(MOST_MAPPED);
        all.iter().sum::<usize>() > most && here > most / all.len()
    }

    /// Gives up the windows in these arenas, but for those in use. What they have mapped is
    /// unmapped once the event has come.
    pub(super) fn retire(
        &mut self,
        arenas: &mut Arenas,
        windows: &[u32],
        in_use: &[Range<u64>],
        event: B::Event,
    ) {
        let retirement = self.next_retirement;
        self.next_retirement += 1;
        self.retirements.insert(retirement, event);
        for &arena in windows {
            let Some(windows) = self.windows.get_mut(&arena) else { continue };
            windows.retain(|window| {
                let start = arenas.address((arena, window.first));
                let used = in_use.iter().any(|range| range.contains(&start));
                if !used {
                    for slot in &mut arenas.slots_mut(arena)[window.slots()] {
                        *slot = match std::mem::replace(slot, PageSlot::Unmapped) {
                            PageSlot::Alias { mapping, number } => {
                                PageSlot::Retired { mapping, number, retirement }
                            }
                            other => other,
                        };
                    }
                }
                used
            });
        }
    }

    /// Learns which retired windows are out of use.
    pub(super) fn poll(&mut self, backend: &B) {
        self.retirements.retain(|_, event| {
            !backend.query(event).unwrap_or_else(|error| backend.is_lost(&error))
        });
    }

    /// All work was waited for that the device was given.
    pub(super) fn waited(&mut self) {
        self.waited = self.next_retirement;
        self.retirements.clear();
    }

    /// Whether work that the device was given since it was waited for last may use what is mapped
    /// at these addresses, although nobody said so.
    pub(super) fn is_retired_since_wait(&self, arenas: &Arenas, room: Pages) -> bool {
        let slots = arenas.slots(room.arena);
        let mut slots = arenas.slots_of(room).filter_map(|at| slots.get(at));
        slots.any(|slot| {
            matches!(slot, PageSlot::Retired { retirement, .. } if *retirement >= self.waited)
        })
    }

    /// Unmaps pages that have their home in these arenas from where they are aliases, but for the
    /// addresses that are in use. Nothing may use the others any more. Returns the numbers of those
    /// that are still mapped somewhere.
    pub(super) fn unmap_aliases(
        &mut self,
        arenas: &mut Arenas,
        memory: &dyn VirtualMemory<B::Error>,
        in_use: &[Range<u64>],
        homes: &BTreeSet<u32>,
    ) -> BTreeSet<u32> {
        let start = Instant::now();
        let mut elsewhere = BTreeSet::new();
        for arena in arenas.numbers() {
            for at in 0..arenas.slots(arena).len() {
                let (PageSlot::Alias { number, .. } | PageSlot::Retired { number, .. }) =
                    arenas.slots(arena)[at]
                else {
                    continue;
                };
                let address = arenas.address((arena, at));
                let used = in_use.iter().any(|range| range.contains(&address));
                let (home, _) = arenas.home(number);
                if used || !homes.contains(&home) || arenas.unmap(memory, (arena, at)).is_err() {
                    elsewhere.insert(number);
                }
            }
            // A window is as long as the block that uses it, or as what is left of it.
            let slots = arenas.slots(arena);
            let mapped = |at: &usize| matches!(slots[*at], PageSlot::Alias { .. });
            if let Some(windows) = self.windows.get_mut(&arena) {
                windows.retain_mut(|window| {
                    window.count = window.slots().take_while(mapped).count();
                    window.count > 0
                });
            }
        }
        arenas.spent += start.elapsed();
        elsewhere
    }
}

/// The first bytes of the page that is mapped here, if they are in one of these extents.
fn free_part(arenas: &Arenas, slot: &PageSlot, size: usize, extents: &[Extent]) -> Option<Extent> {
    let PageSlot::Alias { number, .. } = slot else { return None };
    let home = arenas.home(*number);
    let start = arenas.address(home);
    let extent = extents[..extents.partition_point(|it| it.start <= start)].last()?;
    let free = start + size as u64 <= extent.start + extent.size as u64;
    free.then_some(Extent { arena: home.0, start, size })
}
