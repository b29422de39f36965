//! A backend that does nothing, so that only the allocator's own time is measured.
#![allow(dead_code, unreachable_pub)] // each bench uses its own part

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};

use warpline_alloc::{
    AllocatorConfig, Backend, CachingAllocator, Handle, StreamBackend, VirtualMemory,
};

const PAGE: u64 = 2 << 20;

/// A backend that only counts addresses, also for virtual memory.
#[derive(Debug, Default)]
pub struct Null {
    next: AtomicU64,
}

impl Null {
    /// Creates an allocator over the backend with these options.
    pub fn allocator(options: &str) -> CachingAllocator<Self> {
        CachingAllocator::new(Self::default(), AllocatorConfig::parse(options).unwrap())
    }

    fn addresses(&self, bytes: usize) -> u64 {
        let bytes = (bytes as u64).next_multiple_of(PAGE);
        self.next.fetch_add(bytes, Ordering::Relaxed) + (1 << 40)
    }
}

impl StreamBackend for Null {
    type Stream = u64;
    type Event = ();
    type Error = Infallible;

    fn stream_id(stream: &u64) -> u64 {
        *stream
    }

    fn record(&self, _: &u64) -> Result<(), Infallible> {
        Ok(())
    }

    fn query(&self, (): &()) -> Result<bool, Infallible> {
        Ok(true)
    }

    fn synchronize(&self, (): &()) -> Result<(), Infallible> {
        Ok(())
    }
}

impl Backend for Null {
    type Memory = u64;

    fn alloc(&self, bytes: usize) -> Result<u64, Infallible> {
        Ok(self.addresses(bytes))
    }

    fn address(memory: &u64) -> u64 {
        *memory
    }

    fn is_out_of_memory(&self, _: &Infallible) -> bool {
        false
    }

    fn mem_info(&self) -> Result<(usize, usize), Infallible> {
        Ok((1 << 50, 1 << 50))
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory<Infallible>> {
        Some(self)
    }
}

impl VirtualMemory<Infallible> for Null {
    fn granularity(&self) -> usize {
        PAGE as usize
    }

    fn reserve(&self, bytes: usize) -> Result<(u64, Handle), Infallible> {
        Ok((self.addresses(bytes), Box::new(())))
    }

    fn create(&self, _: usize) -> Result<Handle, Infallible> {
        Ok(Box::new(()))
    }

    fn map(&self, _: &Handle, _: usize, _: &Handle) -> Result<Handle, Infallible> {
        Ok(Box::new(()))
    }
}
