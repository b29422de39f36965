//! The cache of page-locked host memory over the CUDA driver layer.
#![cfg(feature = "cuda")]

use std::sync::Arc;

use warpline_alloc::{AllocatorConfig, CudaHostBackend, CudaHostCache};
use warpline_cuda_sys_safe::owned::{DeviceMemory, Stream};
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule, SimConfig, SimDriver};
use warpline_cuda_sys_safe::{CudaCode, Driver, DriverError, MemsetValue, PointerKind};

const MIB: usize = 1 << 20;

fn cache(driver: &Arc<dyn Driver>, options: &str) -> CudaHostCache {
    let config = AllocatorConfig::parse(options).unwrap().host;
    CudaHostCache::new(CudaHostBackend::new(Arc::clone(driver), 0), config)
}

fn sim(devices: usize) -> (Arc<SimDriver>, Arc<dyn Driver>) {
    let sim = SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(devices) }.build();
    (Arc::clone(&sim), sim)
}

#[test]
fn blocks_do_not_overlap_and_are_page_locked() {
    let (sim, driver) = sim(1);
    let cache = cache(&driver, "");
    let blocks = [1000, 4096, 1 << 20, 9 << 20].map(|bytes| cache.alloc(bytes).unwrap());
    let mut ranges = blocks.each_ref().map(|block| {
        let start = block.as_ptr().addr().get();
        assert!(block.memory().is_pinned());
        for at in [start, start + block.size() - 1] {
            assert_eq!(driver.pointer_kind(at as u64).unwrap(), PointerKind::Pinned);
        }
        assert_eq!(start % 512, 0);
        (start, start + block.size())
    });
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:x?}");
    let usage = sim.usage();
    assert_eq!((usage.count(CallKind::HostAlloc), usage.count(CallKind::HostRegister)), (1, 1));
    drop((blocks, cache));
    assert!(sim.usage().all_released());
}

#[test]
fn registration_is_an_option() {
    let (sim, driver) = sim(1);
    let always = cache(&driver, "pinned_use_cuda_host_register:True,pinned_num_register_threads:4");
    drop(always.alloc(100).unwrap());
    drop(always.alloc(20 * MIB).unwrap());
    assert_eq!(sim.usage().count(CallKind::HostAlloc), 0);
    assert_eq!(sim.usage().count(CallKind::HostRegister), 2);
    let never = cache(&driver, "pinned_use_cuda_host_register:False");
    drop(never.alloc(20 * MIB).unwrap());
    assert_eq!(sim.usage().count(CallKind::HostAlloc), 1);
    assert_eq!(sim.usage().count(CallKind::HostRegister), 2);
}

#[test]
fn memory_that_cannot_be_registered_is_allocated() {
    let (sim, driver) = sim(1);
    let forbidden = || Fault::new(CallKind::HostRegister, CudaCode::NOT_PERMITTED).times(2);
    sim.inject(forbidden());
    let auto = cache(&driver, "");
    assert!(auto.alloc(20 * MIB).unwrap().memory().is_pinned());
    assert_eq!(sim.usage().count(CallKind::HostAlloc), 1);
    sim.clear_faults();
    sim.inject(forbidden());
    // If the option is set explicitly, the error is returned.
    let error = cache(&driver, "pinned_use_cuda_host_register:True").alloc(20 * MIB).unwrap_err();
    assert_eq!(error.backend::<DriverError>().unwrap().code(), Some(CudaCode::NOT_PERMITTED));
}

#[test]
fn is_pinned_creates_no_context() {
    let (sim, driver) = sim(2);
    let word = 7u64;
    let address = (&raw const word).addr() as u64;
    assert_eq!(driver.pointer_kind(address).unwrap(), PointerKind::Pageable);
    let cache = cache(&driver, "");
    assert_eq!(cache.stats().num_host_alloc, 0);
    assert!((0..2).all(|device| !sim.primary_context_active(device).unwrap()));
}

#[test]
fn a_block_is_not_used_again_before_its_stream_is_done() {
    let (sim, driver) = sim(1);
    let cache = cache(&driver, "");
    let stream = Stream::new(&driver, 0, Default::default()).unwrap();
    let block = cache.alloc(4096).unwrap();
    block.record_use(&stream);
    let start = block.as_ptr();
    let there = DeviceMemory::new(&driver, 0, 4096).unwrap();
    // SAFETY: `there` has 4096 bytes and lives until the stream is synchronized below.
    unsafe { driver.memset_async(there.ptr(), MemsetValue::U8(1), 4096, stream.handle()) }.unwrap();
    drop(block);
    assert_eq!(sim.pending(), 2, "the work and the event after it");
    assert_ne!(cache.alloc(4096).unwrap().as_ptr(), start);
    stream.synchronize().unwrap();
    assert_eq!(cache.alloc(4096).unwrap().as_ptr(), start);
}
