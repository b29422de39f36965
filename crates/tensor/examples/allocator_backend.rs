//! The caching allocator with a custom source of memory: an arena on the host, whose streams run their work
//! immediately. The program needs no part of CUDA.
//!
//! `cargo run --example allocator_backend`

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use warpline_alloc::{AllocatorConfig, Backend, CachingAllocator, StreamBackend};

const CAPACITY: usize = 64 << 20;

#[derive(Default)]
struct Arena {
    used: Arc<AtomicUsize>,
}

/// An allocation, which decrements the count of live bytes when it is dropped.
struct Piece {
    bytes: Box<[u8]>,
    used: Arc<AtomicUsize>,
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the arena is full")
    }
}

impl Error for Full {}

#[rustfmt::skip]
impl StreamBackend for Arena {
    type Stream = u64;
    type Event = (); // there is never anything to wait for
    type Error = Full;
    fn stream_id(stream: &u64) -> u64 { *stream }
    fn record(&self, _: &u64) -> Result<(), Full> { Ok(()) }
    fn query(&self, (): &()) -> Result<bool, Full> { Ok(true) }
    fn synchronize(&self, (): &()) -> Result<(), Full> { Ok(()) }
}

#[rustfmt::skip]
impl Backend for Arena {
    type Memory = Piece;
    fn alloc(&self, bytes: usize) -> Result<Piece, Full> {
        let room = |used: usize| Some(used + bytes).filter(|used| *used <= CAPACITY);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        taken.map_err(|_| Full)?;
        Ok(Piece { bytes: vec![0; bytes].into(), used: Arc::clone(&self.used) })
    }
    fn address(piece: &Piece) -> u64 { piece.bytes.as_ptr() as u64 }
    fn is_out_of_memory(&self, _: &Full) -> bool { true }
    fn mem_info(&self) -> Result<(usize, usize), Full> {
        Ok((CAPACITY - self.used.load(Ordering::Relaxed), CAPACITY))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let allocator = CachingAllocator::new(Arena::default(), AllocatorConfig::default());
    let address = allocator.malloc(1 << 20, &0)?.address();
    let again = allocator.malloc(1 << 20, &0)?;
    assert_eq!(again.address(), address, "the freed memory is used again");
    println!("{}", allocator.memory_summary());
    println!("{}", allocator.malloc(1 << 30, &0).map(drop).expect_err("the arena is too small"));
    Ok(())
}
