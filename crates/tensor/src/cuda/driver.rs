//! Types of the driver's memory, for a custom source of a [`MemPool::over`](super::MemPool::over).

pub use warpline_alloc::cuda::CudaMemory;
pub use warpline_cuda_sys_safe::owned::{DeviceMemory, ForeignMemory};
pub use warpline_cuda_sys_safe::{DevicePtr, Driver, DriverError};
