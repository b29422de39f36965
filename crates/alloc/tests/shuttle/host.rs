//! The cache of page-locked memory over a simulated device that runs copies as late as possible.

use std::slice;
use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use warpline_alloc::{AllocatorConfig, CudaHostBackend, CudaHostCache, PinnedBlock};
use warpline_cuda_sys_safe::owned::{DeviceMemory, Stream};
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule, SimConfig};
use warpline_cuda_sys_safe::{Copy, CopyEnd, CudaCode, Driver, MemsetValue};

use super::check;

/// Number of bytes of a block that threads write and read.
const BYTES: usize = 1000;

type Block = PinnedBlock<CudaHostBackend>;

/// Device memory to copy from, and the streams of the copies.
struct Gpu {
    driver: Arc<dyn Driver>,
    memory: DeviceMemory,
    streams: [Stream; 2],
}

impl Gpu {
    fn new(driver: &Arc<dyn Driver>) -> Self {
        let memory = DeviceMemory::new(driver, 0, BYTES).unwrap();
        let streams = [(); 2].map(|()| Stream::new(driver, 0, Default::default()).unwrap());
        // SAFETY: the memory lives until `streams[0]` is synchronized below.
        unsafe {
            let value = MemsetValue::U8(9);
            driver.memset_async(memory.ptr(), value, BYTES, streams[0].handle()).unwrap();
        }
        streams[0].synchronize().unwrap();
        Self { driver: Arc::clone(driver), memory, streams }
    }

    /// Enqueues a copy over the block.
    fn overwrite(&self, stream: &Stream, block: &Block) {
        let dst = CopyEnd::Host(block.as_ptr());
        let src = CopyEnd::Device { device: 0, ptr: self.memory.ptr() };
        let copy = Copy { dst, src, bytes: BYTES };
        // SAFETY: the device's memory outlives the copy, and the cache reuses the block only after
        // the copy, because the use is recorded below.
        unsafe { self.driver.memcpy_async(&copy, stream.handle()) }.unwrap();
        block.record_use(stream);
    }

    fn synchronize(&self) {
        self.streams.iter().for_each(|stream| stream.synchronize().unwrap());
    }
}

fn fill(block: &Block, value: u8) {
    // SAFETY: this thread owns the block, which has at least `BYTES` bytes, and no stream uses it.
    unsafe { block.as_ptr().write_bytes(value, BYTES) };
}

#[track_caller]
fn assert_holds(block: &Block, value: u8) {
    // SAFETY: `block` has at least `BYTES` initialized bytes, and neither a thread nor a stream
    // writes them meanwhile.
    let bytes = unsafe { slice::from_raw_parts(block.as_ptr().as_ptr(), BYTES) };
    assert!(bytes.iter().all(|byte| *byte == value), "{} in place of {value}", bytes[0]);
}

/// Checks that only one holder uses a block, while streams use blocks, threads free them, the cache
/// is emptied, captures begin and end, and the driver sometimes has no memory.
#[test]
fn a_page_locked_block_is_reused_only_after_its_streams() {
    check(|| {
        let sim = SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(1) }.build();
        let driver: Arc<dyn Driver> = sim.clone();
        let gpu = Arc::new(Gpu::new(&driver));
        let options = ["", "pinned_max_cached_size_mb:0"][thread_rng().gen_range(0..2)];
        // A block in a shared segment, or a block with its own segment.
        let size = [BYTES, 3 << 20][thread_rng().gen_range(0..2)];
        let config = AllocatorConfig::parse(options).unwrap().host;
        let cache = CudaHostCache::new(CudaHostBackend::new(driver, 0), config);
        let [after, times] = [(); 2].map(|()| thread_rng().gen_range(0..4));
        let refuse = Fault::new(CallKind::HostAlloc, CudaCode::OUT_OF_MEMORY);
        sim.inject(refuse.after(after).times(times));
        let tasks = (1..=3u8).map(|number| {
            let (gpu, cache) = (Arc::clone(&gpu), cache.clone());
            let random: [usize; 3] = [(); 3].map(|()| thread_rng().gen_range(0..4));
            thread::spawn(move || {
                for random in random {
                    let Ok(block) = cache.alloc(size) else { continue };
                    fill(&block, number);
                    let capture = (random == 2).then(|| cache.capture());
                    let other = cache.alloc(size);
                    if random == 3 {
                        cache.empty_cache();
                    }
                    gpu.synchronize();
                    assert_holds(&block, number);
                    for stream in gpu.streams.iter().take(random) {
                        gpu.overwrite(stream, &block);
                    }
                    drop((capture, block, other));
                }
            })
        });
        let threads: Vec<_> = tasks.collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        gpu.synchronize();
        cache.empty_cache();
        let stats = cache.stats();
        assert_eq!((stats.requested_bytes.current, stats.allocated_bytes.current), (0, 0));
        drop((cache, gpu));
        assert!(sim.usage().all_released(), "{:?}", sim.usage());
    });
}
