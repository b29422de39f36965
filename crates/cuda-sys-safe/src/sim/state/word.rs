//! A word in host memory that streams write and wait for.

use std::ptr::with_exposed_provenance;
use std::sync::atomic::{AtomicU32, Ordering};

/// A word in page-locked host memory, by its address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(usize);

impl Word {
    /// Creates the word at an address.
    ///
    /// # Safety
    /// The address is a multiple of 4 in page-locked memory. Until all operations with the word are
    /// done, the memory stays page-locked and is accessed only by atomics of this size.
    pub(crate) unsafe fn new(address: usize) -> Self {
        Self(address)
    }

    pub(crate) fn get(self) -> u32 {
        // SAFETY: the caller of `new` guarantees that the word is aligned, that its memory stays
        // page-locked, and that all accesses are atomics of this size.
        unsafe { &*with_exposed_provenance::<AtomicU32>(self.0) }.load(Ordering::Acquire)
    }

    pub(crate) fn set(self, value: u32) {
        // SAFETY: the caller of `new` guarantees that the word is aligned, that its memory stays
        // page-locked, and that all accesses are atomics of this size.
        unsafe { &*with_exposed_provenance::<AtomicU32>(self.0) }.store(value, Ordering::Release);
    }
}
