//! Options for copies through page-locked memory.

use std::thread::available_parallelism;

/// Options for copies that are staged through page-locked memory because neither end is
/// page-locked: between pageable memory and a device, and between devices without a peer link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staging {
    /// Minimum size of a staged pageable copy, in bytes. Smaller copies are left to the driver.
    /// Default: 8 MiB.
    pub from: usize,
    /// Maximum size of a piece, in bytes, clamped to the range from 1 byte to 1 GiB. A copy that is
    /// too small for two such pieces per thread has smaller pieces. Default: 4 MiB.
    pub chunk: usize,
    /// Number of threads that copy between pageable and page-locked memory, clamped to the range
    /// from 1 to 256. Default: the number of cores, up to 8.
    pub threads: usize,
}

impl Default for Staging {
    /// Stages copies of 8 MiB and more, the size from which staging is faster on an H200's host, in
    /// pieces of up to 4 MiB, with one thread per core, up to 8.
    fn default() -> Self {
        let cores = available_parallelism().map_or(1, |cores| cores.get());
        Self { from: 8 << 20, chunk: 4 << 20, threads: cores.min(8) }
    }
}

impl Staging {
    /// Returns the options with values clamped to the valid ranges.
    pub(crate) fn clamped(self) -> Self {
        Self {
            from: self.from,
            chunk: self.chunk.clamp(1, 1 << 30),
            threads: self.threads.clamp(1, 256),
        }
    }

    /// Returns the size of the pieces, in bytes, for a copy of `bytes` by all threads, two pieces
    /// per thread at a time.
    pub(crate) fn piece(&self, bytes: usize) -> usize {
        let Self { chunk: most, threads, .. } = self.clamped();
        let least = (most / 16).max(1);
        let share = bytes.div_ceil(2 * threads);
        let piece = share.checked_next_power_of_two().unwrap_or(most).clamp(least, most);
        piece.min(bytes.max(1))
    }
}
