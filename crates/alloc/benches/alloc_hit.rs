//! What an allocation that the cache serves costs, with a backend that does nothing.

use std::convert::Infallible;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use criterion::{Criterion, criterion_group, criterion_main};
use warpline_alloc::{AllocatorConfig, Backend, CachingAllocator, StreamBackend};

#[derive(Default)]
struct Null {
    next: AtomicU64,
}

impl StreamBackend for Null {
    type Stream = u64;
    type Event = ();
    type Error = Infallible;

    fn stream_id(stream: &u64) -> u64 {
        *stream
    }

    fn record(&self, _: &u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn query(&self, (): &()) -> Result<bool, Infallible> {
        Ok(true)
    }

    fn synchronize(&self, (): &()) -> Result<(), Infallible> {
        Ok(())
    }
}

impl Backend for Null {
    type Memory = u64;

    fn alloc(&self, bytes: usize) -> Result<u64, Infallible> {
        Ok(self.next.fetch_add(bytes as u64, Ordering::Relaxed) + (1 << 40))
    }

    fn address(memory: &u64) -> u64 {
        *memory
    }

    fn is_out_of_memory(&self, _: &Infallible) -> bool {
        false
    }

    fn mem_info(&self) -> Result<(usize, usize), Infallible> {
        Ok((usize::MAX, usize::MAX))
    }
}

fn alloc_hit(c: &mut Criterion) {
    let mut group = c.benchmark_group("alloc_hit");
    for (name, bytes) in [("split 1 KiB", 1 << 10), ("whole 16 MiB", 16 << 20)] {
        let allocator = CachingAllocator::new(Null::default(), AllocatorConfig::default());
        drop(allocator.malloc(bytes, &0));
        group.bench_function(name, |b| b.iter(|| drop(allocator.malloc(black_box(bytes), &0))));
    }

    // Sizes of every magnitude, a thousand of them live: each step frees one and allocates one.
    let allocator = CachingAllocator::new(Null::default(), AllocatorConfig::default());
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut size = move || 1usize << (9 + next() % 16) | (next() % 512) as usize;
    let mut live: Vec<_> = (0..1000).map(|_| allocator.malloc(size(), &0)).collect();
    let mut at = 0;
    group.bench_function("mixed sizes, 1000 live", |b| {
        b.iter(|| {
            at = (at * 7 + 1) % live.len();
            live[at] = allocator.malloc(size(), &0);
        })
    });
    group.finish();
}

criterion_group!(benches, alloc_hit);
criterion_main!(benches);
