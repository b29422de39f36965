//! Freed device memory whose accesses may still be running. It is known by its addresses, and
//! followed where the allocator maps it at others.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::Location;

use warpline_stream::{Before, Stream};

use super::history::{Entry, prune};

/// Graves from which on those whose work the host has seen done are looked for.
const PRUNE_AT: usize = 256;

/// A freed block.
#[derive(Clone, Debug)]
struct Grave {
    end: i64,
    /// The id of the stream it was allocated for, and where that stream was at the free.
    home: u64,
    freed: Option<Before>,
    entries: Vec<Entry>,
}

/// The freed blocks of all devices, by device and address. They do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Graves {
    blocks: BTreeMap<(usize, i64), Grave>,
    prune_at: usize,
}

impl Graves {
    /// Takes the accesses to a block as it is freed.
    ///
    /// The allocator gives it to nobody before what the streams in `told` were given so far is
    /// done: that, and what comes before it, is no longer of interest.
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
        // Nothing, unless the block was allocated while races were not looked for.
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

    /// Takes out what is known of addresses that are given to someone, for `home`.
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

    /// Follows free memory that was mapped at other addresses.
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

    /// Cuts a range of addresses out: what was there, by address.
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
    /// The part within a range of addresses; `None` if nothing was done there.
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

    /// The same memory, at other addresses.
    fn shift(&mut self, by: i64) {
        self.end += by;
        for entry in &mut self.entries {
            entry.span.start += by;
            entry.within = entry.within.start + by..entry.within.end + by;
        }
    }
}
