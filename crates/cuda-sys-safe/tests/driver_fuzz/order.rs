//! What comes before what, and which bytes that determines.

/// Streams of one program, and the host as the last.
pub(crate) const TIMELINES: usize = 24;
pub(crate) const HOST: usize = TIMELINES - 1;

/// How far each timeline had come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock(pub(crate) [u32; TIMELINES]);

impl Clock {
    pub(crate) fn join(&mut self, other: &Clock) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = (*mine).max(theirs);
        }
    }

    /// Whether all of `other` comes before.
    pub(crate) fn covers(&self, other: &Clock) -> bool {
        self.0.iter().zip(other.0).all(|(&mine, theirs)| mine >= theirs)
    }

    pub(crate) fn has(&self, op: Op) -> bool {
        self.0[op.timeline] >= op.number
    }
}

/// One operation: the `number`-th of its timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) timeline: usize,
    pub(crate) number: u32,
}

/// Bytes whose order is looked at together.
pub(crate) const CELL: usize = 16;
/// Of larger memory, only the beginning is used.
pub(crate) const TRACKED: usize = 4096;

#[derive(Clone, Debug, Default)]
struct Cell {
    /// Those writes that the latest ordered one does not stand in for.
    writes: Vec<Op>,
    /// The last read of each timeline.
    reads: Vec<Op>,
    determined: bool,
}

/// Some memory, whatever addresses it has.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    cells: Vec<Cell>,
}

impl Bytes {
    /// Nobody knows what is in it.
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

    /// A read; whether order determines what it sees.
    pub(crate) fn read(&mut self, at: usize, len: usize, op: Op, clock: &Clock) -> bool {
        let mut known = true;
        for cell in self.range(at, len) {
            known &= cell.determined && cell.writes.iter().all(|&write| clock.has(write));
            cell.reads.retain(|read| read.timeline != op.timeline);
            cell.reads.push(op);
        }
        known
    }

    /// A write of something that is determined or not.
    pub(crate) fn write(&mut self, at: usize, len: usize, op: Op, clock: &Clock, known: bool) {
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

    /// Whether a write would race with an earlier read, whose result nobody could then know.
    pub(crate) fn read_by_others(&self, at: usize, len: usize, clock: &Clock) -> bool {
        let count = self.cells.len();
        let (from, to) = (at / CELL, (at + len).div_ceil(CELL));
        let mut all = self.cells[from.min(count)..to.min(count)].iter().flat_map(|c| &c.reads);
        all.any(|&read| !clock.has(read))
    }

    /// Nothing is known of it any more.
    pub(crate) fn spoil(&mut self, at: usize, len: usize) {
        for cell in self.range(at, len) {
            cell.determined = false;
        }
    }

    /// Which of its first bytes a reader sees that knows of `clock`.
    pub(crate) fn seen(&self, clock: &Clock, bytes: usize) -> Vec<bool> {
        let seen =
            |cell: &Cell| cell.determined && cell.writes.iter().all(|&write| clock.has(write));
        let cells: Vec<bool> = self.cells.iter().map(seen).collect();
        (0..bytes.min(TRACKED)).map(|i| cells[i / CELL]).collect()
    }

    /// Whether all that touched it comes before.
    pub(crate) fn untouched_since(&self, clock: &Clock) -> bool {
        self.touched().all(|op| clock.has(op))
    }

    /// The timelines of accesses that do not come before.
    pub(crate) fn pending(&self, clock: &Clock) -> Vec<usize> {
        self.touched().filter(|&op| !clock.has(op)).map(|op| op.timeline).collect()
    }

    fn touched(&self) -> impl Iterator<Item = Op> + '_ {
        self.cells.iter().flat_map(|cell| cell.writes.iter().chain(&cell.reads).copied())
    }
}
