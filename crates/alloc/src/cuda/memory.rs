//! One allocation of a CUDA device's memory.

use std::sync::Arc;

use warpline_cuda_sys_safe::owned::{DeviceMemory, ForeignMemory, PoolMemory};
use warpline_cuda_sys_safe::{DevicePtr, Driver, DriverError};

/// Memory of a CUDA device, given back on drop.
#[derive(Debug)]
#[non_exhaustive]
pub enum CudaMemory {
    /// `cuMemAlloc`'s.
    Device(DeviceMemory),
    /// Of one of the driver's own pools.
    Pool(PoolMemory),
    /// Of another library.
    Foreign(ForeignMemory),
}

impl CudaMemory {
    /// Its first byte.
    #[must_use]
    pub fn ptr(&self) -> DevicePtr {
        match self {
            Self::Device(memory) => memory.ptr(),
            Self::Pool(memory) => memory.ptr(),
            Self::Foreign(memory) => memory.ptr(),
        }
    }

    /// Its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Device(memory) => memory.bytes(),
            Self::Pool(memory) => memory.bytes(),
            Self::Foreign(memory) => memory.bytes(),
        }
    }

    /// The device it is on.
    #[must_use]
    pub fn device(&self) -> usize {
        match self {
            Self::Device(memory) => memory.device(),
            Self::Pool(memory) => memory.device(),
            Self::Foreign(memory) => memory.device(),
        }
    }

    /// The driver whose device that is.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        match self {
            Self::Device(memory) => memory.driver(),
            Self::Pool(memory) => memory.stream().driver(),
            Self::Foreign(memory) => memory.driver(),
        }
    }

    /// Gives it back.
    ///
    /// # Errors
    /// The memory, if the driver refuses.
    pub(super) fn release(self) -> Result<(), Self> {
        match self {
            Self::Device(memory) => memory.release().map_err(|refused| Self::Device(refused.0)),
            // Of what the driver refuses of these the driver layer keeps track.
            Self::Pool(_) | Self::Foreign(_) => Ok(()),
        }
    }

    /// Whether it is what a source was asked for.
    pub(super) fn check(
        &self,
        driver: &Arc<dyn Driver>,
        device: usize,
        bytes: usize,
    ) -> Result<(), DriverError> {
        let reason = if !Arc::ptr_eq(self.driver(), driver) {
            "it is another driver's".to_owned()
        } else if self.device() != device {
            format!("it is on cuda:{}, not on cuda:{device}", self.device())
        } else if self.bytes() < bytes {
            format!("it has {} bytes, and {bytes} were asked for", self.bytes())
        } else if !self.ptr().addr().is_multiple_of(512) {
            format!("it starts at {:#x}, which is no multiple of 512", self.ptr().addr())
        } else {
            return Ok(());
        };
        let reason = format!("the memory that the pool's source returned does not serve: {reason}");
        Err(DriverError::InvalidArgument { call: "the source of a memory pool", reason })
    }
}

impl From<DeviceMemory> for CudaMemory {
    fn from(memory: DeviceMemory) -> Self {
        Self::Device(memory)
    }
}

impl From<PoolMemory> for CudaMemory {
    fn from(memory: PoolMemory) -> Self {
        Self::Pool(memory)
    }
}

impl From<ForeignMemory> for CudaMemory {
    fn from(memory: ForeignMemory) -> Self {
        Self::Foreign(memory)
    }
}
