//! The free blocks of one pool and stream, ordered by size, then address.

use crate::rules::MIN_BLOCK_SIZE;

/// Sixteen bins per power of two, for every size under 2^61.
const BINS: usize = 800;

/// A free block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Free {
    pub(crate) size: usize,
    pub(crate) address: u64,
    pub(crate) block: u32,
}

impl Free {
    fn key(&self) -> (usize, u64) {
        (self.size, self.address)
    }
}

/// Where an entry is; good until the next change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    bin: usize,
    at: usize,
}

/// An ordered set in bins of similar size. Each bin is a sorted vector that keeps its capacity,
/// and a bitmap says which have entries: so a best fit is exact, and costs neither a tree walk nor
/// a heap allocation.
#[derive(Debug)]
pub(crate) struct FreeIndex {
    occupied: [u64; BINS.div_ceil(64)],
    bins: Box<[Vec<Free>; BINS]>,
}

impl Default for FreeIndex {
    fn default() -> Self {
        Self { occupied: [0; BINS.div_ceil(64)], bins: Box::new([const { Vec::new() }; BINS]) }
    }
}

#[inline]
fn bin_of(size: usize) -> usize {
    let n = (size / MIN_BLOCK_SIZE).max(1);
    if n < 16 {
        return n;
    }
    let power = n.ilog2() as usize;
    ((power - 3) * 16 + ((n >> (power - 4)) & 15)).min(BINS - 1)
}

impl FreeIndex {
    #[inline]
    pub(crate) fn insert(&mut self, free: Free) {
        let bin = bin_of(free.size);
        let entries = &mut self.bins[bin];
        let at = entries.partition_point(|entry| entry.key() < free.key());
        entries.insert(at, free);
        self.occupied[bin / 64] |= 1 << (bin % 64);
    }

    /// The smallest block of at least `size` bytes, of those the one with the lowest address.
    #[inline]
    pub(crate) fn best_fit(&self, size: usize) -> Option<(Position, Free)> {
        let bin = bin_of(size);
        let entries = &self.bins[bin];
        let at = entries.partition_point(|entry| entry.size < size);
        if let Some(free) = entries.get(at) {
            return Some((Position { bin, at }, *free));
        }
        let bin = self.next_occupied(bin + 1)?;
        Some((Position { bin, at: 0 }, *self.bins[bin].first()?))
    }

    /// The entry behind this one.
    pub(crate) fn after(&self, position: Position) -> Option<(Position, Free)> {
        let at = position.at + 1;
        if let Some(free) = self.bins[position.bin].get(at) {
            return Some((Position { at, ..position }, *free));
        }
        let bin = self.next_occupied(position.bin + 1)?;
        Some((Position { bin, at: 0 }, *self.bins[bin].first()?))
    }

    #[inline]
    pub(crate) fn remove_at(&mut self, position: Position) {
        let entries = &mut self.bins[position.bin];
        entries.remove(position.at);
        if entries.is_empty() {
            self.occupied[position.bin / 64] &= !(1 << (position.bin % 64));
        }
    }

    /// Removes the block of this size at this address; nothing if it is not there.
    #[inline]
    pub(crate) fn remove(&mut self, size: usize, address: u64) {
        let bin = bin_of(size);
        if let Ok(at) = self.bins[bin].binary_search_by_key(&(size, address), Free::key) {
            self.remove_at(Position { bin, at });
        }
    }

    /// The largest block, of those the one with the highest address.
    pub(crate) fn largest(&self) -> Option<Free> {
        let (word, bits) = self.occupied.iter().enumerate().rfind(|(_, bits)| **bits != 0)?;
        self.bins[word * 64 + bits.ilog2() as usize].last().copied()
    }

    /// All blocks, smallest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Free> {
        let bin = std::iter::successors(self.next_occupied(0), |bin| self.next_occupied(bin + 1));
        bin.flat_map(|bin| &self.bins[bin])
    }

    #[inline]
    fn next_occupied(&self, from: usize) -> Option<usize> {
        let mut word = from / 64;
        let mut bits = self.occupied.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.occupied.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_an_ordered_set(
            steps in proptest::collection::vec((any::<bool>(), 1usize..3000, 0u32..40, 0u64..4), 1..300),
        ) {
            let mut index = FreeIndex::default();
            let mut model = BTreeSet::new();
            for (add, units, shift, address) in steps {
                let size = (units << shift) * MIN_BLOCK_SIZE;
                let expected = model.range((size, 0)..).next().copied();
                let found = index.best_fit(size).map(|(_, free)| free.key());
                prop_assert_eq!(found, expected);
                if add {
                    if model.insert((size, address)) {
                        index.insert(Free { size, address, block: 0 });
                    }
                } else if let Some((size, address)) = expected {
                    model.remove(&(size, address));
                    index.remove(size, address);
                    index.remove(size, address);
                }
                prop_assert_eq!(index.largest().map(|free| free.key()), model.last().copied());
                prop_assert!(index.iter().map(Free::key).eq(model.iter().copied()));
            }
        }
    }
}
