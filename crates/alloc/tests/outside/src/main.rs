//! A custom runtime with a caching allocator: memory is a counter, and streams complete work at
//! once.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};

use warpline_alloc::{AllocatorConfig, Backend, CachingAllocator, StreamBackend};

#[derive(Default)]
struct Runtime {
    next: AtomicU64,
}

impl StreamBackend for Runtime {
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

impl Backend for Runtime {
    type Memory = u64;
    fn alloc(&self, bytes: usize) -> Result<u64, Infallible> {
        Ok((1 << 21) + self.next.fetch_add(bytes as u64, Ordering::Relaxed))
    }
    fn address(memory: &u64) -> u64 {
        *memory
    }
    fn is_out_of_memory(&self, error: &Infallible) -> bool {
        match *error {}
    }
    fn mem_info(&self) -> Result<(usize, usize), Infallible> {
        Ok((1 << 40, 1 << 40))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let allocator = CachingAllocator::new(Runtime::default(), AllocatorConfig::default());
    let first = allocator.malloc(1000, &0)?;
    let address = first.address();
    drop(first);
    let again = allocator.malloc(1000, &0)?;
    assert_eq!(again.address(), address, "freed memory is used again");
    assert_eq!(allocator.memory_allocated(), 1024);
    println!("{}", allocator.memory_summary());
    println!("{}", allocator.snapshot().to_json()?);
    Ok(())
}

#[test]
fn a_program_outside_the_workspace_allocates() {
    main().unwrap();
}
