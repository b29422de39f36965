//! Pages of the system, provided by several threads.

use std::io;
use std::ptr::NonNull;
use std::thread;

/// The system gives huge pages only to mappings aligned to them.
const HUGE: usize = 2 << 20;
const SMALL: usize = 4096;

/// Zeroed memory of this process alone, unmapped on drop.
#[derive(Debug)]
pub(super) struct Pages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the pages are plain bytes; who touches them when is for their owner to order.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Addresses for `bytes` bytes in whole pages, on huge pages where there are any to be had.
    pub(super) fn map(bytes: usize) -> io::Result<Self> {
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let bytes = bytes.max(1).checked_next_multiple_of(SMALL).ok_or_else(too_large)?;
        // Mapped with room to align in, which is then unmapped.
        let room = if bytes >= HUGE { HUGE } else { 0 };
        let length = bytes.checked_add(room).ok_or_else(too_large)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping where the system chooses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base: *mut u8 = base.cast();
        let before = if room == 0 { 0 } else { base.align_offset(HUGE).min(room) };
        let start = base.wrapping_add(before);
        let after = room - before;
        // SAFETY: both lie in the mapping just made, outside of what is kept of it.
        unsafe {
            if before > 0 {
                libc::munmap(base.cast(), before);
            }
            if after > 0 {
                libc::munmap(start.wrapping_add(bytes).cast(), after);
            }
        }
        if room > 0 {
            // SAFETY: advice on our own mapping. Without huge pages it only takes longer.
            unsafe { libc::madvise(start.cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        let start = NonNull::new(start).ok_or_else(too_large)?;
        Ok(Self { start, bytes })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Has the system provide all pages, by so many threads.
    pub(super) fn populate(&mut self, threads: usize) -> io::Result<()> {
        let share = self.bytes.div_ceil(threads.max(1)).next_multiple_of(HUGE);
        let parts: Vec<Part> = (0..self.bytes)
            .step_by(share)
            // SAFETY: the offset is within the mapping.
            .map(|at| Part(unsafe { self.start.add(at) }, share.min(self.bytes - at)))
            .collect();
        let Some((first, others)) = parts.split_first() else { return Ok(()) };
        thread::scope(|scope| {
            let spawn = |part: &'_ Part| {
                let part = Part(part.0, part.1);
                // A thread that the system does not give is done without.
                thread::Builder::new().spawn_scoped(scope, move || part.populate())
            };
            let running: Vec<_> = others.iter().map(|part| (part, spawn(part))).collect();
            let mut result = first.populate();
            for (part, thread) in running {
                let done = match thread {
                    Ok(thread) => thread.join().unwrap_or_else(|_| part.populate()),
                    Err(_) => part.populate(),
                };
                result = result.and(done);
            }
            result
        })
    }
}

/// Part of the pages.
struct Part(NonNull<u8>, usize);

// SAFETY: each part is worked on by one thread, while `populate` has the pages for itself.
unsafe impl Send for Part {}
// SAFETY: as above.
unsafe impl Sync for Part {}

impl Part {
    fn populate(&self) -> io::Result<()> {
        let Self(start, bytes) = *self;
        // SAFETY: our own mapping, which nobody else uses yet.
        if unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
        // Before Linux 5.14: touch each page.
        for at in (0..bytes).step_by(SMALL) {
            // SAFETY: within the part, which is mapped and writable.
            unsafe { start.add(at).write_volatile(0) };
        }
        Ok(())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by us and not unmapped before.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the pages are in memory.
    fn resident(pages: &Pages) -> usize {
        let mut state = vec![0u8; pages.bytes() / SMALL];
        // SAFETY: our own mapping, and a byte for each of its pages.
        let asked = unsafe {
            libc::mincore(pages.start().as_ptr().cast(), pages.bytes(), state.as_mut_ptr())
        };
        assert_eq!(asked, 0);
        state.iter().filter(|&&page| page & 1 == 1).count()
    }

    #[test]
    fn all_pages_are_provided_by_any_number_of_threads() {
        for bytes in [1, SMALL, SMALL + 1, HUGE - 1, HUGE, 5 * HUGE + 12_345] {
            for threads in [0, 1, 2, 3, 8, 100] {
                let mut pages = Pages::map(bytes).unwrap();
                assert_eq!(pages.bytes(), bytes.next_multiple_of(SMALL));
                assert!(bytes < HUGE || pages.start().addr().get().is_multiple_of(HUGE));
                pages.populate(threads).unwrap();
                assert_eq!(resident(&pages), pages.bytes() / SMALL, "{bytes} by {threads}");
                let all =
                    // SAFETY: the pages are ours alone.
                    unsafe { std::slice::from_raw_parts(pages.start().as_ptr(), pages.bytes()) };
                assert!(all.iter().all(|&byte| byte == 0));
            }
        }
    }

    #[test]
    fn too_much_is_an_error() {
        for bytes in [usize::MAX, usize::MAX - HUGE, 1 << 60] {
            assert!(Pages::map(bytes).is_err(), "{bytes}");
        }
    }
}
