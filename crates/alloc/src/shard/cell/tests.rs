//! Reuse of cells.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::*;
use crate::{AllocatorConfig, Block, CachingAllocator, PoolOptions, StreamBackend};

/// A backend type for each test, so that tests do not share cells. Streams are reference-counted,
/// so that tests can count the references.
struct Counted<const TEST: u8> {
    live: Arc<AtomicUsize>,
}

struct Memory(Arc<AtomicUsize>);

impl Drop for Memory {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<const TEST: u8> StreamBackend for Counted<TEST> {
    type Stream = Arc<u64>;
    type Event = ();
    type Error = Infallible;

    fn stream_id(stream: &Arc<u64>) -> u64 {
        **stream
    }

    fn record(&self, _: &Arc<u64>) -> Result<(), Infallible> {
        Ok(())
    }

    fn query(&self, (): &()) -> Result<bool, Infallible> {
        Ok(true)
    }

    fn synchronize(&self, (): &()) -> Result<(), Infallible> {
        Ok(())
    }
}

impl<const TEST: u8> Backend for Counted<TEST> {
    type Memory = Memory;

    fn alloc(&self, _: usize) -> Result<Memory, Infallible> {
        self.live.fetch_add(1, Ordering::SeqCst);
        Ok(Memory(Arc::clone(&self.live)))
    }

    fn address(_: &Memory) -> u64 {
        1 << 40
    }

    fn is_out_of_memory(&self, _: &Infallible) -> bool {
        false
    }

    fn mem_info(&self) -> Result<(usize, usize), Infallible> {
        Ok((1 << 40, 1 << 40))
    }
}

type Live = Arc<AtomicUsize>;

fn allocator<const TEST: u8>(live: &Live) -> CachingAllocator<Counted<TEST>> {
    CachingAllocator::new(Counted { live: Arc::clone(live) }, AllocatorConfig::default())
}

/// Returns the addresses of an allocator's cells.
fn cells<const TEST: u8>(allocator: &CachingAllocator<Counted<TEST>>) -> BTreeSet<usize> {
    let shards = allocator.shared().core.all_shards();
    shards.iter().map(|shard| std::ptr::from_ref(shard.cell).addr()).collect()
}

/// Returns the addresses of the vacant cells.
fn vacant_cells<const TEST: u8>() -> BTreeSet<usize> {
    let mut cells = Vec::new();
    while let Some(cell) = vacant::take::<Counted<TEST>>() {
        assert!(lock_shard(&cell.occupant).is_none());
        cells.push(cell);
    }
    cells.iter().for_each(|&cell| vacant::put(cell));
    cells.iter().map(|&cell| std::ptr::from_ref(cell).addr()).collect()
}

fn cells_after_malloc<const TEST: u8>(
    allocator: &CachingAllocator<Counted<TEST>>,
    stream: &Arc<u64>,
) -> (Block<Counted<TEST>>, BTreeSet<usize>) {
    let block = allocator.malloc(1000, stream).unwrap();
    (block, cells(allocator))
}

#[test]
fn a_thousand_allocators_in_turn_have_the_same_cells() {
    let live = Live::default();
    let streams = [1, 2].map(Arc::new);
    let mut all = BTreeSet::new();
    for turn in 0..1000 {
        let allocator = allocator::<1>(&live);
        let pool = allocator.new_pool(PoolOptions::default());
        let mut blocks: Vec<_> =
            streams.iter().map(|stream| allocator.malloc(1000, stream).unwrap()).collect();
        let route = allocator.use_pool(&pool);
        blocks.push(allocator.malloc(1000, &streams[0]).unwrap());
        let own = cells(&allocator);
        assert_eq!(own.len(), 3);
        all.extend(own);
        if turn % 2 == 0 {
            drop(blocks);
            drop((route, pool, allocator));
        } else {
            drop((route, pool, allocator));
            assert_eq!(live.load(Ordering::SeqCst), 3);
            drop(blocks);
        }
        assert_eq!(live.load(Ordering::SeqCst), 0);
        assert!(streams.iter().all(|stream| Arc::strong_count(stream) == 1));
    }
    assert_eq!((all.len(), vacant_cells::<1>()), (3, all));
}

#[test]
fn cells_are_reused_only_after_the_last_block_is_freed() {
    let live = Live::default();
    let stream = Arc::new(1);
    let first = allocator::<2>(&live);
    let (block, used) = cells_after_malloc(&first, &stream);
    drop(first);
    assert_eq!(vacant_cells::<2>().len(), 0);
    let second = allocator::<2>(&live);
    let (other, others) = cells_after_malloc(&second, &stream);
    assert!(used.is_disjoint(&others));
    drop(block);
    assert_eq!((vacant_cells::<2>(), live.load(Ordering::SeqCst)), (used.clone(), 1));
    let third = allocator::<2>(&live);
    let (again, reused) = cells_after_malloc(&third, &stream);
    assert_eq!(reused, used);
    for allocator in [&second, &third] {
        assert_eq!((allocator.memory_allocated(), allocator.segments().len()), (1024, 1));
    }
    drop((second, third, other, again));
    assert_eq!((vacant_cells::<2>().len(), live.load(Ordering::SeqCst)), (2, 0));
}

#[test]
fn cells_never_outnumber_concurrent_shards() {
    const THREADS: usize = 4;
    let live = Live::default();
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let stream = Arc::new(7);
                for _ in 0..250 {
                    let allocator = allocator::<3>(&live);
                    let blocks = [1000, 5000].map(|bytes| allocator.malloc(bytes, &stream));
                    // Two threads free blocks of one shard while the allocator is dropped.
                    thread::scope(|scope| {
                        for block in blocks {
                            scope.spawn(|| drop(block.unwrap()));
                        }
                        drop(allocator);
                    });
                    barrier.wait();
                }
            });
        }
    });
    assert_eq!(live.load(Ordering::SeqCst), 0);
    assert!((1..=THREADS).contains(&vacant_cells::<3>().len()), "{}", vacant_cells::<3>().len());
}
