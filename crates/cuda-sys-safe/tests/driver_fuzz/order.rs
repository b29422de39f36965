//! The order of operations, and the bytes that the order determines.

/// Number of timelines: one for each stream of a program, and one for the host.
pub(crate) const TIMELINES: usize = 24;
/// The host's timeline.
pub(crate) const HOST: usize = TIMELINES - 1;

/// A vector clock: the position of each timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock(pub(crate) [u32; TIMELINES]);

impl Clock {
    pub(crate) fn join(&mut self, other: &Clock) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = (*mine).max(theirs);
        }
    }

    /// Returns `true` if this clock includes all operations of `other`.
    pub(crate) fn covers(&self, other: &Clock) -> bool {
        self.0.iter().zip(other.0).all(|(&mine, theirs)| mine >= theirs)
    }

    pub(crate) fn has(&self, op: OpId) -> bool {
        self.0[op.timeline] >= op.number
    }
}

/// Operation `number` of a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpId {
    pub(crate) timeline: usize,
    pub(crate) number: u32,
}

/// Granularity of tracking, in bytes.
pub(crate) const CELL: usize = 16;
/// Largest number of bytes that a [`ContentHistory`] tracks. Programs use only this part of larger
/// memory.
pub(crate) const TRACKED: usize = 4096;

#[derive(Clone, Debug, Default)]
struct Cell {
    /// The latest writes: those that no later ordered write has replaced.
    writes: Vec<OpId>,
    /// The last read of each timeline.
    reads: Vec<OpId>,
    determined: bool,
}

/// The access history of some memory, independent of its addresses.
#[derive(Clone, Debug)]
pub(crate) struct ContentHistory {
    cells: Vec<Cell>,
}

impl ContentHistory {
    /// Creates a history without accesses.
    pub(crate) fn new(bytes: usize, determined: bool) -> Self {
        let count = bytes.min(TRACKED).div_ceil(CELL);
        let cell = Cell { determined, ..Cell::default() };
        Self { cells: vec![cell; count] }
    }

    fn range(&mut self, at: usize, len: usize) -> &mut [Cell] {
        let (from, to) = (at / CELL, (at + len).div_ceil(CELL));
        let count = self.cells.len();
        &mut self.cells[from.min(count)..to.min(count)]
    }

    /// Records a read. Returns `true` if the order determines the bytes.
    pub(crate) fn read(&mut self, at: usize, len: usize, op: OpId, clock: &Clock) -> bool {
        let mut known = true;
        for cell in self.range(at, len) {
            known &= cell.determined && cell.writes.iter().all(|&write| clock.has(write));
            cell.reads.retain(|read| read.timeline != op.timeline);
            cell.reads.push(op);
        }
        known
    }

    /// Records a write. `known` tells whether the written bytes are determined.
    pub(crate) fn write(&mut self, at: usize, len: usize, op: OpId, clock: &Clock, known: bool) {
        for (index, cell) in self.range(at, len).iter_mut().enumerate() {
            let start = (at / CELL + index) * CELL;
            let whole = at <= start && start + CELL <= at + len;
            let after = cell.writes.iter().all(|&write| clock.has(write));
            cell.determined = known && after && (whole || cell.determined);
            if after && whole {
                cell.writes.clear();
            }
            cell.writes.push(op);
        }
    }

    /// Returns `true` if a write would race with an earlier read. The result of the read would be
    /// undetermined.
    pub(crate) fn read_by_others(&self, at: usize, len: usize, clock: &Clock) -> bool {
        let count = self.cells.len();
        let (from, to) = (at / CELL, (at + len).div_ceil(CELL));
        let mut all = self.cells[from.min(count)..to.min(count)].iter().flat_map(|c| &c.reads);
        all.any(|&read| !clock.has(read))
    }

    /// Marks a range as undetermined.
    pub(crate) fn make_undetermined(&mut self, at: usize, len: usize) {
        for cell in self.range(at, len) {
            cell.determined = false;
        }
    }

    /// Returns, for each of the first bytes, whether the order determines the value that a reader
    /// at `clock` reads.
    pub(crate) fn seen(&self, clock: &Clock, bytes: usize) -> Vec<bool> {
        let seen =
            |cell: &Cell| cell.determined && cell.writes.iter().all(|&write| clock.has(write));
        let cells: Vec<bool> = self.cells.iter().map(seen).collect();
        (0..bytes.min(TRACKED)).map(|i| cells[i / CELL]).collect()
    }

    /// Returns `true` if `clock` includes all accesses.
    pub(crate) fn untouched_since(&self, clock: &Clock) -> bool {
        self.touched().all(|op| clock.has(op))
    }

    /// Returns the timelines of all accesses that `clock` does not include.
    pub(crate) fn pending(&self, clock: &Clock) -> Vec<usize> {
        self.touched().filter(|&op| !clock.has(op)).map(|op| op.timeline).collect()
    }

    fn touched(&self) -> impl Iterator<Item = OpId> + '_ {
        self.cells.iter().flat_map(|cell| cell.writes.iter().chain(&cell.reads).copied())
    }
}
