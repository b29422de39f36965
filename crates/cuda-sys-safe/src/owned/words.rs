//! Words that the host can read while devices write them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::HostMemory;
use crate::{Driver, Result};

/// 64-bit words in page-locked memory, initially zero. The host and all devices use the same
/// addresses. Released on drop.
#[derive(Debug)]
pub struct MappedWords {
    memory: HostMemory,
    count: usize,
}

impl MappedWords {
    /// Allocates `count` words.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors).
    #[track_caller]
    pub fn new(driver: &Arc<dyn Driver>, device: usize, count: usize) -> Result<Self> {
        let memory = HostMemory::pinned(driver, device, count.saturating_mul(8))?;
        let words = Self { memory, count };
        (0..count).for_each(|at| words.store(at, 0));
        Ok(words)
    }

    fn word(&self, at: usize) -> Option<&AtomicU64> {
        let ptr = self.memory.ptr_at(at * 8).filter(|_| at < self.count)?;
        // SAFETY: the 8 bytes lie in this memory, which lives as long as `self` and is aligned to 8
        // bytes. Host code accesses them only as atomics.
        Some(unsafe { ptr.cast::<AtomicU64>().as_ref() })
    }

    /// Returns the number of words.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the address of a word, or 0 if there is no such word. Kernels must write whole
    /// words.
    #[must_use]
    pub fn address(&self, at: usize) -> u64 {
        self.word(at).map_or(0, |word| std::ptr::from_ref(word).expose_provenance() as u64)
    }

    /// Reads a word with acquire ordering. Returns 0 if there is no such word.
    #[must_use]
    pub fn load(&self, at: usize) -> u64 {
        self.word(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Writes a word with release ordering. Does nothing if there is no such word.
    pub fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.word(at) {
            word.store(value, Ordering::Release);
        }
    }
}
