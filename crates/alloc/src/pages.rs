//! Arenas: reserved addresses, and the pages that are mapped there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

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
        _mapping: Handle,
        retirement: u64,
    },
}

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
    pub(crate) fn remove(&mut self, arena: u32) {
        if let Some(arena) = self.arenas.get_mut(arena as usize) {
            *arena = None;
        }
    }

    /// Bytes in each page of an arena.
    pub(crate) fn page_size(&self, arena: u32) -> usize {
        self.arenas[arena as usize].as_ref().map_or(SMALL_BUFFER, |arena| arena.page_size)
    }

    /// Creates and maps these pages. On an error none is mapped.
    pub(crate) fn create(
        &mut self,
        memory: &dyn VirtualMemory<B::Error>,
        pages: Pages,
    ) -> Result<(), B::Error> {
        let start = Instant::now();
        let mut result = Ok(());
        let numbers = self.numbers(pages);
        for number in numbers.clone() {
            let page = memory.create(self.page_size(pages.arena));
            let name = self.vacant.pop().unwrap_or(self.homes.len() as u32);
            if name as usize == self.homes.len() {
                self.homes.push((pages.arena, number));
            }
            let mapped = page.and_then(|page| {
                self.put(memory, pages.arena, number, page, name).map_err(|(error, _page)| error)
            });
            if let Err(error) = mapped {
                self.vacant.push(name);
                let size = (number - numbers.start) * self.page_size(pages.arena);
                self.release(Pages { size, ..pages });
                result = Err(error);
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

    /// Unmaps these pages and gives them back. Nothing may use them any more.
    pub(crate) fn release(&mut self, pages: Pages) {
        let start = Instant::now();
        let numbers = self.numbers(pages);
        self.pages -= numbers.len();
        if let Some(arena) = &mut self.arenas[pages.arena as usize] {
            for slot in &mut arena.slots[numbers] {
                if let Slot::Mapped { number, .. } = std::mem::replace(slot, Slot::Unmapped) {
                    self.vacant.push(number);
                }
            }
        }
        self.spent += start.elapsed();
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
