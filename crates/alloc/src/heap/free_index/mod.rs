//! The free blocks of a heap's small or large pool, ordered by size, then address or age.

use crate::heap::NONE;
use crate::rules::MIN_BLOCK_SIZE;

/// Number of bins: 47 groups of 128. The bins of each group are twice as wide as those of the group
/// before, so there is a bin for every size under 2^63 − 2^16.
const BINS: usize = 47 * 128;
/// Number of leading bins with blocks of a single size each, under 64 KiB.
const OF_ONE_SIZE: usize = 128;

/// Order among free blocks of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FreeOrder {
    /// The block with the lowest address first, as in PyTorch.
    #[default]
    Address,
    /// Among blocks under 64 KiB, the block that was freed last comes first. It is found without
    /// a search through the blocks of this size, which can be thousands. Among larger blocks, the
    /// lowest address comes first.
    Recent,
}

/// Storage of the blocks. The index uses the links of the blocks that it contains.
pub(crate) trait Nodes {
    /// Returns the size and the address, which do not change while the block is in an index.
    fn key(&self, block: u32) -> (usize, u64);

    fn links(&self, block: u32) -> &Links;

    fn links_mut(&mut self, block: u32) -> &mut Links;
}

/// Neighbours of a block in its search tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Links {
    /// Roots of the subtrees before and after the block.
    below: [u32; 2],
    above: u32,
}

impl Links {
    pub(crate) const NONE: Self = Self { below: [NONE; 2], above: NONE };
}

/// An ordered set of free blocks, in bins for similar sizes, with a bitmap of the occupied bins.
/// Each bin is a search tree whose nodes are the blocks. Most bins have one or two blocks, so a
/// tree is balanced only when it becomes deep.
#[derive(Debug)]
pub(crate) struct FreeIndex {
    occupied: [u64; BINS.div_ceil(64)],
    roots: Box<[u32; BINS]>,
    /// Number of blocks.
    len: u32,
    order: FreeOrder,
}

impl Default for FreeIndex {
    fn default() -> Self {
        Self {
            occupied: [0; BINS.div_ceil(64)],
            roots: Box::new([NONE; BINS]),
            len: 0,
            order: FreeOrder::default(),
        }
    }
}

/// Returns the bin of a size. The first 128 bins are [`MIN_BLOCK_SIZE`] wide, the next 128 bins are
/// twice as wide, and so on. The last bin also holds all larger sizes. The computation has no
/// branch, because irregular sizes would cause mispredictions.
#[inline]
fn bin_of(size: usize) -> usize {
    let n = size / MIN_BLOCK_SIZE + 128;
    let power = n.ilog2() as usize - 7;
    (power * 128 + (n >> power) - 128).min(BINS - 1)
}

impl FreeIndex {
    /// Sets the order among blocks of one size, and reinserts all blocks in that order.
    pub(crate) fn set_order(&mut self, nodes: &mut impl Nodes, order: FreeOrder) {
        if order == self.order {
            return;
        }
        let blocks: Vec<u32> = self.iter(nodes).collect();
        blocks.iter().for_each(|&block| self.remove(nodes, block));
        self.order = order;
        blocks.iter().rev().for_each(|&block| self.insert(nodes, block));
    }

    /// Adds a block, which must be in no index.
    #[inline]
    pub(crate) fn insert(&mut self, nodes: &mut impl Nodes, block: u32) {
        self.len += 1;
        let bin = bin_of(nodes.key(block).0);
        let root = &mut self.roots[bin];
        if *root == NONE {
            *root = block;
            self.occupied[bin / 64] |= 1 << (bin % 64);
            *nodes.links_mut(block) = Links::NONE;
        } else if self.order == FreeOrder::Recent && bin < OF_ONE_SIZE {
            let behind = std::mem::replace(root, block);
            nodes.links_mut(behind).above = block;
            *nodes.links_mut(block) = Links { below: [NONE, behind], above: NONE };
        } else {
            let root = *root;
            self.insert_below(nodes, root, block);
        }
    }

    fn insert_below(&mut self, nodes: &mut impl Nodes, root: u32, block: u32) {
        let key = nodes.key(block);
        let (mut above, mut depth) = (root, 1);
        let side = loop {
            let side = usize::from(nodes.key(above) < key);
            match nodes.links(above).below[side] {
                NONE => break side,
                next => above = next,
            }
            depth += 1;
        };
        *nodes.links_mut(block) = Links { above, ..Links::NONE };
        nodes.links_mut(above).below[side] = block;
        if depth > 8 && depth > 8 + 2 * self.len.ilog2() {
            self.balance_above(nodes, block);
        }
    }

    /// Removes a block, which must be in this index.
    #[inline]
    pub(crate) fn remove(&mut self, nodes: &mut impl Nodes, block: u32) {
        self.len -= 1;
        let links = nodes.links(block);
        if *links == Links::NONE {
            let bin = bin_of(nodes.key(block).0);
            self.roots[bin] = NONE;
            self.occupied[bin / 64] &= !(1 << (bin % 64));
        } else {
            self.remove_linked(nodes, block, *links);
        }
    }

    fn remove_linked(&mut self, nodes: &mut impl Nodes, block: u32, links: Links) {
        let below = match links.below {
            [NONE, only] | [only, NONE] => only,
            [left, right] => join(nodes, left, right),
        };
        self.put_below(nodes, links.above, block, below);
    }

    /// Replaces a tree below a node, or at the root of its bin, by another tree or by none.
    #[inline]
    fn put_below(&mut self, nodes: &mut impl Nodes, above: u32, former: u32, tree: u32) {
        if tree != NONE {
            nodes.links_mut(tree).above = above;
        }
        if above == NONE {
            let bin = bin_of(nodes.key(former).0);
            self.roots[bin] = tree;
            self.occupied[bin / 64] &= !(u64::from(tree == NONE) << (bin % 64));
        } else {
            let below = &mut nodes.links_mut(above).below;
            below[usize::from(below[1] == former)] = tree;
        }
    }

    /// Finds the smallest tree that contains this block and has one side much heavier than the
    /// other, and rebuilds this tree, as a scapegoat tree does. A rebuilt tree needs another rebuild only
    /// after many insertions, so rebuilding costs a few steps per insertion on average.
    #[cold]
    fn balance_above(&mut self, nodes: &mut impl Nodes, block: u32) {
        let (mut root, mut size) = (block, 1);
        loop {
            let Links { above, .. } = *nodes.links(root);
            if above == NONE {
                break;
            }
            let siblings = nodes.links(above).below;
            let sibling = siblings[usize::from(siblings[0] == root)];
            let heavier = size;
            size += 1 + if sibling == NONE { 0 } else { in_order(nodes, sibling).count() };
            root = above;
            if heavier * 3 > size * 2 + 3 {
                break;
            }
        }
        let blocks: Vec<u32> = in_order(nodes, root).collect();
        let above = nodes.links(root).above;
        let tree = build(nodes, &blocks);
        self.put_below(nodes, above, root, tree);
    }

    /// Returns the smallest block of at least `size` bytes. Among equal sizes, returns the first in
    /// the index's order.
    #[inline]
    pub(crate) fn best_fit(&self, nodes: &impl Nodes, size: usize) -> Option<u32> {
        self.first_from(nodes, (size, 0))
    }

    /// Returns the block after `block` in the index. Valid only if blocks of the size of `block` are ordered by
    /// address.
    pub(crate) fn after(&self, nodes: &impl Nodes, block: u32) -> Option<u32> {
        let (size, address) = nodes.key(block);
        self.first_from(nodes, (size, address + 1))
    }

    /// Returns the first block that is not before `key`.
    #[inline(always)]
    fn first_from(&self, nodes: &impl Nodes, key: (usize, u64)) -> Option<u32> {
        let bin = bin_of(key.0);
        let (mut found, mut at) = (NONE, self.roots[bin]);
        while at != NONE {
            let before = nodes.key(at) < key;
            if !before {
                found = at;
            }
            at = nodes.links(at).below[usize::from(before)];
        }
        if found != NONE {
            return Some(found);
        }
        let bin = self.next_occupied(bin + 1)?;
        Some(outermost(nodes, self.roots[bin], 0))
    }

    /// Returns the largest block. Among equal sizes, returns the last in the index's order.
    pub(crate) fn largest(&self, nodes: &impl Nodes) -> Option<u32> {
        let (word, bits) = self.occupied.iter().enumerate().rfind(|(_, bits)| **bits != 0)?;
        let bin = word * 64 + bits.ilog2() as usize;
        Some(outermost(nodes, self.roots[bin], 1))
    }

    /// Returns all blocks, smallest first.
    pub(crate) fn iter<N: Nodes>(&self, nodes: &N) -> impl Iterator<Item = u32> {
        let bins = std::iter::successors(self.next_occupied(0), |bin| self.next_occupied(bin + 1));
        bins.flat_map(|bin| in_order(nodes, self.roots[bin]))
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

/// Returns the first (`side` 0) or last (`side` 1) block of a tree.
#[inline]
fn outermost(nodes: &impl Nodes, mut at: u32, side: usize) -> u32 {
    loop {
        let next = nodes.links(at).below[side];
        if next == NONE {
            return at;
        }
        at = next;
    }
}

/// Returns all blocks of a tree, smallest first.
fn in_order<N: Nodes>(nodes: &N, root: u32) -> impl Iterator<Item = u32> {
    let end = nodes.links(root).above;
    let mut next = outermost(nodes, root, 0);
    std::iter::from_fn(move || {
        if next == end {
            return None;
        }
        let block = next;
        let right = nodes.links(block).below[1];
        if right != NONE {
            next = outermost(nodes, right, 0);
            return Some(block);
        }
        // Go up until the path comes from a left child.
        let mut from = block;
        next = nodes.links(from).above;
        while next != end && nodes.links(next).below[1] == from {
            from = next;
            next = nodes.links(from).above;
        }
        Some(block)
    })
}

/// Joins two trees. All blocks of the first come before those of the second.
#[inline(never)]
fn join(nodes: &mut impl Nodes, left: u32, right: u32) -> u32 {
    let first = outermost(nodes, right, 0);
    let Links { below: [_, behind], above } = *nodes.links(first);
    if first != right {
        nodes.links_mut(above).below[0] = behind;
        if behind != NONE {
            nodes.links_mut(behind).above = above;
        }
        nodes.links_mut(first).below[1] = right;
        nodes.links_mut(right).above = first;
    }
    nodes.links_mut(first).below[0] = left;
    nodes.links_mut(left).above = first;
    first
}

/// Builds a balanced tree of blocks in order.
fn build(nodes: &mut impl Nodes, blocks: &[u32]) -> u32 {
    let (before, rest) = blocks.split_at(blocks.len() / 2);
    let [root, behind @ ..] = rest else { return NONE };
    let below = [build(nodes, before), build(nodes, behind)];
    for tree in below.into_iter().filter(|tree| *tree != NONE) {
        nodes.links_mut(tree).above = *root;
    }
    nodes.links_mut(*root).below = below;
    *root
}

#[cfg(test)]
mod tests;
