//! An allocator that measures the memory of a call.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, with a count of the bytes in use and of their peak, over all threads.
#[derive(Debug)]
pub struct PeakAllocator {
    used: AtomicUsize,
    peak: AtomicUsize,
}

impl PeakAllocator {
    pub(crate) const fn new() -> Self {
        Self { used: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    /// Returns the peak of the bytes in use during `call`, above the bytes in use before.
    pub(crate) fn peak_during(&self, call: impl FnOnce()) -> usize {
        let before = self.used.load(Ordering::Relaxed);
        self.peak.store(before, Ordering::Relaxed);
        call();
        self.peak.load(Ordering::Relaxed).saturating_sub(before)
    }

    fn add(&self, bytes: usize) {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(used, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator with the same arguments. The default `realloc` and `alloc_zeroed`
// use these two functions.
unsafe impl GlobalAlloc for PeakAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the promises of `GlobalAlloc::alloc`.
        let memory = unsafe { System.alloc(layout) };
        if !memory.is_null() {
            self.add(layout.size());
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        self.used.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `GlobalAlloc::dealloc`, and `alloc` got the memory from `System`.
        unsafe { System.dealloc(memory, layout) }
    }
}
