//! The backend of `warpline-alloc` over cudarc.

use std::sync::Arc;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys::CUresult};
use warpline_alloc::{Backend, StreamBackend, VirtualMemory};

pub struct Cudarc(pub Arc<CudaContext>); // a device's context in cudarc
pub struct Memory(u64, Arc<CudaContext>); // an address, and its context
impl StreamBackend for Cudarc {
    type Stream = Arc<CudaStream>;
    type Event = CudaEvent;
    type Error = DriverError;
    fn stream_id(stream: &Self::Stream) -> u64 { stream.cu_stream() as u64 }
    fn record(&self, on: &Self::Stream) -> Result<CudaEvent, DriverError> { on.record_event(None) }
    fn query(&self, event: &CudaEvent) -> Result<bool, DriverError> { event.try_is_complete() }
    fn synchronize(&self, event: &CudaEvent) -> Result<(), DriverError> { event.synchronize() }
    fn wait(&self, on: &Self::Stream, event: &CudaEvent) -> Result<(), DriverError> { on.wait(event) }
}
impl Backend for Cudarc {
    type Memory = Memory;
    fn alloc(&self, bytes: usize) -> Result<Memory, DriverError> {
        self.0.bind_to_thread()?;
        // SAFETY: a new block is uninitialized, so its user writes bytes before reading them.
        Ok(Memory(unsafe { result::malloc_sync(bytes)? }, self.0.clone()))
    }
    fn address(memory: &Memory) -> u64 { memory.0 }
    fn is_out_of_memory(&self, e: &DriverError) -> bool { e.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY }
    fn mem_info(&self) -> Result<(usize, usize), DriverError> { self.0.mem_get_info() }
    fn synchronize_device(&self) -> Result<bool, DriverError> { self.0.synchronize().map(|()| true) }
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory<DriverError>> { self.pages() } // optional
}
impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `malloc_sync` returned this address, and `free_sync` waits for work that uses it.
        self.1.record_err(self.1.bind_to_thread().and(unsafe { result::free_sync(self.0) }));
    }
}
