//! History of freed device memory whose accesses may still be running. It is stored by address and
//! moves along if the allocator maps the memory at another address.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::Location;

use warpline_stream::{Before, Stream};

use super::history::{Entry, prune};

/// Minimum number of freed blocks at which blocks without running work are dropped.
const PRUNE_AT: usize = 256;

/// A freed block.
#[derive(Clone, Debug)]
struct Grave {
    end: i64,
    /// The id of the stream that the block was allocated for. `freed`: the position of that stream
    /// at the free.
    home: u64,
    freed: Option<Before>,
    entries: Vec<Entry>,
}

/// The freed blocks of all devices, by device and address. Blocks do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Graves {
    blocks: BTreeMap<(usize, i64), Grave>,
    prune_at: usize,
}

impl Graves {
    /// Keeps the accesses to a block that is freed.
    ///
    /// The allocator reuses the block only after the work that the streams in `told` have received
    /// so far is complete. That work, and work before it, is dropped.
    pub(crate) fn bury(
        &mut self,
        (device, range): (usize, Range<i64>),
        (home_id, home): (u64, Option<&Stream>),
        allocated: &'static Location<'static>,
        told: &[Stream],
        mut entries: Vec<Entry>,
    ) {
        prune(&mut entries);
        for stream in told.iter().filter(|s| s.id() != home_id) {
            let before = stream.before();
            entries.retain(|entry| !before.covers(&entry.stream, entry.op));
        }
        if entries.is_empty() || range.is_empty() {
            return;
        }
        for entry in &mut entries {
            entry.freed.get_or_insert_with(|| (allocated, home.cloned()));
        }
        let freed = home.map(Stream::before);
        // Removes nothing, unless the block was allocated while race detection was off.
        self.take(device, &range);
        let grave = Grave { end: range.end, home: home_id, freed, entries };
        self.blocks.insert((device, range.start), grave);
        if self.blocks.len() >= self.prune_at.max(PRUNE_AT) {
            self.blocks.retain(|_, grave| {
                prune(&mut grave.entries);
                !grave.entries.is_empty()
            });
            self.prune_at = 2 * self.blocks.len();
        }
    }

    /// Removes and returns the history of addresses that are allocated again, for the stream
    /// `home`.
    pub(crate) fn exhume(
        &mut self,
        device: usize,
        range: &Range<i64>,
        home: &Stream,
    ) -> Vec<Entry> {
        let mut found = Vec::new();
        for (_, grave) in self.take(device, range) {
            // Memory that goes from one stream's allocations to another's goes through the driver
            // or comes with a wait: either orders it after the stream it was freed on.
            let moved = grave.home != home.id();
            found.extend(grave.entries.into_iter().filter(|entry| match &grave.freed {
                Some(freed) => !(moved && freed.covers(&entry.stream, entry.op)),
                None => !moved,
            }));
        }
        prune(&mut found);
        found
    }

    /// Moves the history of free memory that was mapped at other addresses.
    pub(crate) fn moved(&mut self, device: usize, from: i64, to: i64, bytes: i64) {
        // What was mapped there before has been moved away.
        self.take(device, &(to..to + bytes));
        for (start, mut grave) in self.take(device, &(from..from + bytes)) {
            grave.shift(to - from);
            self.blocks.insert((device, start + to - from), grave);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Removes the blocks in a range of addresses, splitting blocks at its ends, and returns them
    /// by address.
    fn take(&mut self, device: usize, range: &Range<i64>) -> Vec<(i64, Grave)> {
        let below = self.blocks.range((device, i64::MIN)..(device, range.end)).rev();
        let starts: Vec<i64> = below
            .take_while(|(_, grave)| grave.end > range.start)
            .map(|((_, start), _)| *start)
            .collect();
        let mut taken = Vec::new();
        for start in starts {
            let Some(grave) = self.blocks.remove(&(device, start)) else { continue };
            for rest in [start..range.start, range.end..grave.end] {
                if let Some(rest_of) = grave.part(&rest) {
                    self.blocks.insert((device, rest.start), rest_of);
                }
            }
            let part = start.max(range.start)..grave.end.min(range.end);
            taken.extend(grave.part(&part).map(|grave| (part.start, grave)));
        }
        taken
    }
}

impl Grave {
    /// Returns the part of the block within a range of addresses. `None` if it has no accesses
    /// there.
    fn part(&self, range: &Range<i64>) -> Option<Self> {
        let inside = |entry: &&Entry| {
            let hull = entry.hull();
            hull.start < range.end && range.start < hull.end
        };
        let mut entries: Vec<Entry> = self.entries.iter().filter(inside).cloned().collect();
        for entry in &mut entries {
            let within = &entry.within;
            entry.within = within.start.max(range.start)..within.end.min(range.end);
        }
        let end = self.end.min(range.end);
        (!range.is_empty() && !entries.is_empty()).then(|| Self {
            end,
            entries,
            home: self.home,
            freed: self.freed.clone(),
        })
    }

    /// Moves the block to other addresses.
    fn shift(&mut self, by: i64) {
        self.end += by;
        for entry in &mut self.entries {
            entry.span.start += by;
            entry.within = entry.within.start + by..entry.within.end + by;
        }
    }
}
