//! How copies go through page-locked memory.

use std::thread::available_parallelism;

/// How copies are staged through page-locked memory where neither end is: between pageable memory
/// and a device, and between devices without a peer link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staging {
    /// Bytes from which on a pageable copy is staged; the driver copies less by itself.
    pub from: usize,
    /// Bytes that go at a time, at most: 1 to 1 GiB, or as if the nearest of these were asked for.
    /// Smaller copies are cut so that all threads have some.
    pub chunk: usize,
    /// Threads that copy between pageable and page-locked memory: 1 to 256, or as if the nearest of
    /// these were asked for.
    pub threads: usize,
}

impl Default for Staging {
    /// From 8 MiB on, where it is faster on an H200's host, in chunks of up to 4 MiB, by as many threads as there are cores, up to 8.
    fn default() -> Self {
        let cores = available_parallelism().map_or(1, |cores| cores.get());
        Self { from: 8 << 20, chunk: 4 << 20, threads: cores.min(8) }
    }
}

impl Staging {
    /// With values that can be used.
    pub(crate) fn clamped(self) -> Self {
        Self {
            from: self.from,
            chunk: self.chunk.clamp(1, 1 << 30),
            threads: self.threads.clamp(1, 256),
        }
    }

    /// The size of the pieces in which so many bytes go by all threads, two at a time each.
    pub(crate) fn piece(&self, bytes: usize) -> usize {
        let Self { chunk: most, threads, .. } = self.clamped();
        let least = (most / 16).max(1);
        let share = bytes.div_ceil(2 * threads);
        let piece = share.checked_next_power_of_two().unwrap_or(most).clamp(least, most);
        piece.min(bytes.max(1))
    }
}
