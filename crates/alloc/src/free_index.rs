//! The free blocks of one pool and stream, ordered by size, then address.

use crate::rules::MIN_BLOCK_SIZE;
use crate::state::NONE;

/// Sixty-four bins per power of two, for every size under 2^61.
const BINS: usize = 3200;

/// The blocks themselves, each with two links that belong to the index while it is in there.
pub(crate) trait Nodes {
    /// Size and address, which do not change while the block is in an index.
    fn key(&self, block: u32) -> (usize, u64);

    fn link(&mut self, block: u32, side: usize) -> &mut u32;

    fn links(&self, block: u32) -> [u32; 2];
}

/// An ordered set in bins of similar size, and a bitmap that says which have entries. Each bin is
/// a treap whose nodes are the blocks: most have one, for which there is nothing to search or move;
/// and with many of one size a step still takes a logarithm of them.
#[derive(Debug)]
pub(crate) struct FreeIndex {
    occupied: [u64; BINS.div_ceil(64)],
    roots: Box<[u32; BINS]>,
}

impl Default for FreeIndex {
    fn default() -> Self {
        Self { occupied: [0; BINS.div_ceil(64)], roots: Box::new([NONE; BINS]) }
    }
}

/// Where a link to a node is: in another node, on one side, or at the root.
#[derive(Clone, Copy)]
struct Place {
    node: u32,
    side: usize,
}

const ROOT: Place = Place { node: NONE, side: 0 };

#[inline]
fn bin_of(size: usize) -> usize {
    let n = (size / MIN_BLOCK_SIZE).max(1);
    if n < 64 {
        return n;
    }
    let power = n.ilog2() as usize;
    ((power - 5) * 64 + ((n >> (power - 6)) & 63)).min(BINS - 1)
}

/// Higher nodes have higher priorities, which are as good as random.
#[inline]
fn priority(block: u32) -> u32 {
    let mixed = (block ^ (block >> 16)).wrapping_mul(0x85eb_ca6b);
    (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2_ae35)
}

impl FreeIndex {
    /// Adds a block that is in no index.
    #[inline]
    pub(crate) fn insert(&mut self, nodes: &mut impl Nodes, block: u32) {
        let bin = bin_of(nodes.key(block).0);
        if self.roots[bin] == NONE {
            *nodes.link(block, 0) = NONE;
            *nodes.link(block, 1) = NONE;
            self.roots[bin] = block;
            self.occupied[bin / 64] |= 1 << (bin % 64);
        } else {
            self.insert_in(nodes, bin, block);
        }
    }

    fn insert_in(&mut self, nodes: &mut impl Nodes, bin: usize, block: u32) {
        let (key, priority_of_it) = (nodes.key(block), priority(block));
        let (mut place, mut at) = (ROOT, self.roots[bin]);
        while at != NONE && priority(at) >= priority_of_it {
            let side = usize::from(nodes.key(at) < key);
            place = Place { node: at, side };
            at = nodes.links(at)[side];
        }
        self.set(nodes, bin, place, block);
        // What was there is split in two.
        let mut tails = [0, 1].map(|side| Place { node: block, side });
        while at != NONE {
            let below = usize::from(nodes.key(at) < key);
            let tail = &mut tails[1 - below];
            *nodes.link(tail.node, tail.side) = at;
            *tail = Place { node: at, side: below };
            at = nodes.links(at)[below];
        }
        for tail in tails {
            *nodes.link(tail.node, tail.side) = NONE;
        }
    }

    /// Takes a block out; nothing if it is not there.
    #[inline]
    pub(crate) fn remove(&mut self, nodes: &mut impl Nodes, block: u32) {
        let bin = bin_of(nodes.key(block).0);
        if self.roots[bin] == block && nodes.links(block) == [NONE; 2] {
            self.roots[bin] = NONE;
            self.occupied[bin / 64] &= !(1 << (bin % 64));
        } else {
            self.remove_from(nodes, bin, block);
        }
    }

    fn remove_from(&mut self, nodes: &mut impl Nodes, bin: usize, block: u32) {
        let key = nodes.key(block);
        let (mut place, mut at) = (ROOT, self.roots[bin]);
        while at != block {
            if at == NONE {
                return;
            }
            let side = usize::from(nodes.key(at) < key);
            place = Place { node: at, side };
            at = nodes.links(at)[side];
        }
        // What is below becomes one.
        let mut parts = nodes.links(block);
        loop {
            let [left, right] = parts;
            if left == NONE || right == NONE {
                return self.set(nodes, bin, place, if left == NONE { right } else { left });
            }
            let higher = usize::from(priority(left) <= priority(right));
            let node = parts[higher];
            self.set(nodes, bin, place, node);
            place = Place { node, side: 1 - higher };
            parts[higher] = nodes.links(node)[1 - higher];
        }
    }

    #[inline]
    fn set(&mut self, nodes: &mut impl Nodes, bin: usize, place: Place, block: u32) {
        if place.node == NONE {
            self.roots[bin] = block;
        } else {
            *nodes.link(place.node, place.side) = block;
        }
    }

    /// The smallest block of at least `size` bytes, of those the one with the lowest address.
    #[inline]
    pub(crate) fn best_fit(&self, nodes: &impl Nodes, size: usize) -> Option<u32> {
        self.first_from(nodes, (size, 0))
    }

    /// The block behind this one.
    pub(crate) fn after(&self, nodes: &impl Nodes, block: u32) -> Option<u32> {
        let (size, address) = nodes.key(block);
        self.first_from(nodes, (size, address + 1))
    }

    /// The first block that is not before a key.
    #[inline]
    fn first_from(&self, nodes: &impl Nodes, key: (usize, u64)) -> Option<u32> {
        let bin = bin_of(key.0);
        let (mut found, mut at) = (NONE, self.roots[bin]);
        while at != NONE {
            let before = nodes.key(at) < key;
            if !before {
                found = at;
            }
            at = nodes.links(at)[usize::from(before)];
        }
        if found != NONE {
            return Some(found);
        }
        let bin = self.next_occupied(bin + 1)?;
        Some(Self::outermost(nodes, self.roots[bin], 0))
    }

    /// The largest block, of those the one with the highest address.
    pub(crate) fn largest(&self, nodes: &impl Nodes) -> Option<u32> {
        let (word, bits) = self.occupied.iter().enumerate().rfind(|(_, bits)| **bits != 0)?;
        let bin = word * 64 + bits.ilog2() as usize;
        Some(Self::outermost(nodes, self.roots[bin], 1))
    }

    #[inline]
    fn outermost(nodes: &impl Nodes, mut at: u32, side: usize) -> u32 {
        loop {
            let next = nodes.links(at)[side];
            if next == NONE {
                return at;
            }
            at = next;
        }
    }

    /// All blocks, smallest first.
    pub(crate) fn iter(&self, nodes: &impl Nodes) -> impl Iterator<Item = u32> {
        let bin = std::iter::successors(self.next_occupied(0), |bin| self.next_occupied(bin + 1));
        let mut roots = bin.map(|bin| self.roots[bin]);
        let mut path = Vec::new();
        let mut at = NONE;
        std::iter::from_fn(move || {
            if at == NONE && path.is_empty() {
                at = roots.next()?;
            }
            while at != NONE {
                path.push(at);
                at = nodes.links(at)[0];
            }
            let block = path.pop()?;
            at = nodes.links(block)[1];
            Some(block)
        })
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
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Blocks by number: size, address, and links.
    type Table = Vec<(usize, u64, [u32; 2])>;

    impl Nodes for Table {
        fn key(&self, block: u32) -> (usize, u64) {
            let (size, address, _) = self[block as usize];
            (size, address)
        }

        fn link(&mut self, block: u32, side: usize) -> &mut u32 {
            &mut self[block as usize].2[side]
        }

        fn links(&self, block: u32) -> [u32; 2] {
            self[block as usize].2
        }
    }

    /// How many nodes lie above each other below this one.
    fn depth(nodes: &Table, at: u32) -> usize {
        if at == NONE {
            0
        } else {
            1 + nodes.links(at).map(|at| depth(nodes, at)).into_iter().max().unwrap()
        }
    }

    #[test]
    fn many_blocks_of_one_size_are_found_in_few_steps() {
        let mut nodes: Table = (0..10_000).map(|at| (512, at * 1024, [NONE; 2])).collect();
        let mut index = FreeIndex::default();
        (0..10_000).for_each(|block| index.insert(&mut nodes, block));
        assert!(depth(&nodes, index.roots[bin_of(512)]) < 60);
        assert!(index.iter(&nodes).eq(0..10_000));
        (0..10_000).step_by(2).for_each(|block| index.remove(&mut nodes, block));
        assert!(index.iter(&nodes).eq((1..10_000).step_by(2)));
    }

    proptest! {
        #[test]
        fn it_is_an_ordered_set(
            steps in proptest::collection::vec(
                (any::<bool>(), 1usize..300, 0u32..40, 0u64..9),
                1..300,
            ),
        ) {
            let mut index = FreeIndex::default();
            let mut nodes: Table = Vec::new();
            let mut model = BTreeMap::new();
            for (add, units, shift, address) in steps {
                let size = (units << shift) * MIN_BLOCK_SIZE;
                let expected = model.range((size, 0)..).next().map(|(_, block)| *block);
                prop_assert_eq!(index.best_fit(&nodes, size), expected);
                if add {
                    model.entry((size, address)).or_insert_with(|| {
                        nodes.push((size, address, [NONE; 2]));
                        let block = (nodes.len() - 1) as u32;
                        index.insert(&mut nodes, block);
                        block
                    });
                } else if let Some(block) = expected {
                    let next = model.range(nodes.key(block)..).nth(1).map(|(_, block)| *block);
                    prop_assert_eq!(index.after(&nodes, block), next);
                    model.remove(&nodes.key(block));
                    index.remove(&mut nodes, block);
                    index.remove(&mut nodes, block);
                }
                let largest = model.values().next_back().copied();
                prop_assert_eq!(index.largest(&nodes), largest);
                prop_assert!(index.iter(&nodes).eq(model.values().copied()));
            }
        }
    }
}
