//! Pages of the operating system, provided on several threads.

use std::io;
use std::ptr::NonNull;
use std::thread;

use crate::system::{self, HUGE};

/// Memory in whole pages, initially zero. Unmapped on drop.
#[derive(Debug)]
pub(super) struct MappedPages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pages are plain bytes. Their owner orders all accesses.
unsafe impl Send for MappedPages {}
// SAFETY: `&MappedPages` gives out no references to the bytes, only their address.
unsafe impl Sync for MappedPages {}

impl MappedPages {
    /// Maps `bytes` bytes, rounded up to whole pages, as huge pages where possible. A forked child
    /// has a copy.
    pub(super) fn map(bytes: usize) -> io::Result<Self> {
        let bytes = system::in_pages(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start: system::map_large(bytes)?, bytes })
    }

    /// Maps memory as [`Self::map`] does, for use by devices. A forked child finds zeros there, or
    /// a copy if the system cannot provide zeros. The pages stay with this process, because devices
    /// use their physical addresses.
    pub(super) fn map_for_devices(bytes: usize) -> io::Result<Self> {
        let bytes = system::in_pages(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start: system::map_for_devices(bytes)?, bytes })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes the system provide all pages, on at most `threads` threads.
    pub(super) fn populate(&mut self, threads: usize) -> io::Result<()> {
        let share = self.bytes.div_ceil(threads.max(1)).next_multiple_of(HUGE);
        let ranges: Vec<PageRange> = (0..self.bytes)
            .step_by(share)
            // SAFETY: the offset is within the mapping.
            .map(|at| PageRange(unsafe { self.start.add(at) }, share.min(self.bytes - at)))
            .collect();
        let Some((first, others)) = ranges.split_first() else { return Ok(()) };
        thread::scope(|scope| {
            let spawn = |range: &'_ PageRange| {
                let range = PageRange(range.0, range.1);
                // If no thread can be started, the calling thread populates the part.
                thread::Builder::new().spawn_scoped(scope, move || range.populate())
            };
            let running: Vec<_> = others.iter().map(|range| (range, spawn(range))).collect();
            let mut result = first.populate();
            for (range, thread) in running {
                let done = match thread {
                    Ok(thread) => thread.join().unwrap_or_else(|_| range.populate()),
                    Err(_) => range.populate(),
                };
                result = result.and(done);
            }
            result
        })
    }
}

/// A part of the pages: address and size in bytes.
struct PageRange(NonNull<u8>, usize);

// SAFETY: one thread populates each part, and `populate` borrows the pages exclusively.
unsafe impl Send for PageRange {}
// SAFETY: a part is only an address and a size; `populate` alone accesses the bytes.
unsafe impl Sync for PageRange {}

impl PageRange {
    fn populate(&self) -> io::Result<()> {
        // SAFETY: the range lies in a mapping that `populate` borrows exclusively, so its bytes are
        // not in use.
        unsafe { system::populate(self.0, self.1) }
    }
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` or `map_for_devices` and not unmapped before. A forked child
        // unmaps its own copy of the mapping.
        unsafe { system::unmap(self.start, self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(pages: &MappedPages) -> &[u8] {
        // SAFETY: the pages are mapped, and the test does not write to them while the slice is in
        // use.
        unsafe { std::slice::from_raw_parts(pages.start().as_ptr(), pages.bytes()) }
    }

    /// Returns the number of pages that are in memory.
    #[cfg(target_os = "linux")]
    fn resident(pages: &MappedPages) -> usize {
        let mut state = vec![0u8; pages.bytes() / system::page_size()];
        // SAFETY: the range is a live mapping, and the vector has a byte for each page.
        let asked = unsafe {
            libc::mincore(pages.start().as_ptr().cast(), pages.bytes(), state.as_mut_ptr())
        };
        assert_eq!(asked, 0);
        state.iter().filter(|&&page| page & 1 == 1).count()
    }

    #[test]
    fn all_pages_are_provided_by_any_number_of_threads() {
        let page = system::page_size();
        for bytes in [1, page, page + 1, HUGE - 1, HUGE, 5 * HUGE + 12_345] {
            for threads in [0, 1, 2, 3, 8, 100] {
                let mut pages = MappedPages::map(bytes).unwrap();
                assert_eq!(pages.bytes(), bytes.next_multiple_of(page));
                #[cfg(unix)]
                assert!(bytes < HUGE || pages.start().addr().get().is_multiple_of(HUGE));
                pages.populate(threads).unwrap();
                #[cfg(target_os = "linux")]
                assert_eq!(resident(&pages), pages.bytes() / page, "{bytes} by {threads}");
                assert!(bytes_of(&pages).iter().all(|&byte| byte == 0));
            }
        }
    }

    #[test]
    fn mapping_too_many_bytes_is_an_error() {
        for bytes in [usize::MAX, usize::MAX - HUGE, 1 << 60] {
            assert!(MappedPages::map(bytes).is_err(), "{bytes}");
        }
    }

    /// Returns the number of minor page faults of this thread.
    #[cfg(target_os = "linux")]
    fn faults() -> i64 {
        // SAFETY: `rusage` contains only integers, for which zero is valid.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is valid for writes.
        assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) }, 0);
        usage.ru_minflt
    }

    /// Checks that a fork leaves the pages in place. Pages that a fork shares with its child are
    /// copied on the parent's next write, while a device would still use the old pages.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_fork_leaves_the_pages_where_they_are() {
        let mut pages = MappedPages::map_for_devices(64 * system::page_size()).unwrap();
        pages.populate(1).unwrap();
        let fill = |pages: &MappedPages, value| {
            // SAFETY: the range is all of a mapping that only this test uses.
            unsafe { pages.start().write_bytes(value, pages.bytes()) };
        };
        fill(&pages, 7);
        let mut pipe = [0; 2];
        // SAFETY: the pointer is valid for two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        // SAFETY: the child calls only functions that are allowed after a fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut told = 0u8;
            // SAFETY: the descriptors are open. The read ends when the parent writes or exits.
            let read = unsafe {
                libc::close(pipe[1]);
                libc::read(pipe[0], (&raw mut told).cast(), 1)
            };
            let zeros = bytes_of(&pages).iter().all(|&byte| byte == 0);
            // The child can write to its copy and unmap it.
            fill(&pages, 9);
            drop(pages);
            // SAFETY: `_exit` ends the child without running the parent's handlers.
            unsafe { libc::_exit(if read == 1 && zeros { 0 } else { 1 }) };
        }
        assert!(child > 0);
        let before = faults();
        fill(&pages, 8);
        let faults = faults() - before;
        // SAFETY: the descriptors are open, the buffers are valid, and `child` is a child of this
        // process.
        let status = unsafe {
            let mut status = 0;
            assert_eq!(libc::write(pipe[1], [1u8].as_ptr().cast(), 1), 1);
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            assert_eq!(pipe.map(|end| libc::close(end)), [0, 0]);
            status
        };
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status}");
        assert!(bytes_of(&pages).iter().all(|&byte| byte == 8));
        assert!(faults < 64, "{faults} of 64 pages were copied");
    }
}
