//! Checks of an allocator's state and of the ownership of memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpline_alloc::{Block, BlockState, CachingAllocator, PoolKind};

use super::{Fake, MIB};

/// Checks that the snapshot, the statistics and the backend agree.
pub fn check_state(allocator: &CachingAllocator<Fake>) {
    let stats = allocator.memory_stats();
    let snapshot = allocator.segments();
    let world = allocator.backend().world();
    let (arenas, whole): (Vec<_>, Vec<_>) = snapshot.iter().partition(|s| s.is_expandable);
    let held: BTreeMap<u64, usize> =
        whole.iter().map(|segment| (segment.address, segment.total_size)).collect();
    assert_eq!(held, world.live, "the segments are not the allocations of the backend");
    // For each page, the start and end offsets of the parts that segments cover.
    let mut owned: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for segment in &arenas {
        let mut at = segment.address;
        let end = segment.address + segment.total_size as u64;
        while at < end {
            let (page, offset) =
                world.page_at(at).expect("every part of an arena segment is mapped");
            let size = (world.pages[&page] as u64 - offset).min(end - at);
            owned.entry(page).or_default().push((offset, offset + size));
            at += size;
        }
    }
    for parts in owned.values_mut() {
        parts.sort_unstable();
        let apart = parts.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        assert!(apart, "two addresses of segments have the same memory");
    }
    let reserved: usize = arenas.iter().map(|segment| segment.total_size).sum();
    assert_eq!(
        reserved,
        world.pages.values().sum::<usize>(),
        "the reserved bytes are not those of all pages"
    );
    for (kind, pick) in [(PoolKind::Small, 0), (PoolKind::Large, 1)] {
        let mut sums = [0i64; 9];
        for segment in snapshot.iter().filter(|segment| segment.segment_type == kind) {
            sums[0] += i64::from(!segment.is_expandable);
            sums[1] += segment.total_size as i64;
            sums[2] += segment.allocated_size as i64;
            sums[3] += segment.active_size as i64;
            sums[4] += segment.requested_size as i64;
            let mut at = segment.address;
            let mut last_free = false;
            for block in &segment.blocks {
                assert_eq!(block.address, at, "the blocks do not cover their segment");
                at += block.size as u64;
                let free = block.state == BlockState::Free;
                assert!(!(free && last_free), "adjacent free blocks are not merged");
                last_free = free;
                if free && segment.blocks.len() > 1 && !segment.is_expandable {
                    sums[7] += 1;
                    sums[8] += block.size as i64;
                }
                sums[5] += i64::from(block.state == BlockState::Allocated);
                sums[6] += i64::from(!free);
            }
            assert_eq!(at, segment.address + segment.total_size as u64);
        }
        let counted = [
            stats.segment,
            stats.reserved_bytes,
            stats.allocated_bytes,
            stats.active_bytes,
            stats.requested_bytes,
            stats.allocation,
            stats.active,
            stats.inactive_split,
            stats.inactive_split_bytes,
        ]
        .map(|pools| [pools.small_pool, pools.large_pool][pick].current);
        assert_eq!(sums, counted, "{kind:?} pool");
    }
}

/// Checks that live blocks do not overlap.
pub fn check_disjoint<'a>(blocks: impl IntoIterator<Item = &'a Block<Fake>>) {
    let mut ranges: Vec<(u64, u64)> = blocks
        .into_iter()
        .filter(|block| block.size() > 0)
        .map(|block| (block.address(), block.address() + block.size() as u64))
        .collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "blocks overlap: {pair:x?}");
    }
}

/// Pieces of physical memory: page, start and end offset in the page. Memory outside of pages has
/// page 0, and its addresses as offsets.
pub type Physical = Vec<(u64, u64, u64)>;

pub fn physical(fake: &Fake, address: u64, size: usize) -> Physical {
    const PAGE: u64 = 2 * MIB as u64;
    let world = fake.world();
    let (mut at, end) = (address, address + size as u64);
    if world.page_at(at).is_none() {
        return vec![(0, at, end)];
    }
    let mut pieces = Vec::new();
    while at < end {
        let next = ((at / PAGE + 1) * PAGE).min(end);
        let (page, offset) = world.page_at(at).expect("a block lies in mapped pages");
        pieces.push((page, offset, offset + next - at));
        at = next;
    }
    pieces
}

/// Memory owned by any thread: the end offset by page and start offset.
#[derive(Clone, Default)]
pub struct Owned(Arc<Mutex<BTreeMap<(u64, u64), u64>>>);

impl Owned {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u64, u64), u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a block owns its memory. Fails if another block owns part of it.
    pub fn take(&self, fake: &Fake, block: &Block<Fake>) {
        let memory = physical(fake, block.address(), block.size());
        let mut owned = self.lock();
        for (page, start, end) in memory {
            let before = owned.range(..(page, end)).next_back();
            let apart = before.is_none_or(|(&(other, _), &last)| other != page || last <= start);
            assert!(apart, "{start:#x} of page {page:#x} belongs to two blocks");
            owned.insert((page, start), end);
        }
    }

    /// Removes the record and drops the block.
    pub fn free(&self, fake: &Fake, block: Block<Fake>) {
        for (page, start, _) in physical(fake, block.address(), block.size()) {
            self.lock().remove(&(page, start));
        }
        drop(block);
    }
}
