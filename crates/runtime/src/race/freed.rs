//! Accesses to freed device memory that may still be running, by address. If the allocator maps the
//! memory at another address, the accesses move there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::Location;

use warpline_stream::{Before, Stream};

use super::history::{RecordedAccess, prune};

/// Minimum number of freed blocks at which blocks without running accesses are dropped.
const PRUNE_AT: usize = 256;

/// A freed block, and the accesses to it that may still be running.
#[derive(Clone, Debug)]
struct FreedBlock {
    end: i64,
    /// Identifier of the stream that the block was allocated for.
    alloc_stream_id: u64,
    /// Position of that stream at the free. `None` if the stream is not known.
    freed: Option<Before>,
    accesses: Vec<RecordedAccess>,
}

/// The freed blocks of all devices, by device and address. Blocks do not overlap.
#[derive(Debug, Default)]
pub(crate) struct FreedMemory {
    blocks: BTreeMap<(usize, i64), FreedBlock>,
    prune_at: usize,
}

impl FreedMemory {
    /// Records the accesses to a block that is freed.
    ///
    /// The allocator reuses the block only after the streams in `allocator_streams` have completed the work that they
    /// have received so far. Accesses by that work, and accesses that come before it, are therefore dropped.
    pub(crate) fn record_freed(
        &mut self,
        (device, range): (usize, Range<i64>),
        (alloc_stream_id, alloc_stream): (u64, Option<&Stream>),
        allocated: &'static Location<'static>,
        allocator_streams: &[Stream],
        mut accesses: Vec<RecordedAccess>,
    ) {
        prune(&mut accesses);
        for stream in allocator_streams.iter().filter(|s| s.id() != alloc_stream_id) {
            let before = stream.before();
            accesses.retain(|access| !before.covers(&access.stream, access.op));
        }
        if accesses.is_empty() || range.is_empty() {
            return;
        }
        for access in &mut accesses {
            access.freed.get_or_insert_with(|| (allocated, alloc_stream.cloned()));
        }
        let freed = alloc_stream.map(Stream::before);
        // Drop older entries for this range. They exist only if the block was allocated while race detection was off.
        self.take(device, &range);
        let block = FreedBlock { end: range.end, alloc_stream_id, freed, accesses };
        self.blocks.insert((device, range.start), block);
        if self.blocks.len() >= self.prune_at.max(PRUNE_AT) {
            self.blocks.retain(|_, block| {
                prune(&mut block.accesses);
                !block.accesses.is_empty()
            });
            self.prune_at = 2 * self.blocks.len();
        }
    }

    /// Removes the accesses to a range that is allocated again for `alloc_stream`. Returns those that
    /// the allocator does not order before uses of the new allocation.
    pub(crate) fn take_freed(
        &mut self,
        device: usize,
        range: &Range<i64>,
        alloc_stream: &Stream,
    ) -> Vec<RecordedAccess> {
        let mut found = Vec::new();
        for (_, block) in self.take(device, range) {
            // The allocator passes memory from one stream to another through the driver or with a
            // wait. Both order the new block's stream after the stream on which the memory was
            // freed.
            let moved = block.alloc_stream_id != alloc_stream.id();
            found.extend(block.accesses.into_iter().filter(|access| match &block.freed {
                Some(freed) => !(moved && freed.covers(&access.stream, access.op)),
                None => !moved,
            }));
        }
        prune(&mut found);
        found
    }

    /// Moves the recorded accesses along with free memory that the allocator has mapped at other addresses.
    pub(crate) fn moved(&mut self, device: usize, from: i64, to: i64, bytes: i64) {
        // Entries at `to` are outdated, because the memory that was mapped there has been moved away.
        self.take(device, &(to..to + bytes));
        for (start, mut block) in self.take(device, &(from..from + bytes)) {
            block.shift(to - from);
            self.blocks.insert((device, start + to - from), block);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Removes and returns the blocks in a range of addresses, each with its address. Splits blocks
    /// that extend beyond the range.
    fn take(&mut self, device: usize, range: &Range<i64>) -> Vec<(i64, FreedBlock)> {
        let below = self.blocks.range((device, i64::MIN)..(device, range.end)).rev();
        let starts: Vec<i64> = below
            .take_while(|(_, block)| block.end > range.start)
            .map(|((_, start), _)| *start)
            .collect();
        let mut removed = Vec::new();
        for start in starts {
            let Some(block) = self.blocks.remove(&(device, start)) else { continue };
            for rest in [start..range.start, range.end..block.end] {
                if let Some(remainder) = block.part(&rest) {
                    self.blocks.insert((device, rest.start), remainder);
                }
            }
            let part = start.max(range.start)..block.end.min(range.end);
            removed.extend(block.part(&part).map(|block| (part.start, block)));
        }
        removed
    }
}

impl FreedBlock {
    /// Returns the part of the block within a range of addresses. `None` if it has no accesses
    /// there.
    fn part(&self, range: &Range<i64>) -> Option<Self> {
        let inside = |access: &&RecordedAccess| {
            let hull = access.hull();
            hull.start < range.end && range.start < hull.end
        };
        let mut accesses: Vec<RecordedAccess> =
            self.accesses.iter().filter(inside).cloned().collect();
        for access in &mut accesses {
            let within = &access.within;
            access.within = within.start.max(range.start)..within.end.min(range.end);
        }
        let end = self.end.min(range.end);
        (!range.is_empty() && !accesses.is_empty()).then(|| Self {
            end,
            accesses,
            alloc_stream_id: self.alloc_stream_id,
            freed: self.freed.clone(),
        })
    }

    /// Moves the block to other addresses.
    fn shift(&mut self, by: i64) {
        self.end += by;
        for access in &mut self.accesses {
            access.span.start += by;
            access.within = access.within.start + by..access.within.end + by;
        }
    }
}
