//! The backend over the CUDA driver layer.
#![cfg(feature = "cuda")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use warpline_alloc::{
    AllocError, AllocatorConfig, Block, CudaAllocator, CudaBackend, CudaHostBackend, CudaHostCache,
    HostConfig, PoolOptions,
};
use warpline_cuda_sys_safe::null::NullDriver;
use warpline_cuda_sys_safe::owned::{DeviceMemory, ForeignMemory, Stream};
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule, SimConfig, SimDriver};
use warpline_cuda_sys_safe::{CudaCode, Driver, DriverError, StreamFlags};

use crate::common::Random;

fn driver(devices: usize) -> Arc<dyn Driver> {
    Arc::new(NullDriver::new(devices))
}

#[test]
fn device_memory_is_cached_by_stream() {
    let driver = driver(1);
    let allocator =
        CudaAllocator::new(CudaBackend::new(driver.clone(), 0), AllocatorConfig::default());
    let default = Stream::default_of(&driver, 0);
    let other = Stream::new(&driver, 0, StreamFlags::default()).unwrap();
    let block = allocator.malloc(1 << 20, &default).unwrap();
    let address = block.address();
    assert_ne!(address, 0);
    drop(block);
    let elsewhere = allocator.malloc(1 << 20, &other).unwrap();
    assert_eq!(elsewhere.stream_id(), other.id());
    assert_ne!(elsewhere.address(), address);
    assert_eq!(allocator.malloc(1 << 20, &default).unwrap().address(), address);
    let summary = allocator.memory_summary();
    assert!(summary.contains("cuda:0") && summary.contains("GPU reserved memory"), "{summary}");
    drop(elsewhere);
    allocator.empty_cache();
    assert_eq!(allocator.memory_reserved(), 0);
}

#[test]
fn out_of_memory_tells_this_process_from_others() {
    const MIB: usize = 1 << 20;
    let driver: Arc<dyn Driver> = SimConfig { capacity: 64 * MIB, ..SimConfig::new(1) }.build();
    let _by_other_ways = DeviceMemory::new(&driver, 0, 10 * MIB).unwrap();
    let config = AllocatorConfig::parse("policy:torch").unwrap();
    let allocator = CudaAllocator::new(CudaBackend::new(driver.clone(), 0), config);
    let stream = Stream::default_of(&driver, 0);
    let _block = allocator.malloc(20 * MIB, &stream).unwrap();
    let Err(AllocError::OutOfMemory(facts)) = allocator.malloc(50 * MIB, &stream) else {
        panic!("there are 34 MiB left");
    };
    assert_eq!((facts.process, facts.others()), (Some(30 * MIB), Some(10 * MIB)));
    assert!(
        facts.to_string().contains("this process has 30.00 MiB in use and other processes 0 bytes"),
        "{facts}"
    );
}

/// Old devices have no virtual memory management, nor have simulated devices on systems that cannot
/// map memory twice.
#[test]
fn a_device_without_virtual_memory_gets_plain_segments() {
    const MIB: usize = 1 << 20;
    for options in ["", "policy:torch", "policy:torch,expandable_segments:True"] {
        let mut config = SimConfig::new(1);
        config.properties.virtual_memory_management = false;
        let sim = config.build();
        let driver: Arc<dyn Driver> = sim.clone();
        let config = AllocatorConfig::parse(options).unwrap();
        let allocator = CudaAllocator::new(CudaBackend::new(driver.clone(), 0), config);
        let streams = [0, 1].map(|_| Stream::new(&driver, 0, StreamFlags::default()).unwrap());
        for stream in &streams {
            let blocks = [1, 30, 2, 50].map(|mib| allocator.malloc(mib * MIB, stream).unwrap());
            assert!(blocks.iter().all(|block| block.address() != 0));
            drop(blocks);
            drop(allocator.malloc(70 * MIB, stream).unwrap());
        }
        let usage = sim.usage();
        assert!(usage.count(CallKind::MemAlloc) >= 2, "{options}: {:?}", usage.calls);
        assert_eq!(usage.count(CallKind::AddressReserve), 0, "{options}");
        allocator.empty_cache();
        let info = driver.mem_info(0).unwrap();
        assert_eq!((allocator.memory_reserved(), info.free), (0, info.total), "{options}");
    }
}

#[test]
fn streams_of_a_peer_device_may_use_a_block() {
    let driver = driver(2);
    let allocator =
        CudaAllocator::new(CudaBackend::new(driver.clone(), 0), AllocatorConfig::default());
    let [own, peer] = [0, 1].map(|device| Stream::default_of(&driver, device));
    let second = Stream::new(&driver, 0, StreamFlags::default()).unwrap();
    // The recycled events belong to the two devices alternately.
    for stream in [&peer, &second, &peer, &second] {
        let block = allocator.malloc(512, &own).unwrap();
        block.record_stream(stream);
        drop(block);
        assert_eq!(allocator.memory_stats().active.all.current, 1);
        drop(allocator.malloc(512, &own).unwrap());
        assert_eq!(allocator.memory_stats().active.all.current, 0);
    }
}

#[test]
fn a_missing_device_is_a_driver_error() {
    let driver = driver(1);
    let allocator =
        CudaAllocator::new(CudaBackend::new(driver.clone(), 3), AllocatorConfig::default());
    let error = allocator.malloc(512, &Stream::default_of(&driver, 3)).unwrap_err();
    assert!(matches!(error, AllocError::Backend { .. }), "{error}");
    assert!(matches!(
        error.backend::<DriverError>(),
        Some(DriverError::InvalidDevice { device: 3, count: 1 })
    ));
}

#[test]
fn page_locked_memory_is_cached() {
    let driver = driver(1);
    let cache = CudaHostCache::new(CudaHostBackend::new(driver.clone(), 0), HostConfig::default());
    let block = cache.alloc(1000).unwrap();
    let pointer = block.memory().as_ptr();
    assert!(block.memory().is_pinned());
    assert_eq!((block.offset(), block.size()), (0, 1024));
    block.record_use(&Stream::default_of(&driver, 0));
    drop(block);
    assert_eq!(cache.alloc(1024).unwrap().memory().as_ptr(), pointer);
    assert_eq!(cache.stats().num_host_alloc, 1);
}

fn lazy() -> (Arc<SimDriver>, Arc<dyn Driver>) {
    let sim = SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(1) }.build();
    (sim.clone(), sim)
}

#[test]
fn a_stream_of_another_driver_does_not_block_releases() {
    let (_, driver) = lazy();
    let (_, other) = lazy();
    for options in ["policy:default", "policy:torch", "expandable_segments:True"] {
        let config = AllocatorConfig::parse(options).unwrap();
        let allocator = CudaAllocator::new(CudaBackend::new(driver.clone(), 0), config);
        let [own, foreign] =
            [&driver, &other].map(|d| Stream::new(d, 0, StreamFlags::default()).unwrap());
        let blocks = [&own, &foreign].map(|stream| allocator.malloc(8 << 20, stream).unwrap());
        drop(blocks);
        allocator.empty_cache();
        assert_eq!(allocator.memory_reserved(), 0, "{options}");
    }
}

/// The driver refuses some releases of each kind. The statistics agree with the memory that the
/// driver holds.
#[test]
fn the_state_agrees_with_a_driver_that_refuses() {
    for (seed, options) in [
        "policy:default",
        "policy:torch",
        "expandable_segments:True",
        "policy:default,garbage_collection_threshold:0.3,per_process_memory_fraction:0.9",
    ]
    .into_iter()
    .enumerate()
    {
        let capacity = 256 << 20;
        let sim = SimConfig { capacity, ..SimConfig::new(1) }.build();
        let driver: Arc<dyn Driver> = sim.clone();
        let config = AllocatorConfig::parse(options).unwrap();
        let allocator = CudaAllocator::new(CudaBackend::new(driver.clone(), 0), config);
        let streams = [0, 1].map(|_| Stream::new(&driver, 0, StreamFlags::default()).unwrap());
        let mut live = Vec::new();
        let mut random = Random(seed as u64);
        let mut refused = 0;
        for _ in 0..400 {
            if random.below(10) == 0 {
                let calls = [CallKind::MemFree, CallKind::MemUnmap, CallKind::MemRelease];
                let fault =
                    Fault::new(calls[random.below(3)], CudaCode::STREAM_CAPTURE_UNSUPPORTED);
                sim.inject(fault.after(random.below(5)).times(1 + random.below(20)));
            }
            match random.below(8) {
                0 => allocator.empty_cache(),
                1..=3 if !live.is_empty() => drop(live.swap_remove(random.below(live.len()))),
                _ => live.extend(allocator.malloc(random.bytes(), &streams[random.below(2)]).ok()),
            }
            assert_eq!(driver.refused().all().count, 0, "the allocator keeps what is refused");
            assert_eq!(allocator.memory_reserved(), sim.usage().devices[0].used_bytes, "{options}");
            refused = allocator.memory_stats().num_refused.max(refused);
        }
        assert!(refused > 5, "{options}: {refused}");
        sim.clear_faults();
        live.clear();
        allocator.empty_cache();
        let stats = allocator.memory_stats();
        assert_eq!((stats.refused_releases, stats.refused_bytes), (0, 0), "{options}");
        assert_eq!(sim.usage().devices[0].used_bytes, 0, "{options}");
        drop((allocator, streams));
        assert!(sim.usage().all_released(), "{options}: {:?}", sim.usage());
    }
}

/// A source that waited for a lock that its own thread holds would never return.
#[test]
fn a_pools_source_that_uses_the_allocator_does_not_hang() {
    let (done, result) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let driver = driver(1);
        let backend = CudaBackend::new(driver.clone(), 0);
        let allocator = CudaAllocator::new(backend.clone(), AllocatorConfig::default());
        let stream = Stream::default_of(&driver, 0);
        let inner = Arc::new(Mutex::new(Vec::new()));
        let (again, own, errors) = (allocator.clone(), stream.clone(), inner.clone());
        let over = backend.with_source(move |driver, device, bytes| {
            again.empty_cache();
            again.set_memory_fraction(0.5).unwrap();
            drop(again.capture());
            errors.lock().unwrap().push(again.malloc(1 << 20, &own).map(drop));
            Ok(DeviceMemory::new(driver, device, bytes)?.into())
        });
        let pool = allocator.new_pool_over(over, PoolOptions::default());
        let block = {
            let _route = allocator.use_pool(&pool);
            allocator.malloc(1 << 20, &stream).unwrap()
        };
        assert!(pool.holds(&block));
        drop(allocator.malloc(1 << 20, &stream).unwrap());
        done.send(std::mem::take(&mut *inner.lock().unwrap())).unwrap();
    });
    let errors = result.recv_timeout(Duration::from_secs(20)).expect("the source hangs");
    assert!(matches!(errors[..], [Err(AllocError::InsideSource { .. })]), "{errors:?}");
}

/// An owner of foreign memory that uses the allocator in its drop, while the memory is released.
struct Owner {
    allocator: CudaAllocator,
    stream: Stream,
    _memory: DeviceMemory,
    /// The last block of a dropped pool. Dropping the block releases a segment.
    _block: Option<Block<CudaBackend>>,
    requests: std::sync::mpsc::Sender<Result<(), AllocError>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.allocator.capture());
        self.allocator.empty_cache();
        let _ = self.allocator.snapshot();
        let _ = self.requests.send(self.allocator.malloc(1 << 20, &self.stream).map(drop));
        panic!("an owner that panics");
    }
}

#[test]
fn owners_of_foreign_memory_that_use_the_allocator_or_panic_neither_hang_nor_leave_memory() {
    let (done, result) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let sim = SimConfig::new(1).build();
        let driver: Arc<dyn Driver> = sim.clone();
        let backend = CudaBackend::new(driver.clone(), 0);
        let allocator = CudaAllocator::new(backend.clone(), AllocatorConfig::default());
        let stream = Stream::default_of(&driver, 0);
        let (requests, refused) = std::sync::mpsc::channel();
        let mut last: Option<Block<CudaBackend>> = None;
        for _ in 0..3 {
            let (again, own, sender) = (allocator.clone(), stream.clone(), requests.clone());
            let block = Mutex::new(last.take());
            let over = backend.with_source(move |driver, device, bytes| {
                let memory = DeviceMemory::new(driver, device, bytes)?;
                let (ptr, bytes) = (memory.ptr(), memory.bytes());
                let owner = Owner {
                    allocator: again.clone(),
                    stream: own.clone(),
                    _memory: memory,
                    _block: block.lock().unwrap().take(),
                    requests: sender.clone(),
                };
                // SAFETY: `owner` keeps the memory alive until it is dropped, and nothing else uses
                // the memory.
                Ok(unsafe { ForeignMemory::new(driver, device, ptr, bytes, owner) }.into())
            });
            let pool = allocator.new_pool_over(over, PoolOptions::default());
            let _route = allocator.use_pool(&pool);
            last = Some(allocator.malloc(1 << 20, &stream).unwrap());
        }
        drop(last);
        let reserved = allocator.memory_reserved();
        drop(allocator);
        let refused: Vec<_> = refused.try_iter().collect();
        done.send((refused, reserved, sim.usage())).unwrap();
    });
    let limit = Duration::from_secs(20);
    let (refused, reserved, usage) = result.recv_timeout(limit).expect("an owner's drop hangs");
    assert_eq!(refused.len(), 3);
    assert!(
        refused.iter().all(|r| matches!(r, Err(AllocError::InsideSource { .. }))),
        "{refused:?}"
    );
    assert_eq!(reserved, 0);
    assert!(usage.all_released(), "{usage:?}");
}
