//! The index, compared with an ordered map.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Blocks by number: size, address, and links.
type Table = Vec<(usize, u64, Links)>;

impl Nodes for Table {
    fn key(&self, block: u32) -> (usize, u64) {
        let (size, address, _) = self[block as usize];
        (size, address)
    }

    fn links(&self, block: u32) -> &Links {
        &self[block as usize].2
    }

    fn links_mut(&mut self, block: u32) -> &mut Links {
        &mut self[block as usize].2
    }
}

/// Returns the depth of the tree with root `at`, in nodes, including the root.
fn depth(nodes: &Table, at: u32) -> usize {
    if at == NONE {
        0
    } else {
        1 + nodes.links(at).below.map(|at| depth(nodes, at)).into_iter().max().unwrap()
    }
}

/// Ascending, descending, alternating and mixed order of addresses.
const ORDERS: [fn(u64) -> u64; 4] = [
    |at| at,
    |at| 10_000 - at,
    |at| if at % 2 == 0 { at } else { 20_000 - at },
    |at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20,
];

#[test]
fn blocks_of_one_size_lie_in_a_shallow_tree_by_address() {
    for order in ORDERS {
        let node = |at| (512, order(at) * 512, Links::NONE);
        let mut nodes: Table = (0..10_000).map(node).collect();
        let mut index = FreeIndex::default();
        (0..10_000).for_each(|block| index.insert(&mut nodes, block));
        let root = index.roots[bin_of(512)];
        assert!(depth(&nodes, root) <= 9 + 2 * 13);
        let mut expected: Vec<u32> = (0..10_000).collect();
        expected.sort_by_key(|&block| nodes.key(block));
        assert!(index.iter(&nodes).eq(expected.iter().copied()));
        (0..10_000).step_by(2).for_each(|block| index.remove(&mut nodes, block));
        expected.retain(|block| block % 2 == 1);
        assert!(index.iter(&nodes).eq(expected));
    }
}

/// An index and an ordered map as its model. The map's keys are the size and the value that orders
/// equal sizes.
#[derive(Default)]
struct Pair {
    index: FreeIndex,
    nodes: Table,
    model: BTreeMap<(usize, u64), u32>,
    insertions: u64,
}

impl Pair {
    fn is_recent(&self, size: usize) -> bool {
        self.index.order == FreeOrder::Recent && size < 64 << 10
    }

    fn insert_into_model(&mut self, block: u32) {
        let (size, address, _) = self.nodes[block as usize];
        self.insertions += 1;
        let tie = if self.is_recent(size) { u64::MAX - self.insertions } else { address };
        self.model.insert((size, tie), block);
    }

    fn add(&mut self, size: usize, address: u64) {
        if self.model.values().any(|&block| self.nodes.key(block) == (size, address)) {
            return;
        }
        self.nodes.push((size, address, Links::NONE));
        let block = (self.nodes.len() - 1) as u32;
        self.index.insert(&mut self.nodes, block);
        self.insert_into_model(block);
    }

    fn set_order(&mut self, order: FreeOrder) {
        let changes = order != self.index.order;
        self.index.set_order(&mut self.nodes, order);
        if changes {
            let blocks: Vec<u32> = std::mem::take(&mut self.model).into_values().collect();
            blocks.into_iter().rev().for_each(|block| self.insert_into_model(block));
        }
    }
}

/// Sizes of all magnitudes; some values are frequent.
fn sizes() -> impl Strategy<Value = usize> {
    let any = (1usize..300, 0u32..40);
    let few = (prop::sample::select(vec![1usize, 2, 3, 127]), 0u32..9);
    prop_oneof![any, few].prop_map(|(units, shift)| (units << shift) * MIN_BLOCK_SIZE)
}

proptest! {
    #[test]
    fn the_free_index_is_an_ordered_set(
        steps in proptest::collection::vec((0u8..20, sizes(), 0u64..9), 1..300),
        recent in any::<bool>(),
    ) {
        let mut pair = Pair::default();
        pair.set_order(if recent { FreeOrder::Recent } else { FreeOrder::Address });
        for (step, size, address) in steps {
            let expected = pair.model.range((size, 0)..).next().map(|(&key, &block)| (key, block));
            let fits = pair.index.best_fit(&pair.nodes, size);
            prop_assert_eq!(fits, expected.map(|(_, block)| block));
            match (step, expected) {
                (0, _) => pair.set_order(FreeOrder::Address),
                (1, _) => pair.set_order(FreeOrder::Recent),
                (2..11, _) => pair.add(size, address),
                (_, Some((key, block))) => {
                    if pair.index.order == FreeOrder::Address {
                        let next = pair.model.range(key..).nth(1).map(|(_, &block)| block);
                        prop_assert_eq!(pair.index.after(&pair.nodes, block), next);
                    }
                    pair.model.remove(&key);
                    pair.index.remove(&mut pair.nodes, block);
                }
                (_, None) => {}
            }
            let largest = pair.model.values().next_back().copied();
            prop_assert_eq!(pair.index.largest(&pair.nodes), largest);
            prop_assert!(pair.index.iter(&pair.nodes).eq(pair.model.values().copied()));
        }
    }
}
