//! The physical side of arenas: reserved addresses, and the pages mapped there. The heaps track the
//! use of these pages.
//!
//! A page may be mapped at many addresses. One of the addresses is the page's *home*, at which the
//! heap accounts for its memory, as free or as part of a block. All other mappings of the page are
//! *aliases*.
//!
//! Invariant: no address is unmapped while work may use it, including work that the allocator has
//! no record of. Before unmapping, the host waits for the device, as PyTorch's `cudaFree` does:
//! once for all released pages, and once for all windows retired since the last wait. Neither hits
//! nor migrations wait. A migrated page stays mapped at its former home, so work without a record
//! may find another block's bytes there, as in any reused memory, but never an unmapped address. If
//! the wait for the device fails, nothing is unmapped. If the backend has no such wait, the host
//! waits for the streams of the shards. A stream whose wait fails keeps only its own pages.

mod refused;
mod release;

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use self::refused::RefusedHandle;
pub(super) use self::release::FreePages;
use crate::core::Core;
use crate::growth::Miss;
use crate::heap::{ArenaKind, ArenaRange, Pages};
use crate::rules::MAX_REQUEST;
use crate::stats::RefusedReleases;
use crate::sync::lock;
use crate::{AllocError, Backend, Handle, Policy, PoolKind, VirtualMemory};

/// All arenas of one policy.
#[derive(Default)]
pub(super) struct Arenas {
    policy: Policy,
    /// Arenas by number. `None`: an unused number.
    arenas: Vec<Option<Arena>>,
    /// The home of each page, by page number. Entries of unused numbers are stale.
    homes: Vec<SlotId>,
    vacant: Vec<u32>,
    /// Number of existing pages.
    pub(super) pages: usize,
    /// Slots whose mapping the backend refused to remove and has not removed since.
    refused: BTreeSet<SlotId>,
    /// Unmapped pages and ranges that the backend refused to take back.
    refused_handles: Vec<RefusedHandle>,
    /// Time spent in backend calls since it was last added to the statistics.
    pub(super) spent: Duration,
}

/// The number of an arena, and the index of a slot there.
pub(super) type SlotId = (u32, usize);

struct Arena {
    base: u64,
    page_size: usize,
    /// Capacity, in pages.
    room: usize,
    /// Mappings by page, up to the last page that was ever mapped. Declared before `range`, so that
    /// mappings are dropped first.
    slots: Vec<PageSlot>,
    range: Handle,
}

/// The mapping at the addresses of one page.
pub(super) enum PageSlot {
    Unmapped,
    /// A page whose home is here. The mapping is declared first, so that it is dropped before the
    /// page.
    Home {
        mapping: Handle,
        page: Handle,
        number: u32,
    },
    /// A page whose home is elsewhere.
    Alias {
        mapping: Handle,
        number: u32,
    },
    /// A retired alias. Work that was enqueued before the retirement may still use it.
    Retired {
        mapping: Handle,
        number: u32,
        retirement: u64,
    },
}

/// Pages that could not be released, because the backend refused or the page is also mapped
/// elsewhere.
#[derive(Debug, Default)]
pub(super) struct UnreleasedPages {
    /// Pages that are still mapped and usable.
    pub(super) mapped: Vec<Pages>,
    /// Bytes of unmapped pages that the backend refused to take back. They count as reserved until
    /// they are released.
    unmapped: usize,
}

impl UnreleasedPages {
    fn bytes(&self) -> usize {
        self.unmapped + self.mapped.iter().map(|pages| pages.size).sum::<usize>()
    }
}

/// The page and page number of an unmapped home. `None` if the slot had an alias or no mapping.
type UnmappedPage = Option<(Handle, u32)>;

/// The error of a release that the backend refused.
pub(super) struct ReleaseRefused;

impl Arena {
    fn start(&self, slot: usize) -> u64 {
        self.base + (slot * self.page_size) as u64
    }
}

impl Arenas {
    pub(super) fn new(policy: Policy) -> Self {
        Self { policy, ..Self::default() }
    }

    // ---- addresses ----------------------------------------------------------------------

    /// Reserves addresses for a request of at least `bytes` bytes. `None` if the request is larger
    /// than an arena, or if the backend's addresses are exhausted.
    pub(super) fn reserve<B: Backend>(
        &mut self,
        miss: &Miss<'_, B>,
        memory: &dyn VirtualMemory<B::Error>,
        bytes: usize,
        page_size: usize,
    ) -> Result<Option<ArenaRange>, AllocError> {
        let requested = miss.request.requested;
        let backend_error = |error| AllocError::from_backend(requested, error);
        let (_, total) = miss.core.backend.mem_info().map_err(backend_error)?;
        // Reserve more than the device's memory, because unmapped gaps between blocks also take
        // addresses.
        let total = total.min(MAX_REQUEST);
        let room = (total / 8 * 9).max(page_size).next_multiple_of(page_size);
        if bytes > room {
            return Ok(None);
        }
        let start = Instant::now();
        let reserved = memory.reserve(room);
        self.spent += start.elapsed();
        let (base, range) = match reserved {
            Ok(reserved) => reserved,
            // If memory is exhausted, return `None`, so that the miss releases unused arenas before
            // it fails.
            Err(error) => return miss.out_of_memory(requested, error).map(|()| None),
        };
        let arena = Arena { base, page_size, room: room / page_size, slots: Vec::new(), range };
        let number = self.arenas.iter().position(Option::is_none).unwrap_or(self.arenas.len());
        match self.arenas.get_mut(number) {
            Some(vacant) => *vacant = Some(arena),
            None => self.arenas.push(Some(arena)),
        }
        let kind = ArenaKind { policy: self.policy, page_size };
        Ok(Some(ArenaRange { kind, number: number as u32, base, bytes: room }))
    }

    /// Releases an arena's addresses. Nothing may be mapped there.
    pub(super) fn remove<E>(&mut self, memory: &dyn VirtualMemory<E>, arena: u32) {
        if let Some(Arena { range, .. }) =
            self.arenas.get_mut(arena as usize).and_then(Option::take)
        {
            self.release_handle(memory, PoolKind::Large, range, 0);
        }
    }

    /// Returns whether nothing is mapped in an arena.
    pub(super) fn is_vacant(&self, arena: u32) -> bool {
        let Some(arena) = &self.arenas[arena as usize] else { return true };
        arena.slots.iter().all(|slot| matches!(slot, PageSlot::Unmapped))
    }

    /// Returns the size of an arena's pages, in bytes.
    pub(super) fn page_size(&self, arena: u32) -> usize {
        self.arenas[arena as usize].as_ref().map_or(0, |arena| arena.page_size)
    }

    /// Returns the capacity of an arena, in pages.
    pub(super) fn room(&self, arena: u32) -> usize {
        self.arenas[arena as usize].as_ref().map_or(0, |arena| arena.room)
    }

    /// Returns the slots of an arena, up to the last that was ever mapped.
    pub(super) fn slots(&self, arena: u32) -> &[PageSlot] {
        self.arenas[arena as usize].as_ref().map_or(&[], |arena| &arena.slots)
    }

    pub(super) fn slots_mut(&mut self, arena: u32) -> &mut [PageSlot] {
        self.arenas[arena as usize].as_mut().map_or(&mut [], |arena| &mut arena.slots)
    }

    fn slot_mut(&mut self, (arena, at): SlotId) -> Option<&mut PageSlot> {
        self.arenas.get_mut(arena as usize)?.as_mut()?.slots.get_mut(at)
    }

    /// Returns the numbers of all arenas.
    pub(super) fn numbers(&self) -> Range<u32> {
        0..self.arenas.len() as u32
    }

    /// Returns the address of a slot.
    pub(super) fn address(&self, (arena, slot): SlotId) -> u64 {
        self.arenas[arena as usize].as_ref().map_or(0, |arena| arena.start(slot))
    }

    /// Returns the slots of these pages, as indices.
    pub(super) fn slots_of(&self, pages: Pages) -> Range<usize> {
        let Some(arena) = &self.arenas[pages.arena as usize] else { return 0..0 };
        let first = (pages.start - arena.base) as usize / arena.page_size;
        first..first + pages.size / arena.page_size
    }

    /// Returns the home of a page.
    pub(super) fn home(&self, number: u32) -> SlotId {
        self.homes[number as usize]
    }

    // ---- pages --------------------------------------------------------------------------

    /// Creates and maps these pages. After an error, all of them are released, except pages that
    /// the backend refuses to take back.
    pub(super) fn create<E>(
        &mut self,
        memory: &dyn VirtualMemory<E>,
        kind: PoolKind,
        pages: Pages,
    ) -> Result<(), (E, UnreleasedPages)> {
        let start = Instant::now();
        let slots = self.slots_of(pages);
        let page_size = self.page_size(pages.arena);
        let mut result = Ok(());
        for slot in slots.clone() {
            let number = self.vacant.pop().unwrap_or(self.homes.len() as u32);
            if number as usize == self.homes.len() {
                self.homes.push((pages.arena, slot));
            }
            let mut unmapped = 0;
            let mapped = memory.create(page_size).and_then(|page| {
                self.map_home(memory, (pages.arena, slot), page, number).map_err(|(error, page)| {
                    unmapped = self.release_handle(memory, kind, page, page_size);
                    error
                })
            });
            if let Err(error) = mapped {
                self.vacant.push(number);
                let size = (slot - slots.start) * page_size;
                let mut kept =
                    self.release(memory, kind, Pages { size, ..pages }, &BTreeSet::new());
                kept.unmapped += unmapped;
                result = Err((error, kept));
                break;
            }
            self.pages += 1;
        }
        self.spent += start.elapsed();
        result
    }

    /// Maps a page at an address that becomes its home.
    fn map_home<E>(
        &mut self,
        memory: &dyn VirtualMemory<E>,
        home: SlotId,
        page: Handle,
        number: u32,
    ) -> Result<(), (E, Handle)> {
        let (arena, at) = home;
        let Some(arena) = &mut self.arenas[arena as usize] else { return Ok(()) };
        if arena.slots.len() <= at {
            arena.slots.resize_with(at + 1, || PageSlot::Unmapped);
        }
        match memory.map(&arena.range, at * arena.page_size, &page) {
            Ok(mapping) => {
                arena.slots[at] = PageSlot::Home { mapping, page, number };
                self.homes[number as usize] = home;
                Ok(())
            }
            Err(error) => Err((error, page)),
        }
    }

    /// Maps the page whose home is `home` at an additional slot.
    pub(super) fn map_alias<E>(
        &mut self,
        memory: &dyn VirtualMemory<E>,
        (arena, at): SlotId,
        home: SlotId,
    ) -> Result<(), E> {
        let Some(PageSlot::Home { page, number, .. }) = self.slots(home.0).get(home.1) else {
            return Ok(());
        };
        let number = *number;
        let Some(window) = &self.arenas[arena as usize] else { return Ok(()) };
        let mapping = memory.map(&window.range, at * window.page_size, page)?;
        let Some(window) = &mut self.arenas[arena as usize] else { return Ok(()) };
        if window.slots.len() <= at {
            window.slots.resize_with(at + 1, || PageSlot::Unmapped);
        }
        window.slots[at] = PageSlot::Alias { mapping, number };
        Ok(())
    }

    /// Moves a page to a new home. Nothing may be mapped there yet. The page stays mapped at its
    /// former home, so it can return there without a driver call.
    pub(super) fn migrate<E>(
        &mut self,
        memory: &dyn VirtualMemory<E>,
        from: Pages,
        to: Pages,
    ) -> Result<(), E> {
        let start = Instant::now();
        let [old, new] = [from, to].map(|pages| (pages.arena, self.slots_of(pages).start));
        let Some(slot) = self.slot_mut(old) else { return Ok(()) };
        let PageSlot::Home { mapping, page, number } = std::mem::replace(slot, PageSlot::Unmapped)
        else {
            return Ok(());
        };
        let (slot, result) = match self.map_home(memory, new, page, number) {
            Ok(()) => (PageSlot::Alias { mapping, number }, Ok(())),
            Err((error, page)) => (PageSlot::Home { mapping, page, number }, Err(error)),
        };
        if let Some(old) = self.slot_mut(old) {
            *old = slot;
        }
        self.spent += start.elapsed();
        result
    }

    /// Moves a page to a former home, where it is still mapped.
    pub(super) fn migrate_back(&mut self, from: Pages, to: Pages) {
        let [old, new] = [from, to].map(|pages| (pages.arena, self.slots_of(pages).start));
        let Some(slot) = self.slot_mut(old) else { return };
        let PageSlot::Home { mapping, page, number } = std::mem::replace(slot, PageSlot::Unmapped)
        else {
            return;
        };
        *slot = PageSlot::Alias { mapping, number };
        self.homes[number as usize] = new;
        let Some(slot) = self.slot_mut(new) else { return };
        if let PageSlot::Alias { mapping, .. } = std::mem::replace(slot, PageSlot::Unmapped) {
            *slot = PageSlot::Home { mapping, page, number };
        }
    }

    /// Returns the aliases in an arena: for each page, the addresses here and the home.
    pub(super) fn aliases_in(&self, number: u32) -> impl Iterator<Item = (Pages, Pages)> {
        let slots = self.slots(number).iter().enumerate();
        slots.filter_map(move |(at, slot)| {
            let PageSlot::Alias { number: page, .. } = slot else { return None };
            let home = self.home(*page);
            let size = self.page_size(number);
            let here = Pages { arena: number, start: self.address((number, at)), size };
            Some((here, Pages { arena: home.0, start: self.address(home), size }))
        })
    }

    /// Returns whether these pages contain an alias.
    pub(super) fn has_aliases(&self, pages: Pages) -> bool {
        let mut slots = self.slots_of(pages).filter_map(|at| self.slots(pages.arena).get(at));
        slots.any(|slot| matches!(slot, PageSlot::Alias { .. }))
    }

    /// Unmaps and releases these pages, except pages whose number is in `elsewhere`, because they
    /// are also mapped elsewhere. No work may use the pages any more.
    pub(super) fn release<E>(
        &mut self,
        memory: &dyn VirtualMemory<E>,
        kind: PoolKind,
        pages: Pages,
        elsewhere: &BTreeSet<u32>,
    ) -> UnreleasedPages {
        let start = Instant::now();
        let mut kept = UnreleasedPages::default();
        let size = self.page_size(pages.arena);
        for (page, at) in pages.split(size).zip(self.slots_of(pages)) {
            let slot = self.slot_mut((pages.arena, at));
            if matches!(slot, Some(PageSlot::Home { number, .. }) if elsewhere.contains(number)) {
                kept.mapped.push(page);
                continue;
            }
            match self.unmap(memory, (pages.arena, at)) {
                Ok(Some((handle, number))) => {
                    self.vacant.push(number);
                    self.pages -= 1;
                    kept.unmapped += self.release_handle(memory, kind, handle, size);
                }
                Ok(None) => {}
                Err(ReleaseRefused) => kept.mapped.push(page),
            }
        }
        self.spent += start.elapsed();
        kept
    }

    /// Removes the mapping at a slot. If the backend refuses, the mapping stays, and a retired
    /// mapping becomes an alias again.
    pub(super) fn unmap<E>(
        &mut self,
        memory: &dyn VirtualMemory<E>,
        at: SlotId,
    ) -> Result<UnmappedPage, ReleaseRefused> {
        let Some(slot) = self.slot_mut(at) else { return Ok(None) };
        let (stays, unmapped) = match std::mem::replace(slot, PageSlot::Unmapped) {
            PageSlot::Unmapped => return Ok(None),
            PageSlot::Home { mapping, page, number } => match memory.release(mapping) {
                Ok(()) => (PageSlot::Unmapped, Ok(Some((page, number)))),
                Err(mapping) => (PageSlot::Home { mapping, page, number }, Err(ReleaseRefused)),
            },
            PageSlot::Alias { mapping, number } | PageSlot::Retired { mapping, number, .. } => {
                match memory.release(mapping) {
                    Ok(()) => (PageSlot::Unmapped, Ok(None)),
                    Err(mapping) => (PageSlot::Alias { mapping, number }, Err(ReleaseRefused)),
                }
            }
        };
        *slot = stays;
        match unmapped {
            Ok(_) => self.refused.remove(&at),
            Err(ReleaseRefused) => self.refused.insert(at),
        };
        unmapped
    }

    // ---- statistics ---------------------------------------------------------------------

    /// Adds the time spent in backend calls to the statistics.
    pub(super) fn count_time<B: Backend>(&mut self, core: &Core<B>) {
        lock(&core.global).mapping_time += std::mem::take(&mut self.spent);
    }

    /// Counts new pages that were given up after an error and that the backend refused to take
    /// back.
    pub(super) fn count_unreleased<B: Backend>(
        &self,
        core: &Core<B>,
        kind: PoolKind,
        kept: &UnreleasedPages,
    ) {
        if kept.bytes() == 0 {
            return;
        }
        let mut global = lock(&core.global);
        global.reserved_bytes.increase(kind, kept.bytes() as i64);
        global.num_device_alloc += 1;
        global.num_refused += 1;
        drop(global);
        self.count_refused(core);
    }

    /// Updates the statistics of refused mappings, pages and ranges.
    pub(super) fn count_refused<B: Backend>(&self, core: &Core<B>) {
        let (count, bytes) = self.refused();
        let refused = RefusedReleases { count, bytes };
        lock(&core.global).refused_pages[self.policy as usize] = refused;
    }
}
