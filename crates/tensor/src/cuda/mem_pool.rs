//! Private pools of device memory.

use std::sync::Arc;

use warpline_alloc::cuda::{CudaAllocator, CudaBackend};
use warpline_alloc::{PoolOptions, PoolRoute, SegmentInfo};

use super::CudaDeviceArg;
use super::driver::{CudaMemory, Driver, DriverError};
#[cfg(doc)]
use crate::ErrorKind;
use crate::autograd::Reclaimed;
use crate::called::Called as _;
use crate::{Result, runtime};

/// A private pool in a device's allocator (`torch.cuda.MemPool`). Tensors made on the device under [`use_mem_pool`] or
/// [`with_mem_pool`] are allocated from the pool. No other tensors are, except with [`PoolOptions::use_on_oom`], if
/// their allocation would otherwise fail. Clones share the pool. Its memory is released to the driver once the pool and
/// its last tensor are dropped. Caches lie outside the pool: the workspaces of cuBLAS, and parameters converted by
/// [`autocast`](crate::amp::autocast).
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

/// A guard: until it is dropped, this thread allocates from a [`MemPool`].
#[derive(Debug)]
#[must_use = "the pool is in use until this is dropped"]
pub struct MemPoolGuard {
    _route: PoolRoute<CudaBackend>,
}

impl MemPool {
    /// Creates an empty pool of a device.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the
    /// device is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
    /// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
    /// used.
    #[track_caller]
    pub fn new(device: impl CudaDeviceArg, options: PoolOptions) -> Result<Self> {
        let runtime = runtime();
        let index = device.index_in(&runtime).of("MemPool::new")?;
        let allocator = runtime.device(index)?.allocator().clone();
        let pool = allocator.new_pool(options);
        Ok(Self { allocator, pool })
    }

    /// Creates an empty pool of a device (`torch.cuda.MemPool(allocator)`). `source` allocates the segments of the
    /// pool. `source` is called with the driver, the index of the device, and the minimum size in bytes. During
    /// this call, other requests that the cache cannot serve wait. A GPU tensor can be made in `source` only if the
    /// cache serves the request, and `source` must not use the allocator in other ways. The returned memory is released
    /// when it is dropped.
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
    /// The functions of a shared library can be the source:
    ///
    /// ```no_run
    /// use warpline::cuda::{CudaPluggableAllocator, MemPool, PoolOptions};
    ///
    /// // SAFETY: the functions of this library call `cudaMalloc` and `cudaFree`.
    /// let library = unsafe { CudaPluggableAllocator::load("./alloc.so", "my_alloc", "my_free") }?;
    /// let pool = MemPool::over("cuda", PoolOptions::default(), move |driver, device, bytes| {
    ///     Ok(library.alloc(driver, device, bytes)?.into())
    /// })?;
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the
    /// device is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
    /// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
    /// used. If `source` fails, or returns memory that is too small or on another device, the request that
    /// needed the memory fails with [`ErrorKind::Alloc`].
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
        // A source may own tensors of another pool. Dropping such a chain of pools must not recurse.
        let source = Reclaimed::new(source);
        let backend = allocator
            .backend()
            .with_source(move |driver, device, bytes| (*source)(driver, device, bytes));
        let pool = allocator.new_pool_over(backend, options);
        Ok(Self { allocator, pool })
    }

    /// Returns the identifier of the pool, unique within the device. Never 0.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.pool.id()
    }

    /// Returns the index of the device.
    #[must_use]
    pub fn device(&self) -> usize {
        self.allocator.backend().ordinal()
    }

    /// Returns the number of clones and guards.
    #[must_use]
    pub fn use_count(&self) -> usize {
        self.pool.use_count()
    }

    /// Returns the segments of the pool with their blocks, ordered by address.
    #[must_use]
    pub fn snapshot(&self) -> Vec<SegmentInfo> {
        let mut segments = self.allocator.segments();
        segments.retain(|segment| segment.segment_pool_id.1 == self.id());
        segments
    }
}

/// Allocates this thread's requests on the pool's device from the pool, until the guard is dropped
/// (`torch.cuda.use_mem_pool`). With nested guards, the innermost applies.
pub fn use_mem_pool(pool: &MemPool) -> MemPoolGuard {
    MemPoolGuard { _route: pool.allocator.use_pool(&pool.pool) }
}

/// Runs `f` under [`use_mem_pool`], and restores the previous pool, even if `f` panics.
pub fn with_mem_pool<R>(pool: &MemPool, f: impl FnOnce() -> R) -> R {
    let _guard = use_mem_pool(pool);
    f()
}
