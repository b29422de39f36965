//! One allocation of a CUDA device's memory.

use std::sync::Arc;

use warpline_cuda_sys_safe::owned::{DeviceMemory, ForeignMemory, PoolMemory};
use warpline_cuda_sys_safe::{DevicePtr, Driver, DriverError};

/// Memory of a CUDA device, released on drop.
///
/// Any stream may use the memory immediately, without a wait. Dropping the value releases the memory after all streams
/// have finished with it. Memory of a stream-ordered pool does not have these properties, because it is allocated and
/// freed in the order of one stream. A source can therefore return memory of `cuMemAlloc`, but not memory of a pool:
///
/// ```
/// use warpline_alloc::cuda::CudaMemory;
/// use warpline_cuda_sys_safe::owned::DeviceMemory;
///
/// fn of_a_source(memory: DeviceMemory) -> CudaMemory {
///     memory.into()
/// }
/// ```
///
/// ```compile_fail,E0277
/// use warpline_alloc::cuda::CudaMemory;
/// use warpline_cuda_sys_safe::owned::PoolMemory;
///
/// fn of_a_source(memory: PoolMemory) -> CudaMemory {
///     memory.into()
/// }
/// ```
///
/// The policy `backend:cudaMallocAsync` allocates from such pools, in the order of each request's
/// stream.
#[derive(Debug)]
pub struct CudaMemory(MemoryOrigin);

#[derive(Debug)]
enum MemoryOrigin {
    /// From `cuMemAlloc`.
    Device(DeviceMemory),
    /// From a pool of the driver, in the order of a stream.
    Pool(PoolMemory),
    /// From another library.
    Foreign(ForeignMemory),
}

impl CudaMemory {
    /// Returns the address of the first byte.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        match &self.0 {
            MemoryOrigin::Device(memory) => memory.ptr(),
            MemoryOrigin::Pool(memory) => memory.ptr(),
            MemoryOrigin::Foreign(memory) => memory.ptr(),
        }
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.0 {
            MemoryOrigin::Device(memory) => memory.bytes(),
            MemoryOrigin::Pool(memory) => memory.bytes(),
            MemoryOrigin::Foreign(memory) => memory.bytes(),
        }
    }

    /// Returns the index of the device.
    #[must_use]
    pub fn device(&self) -> usize {
        match &self.0 {
            MemoryOrigin::Device(memory) => memory.device(),
            MemoryOrigin::Pool(memory) => memory.device(),
            MemoryOrigin::Foreign(memory) => memory.device(),
        }
    }

    /// Returns the driver of the device.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        match &self.0 {
            MemoryOrigin::Device(memory) => memory.driver(),
            MemoryOrigin::Pool(memory) => memory.stream().driver(),
            MemoryOrigin::Foreign(memory) => memory.driver(),
        }
    }

    /// Wraps memory of a stream-ordered pool. The memory may serve only blocks of the stream that allocated it.
    pub(super) fn of_stream(memory: PoolMemory) -> Self {
        Self(MemoryOrigin::Pool(memory))
    }

    /// Releases the memory.
    ///
    /// # Errors
    /// The memory, if the driver refuses the release.
    pub(super) fn release(self) -> Result<(), Self> {
        match self.0 {
            MemoryOrigin::Device(memory) => memory.release().map_err(|refused| refused.0.into()),
            // The drop releases the memory. The driver layer itself retries refused releases to a
            // pool.
            MemoryOrigin::Pool(_) | MemoryOrigin::Foreign(_) => Ok(()),
        }
    }

    /// Checks that memory from a source fits its request.
    pub(super) fn check(
        &self,
        driver: &Arc<dyn Driver>,
        device: usize,
        bytes: usize,
    ) -> Result<(), DriverError> {
        let reason = if !Arc::ptr_eq(self.driver(), driver) {
            "it belongs to another driver".to_owned()
        } else if self.device() != device {
            format!("it is on cuda:{}, not on cuda:{device}", self.device())
        } else if self.bytes() < bytes {
            format!("it has {} bytes, but {bytes} were requested", self.bytes())
        } else if !self.ptr().addr().is_multiple_of(512) {
            format!("it starts at {:#x}, which is not a multiple of 512", self.ptr().addr())
        } else {
            return Ok(());
        };
        let reason = format!("the pool's source returned unsuitable memory: {reason}");
        Err(DriverError::InvalidArgument { call: "the source of a memory pool", reason })
    }
}

impl From<DeviceMemory> for CudaMemory {
    fn from(memory: DeviceMemory) -> Self {
        Self(MemoryOrigin::Device(memory))
    }
}

impl From<ForeignMemory> for CudaMemory {
    fn from(memory: ForeignMemory) -> Self {
        Self(MemoryOrigin::Foreign(memory))
    }
}
