//! Arenas: reserved addresses, and the pages that are mapped there.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::loose::Loose;
use crate::rules::{LARGE_BUFFER, PAGE, SMALL_BUFFER};
use crate::state::Pages;
use crate::windows::Window;
use crate::{AllocatorConfig, Backend, Handle, Policy, PoolKind, VirtualMemory};

/// The physical side of all arenas. Which addresses are in use is in the shards' books.
pub(crate) struct Arenas<B: Backend> {
    /// By number.
    pub(super) arenas: Vec<Option<Arena>>,
    /// Where each page is at home, by its number; vacant numbers too.
    pub(super) homes: Vec<(u32, usize)>,
    vacant: Vec<u32>,
    /// Pages in existence.
    pub(crate) pages: usize,
    /// Events of retirements, by number, that have not come: until then those windows are in use.
    pub(super) retirements: BTreeMap<u64, B::Event>,
    /// The number of the next one.
    pub(super) next_retirement: u64,
    /// From this one on the device was not waited for since.
    pub(super) waited: u64,
    /// Where a mapping is that the backend refused to undo, and did not since.
    pub(super) refused: BTreeSet<(u32, usize)>,
    /// What is mapped nowhere but that the backend refused to take back.
    pub(super) loose: Vec<Loose>,
    /// Time spent in the backend's calls since it was last taken.
    pub(crate) spent: Duration,
}

pub(super) struct Arena {
    pub(super) base: u64,
    pub(super) page_size: usize,
    /// How many pages have room.
    pub(super) room: usize,
    /// By page number, up to the last that was ever mapped. Dropped before the range.
    pub(super) slots: Vec<Slot>,
    /// The windows here, oldest first.
    pub(super) windows: Vec<Window>,
    pub(super) range: Handle,
}

pub(super) enum Slot {
    Unmapped,
    /// A page at home. Fields are dropped in this order.
    Mapped {
        mapping: Handle,
        page: Handle,
        number: u32,
    },
    /// A page that is mapped here too, but at home elsewhere.
    Alias {
        mapping: Handle,
        number: u32,
    },
    /// What was an alias; work that was given before the retirement may still use it.
    Retired {
        mapping: Handle,
        number: u32,
        retirement: u64,
    },
}

/// What the backend refused of pages that were to go back.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Those that are still mapped, and can be used.
    pub(crate) mapped: Vec<Pages>,
    /// Bytes of those that are not, but count until they go.
    pub(crate) loose: usize,
}

impl Kept {
    pub(crate) fn bytes(&self) -> usize {
        self.loose + self.mapped.iter().map(|pages| pages.size).sum::<usize>()
    }
}

/// A page that was unmapped, and its number; `None` if it is at home elsewhere.
type Unmapped = Option<(Handle, u32)>;

/// The backend refused.
pub(super) struct Refused;

impl Arena {
    pub(super) fn start(&self, slot: usize) -> u64 {
        self.base + (slot * self.page_size) as u64
    }
}

/// Bytes in a page of a pool's arena.
pub(crate) fn page_size(config: &AllocatorConfig, kind: PoolKind) -> usize {
    match (config.policy, kind) {
        (Policy::Default, _) => PAGE,
        (Policy::Torch, PoolKind::Large) => LARGE_BUFFER,
        (Policy::Torch, PoolKind::Small) => SMALL_BUFFER,
    }
}

impl<B: Backend> Default for Arenas<B> {
    fn default() -> Self {
        Self {
            arenas: Vec::new(),
            homes: Vec::new(),
            vacant: Vec::new(),
            pages: 0,
            retirements: BTreeMap::new(),
            next_retirement: 0,
            waited: 0,
            refused: BTreeSet::new(),
            loose: Vec::new(),
            spent: Duration::ZERO,
        }
    }
}

impl<B: Backend> Arenas<B> {
    /// Reserves addresses for pages of this size. Answers the arena's number and address.
    pub(crate) fn reserve(
        &mut self,
        memory: &dyn VirtualMemory<B::Error>,
        bytes: usize,
        page_size: usize,
    ) -> Result<(u32, u64), B::Error> {
        let start = Instant::now();
        let reserved = memory.reserve(bytes);
        self.spent += start.elapsed();
        let (base, range) = reserved?;
        let room = bytes / page_size;
        let arena =
            Some(Arena { base, page_size, room, slots: Vec::new(), windows: Vec::new(), range });
        let number = self.arenas.iter().position(Option::is_none).unwrap_or(self.arenas.len());
        match self.arenas.get_mut(number) {
            Some(vacant) => *vacant = arena,
            None => self.arenas.push(arena),
        }
        Ok((number as u32, base))
    }

    /// Gives an arena's addresses back, at which no page is.
    pub(crate) fn remove(&mut self, memory: &dyn VirtualMemory<B::Error>, arena: u32) {
        if let Some(Arena { range, .. }) =
            self.arenas.get_mut(arena as usize).and_then(Option::take)
        {
            self.let_go(memory, PoolKind::Large, range, 0);
        }
    }

    /// Bytes in each page of an arena.
    pub(crate) fn page_size(&self, arena: u32) -> usize {
        self.arenas[arena as usize].as_ref().map_or(SMALL_BUFFER, |arena| arena.page_size)
    }

    /// Creates and maps these pages. On an error none is, but for what the backend then refuses to
    /// take back.
    pub(crate) fn create(
        &mut self,
        memory: &dyn VirtualMemory<B::Error>,
        kind: PoolKind,
        pages: Pages,
    ) -> Result<(), (B::Error, Kept)> {
        let start = Instant::now();
        let numbers = self.numbers(pages);
        let page_size = self.page_size(pages.arena);
        let mut result = Ok(());
        for number in numbers.clone() {
            let name = self.vacant.pop().unwrap_or(self.homes.len() as u32);
            if name as usize == self.homes.len() {
                self.homes.push((pages.arena, number));
            }
            let mut loose = 0;
            let mapped = memory.create(page_size).and_then(|page| {
                self.put(memory, pages.arena, number, page, name).map_err(|(error, page)| {
                    loose = self.let_go(memory, kind, page, page_size);
                    error
                })
            });
            if let Err(error) = mapped {
                self.vacant.push(name);
                let size = (number - numbers.start) * page_size;
                let mut kept =
                    self.release(memory, kind, Pages { size, ..pages }, &BTreeSet::new());
                kept.loose += loose;
                result = Err((error, kept));
                break;
            }
            self.pages += 1;
        }
        self.spent += start.elapsed();
        result
    }

    /// Gives a page, which is at home at `from`, another home, where nothing is mapped. It stays mapped
    /// at the old one, to which it may come back.
    pub(crate) fn lend(
        &mut self,
        memory: &dyn VirtualMemory<B::Error>,
        from: Pages,
        to: Pages,
    ) -> Result<(), B::Error> {
        let start = Instant::now();
        let (old, new) = (self.numbers(from).start, self.numbers(to).start);
        let Some(slot) = self.slot(from.arena, old) else { return Ok(()) };
        let Slot::Mapped { mapping, page, number } = std::mem::replace(slot, Slot::Unmapped) else {
            return Ok(());
        };
        let (slot, result) = match self.put(memory, to.arena, new, page, number) {
            Ok(()) => (Slot::Alias { mapping, number }, Ok(())),
            Err((error, page)) => (Slot::Mapped { mapping, page, number }, Err(error)),
        };
        if let Some(old) = self.slot(from.arena, old) {
            *old = slot;
        }
        self.spent += start.elapsed();
        result
    }

    /// Pages of which each is mapped at the first address and at home at the second, those that
    /// have left an arena.
    pub(crate) fn away(&self, number: u32) -> impl Iterator<Item = (Pages, Pages)> {
        let arena = self.arenas[number as usize].as_ref();
        arena.into_iter().flat_map(move |arena| {
            arena.slots.iter().enumerate().filter_map(move |(at, slot)| {
                let Slot::Alias { number: page, .. } = slot else { return None };
                let (home, there) = self.homes[*page as usize];
                let there = self.arenas[home as usize].as_ref()?.start(there);
                let size = arena.page_size;
                let former = Pages { arena: number, start: arena.start(at), size };
                Some((former, Pages { arena: home, start: there, size }))
            })
        })
    }

    /// Gives a page that is at home at `from` its former home back, where it is still mapped.
    pub(crate) fn take_back(&mut self, from: Pages, to: Pages) {
        let (old, new) = (self.numbers(from).start, self.numbers(to).start);
        let Some(slot) = self.slot(from.arena, old) else { return };
        let Slot::Mapped { mapping, page, number } = std::mem::replace(slot, Slot::Unmapped) else {
            return;
        };
        *slot = Slot::Alias { mapping, number };
        self.homes[number as usize] = (to.arena, new);
        let Some(slot) = self.slot(to.arena, new) else { return };
        if let Slot::Alias { mapping, .. } = std::mem::replace(slot, Slot::Unmapped) {
            *slot = Slot::Mapped { mapping, page, number };
        }
    }

    pub(super) fn slot(&mut self, arena: u32, number: usize) -> Option<&mut Slot> {
        self.arenas.get_mut(arena as usize)?.as_mut()?.slots.get_mut(number)
    }

    /// Unmaps these pages and gives them back, but for those that are mapped elsewhere too. Nothing
    /// may use them any more.
    pub(crate) fn release(
        &mut self,
        memory: &dyn VirtualMemory<B::Error>,
        kind: PoolKind,
        pages: Pages,
        elsewhere: &BTreeSet<u32>,
    ) -> Kept {
        let start = Instant::now();
        let mut kept = Kept::default();
        let size = self.page_size(pages.arena);
        for (page, at) in pages.each(size).zip(self.numbers(pages)) {
            let slot = self.slot(pages.arena, at);
            if matches!(slot, Some(Slot::Mapped { number, .. }) if elsewhere.contains(number)) {
                kept.mapped.push(page);
                continue;
            }
            match self.unmap(memory, pages.arena, at) {
                Ok(Some((handle, number))) => {
                    self.vacant.push(number);
                    self.pages -= 1;
                    kept.loose += self.let_go(memory, kind, handle, size);
                }
                Ok(None) => {}
                Err(Refused) => kept.mapped.push(page),
            }
        }
        self.spent += start.elapsed();
        kept
    }

    /// Undoes the mapping at a slot. If the backend refuses, what is mapped there stays as it is,
    /// or if it was retired, becomes an alias again.
    pub(super) fn unmap(
        &mut self,
        memory: &dyn VirtualMemory<B::Error>,
        arena: u32,
        at: usize,
    ) -> Result<Unmapped, Refused> {
        let Some(slot) = self.slot(arena, at) else { return Ok(None) };
        let (stays, unmapped) = match std::mem::replace(slot, Slot::Unmapped) {
            Slot::Unmapped => return Ok(None),
            Slot::Mapped { mapping, page, number } => match memory.give_back(mapping) {
                Ok(()) => (Slot::Unmapped, Ok(Some((page, number)))),
                Err(mapping) => (Slot::Mapped { mapping, page, number }, Err(Refused)),
            },
            Slot::Alias { mapping, number } | Slot::Retired { mapping, number, .. } => {
                match memory.give_back(mapping) {
                    Ok(()) => (Slot::Unmapped, Ok(None)),
                    Err(mapping) => (Slot::Alias { mapping, number }, Err(Refused)),
                }
            }
        };
        *slot = stays;
        match unmapped {
            Ok(_) => self.refused.remove(&(arena, at)),
            Err(Refused) => self.refused.insert((arena, at)),
        };
        unmapped
    }

    fn put(
        &mut self,
        memory: &dyn VirtualMemory<B::Error>,
        arena: u32,
        number: usize,
        page: Handle,
        name: u32,
    ) -> Result<(), (B::Error, Handle)> {
        let home = (arena, number);
        let Some(arena) = &mut self.arenas[arena as usize] else { return Ok(()) };
        if arena.slots.len() <= number {
            arena.slots.resize_with(number + 1, || Slot::Unmapped);
        }
        match memory.map(&arena.range, number * arena.page_size, &page) {
            Ok(mapping) => {
                arena.slots[number] = Slot::Mapped { mapping, page, number: name };
                self.homes[name as usize] = home;
                Ok(())
            }
            Err(error) => Err((error, page)),
        }
    }

    pub(super) fn numbers(&self, pages: Pages) -> Range<usize> {
        let Some(arena) = &self.arenas[pages.arena as usize] else { return 0..0 };
        let first = (pages.start - arena.base) as usize / arena.page_size;
        first..first + pages.size / arena.page_size
    }
}
