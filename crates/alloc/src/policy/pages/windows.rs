//! Windows. A window is a range of addresses at which pages are mapped a second time, besides their
//! home addresses (see `arenas`) and in any order, so that scattered free pages can form one block.
//!
//! When its block is freed, a window stays for later requests. The mappings of all windows together
//! are limited to eight per page plus 256, and to 16 Ki. Beyond the limit, a shard that has more
//! than its share retires its unused windows. Their mappings are removed and their addresses reused
//! once the work that the stream had enqueued before the retirement is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Instant;

use crate::heap::{Extent, Pages};
use crate::policy::arenas::{Arenas, PageSlot};
use crate::{Backend, VirtualMemory};

/// Maximum number of mappings in all windows per page. 32 pages are added to the number of pages,
/// for small programs. Beyond the maximum, a shard with more than its share retires its unused
/// windows.
const MAX_MAPPINGS_PER_PAGE: usize = 8;
/// Maximum number of mappings in all windows, however many pages there are. The system keeps a
/// record of each mapping.
const MAX_MAPPINGS: usize = 1 << 14;

/// Pages mapped next to each other for one block.
struct MappedWindow {
    /// The first slot, and the number of slots.
    first: usize,
    count: usize,
}

impl MappedWindow {
    fn slots(&self) -> Range<usize> {
        self.first..self.first + self.count
    }
}

/// All windows, and the pending events of retirements.
pub(super) struct Windows<B: Backend> {
    /// Windows by arena, oldest first.
    windows: BTreeMap<u32, Vec<MappedWindow>>,
    /// Events of retirements, by number. The windows of a retirement are in use until its event
    /// completes.
    retirements: BTreeMap<u64, B::Event>,
    /// Number of the next retirement.
    next_retirement: u64,
    /// Number of the first retirement after the last wait for the device.
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
    /// Finds a window in these arenas that can serve a request of `bytes` bytes: the memory of the
    /// window's first `bytes` bytes must lie entirely in `extents`. Searches the arenas in order, and
    /// the windows of each arena from the oldest to the newest. `extents` must be sorted by address.
    /// Returns the window's address and the extents of that memory.
    pub(super) fn find(
        &self,
        arenas: &Arenas,
        window_arenas: &[u32],
        bytes: usize,
        extents: &[Extent],
    ) -> Option<(u64, Vec<Extent>)> {
        self.windows_in(window_arenas).find_map(|(arena, window)| {
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

    /// Returns the windows in these arenas, oldest first in each arena.
    fn windows_in(&self, arenas: &[u32]) -> impl Iterator<Item = (u32, &MappedWindow)> {
        arenas.iter().flat_map(|&arena| {
            self.windows.get(&arena).into_iter().flatten().map(move |window| (arena, window))
        })
    }

    /// Returns unused addresses for `count` pages in one of these arenas. With `unmaps`, retired
    /// mappings whose event has completed count as unused.
    pub(super) fn room(
        &self,
        arenas: &Arenas,
        window_arenas: &[u32],
        count: usize,
        unmaps: bool,
    ) -> Option<Pages> {
        window_arenas.iter().find_map(|&arena| {
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

    /// Removes the retired mappings at these addresses. Returns `false` if the backend refuses.
    /// Mappings that could not be removed become aliases again, so their addresses are no longer
    /// vacant.
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

    /// Maps the pages of these pieces one after another at vacant addresses. After an error, all of
    /// the new mappings are removed, except mappings that the backend refuses to remove.
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
            let window = MappedWindow { first: slots.start, count: slots.len() };
            self.windows.entry(room.arena).or_default().push(window);
        } else {
            slots.for_each(|at| drop(arenas.unmap(memory, (room.arena, at))));
        }
        arenas.spent += start.elapsed();
        result
    }

    // ---- retirement -----------------------------------------------------------------------

    /// Returns whether unused windows of these arenas should be retired, because the arenas have
    /// too many windows for the number of pages.
    pub(super) fn exceed_limit(&self, pages: usize, window_arenas: &[u32]) -> bool {
        let mapped = |windows: &Vec<MappedWindow>| windows.iter().map(|window| window.count).sum();
        let all: Vec<usize> = self.windows.values().map(mapped).filter(|&n| n > 0).collect();
        let here: usize = self.windows_in(window_arenas).map(|(_, window)| window.count).sum();
        let most = (MAX_MAPPINGS_PER_PAGE * (pages + 32)).min(MAX_MAPPINGS);
        all.iter().sum::<usize>() > most && here > most / all.len()
    }

    /// Retires the windows in these arenas, except windows in use. Their mappings may be removed
    /// after the event has completed.
    pub(super) fn retire(
        &mut self,
        arenas: &mut Arenas,
        window_arenas: &[u32],
        in_use: &[Range<u64>],
        event: B::Event,
    ) {
        let retirement = self.next_retirement;
        self.next_retirement += 1;
        self.retirements.insert(retirement, event);
        for &arena in window_arenas {
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

    /// Removes the completed events of retirements.
    pub(super) fn poll(&mut self, backend: &B) {
        self.retirements.retain(|_, event| {
            !backend.query(event).unwrap_or_else(|error| backend.is_lost(&error))
        });
    }

    /// Records that the device's work so far is complete.
    pub(super) fn record_device_wait(&mut self) {
        self.waited = self.next_retirement;
        self.retirements.clear();
    }

    /// Returns whether work since the last wait for the device may still use the mappings at these
    /// addresses without a record.
    pub(super) fn is_retired_since_wait(&self, arenas: &Arenas, room: Pages) -> bool {
        let slots = arenas.slots(room.arena);
        let mut slots = arenas.slots_of(room).filter_map(|at| slots.get(at));
        slots.any(|slot| {
            matches!(slot, PageSlot::Retired { retirement, .. } if *retirement >= self.waited)
        })
    }

    /// Unmaps the aliases of pages with a home in these arenas, except at addresses in use. No work
    /// may use the unmapped addresses any more. Returns the numbers of the pages that still have an
    /// alias.
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
            // A window shrinks to the remaining mappings at its start.
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

/// Returns the extent of the first `size` bytes of the page mapped at a slot, if it lies in one of
/// the extents.
fn free_part(arenas: &Arenas, slot: &PageSlot, size: usize, extents: &[Extent]) -> Option<Extent> {
    let PageSlot::Alias { number, .. } = slot else { return None };
    let home = arenas.home(*number);
    let start = arenas.address(home);
    let extent = extents[..extents.partition_point(|it| it.start <= start)].last()?;
    let free = start + size as u64 <= extent.start + extent.size as u64;
    free.then_some(Extent { arena: home.0, start, size })
}
