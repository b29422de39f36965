//! `backend:cudaMallocAsync`: the driver's own pools.
#![cfg(feature = "cuda")]

use std::sync::Arc;

use warpline_alloc::{AllocError, AllocatorConfig, CudaAllocator, CudaBackend, PoolOptions};
use warpline_cuda_sys_safe::owned::Stream;
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule, SimConfig, SimDriver};
use warpline_cuda_sys_safe::{CudaCode, Driver, StreamFlags};

const MIB: usize = 1 << 20;

struct Program {
    sim: Arc<SimDriver>,
    driver: Arc<dyn Driver>,
    allocator: CudaAllocator,
    streams: [Stream; 2],
}

impl Program {
    fn new(config: SimConfig) -> Self {
        let sim = config.build();
        let driver: Arc<dyn Driver> = sim.clone();
        let config = AllocatorConfig::parse("backend:cudaMallocAsync").unwrap();
        let allocator = CudaAllocator::new(CudaBackend::new(driver.clone(), 0), config);
        let streams = [0, 1].map(|_| Stream::new(&driver, 0, StreamFlags::default()).unwrap());
        Self { sim, driver, allocator, streams }
    }

    /// Returns the driver's numbers of pool allocations, of pool frees, and of other allocations.
    fn calls(&self) -> [u64; 3] {
        let usage = self.sim.usage();
        [
            usage.count(CallKind::MemAllocAsync),
            usage.count(CallKind::MemFreeAsync),
            usage.count(CallKind::MemAlloc) + usage.count(CallKind::MemCreate),
        ]
    }

    fn free(&self) -> usize {
        self.driver.mem_info(0).unwrap().free
    }
}

#[test]
fn each_block_is_an_allocation_of_the_drivers_pool() {
    let program = Program::new(SimConfig::new(1));
    let (allocator, [stream, _]) = (&program.allocator, &program.streams);
    let blocks = [100, 3 * MIB, 40 * MIB].map(|bytes| allocator.malloc(bytes, stream).unwrap());
    assert_eq!(program.calls(), [3, 0, 0]);
    let bytes = 100 + 43 * MIB;
    assert_eq!((allocator.memory_allocated(), allocator.memory_reserved()), (bytes, bytes));
    assert_eq!(allocator.segments().len(), 3);
    drop(blocks);
    assert_eq!(program.calls(), [3, 3, 0]);
    assert_eq!((allocator.memory_allocated(), allocator.memory_reserved()), (0, 0));
    // The pool keeps the memory until the cache is emptied.
    let total = program.driver.mem_info(0).unwrap().total;
    stream.synchronize().unwrap();
    assert!(program.free() < total);
    allocator.empty_cache();
    assert_eq!(program.free(), total);
}

/// The simulated device runs no work before something waits for it.
#[test]
fn memory_that_another_stream_uses_goes_back_after_it_is_done() {
    let program = Program::new(SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(1) });
    let (allocator, [own, other]) = (&program.allocator, &program.streams);
    let block = allocator.malloc(MIB, own).unwrap();
    block.record_stream(other);
    drop(block);
    assert_eq!((program.calls(), allocator.memory_stats().active.all.current), ([1, 0, 0], 1));
    other.synchronize().unwrap();
    drop(allocator.malloc(512, own).unwrap());
    assert_eq!((program.calls(), allocator.memory_stats().active.all.current), ([2, 2, 0], 0));
}

#[test]
fn memory_kept_by_the_pool_serves_before_a_request_fails() {
    let program = Program::new(SimConfig { capacity: 64 * MIB, ..SimConfig::new(1) });
    let (allocator, [first, second]) = (&program.allocator, &program.streams);
    drop(allocator.malloc(50 * MIB, first).unwrap());
    let block = allocator.malloc(60 * MIB, second).unwrap();
    let error = allocator.malloc(10 * MIB, first).unwrap_err();
    let AllocError::OutOfMemory(facts) = &error else { panic!("{error}") };
    assert_eq!((facts.allocated, facts.reserved), (60 * MIB, 60 * MIB));
    drop(block);
    assert!(allocator.malloc(60 * MIB, first).is_ok());
}

#[test]
fn the_memory_fraction_limits_the_callers_memory() {
    let program = Program::new(SimConfig { capacity: 64 * MIB, ..SimConfig::new(1) });
    program.allocator.set_memory_fraction(0.5).unwrap();
    let stream = &program.streams[0];
    let block = program.allocator.malloc(30 * MIB, stream).unwrap();
    assert!(program.allocator.malloc(3 * MIB, stream).unwrap_err().is_out_of_memory());
    drop(block);
    assert!(program.allocator.malloc(32 * MIB, stream).is_ok());
}

#[test]
fn private_pools_have_segments() {
    let program = Program::new(SimConfig::new(1));
    let (allocator, [stream, _]) = (&program.allocator, &program.streams);
    let pool = allocator.new_pool(PoolOptions::default());
    let block = allocator.malloc_from(&pool, MIB, stream).unwrap();
    let address = block.address();
    drop(block);
    assert_eq!(allocator.malloc_from(&pool, MIB, stream).unwrap().address(), address);
    assert_eq!(program.calls(), [0, 0, 1]);
}

#[test]
fn options_may_change_while_blocks_live() {
    let program = Program::new(SimConfig::new(1));
    let (allocator, [stream, _]) = (&program.allocator, &program.streams);
    let pooled = allocator.malloc(MIB, stream).unwrap();
    allocator.set_config(AllocatorConfig::parse("policy:torch").unwrap());
    let segment = allocator.malloc(2 * MIB, stream).unwrap();
    assert_eq!(program.calls(), [1, 0, 1]);
    drop(pooled);
    // The block stays cached, because caching was in force at its free.
    assert_eq!(program.calls(), [1, 0, 1]);
    allocator.set_config(AllocatorConfig::parse("backend:cudaMallocAsync").unwrap());
    drop(segment);
    allocator.empty_cache();
    assert_eq!((allocator.memory_reserved(), program.calls()), (0, [1, 1, 1]));
}

#[test]
fn a_driver_without_pools_is_an_error() {
    let program = Program::new(SimConfig::new(1));
    let fault = Fault::new(CallKind::MempoolCreate, CudaCode::NOT_SUPPORTED);
    program.sim.inject(fault);
    let error = program.allocator.malloc(MIB, &program.streams[0]).unwrap_err();
    assert!(error.to_string().contains("cuMemPoolCreate"), "{error}");
}
