//! The differences between operating systems, behind one interface with one file for each system.
//!
//! | | Linux | macOS | Windows |
//! |---|---|---|---|
//! | large memory | huge pages where possible | as the system likes | as the system likes |
//! | pages for devices | huge where possible, provided in one call, not copied by forks | touched one by one | touched one by one |
//! | memory mapped at several addresses | a file in memory | an unlinked temporary file | not done: simulated devices have no virtual memory, and the allocator uses plain segments |
//! | memory for other processes | a file in memory whose size is sealed | not done | not done |
//! | forks | noticed | noticed | there are none |
//! | elevated rights | `AT_SECURE` | `issetugid` | a program has its caller's |
//! | libraries | `dlopen` | `dlopen` | never from the current folder; `PATH` and `CUDA_PATH` are searched |
//!
//! Outside of this module only the names of libraries and tests ask for the system.
//!
//! # Forks
//!
//! A fork moves no page that a device knows. Registered pages are wiped in the forked child: the
//! child has zeros of its own at their addresses, so nothing else can appear there, and the
//! parent's pages stay in place.

use std::ptr::NonNull;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as variant;

#[cfg(target_vendor = "apple")]
mod macos;
#[cfg(target_vendor = "apple")]
use macos as variant;

#[cfg(unix)]
mod unix;
#[cfg(unix)]
use unix as this;

#[cfg(windows)]
mod windows;
#[cfg(windows)]
use windows as this;

#[cfg(not(any(target_os = "linux", target_vendor = "apple", windows)))]
compile_error!("Warpline knows Linux, macOS and Windows; crates/cuda-sys-safe/src/system says how");

pub(crate) use this::{
    CAN_MAP_TWICE, MemoryFile, SharedFile, has_elevated_rights, hide, library_folders, map,
    map_for_devices, map_large, on_fork, open_library, page_size, place, populate, unmap,
};

/// What is behind new addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// Nothing: they fault.
    Nothing,
    /// Zeroed memory that is set aside when it is touched, where the system can wait so long.
    Untouched,
    /// Zeroed memory. More than the system could ever give is refused.
    Memory,
}

/// What huge pages are aligned to and multiples of, on common machines.
pub(crate) const HUGE: usize = 2 << 20;

/// `bytes` in whole pages, at least one; `None` if that overflows.
pub(crate) fn in_pages(bytes: usize) -> Option<usize> {
    bytes.max(1).checked_next_multiple_of(page_size())
}

/// Has the system provide pages by writing zeros to them.
///
/// # Safety
/// The range is mapped and writable, in use by nobody else, and all zeros.
unsafe fn touch(start: NonNull<u8>, bytes: usize) {
    for at in (0..bytes).step_by(page_size()) {
        // SAFETY: within the range, as the caller promises.
        unsafe { start.add(at).write_volatile(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_the_systems() {
        let page = page_size();
        assert!(page.is_power_of_two() && page >= 4096, "{page}");
        assert_eq!(in_pages(0), Some(page));
        assert_eq!(in_pages(page), Some(page));
        assert_eq!(in_pages(page + 1), Some(2 * page));
        assert_eq!(in_pages(usize::MAX), None);
    }
}
