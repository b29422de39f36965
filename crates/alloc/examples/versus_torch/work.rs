//! The measured work. `torch_alloc.cpp` does the same with PyTorch's allocator.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use warpline_alloc::{AllocError, Backend, Block, CachingAllocator};

/// Sizes of the blocks that are allocated and freed again, in bytes.
pub const SIZES: [usize; 4] = [512, 4 << 10, 1 << 20, 64 << 20];
/// Numbers of threads that allocate and free at once.
pub const THREADS: [usize; 4] = [1, 2, 4, 8];
/// Numbers of live blocks of mixed sizes.
pub const LIVE: [usize; 3] = [100, 1_000, 10_000];

/// Marsaglia's xorshift64.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

/// Seed of the random numbers.
pub const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a size from 512 bytes to 32 MiB. Each power of two is equally frequent.
    pub fn size(&mut self) -> usize {
        let power = 9 + self.next() % 16;
        ((1 << power) + self.next() % (1 << power)) as usize
    }
}

/// Allocates and frees one block `times` times.
///
/// # Errors
/// [`AllocError`] if an allocation fails.
pub fn cached<B: Backend>(
    allocator: &CachingAllocator<B>,
    stream: &B::Stream,
    bytes: usize,
    times: usize,
) -> Result<Duration, AllocError> {
    let start = Instant::now();
    for _ in 0..times {
        drop(black_box(allocator.malloc(black_box(bytes), stream)?));
    }
    Ok(start.elapsed())
}

/// Runs [`cached`] in one thread for each stream. Returns the time from the first start to the last
/// end.
///
/// # Errors
/// [`AllocError`] if an allocation fails.
pub fn threads<B: Backend>(
    allocator: &CachingAllocator<B>,
    streams: &[B::Stream],
    bytes: usize,
    times: usize,
) -> Result<Duration, AllocError> {
    let ready = AtomicUsize::new(0);
    let work = |stream: &B::Stream| -> Result<(Instant, Instant), AllocError> {
        let warm = cached(allocator, stream, bytes, 100);
        // Count this thread as ready after an error too, because the other threads wait for all.
        ready.fetch_add(1, Ordering::AcqRel);
        while ready.load(Ordering::Acquire) < streams.len() {
            std::thread::yield_now();
        }
        warm?;
        let start = Instant::now();
        cached(allocator, stream, bytes, times)?;
        Ok((start, Instant::now()))
    };
    let spans: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            streams.iter().map(|stream| scope.spawn(move || work(stream))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Result<_, _>>()
    })?;
    let start = spans.iter().map(|span| span.0).min();
    let end = spans.iter().map(|span| span.1).max();
    Ok(end.zip(start).map_or(Duration::ZERO, |(end, start)| end - start))
}

/// Live blocks of mixed sizes. Each step frees one block and allocates another in its place.
pub struct Mixed<B: Backend> {
    live: Vec<Option<Block<B>>>,
    /// For each step, the index of the block to free and the size of the block to allocate.
    steps: Vec<(usize, usize)>,
}

impl<B: Backend> Mixed<B> {
    /// Allocates the live blocks and draws the steps.
    ///
    /// # Errors
    /// [`AllocError`] if an allocation fails.
    pub fn new(
        allocator: &CachingAllocator<B>,
        stream: &B::Stream,
        live: usize,
        steps: usize,
    ) -> Result<Self, AllocError> {
        let mut random = Random(SEED);
        let live = (0..live)
            .map(|_| allocator.malloc(random.size(), stream).map(Some))
            .collect::<Result<Vec<_>, _>>()?;
        let step = |_| (random.next() as usize % live.len(), random.size());
        let steps = (0..steps).map(step).collect();
        Ok(Self { live, steps })
    }

    /// Runs all steps once.
    ///
    /// # Errors
    /// [`AllocError`] if an allocation fails.
    pub fn run(
        &mut self,
        allocator: &CachingAllocator<B>,
        stream: &B::Stream,
    ) -> Result<Duration, AllocError> {
        let start = Instant::now();
        for &(which, bytes) in &self.steps {
            self.live[which] = None;
            self.live[which] = Some(allocator.malloc(bytes, stream)?);
        }
        Ok(start.elapsed())
    }
}
