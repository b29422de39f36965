//! The driver's memory, for a [`MemPool::over`](super::MemPool::over) a source of one's own.

pub use warpline_alloc::cuda::CudaMemory;
pub use warpline_cuda_sys_safe::owned::{DeviceMemory, ForeignMemory};
pub use warpline_cuda_sys_safe::{DevicePtr, Driver, DriverError};
