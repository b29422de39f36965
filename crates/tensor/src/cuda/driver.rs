//! Types for the `source` of [`MemPool::over`](super::MemPool::over): the driver, its error and its memory.

pub use warpline_alloc::cuda::CudaMemory;
pub use warpline_cuda_sys_safe::owned::{DeviceMemory, ForeignMemory};
pub use warpline_cuda_sys_safe::{DevicePtr, Driver, DriverError};
