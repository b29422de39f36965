//! Arenas: reserved addresses, and the pages that are mapped there.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::rules::{LARGE_BUFFER, SMALL_BUFFER};
use crate::state::{Cost, Pages};
use crate::{AllocatorConfig, Backend, Handle, PoolKind, VirtualMemory};

/// New addresses are taken before old ones are used again, until this many times the pages there
/// are have been mapped somewhere.
const SPREAD: usize = 2;

/// The physical side of all arenas. Which addresses are in use is in the shards' books.
pub(crate) struct Arenas<B: Backend> {
    /// By number.
    arenas: Vec<Option<Arena>>,
    /// Events of lendings after which their pages' former addresses are out of use, oldest first.
    lendings: VecDeque<B::Event>,
    /// How many are no longer in `lendings`.
    settled: u64,
    /// Where each page is, by its number; vacant numbers too.
    owners: Vec<(u32, usize)>,
    vacant: Vec<u32>,
    /// Pages in existence.
    pages: usize,
    /// Places at which one is or was mapped.
    mapped: usize,
    /// Time spent in the backend's calls since it was last taken.
    pub(crate) spent: Duration,
}

struct Arena {
    base: u64,
    page_size: usize,
    /// By page number, up to the last that was ever mapped. Dropped before the range.
    slots: Vec<Slot>,
    range: Handle,
}

enum Slot {
    Unmapped,
    /// Fields are dropped in this order.
    Mapped {
        mapping: Handle,
        page: Handle,
        number: u32,
    },
    /// The page serves another address now; work that was given before may still use this one.
    Lent {
        mapping: Handle,
        number: u32,
        lending: u64,
    },
}

impl Arena {
    fn start(&self, slot: usize) -> u64 {
        self.base + (slot * self.page_size) as u64
    }
}

/// Which pages no block uses, by their number.
#[derive(Default)]
pub(crate) struct FreePages {
    free: Vec<bool>,
    /// How many there are.
    pub(crate) count: usize,
}

impl FreePages {
    fn contains(&self, number: u32) -> bool {
        self.free.get(number as usize).is_some_and(|free| *free)
    }
}

/// Bytes in a page of a pool's arena.
pub(crate) fn page_size(config: &AllocatorConfig, kind: PoolKind) -> usize {
    match kind {
        PoolKind::Large if config.expandable() => LARGE_BUFFER,
        _ => SMALL_BUFFER,
    }
}

impl<B: Backend> Default for Arenas<B> {
    fn default() -> Self {
        Self {
            arenas: Vec::new(),
            lendings: VecDeque::new(),
            settled: 0,
            owners: Vec::new(),
            vacant: Vec::new(),
            pages: 0,
            mapped: 0,
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
        let arena = Some(Arena { base, page_size, slots: Vec::new(), range });
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

    /// The first address of an arena behind all that were ever mapped.
    pub(crate) fn fresh(&self, arena: u32) -> u64 {
        let arena = self.arenas[arena as usize].as_ref();
        arena.map_or(0, |arena| arena.base + (arena.slots.len() * arena.page_size) as u64)
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
            let name = self.vacant.pop().unwrap_or(self.owners.len() as u32);
            if name as usize == self.owners.len() {
                self.owners.push((pages.arena, number));
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

    /// Maps one page, which is mapped at `from`, at `to` instead. Work that was given until the
    /// lending's event may still use it at the former address.
    pub(crate) fn lend(
        &mut self,
        memory: &dyn VirtualMemory<B::Error>,
        from: Pages,
        to: Pages,
        lending: u64,
    ) -> Result<(), B::Error> {
        let start = Instant::now();
        let old = self.numbers(from).start;
        let Some(arena) = self.arenas[from.arena as usize].as_mut() else { return Ok(()) };
        let Slot::Mapped { mapping, page, number: name } =
            std::mem::replace(&mut arena.slots[old], Slot::Unmapped)
        else {
            return Ok(());
        };
        let number = self.numbers(to).start;
        let (slot, result) = match self.put(memory, to.arena, number, page, name) {
            Ok(()) => (Slot::Lent { mapping, number: name, lending }, Ok(())),
            Err((error, page)) => (Slot::Mapped { mapping, page, number: name }, Err(error)),
        };
        if let Some(arena) = self.arenas[from.arena as usize].as_mut() {
            arena.slots[old] = slot;
        }
        self.spent += start.elapsed();
        result
    }

    /// Where the page is now that was lent from this address.
    pub(crate) fn borrower(&self, page: Pages) -> Option<Pages> {
        let arena = self.arenas.get(page.arena as usize)?.as_ref()?;
        let Slot::Lent { number, .. } = arena.slots.get(self.numbers(page).start)? else {
            return None;
        };
        let (arena, slot) = self.owners[*number as usize];
        let start = self.arenas.get(arena as usize)?.as_ref()?.start(slot);
        Some(Pages { arena, start, size: page.size })
    }

    /// Takes the page back that was lent from this address, where it is still mapped; the
    /// borrower's is now its former one.
    pub(crate) fn take_back(&mut self, page: Pages, lending: u64) {
        let (to, at) = (page.arena, self.numbers(page).start);
        let Some(slot) = self.slot(to, at) else { return };
        let Slot::Lent { mapping, number, .. } = std::mem::replace(slot, Slot::Unmapped) else {
            return;
        };
        let (from, old) = std::mem::replace(&mut self.owners[number as usize], (to, at));
        let Some(slot) = self.slot(from, old) else { return };
        if let Slot::Mapped { mapping: former, page, .. } = std::mem::replace(slot, Slot::Unmapped)
        {
            *slot = Slot::Lent { mapping: former, number, lending };
            if let Some(slot) = self.slot(to, at) {
                *slot = Slot::Mapped { mapping, page, number };
            }
        }
    }

    fn slot(&mut self, arena: u32, number: usize) -> Option<&mut Slot> {
        self.arenas.get_mut(arena as usize)?.as_mut()?.slots.get_mut(number)
    }

    /// Unmaps these pages and gives them back. Nothing may use them any more.
    pub(crate) fn release(&mut self, pages: Pages) {
        let start = Instant::now();
        let numbers = self.numbers(pages);
        self.pages -= numbers.len();
        self.mapped -= numbers.len();
        if let Some(arena) = &mut self.arenas[pages.arena as usize] {
            for slot in &mut arena.slots[numbers] {
                if let Slot::Mapped { number, .. } = std::mem::replace(slot, Slot::Unmapped) {
                    self.vacant.push(number);
                }
            }
        }
        self.spent += start.elapsed();
    }

    /// Unmaps what was lent from where it was. Nothing may use the former addresses any more.
    pub(crate) fn forget_lent(&mut self) {
        let start = Instant::now();
        for slot in self.arenas.iter_mut().flatten().flat_map(|arena| &mut arena.slots) {
            if matches!(slot, Slot::Lent { .. }) {
                *slot = Slot::Unmapped;
                self.mapped -= 1;
            }
        }
        self.settled += self.lendings.len() as u64;
        self.lendings.clear();
        self.spent += start.elapsed();
    }

    /// A number for what is lent before this event.
    pub(crate) fn add_lending(&mut self, event: B::Event) -> u64 {
        self.lendings.push_back(event);
        self.settled + self.lendings.len() as u64 - 1
    }

    /// Learns which lendings' former addresses are out of use.
    pub(crate) fn poll(&mut self, backend: &B) {
        while let Some(event) = self.lendings.front() {
            let come = backend.query(event).unwrap_or_else(|error| backend.is_lost(&error));
            if !come {
                return;
            }
            self.lendings.pop_front();
            self.settled += 1;
        }
    }

    /// The pages at these addresses, as the ones that are free.
    pub(crate) fn free_pages(&self, at: &[Pages]) -> FreePages {
        let mut pages = FreePages { free: vec![false; self.owners.len()], count: 0 };
        for at in at {
            let Some(arena) = &self.arenas[at.arena as usize] else { continue };
            for slot in &arena.slots[self.numbers(*at)] {
                if let Slot::Mapped { number, .. } = slot {
                    pages.free[*number as usize] = true;
                    pages.count += 1;
                }
            }
        }
        pages
    }

    /// What it takes to map a page at each of these addresses, at which none is, while those in
    /// `free` are free where they are.
    pub(crate) fn costs(&self, pages: Pages, free: &FreePages) -> impl Iterator<Item = Cost> {
        // Two calls for each page; four where the spread is used up, so that an old place is
        // cheaper, at three.
        let fresh = if self.mapped <= SPREAD * (self.pages + 32) { 2 } else { 4 };
        let arena = self.arenas[pages.arena as usize].as_ref();
        self.numbers(pages).map(move |number| match arena.and_then(|it| it.slots.get(number)) {
            Some(Slot::Lent { number, .. }) if free.contains(*number) => Cost::Calls(0),
            Some(Slot::Lent { lending, .. }) if *lending >= self.settled => Cost::Busy,
            Some(Slot::Lent { .. }) => Cost::Calls(3),
            _ => Cost::Calls(fresh),
        })
    }

    /// Whether work may still use what was mapped there.
    pub(crate) fn is_busy(&self, pages: Pages) -> bool {
        self.costs(pages, &FreePages::default()).any(|cost| cost == Cost::Busy)
    }

    fn put(
        &mut self,
        memory: &dyn VirtualMemory<B::Error>,
        arena: u32,
        number: usize,
        page: Handle,
        name: u32,
    ) -> Result<(), (B::Error, Handle)> {
        let to = arena;
        let Some(arena) = &mut self.arenas[arena as usize] else { return Ok(()) };
        if arena.slots.len() <= number {
            arena.slots.resize_with(number + 1, || Slot::Unmapped);
        }
        if matches!(arena.slots[number], Slot::Unmapped) {
            self.mapped += 1;
        }
        arena.slots[number] = Slot::Unmapped;
        match memory.map(&arena.range, number * arena.page_size, &page) {
            Ok(mapping) => {
                arena.slots[number] = Slot::Mapped { mapping, page, number: name };
                self.owners[name as usize] = (to, number);
                Ok(())
            }
            Err(error) => {
                self.mapped -= 1;
                Err((error, page))
            }
        }
    }

    fn numbers(&self, pages: Pages) -> Range<usize> {
        let Some(arena) = &self.arenas[pages.arena as usize] else { return 0..0 };
        let first = (pages.start - arena.base) as usize / arena.page_size;
        first..first + pages.size / arena.page_size
    }
}
