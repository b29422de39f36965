//! Records the use of addresses after each request of a trace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use warpline_alloc::{AllocatorConfig, Block, BlockState, CachingAllocator};

use super::common::{Fake, MIB, PAGE};
use super::run::{Watch, replay};
use super::trace::{Op, Trace};

/// Maximum number of columns.
const COLUMNS: usize = 500;
/// Memory of the device, in bytes.
const CAPACITY: usize = 141 << 30;

/// Use of an address range, in the order of drawing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CellUse {
    /// A page that is mapped here, but is free or in a block at another address.
    Mapped,
    Free,
    Used,
    /// A whole block.
    Block,
}

/// Addresses with the same use during a number of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    pub is: CellUse,
    pub address: u64,
    pub size: usize,
    /// Index of the page, in the order of creation. `None` for a segment or a whole block.
    pub page: Option<usize>,
}

/// Memory that moved to another address.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    pub column: usize,
    pub from: u64,
    pub to: u64,
    pub size: usize,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Range {
    pub stream: u64,
    /// End of the highest mapping so far.
    pub end: u64,
    /// Whether the range has been the home of pages. Otherwise the range is for windows.
    pub is_home: bool,
}

/// The record of a replay.
#[derive(Debug, Default)]
pub struct Map {
    /// Each cell with its first column and the column after its last.
    pub cells: Vec<(Cell, usize, usize)>,
    pub moves: Vec<Move>,
    /// Ranges by their first address.
    pub ranges: BTreeMap<u64, Range>,
    /// Start of the range that each page was created in.
    pub made_for: Vec<u64>,
    pub columns: usize,
    /// For each request: its text, the address that it got or freed, and the numbers of pages
    /// created and remapped for it.
    pub requests: Vec<(String, u64, [usize; 2])>,
}

/// Records a replay.
struct Recorder<'a> {
    trace: &'a Trace,
    map: Map,
    open: BTreeMap<Cell, usize>,
    /// Indices of the pages by the backend's numbers.
    pages: BTreeMap<u64, usize>,
    /// Moves since the last column.
    moved: Arc<Mutex<Vec<(u64, u64, usize)>>>,
    counted: [usize; 2],
    address: u64,
}

/// The program that is drawn by default.
pub fn program() -> Trace {
    let text = include_str!("program.csv");
    Trace::read("program.csv", text.as_bytes()).expect("it is a trace")
}

/// Replays a trace under a policy and returns the record.
///
/// # Errors
/// A message if the policy cannot be parsed or a request fails.
pub fn record(trace: &Trace, policy: &str) -> Result<Map, String> {
    let config = AllocatorConfig::parse(policy).map_err(|error| error.to_string())?;
    let allocator = CachingAllocator::new(Fake::with_pages(CAPACITY), config);
    let moved = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&moved);
    allocator.on_remap(move |from, to, size| told.lock().unwrap().push((from, to, size)));
    let mut recorder = Recorder {
        trace,
        map: Map::default(),
        open: BTreeMap::new(),
        pages: BTreeMap::new(),
        moved,
        counted: [0; 2],
        address: 0,
    };
    replay(&allocator, trace, &trace.streams, &mut recorder, &mut |_| {})?;
    let Recorder { mut map, open, .. } = recorder;
    map.cells.extend(open.into_iter().map(|(cell, since)| (cell, since, map.columns)));
    map.cells.sort_unstable();
    Ok(map)
}

impl Watch<Fake> for Recorder<'_> {
    fn allocated(&mut self, _: usize, _: u32, block: &Block<Fake>) -> Result<(), String> {
        self.address = block.address();
        Ok(())
    }

    fn freeing(&mut self, _: usize, _: u32, block: &Block<Fake>) -> Result<(), String> {
        self.address = block.address();
        Ok(())
    }

    fn after(&mut self, at: usize, allocator: &CachingAllocator<Fake>) -> Result<(), String> {
        let id = self.trace.origins[at].id;
        let request = match self.trace.ops[at] {
            Op::Malloc { bytes, stream, .. } => {
                let (mib, stream) = (bytes as f64 / MIB as f64, stream as usize);
                format!("{id} = malloc({mib} MiB, stream {})", self.trace.streams[stream])
            }
            Op::Free { .. } => format!("free({id})"),
        };
        let stats = allocator.memory_stats();
        let counts = [stats.num_device_alloc as usize, stats.num_remaps as usize];
        let now = [counts[0] - self.counted[0], counts[1] - self.counted[1]];
        self.counted = counts;
        self.map.requests.push((request, self.address, now));
        if at.is_multiple_of(self.trace.ops.len().div_ceil(COLUMNS)) {
            self.look(allocator);
        }
        Ok(())
    }
}

impl Recorder<'_> {
    /// Adds a column.
    fn look(&mut self, allocator: &CachingAllocator<Fake>) {
        let segments = allocator.segments();
        let world = allocator.backend().world();
        let (map, mut cells) = (&mut self.map, BTreeSet::new());
        let base_of = |address| world.ranges.range(..=address).next_back().map(|(base, _)| *base);
        for (&address, &(size, number)) in &world.mappings {
            let base = base_of(address).expect("it is in a range");
            let range = map.ranges.entry(base).or_default();
            range.end = range.end.max(address + size as u64);
            let page = *self.pages.entry(number).or_insert_with(|| {
                range.is_home = true;
                map.made_for.push(base);
                map.made_for.len() - 1
            });
            cells.insert(Cell { is: CellUse::Mapped, address, size, page: Some(page) });
        }
        for segment in segments {
            let base = base_of(segment.address).filter(|_| segment.is_expandable);
            let range = map.ranges.entry(base.unwrap_or(segment.address)).or_default();
            range.stream = segment.stream;
            range.end = range.end.max(segment.address + segment.total_size as u64);
            for block in segment.blocks {
                let is =
                    if block.state == BlockState::Free { CellUse::Free } else { CellUse::Used };
                range.is_home |= is == CellUse::Free;
                let (mut address, end) = (block.address, block.address + block.size as u64);
                let whole = Cell { is, address, size: block.size, page: None };
                if is == CellUse::Used {
                    cells.insert(Cell { is: CellUse::Block, ..whole });
                }
                if !segment.is_expandable {
                    cells.insert(whole);
                }
                while let Some((number, offset)) = world.page_at(address).filter(|_| address < end)
                {
                    let size = (world.pages[&number] as u64 - offset).min(end - address);
                    let page = Some(self.pages[&number]);
                    cells.insert(Cell { is, address, size: size as usize, page });
                    address += size;
                }
            }
        }
        let column = map.columns;
        let moved = self.moved.lock().unwrap().drain(..).collect::<Vec<_>>();
        map.moves.extend(moved.into_iter().map(|(from, to, size)| Move { column, from, to, size }));
        let gone = self.open.extract_if(.., |cell, _| !cells.contains(cell));
        map.cells.extend(gone.map(|(cell, since)| (cell, since, column)));
        for cell in cells {
            self.open.entry(cell).or_insert(column);
        }
        map.columns += 1;
    }
}

impl Map {
    /// Returns whether the map has at most 40 columns, one for each request.
    pub fn is_short(&self) -> bool {
        self.columns <= 40
    }

    /// Returns the range that contains an address, with its start.
    pub fn range(&self, address: u64) -> (u64, Range) {
        let (base, range) = self.ranges.range(..=address).next_back().expect("it is in a range");
        (*base, *range)
    }

    /// Returns the moves out of a home range: into a window if `alias` is set, otherwise to another
    /// home.
    pub fn moves(&self, alias: bool) -> impl Iterator<Item = &Move> {
        let moves = self.moves.iter().filter(|it| self.range(it.from).1.is_home);
        moves.filter(move |it| self.range(it.to).1.is_home != alias)
    }

    /// Returns a table of the requests of a short run, with their effects.
    pub fn table(&self) -> String {
        let line = |(at, (request, address, [made, anew])): (usize, &(String, u64, [usize; 2]))| {
            let [moved, aliased] = [false, true].map(|alias| {
                let moves = self.moves(alias).filter(|it| it.column == at);
                moves.map(|it| it.size.div_ceil(PAGE)).sum::<usize>()
            });
            // Each remapped page has migrated or is in a new window.
            let new = if *anew >= aliased { aliased } else { 0 };
            let [migrated, back, found] = [anew - new, moved - (anew - new), aliased - new];
            let what = [(*made, "made"), (migrated, "migrated"), (back, "came back")];
            let aliases = [(new, "in a new window"), (found, "in a window found again")];
            let what = what.iter().chain(&aliases).filter(|(pages, _)| *pages > 0);
            let what: Vec<_> = what.map(|(pages, what)| format!("{pages} {what}")).collect();
            let line = format!("{request:<30}  {address:#x}  {}", what.join(", "));
            line.trim_end().to_owned() + "\n"
        };
        self.requests.iter().enumerate().map(line).collect()
    }
}
