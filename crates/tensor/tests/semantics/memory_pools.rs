//! Tests of private memory pools, with tensors.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use warpline::amp::autocast;
use warpline::cuda::driver::{self, DeviceMemory, ForeignMemory};
use warpline::cuda::{MemPool, PoolOptions};
use warpline::{ErrorKind, Result, cuda, empty, ones};

use crate::common::World;

rows! {
    worlds(1) mem_pools_serve_tensors_made_in_them gpu_mem_pools_serve_tensors_made_in_them => serve;
    worlds(1) mem_pools_are_left_on_panic gpu_mem_pools_are_left_on_panic => panics;
    worlds(1) mem_pools_over_sources gpu_mem_pools_over_sources => sources;
    worlds(1) mem_pools_over_bad_sources gpu_mem_pools_over_bad_sources => bad_sources;
    worlds(1) s36_free_memory_of_a_pool_serves_other_requests gpu_s36_free_memory_of_a_pool_serves_other_requests => used_on_oom;
    worlds(1) mem_pools_hold_no_caches gpu_mem_pools_hold_no_caches => no_caches;
    worlds(2) mem_pools_are_of_one_device gpu2_mem_pools_are_of_one_device => one_device;
}

/// Returns whether the memory of a tensor belongs to a pool.
pub(crate) fn holds(pool: &MemPool, tensor: &warpline::Tensor) -> bool {
    let address = tensor.data_ptr();
    let segments = pool.snapshot();
    segments.iter().any(|s| (s.address..s.address + s.total_size as u64).contains(&address))
}

fn serve(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let (first, second) = (pool(device)?, pool(device)?);
        assert_eq!((first.device(), first.use_count()), (device, 1));
        assert_ne!(first.id(), second.id());
        let a = {
            let _guard = cuda::use_mem_pool(&first);
            assert_eq!(first.use_count(), 2);
            let nested = cuda::with_mem_pool(&second, || ones([1000], device))?;
            assert!(holds(&second, &nested) && !holds(&first, &nested));
            ones([1000], device)?
        };
        let outside = (&a + 1.0)?;
        assert!(holds(&first, &a));
        assert!(!holds(&first, &outside) && !holds(&second, &outside));
        assert_eq!(outside.to_vec::<f32>()?, vec![2.0; 1000]);
        // The tensors outlive their pool.
        drop((first, second));
        let pools = |s: &cuda::SegmentInfo| s.device == device && s.segment_pool_id.1 != 0;
        assert_eq!(cuda::memory_snapshot()?.iter().filter(|s| pools(s)).count(), 1);
        assert_eq!(a.to_vec::<f32>()?, vec![1.0; 1000]);
        drop(a);
        assert_eq!(cuda::memory_snapshot()?.iter().filter(|s| pools(s)).count(), 0);
    }
    Ok(())
}

fn pool(device: usize) -> Result<MemPool> {
    MemPool::new(device, PoolOptions::default())
}

/// cuBLAS's workspaces and the converted copies of autocast outlive the call that makes them.
fn no_caches(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let weight = ones([260, 260], device)?.requires_grad_(true)?;
        let (pool, stream) = (pool(device)?, cuda::exclusive_stream(device, 0)?);
        let _stream = cuda::stream(&stream)?;
        let product = || weight.matmul(&weight);
        let products = cuda::with_mem_pool(&pool, || {
            Ok::<_, warpline::Error>([product()?, autocast("cuda", (), product)?])
        })?;
        assert!(products.iter().all(|product| holds(&pool, product)));
        let graph = cuda::graph(|| {
            cuda::with_mem_pool(&pool, || weight.detach().square()?.matmul(&weight.detach()))
        })?;
        let (id, segments) = (pool.id(), pool.snapshot());
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        let largest = blocks.map(|block| block.size).max().unwrap_or(0);
        assert!(largest < warpline::runtime().device(device)?.cublas_workspace_bytes());
        drop((products, graph, pool));
        let of_pool = |s: &&cuda::SegmentInfo| s.device == device && s.segment_pool_id.1 == id;
        assert_eq!(cuda::memory_snapshot()?.iter().filter(of_pool).count(), 0);
    }
    Ok(())
}

fn panics(_: &World) -> Result<()> {
    let pool = pool(0)?;
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        cuda::with_mem_pool(&pool, || panic!("as a program may"))
    }));
    assert!(result.is_err());
    assert_eq!(pool.use_count(), 1);
    assert!(!holds(&pool, &ones([10], 0)?));
    Ok(())
}

fn one_device(_: &World) -> Result<()> {
    let pool = pool(1)?;
    let _guard = cuda::use_mem_pool(&pool);
    assert!(!holds(&pool, &ones([10], 0)?));
    assert!(holds(&pool, &ones([10], 1)?));
    Ok(())
}

/// Decrements the counter of live memory when dropped.
struct CountedMemory {
    _memory: DeviceMemory,
    live: Arc<AtomicUsize>,
}

impl Drop for CountedMemory {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::SeqCst);
    }
}

fn sources(_: &World) -> Result<()> {
    let options = PoolOptions::default();
    let plain = MemPool::over(0, options, |driver, device, bytes| {
        Ok(DeviceMemory::new(driver, device, bytes)?.into())
    })?;
    let live = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&live);
    let foreign = MemPool::over(0, options, move |driver, device, bytes| {
        let _memory = DeviceMemory::new(driver, device, bytes)?;
        let ptr = _memory.ptr();
        counter.fetch_add(1, Ordering::SeqCst);
        let owner = CountedMemory { _memory, live: Arc::clone(&counter) };
        // SAFETY: `ptr` is the start of the `bytes` bytes that `owner` holds. The owner's drop
        // waits for the device before it frees them.
        Ok(unsafe { ForeignMemory::new(driver, device, ptr, bytes, owner) }.into())
    })?;
    for pool in [&plain, &foreign] {
        let a = cuda::with_mem_pool(pool, || ones([1000], 0))?;
        assert!(holds(pool, &a));
        // Freed memory of the pool is reused for the next request in it.
        let address = a.data_ptr();
        drop(a);
        let b = cuda::with_mem_pool(pool, || ones([1000], 0))?;
        assert_eq!(b.data_ptr(), address);
        assert_eq!((&b + 1.0)?.to_vec::<f32>()?, vec![2.0; 1000]);
    }
    assert_eq!(live.load(Ordering::SeqCst), 1);
    drop(foreign);
    assert_eq!(live.load(Ordering::SeqCst), 0);
    Ok(())
}

fn used_on_oom(_: &World) -> Result<()> {
    for use_on_oom in [false, true] {
        let options = PoolOptions { use_on_oom, ..PoolOptions::default() };
        let pool = MemPool::over(0, options, |driver, device, bytes| {
            Ok(DeviceMemory::new(driver, device, bytes)?.into())
        })?;
        drop(cuda::with_mem_pool(&pool, || empty([4 << 20], 0))?);
        // The cache gets no more memory from the driver.
        cuda::set_per_process_memory_fraction(0.0, 0)?;
        let served = empty([4 << 20], 0);
        cuda::set_per_process_memory_fraction(1.0, 0)?;
        match served {
            Ok(tensor) => assert!(use_on_oom && holds(&pool, &tensor)),
            Err(error) => {
                assert!(!use_on_oom && matches!(error.kind(), ErrorKind::Alloc), "{error}")
            }
        }
    }
    Ok(())
}

fn bad_sources(_: &World) -> Result<()> {
    let options = PoolOptions::default();
    let failing = MemPool::over(0, options, |_, _, _| {
        let reason = "nothing today".to_owned();
        Err(driver::DriverError::InvalidArgument { call: "my source", reason })
    })?;
    let small = MemPool::over(0, options, |driver, device, _| {
        Ok(DeviceMemory::new(driver, device, 512)?.into())
    })?;
    for (pool, expected) in [(&failing, "nothing today"), (&small, "it has 512 bytes")] {
        let error = cuda::with_mem_pool(pool, || ones([1000], 0)).expect_err("no memory");
        assert!(error.to_string().contains(expected), "{error}");
        assert!(pool.snapshot().is_empty());
        assert!(ones([1000], 0).is_ok());
    }
    Ok(())
}

#[test]
fn a_pool_of_no_device_is_an_error() {
    crate::common::worlds(1, |world| {
        let options = PoolOptions::default();
        let error = MemPool::new(world.devices, options).expect_err("no such device");
        assert!(matches!(error.kind(), ErrorKind::NoSuchDevice { .. }), "{error}");
        let error = MemPool::new("cpu", options).expect_err("no GPU");
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
        Ok(())
    });
}

#[test]
fn a_chain_of_pools_whose_sources_own_tensors_is_dropped_without_recursion() {
    let runtime = warpline::simulated(1).expect("a simulated GPU");
    let chain = || -> Result<bool> {
        let (alive, mut last) = (Arc::new(()), None::<warpline::Tensor>);
        let begin = Arc::clone(&alive);
        for _ in 0..400 {
            let captured = (last.take(), Arc::clone(&begin));
            let pool = MemPool::over(0, PoolOptions::default(), move |driver, device, bytes| {
                let _ = &captured;
                Ok(DeviceMemory::new(driver, device, bytes)?.into())
            })?;
            last = Some(cuda::with_mem_pool(&pool, || ones([1], 0))?);
        }
        drop((begin, last));
        Ok(Arc::strong_count(&alive) == 1)
    };
    let small = std::thread::Builder::new().stack_size(192 << 10);
    let thread = small.spawn(move || warpline::with_runtime(&runtime, chain)).expect("a thread");
    assert!(thread.join().expect("no panic").expect("no error"));
}

/// Allocates memory when dropped.
struct AllocateOnDrop;

impl Drop for AllocateOnDrop {
    fn drop(&mut self) {
        cuda::empty_cache();
        let _ = ones([1 << 20], 0);
    }
}

#[test]
fn a_source_is_dropped_outside_the_locks_of_the_allocator() {
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = warpline::open("sim:1,lazy", &Default::default()).expect("a simulated GPU");
        let run = || {
            let value = AllocateOnDrop;
            let pool = MemPool::over(0, PoolOptions::default(), move |driver, device, bytes| {
                let _ = &value;
                Ok(DeviceMemory::new(driver, device, bytes)?.into())
            })?;
            let x = cuda::with_mem_pool(&pool, || ones([1000], 0))?;
            // Free the memory while another stream uses it, so that the allocator keeps it after
            // the pool is gone.
            let side = cuda::Stream::new(())?;
            cuda::with_stream(&side, || x.add(1.0).map(drop))?;
            drop((x, pool));
            cuda::empty_cache();
            cuda::synchronize(())
        };
        warpline::with_runtime(&runtime, run).expect("no error");
        let _ = sender.send(());
    });
    done.recv_timeout(std::time::Duration::from_secs(30)).expect("hangs or fails");
}
