//! Private pools of device memory.

use std::sync::Arc;

use warpline_alloc::cuda::{CudaAllocator, CudaBackend};
use warpline_alloc::{PoolOptions, PoolRoute, SegmentInfo};

use super::CudaDeviceArg;
use super::driver::{CudaMemory, Driver, DriverError};
use crate::autograd::Reclaimed;
use crate::called::Called as _;
use crate::{Result, runtime};

/// A pool of its own within a device's allocator (`torch.cuda.MemPool`). Tensors made under
/// [`use_mem_pool`] or [`with_mem_pool`] are served from it, and its memory serves no others.
/// Clones share it. Its memory goes back to the driver once it and its last tensor are gone.
///
/// ```
/// use warpline::cuda::{MemPool, PoolOptions};
/// use warpline::{cuda, simulated, with_runtime, zeros};
///
/// with_runtime(&simulated(1)?, || {
///     let pool = MemPool::new("cuda", PoolOptions::default())?;
///     let inside = cuda::with_mem_pool(&pool, || zeros([1000], "cuda"))?;
///     let outside = zeros([1000], "cuda")?;
///     let [segment] = &pool.snapshot()[..] else { panic!("one segment") };
///     assert_eq!(segment.blocks[0].address, inside.data_ptr());
///     assert_eq!(cuda::memory_snapshot()?.len(), 2);
///     drop((pool, inside));
///     assert_eq!(cuda::memory_snapshot()?.len(), 1);
///     Ok::<_, warpline::Error>(())
/// })?;
/// # Ok::<(), warpline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemPool {
    allocator: CudaAllocator,
    pool: warpline_alloc::MemPool<CudaBackend>,
}

/// Serves this thread's requests from a [`MemPool`] until it is dropped.
#[derive(Debug)]
#[must_use = "the pool is in use until this is dropped"]
pub struct MemPoolGuard {
    _route: PoolRoute<CudaBackend>,
}

impl MemPool {
    /// An empty pool of a device.
    ///
    /// # Errors
    /// As [`CudaDeviceArg::index_in`].
    #[track_caller]
    pub fn new(device: impl CudaDeviceArg, options: PoolOptions) -> Result<Self> {
        let runtime = runtime();
        let index = device.index_in(&runtime).of("MemPool::new")?;
        let allocator = runtime.device(index)?.allocator().clone();
        let pool = allocator.new_pool(options);
        Ok(Self { allocator, pool })
    }

    /// An empty pool of a device whose segments `source` allocates (`torch.cuda.MemPool(allocator)`
    /// over a `CUDAPluggableAllocator`). It is called with the driver, the device's index and how
    /// many bytes there must be at least, while other requests that nothing cached fits wait. Making a
    /// tensor there is an error. What it returns goes back when it is dropped.
    ///
    /// ```
    /// use warpline::cuda::driver::DeviceMemory;
    /// use warpline::cuda::{self, MemPool, PoolOptions};
    /// use warpline::{simulated, with_runtime, zeros};
    ///
    /// with_runtime(&simulated(1)?, || {
    ///     let pool = MemPool::over("cuda", PoolOptions::default(), |driver, device, bytes| {
    ///         println!("{bytes} bytes of cuda:{device}");
    ///         Ok(DeviceMemory::new(driver, device, bytes)?.into())
    ///     })?;
    ///     let x = cuda::with_mem_pool(&pool, || zeros([1000], "cuda"))?;
    ///     assert_eq!(pool.snapshot()[0].blocks[0].address, x.data_ptr());
    ///     Ok::<_, warpline::Error>(())
    /// })?;
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`CudaDeviceArg::index_in`]. What `source` fails with, or memory of its that is too small
    /// or on another device, the request that needed it fails with.
    #[track_caller]
    pub fn over(
        device: impl CudaDeviceArg,
        options: PoolOptions,
        source: impl Fn(&Arc<dyn Driver>, usize, usize) -> std::result::Result<CudaMemory, DriverError>
        + Send
        + Sync
        + 'static,
    ) -> Result<Self> {
        let runtime = runtime();
        let index = device.index_in(&runtime).of("MemPool::over")?;
        let allocator = runtime.device(index)?.allocator().clone();
        // Pools may form a chain: a source may own tensors of another pool.
        let source = Reclaimed::new(source);
        let backend = allocator
            .backend()
            .with_source(move |driver, device, bytes| (*source)(driver, device, bytes));
        let pool = allocator.new_pool_over(backend, options);
        Ok(Self { allocator, pool })
    }

    /// Its number, which no other pool of the device has; never 0.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.pool.id()
    }

    /// The index of its device.
    #[must_use]
    pub fn device(&self) -> usize {
        self.allocator.backend().ordinal()
    }

    /// How many clones and guards there are.
    #[must_use]
    pub fn use_count(&self) -> usize {
        self.pool.use_count()
    }

    /// Its segments and their blocks, by address.
    #[must_use]
    pub fn snapshot(&self) -> Vec<SegmentInfo> {
        let mut segments = self.allocator.segments();
        segments.retain(|segment| segment.segment_pool_id.1 == self.id());
        segments
    }
}

/// Serves what this thread asks the pool's device for from the pool, until the guard is dropped
/// (`torch.cuda.use_mem_pool`). Where guards are nested, the last one counts.
pub fn use_mem_pool(pool: &MemPool) -> MemPoolGuard {
    MemPoolGuard { _route: pool.allocator.use_pool(&pool.pool) }
}

/// Runs `f` with [`use_mem_pool`]; the former pool is back afterwards, after a panic too.
pub fn with_mem_pool<R>(pool: &MemPool, f: impl FnOnce() -> R) -> R {
    let _guard = use_mem_pool(pool);
    f()
}
