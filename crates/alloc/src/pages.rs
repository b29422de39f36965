//! Arenas: reserved addresses, and the pages that are mapped there.

use std::time::{Duration, Instant};

use crate::rules::{LARGE_BUFFER, SMALL_BUFFER};
use crate::state::Pages;
use crate::{AllocatorConfig, Handle, PoolKind, VirtualMemory};

/// The physical side of all arenas. Which addresses are in use is in the shards' books.
#[derive(Default)]
pub(crate) struct Arenas {
    /// By number.
    arenas: Vec<Option<Arena>>,
    /// Time spent in the backend's calls since it was last taken.
    pub(crate) spent: Duration,
}

struct Arena {
    base: u64,
    page_size: usize,
    /// By page number. Dropped before the range that they lie in.
    pages: Vec<Option<Page>>,
    range: Handle,
}

/// A mapped page. Fields are dropped in this order.
struct Page {
    _mapping: Handle,
    _memory: Handle,
}

/// Bytes in a page of a pool's arena.
pub(crate) fn page_size(config: &AllocatorConfig, kind: PoolKind) -> usize {
    match kind {
        PoolKind::Large if config.expandable() => LARGE_BUFFER,
        _ => SMALL_BUFFER,
    }
}

impl Arenas {
    /// Reserves addresses for pages of this size. Answers the arena's number and address.
    pub(crate) fn reserve<E>(
        &mut self,
        memory: &dyn VirtualMemory<E>,
        bytes: usize,
        page_size: usize,
    ) -> Result<(u32, u64), E> {
        let start = Instant::now();
        let reserved = memory.reserve(bytes);
        self.spent += start.elapsed();
        let (base, range) = reserved?;
        let arena = Some(Arena { base, page_size, pages: Vec::new(), range });
        let number = self.arenas.iter().position(Option::is_none).unwrap_or(self.arenas.len());
        match self.arenas.get_mut(number) {
            Some(vacant) => *vacant = arena,
            None => self.arenas.push(arena),
        }
        Ok((number as u32, base))
    }

    /// Gives an arena's addresses back, at which nothing is mapped.
    pub(crate) fn remove(&mut self, arena: u32) {
        if let Some(arena) = self.arenas.get_mut(arena as usize) {
            *arena = None;
        }
    }

    /// Bytes in each page of an arena.
    pub(crate) fn page_size(&self, arena: u32) -> usize {
        self.arenas[arena as usize].as_ref().map_or(SMALL_BUFFER, |arena| arena.page_size)
    }

    /// Creates and maps these pages, none of which is mapped. On an error none is.
    pub(crate) fn map<E>(&mut self, memory: &dyn VirtualMemory<E>, pages: Pages) -> Result<(), E> {
        let Some(arena) = &mut self.arenas[pages.arena as usize] else { return Ok(()) };
        let start = Instant::now();
        let numbers = arena.numbers(pages);
        if arena.pages.len() < numbers.end {
            arena.pages.resize_with(numbers.end, || None);
        }
        let mut result = Ok(());
        for number in numbers.clone() {
            match arena.new_page(memory, number) {
                Ok(page) => arena.pages[number] = Some(page),
                Err(error) => {
                    arena.pages[numbers].fill_with(|| None);
                    result = Err(error);
                    break;
                }
            }
        }
        self.spent += start.elapsed();
        result
    }

    /// Unmaps these pages and gives them back.
    pub(crate) fn unmap(&mut self, pages: Pages) {
        let Some(arena) = &mut self.arenas[pages.arena as usize] else { return };
        let start = Instant::now();
        let numbers = arena.numbers(pages);
        arena.pages[numbers].fill_with(|| None);
        self.spent += start.elapsed();
    }
}

impl Arena {
    fn numbers(&self, pages: Pages) -> std::ops::Range<usize> {
        let first = (pages.start - self.base) as usize / self.page_size;
        first..first + pages.size / self.page_size
    }

    fn new_page<E>(&self, memory: &dyn VirtualMemory<E>, number: usize) -> Result<Page, E> {
        let page = memory.create(self.page_size)?;
        let mapping = memory.map(&self.range, number * self.page_size, &page)?;
        Ok(Page { _mapping: mapping, _memory: page })
    }
}
