//! The differences between operating systems, behind one interface with one file for each system.
//!
//! | | Linux | macOS | Windows |
//! |---|---|---|---|
//! | large memory | huge pages where possible | system default | system default |
//! | pages for devices | huge where possible, provided in one call, not copied by forks | touched one by one | touched one by one |
//! | memory mapped at several addresses | a file in memory | an unlinked temporary file | not supported: simulated devices have no virtual memory, and the allocator uses plain segments |
//! | memory for other processes | a file in memory whose size is sealed | not supported | not supported |
//! | forks | detected | detected | there are none |
//! | elevated rights | `AT_SECURE` | `issetugid` | never: a program has the rights of its caller |
//! | libraries | `dlopen` | `dlopen` | never from the current folder; `PATH` and `CUDA_PATH` are searched |
//!
//! Outside this module, only these depend on the system: the names and folders of libraries, the handles by which
//! processes share memory, the wait for NCCL at the end of a process, and tests.
//!
//! # Forks
//!
//! After a fork, each page that a device uses is still the parent's page. Registered pages are wiped in the forked
//! child: the child has zeros of its own at their addresses, so that no other memory can appear there, and the parent's
//! pages stay in place.

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
    CAN_MAP_TWICE, MemoryFile, SharedFile, has_elevated_rights, library_folders, make_inaccessible,
    map, map_file, map_for_devices, map_large, on_fork, open_library, page_size, populate, unmap,
};

/// The memory behind new addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// No memory. An access faults.
    Inaccessible,
    /// Zeroed memory that is committed when it is touched, on systems that support this.
    OnTouch,
    /// Zeroed memory. A size that the system could never provide is refused.
    Memory,
}

/// Size and alignment of huge pages on common machines, in bytes.
pub(crate) const HUGE: usize = 2 << 20;

/// Rounds `bytes` up to whole pages, at least one. Returns `None` on overflow.
pub(crate) fn in_pages(bytes: usize) -> Option<usize> {
    bytes.max(1).checked_next_multiple_of(page_size())
}

/// Makes the system provide pages by writing zeros to them.
///
/// # Safety
/// The range is mapped, writable, all zeros, and not in use by other code.
unsafe fn touch(start: NonNull<u8>, bytes: usize) {
    for at in (0..bytes).step_by(page_size()) {
        // SAFETY: the byte lies in the range, which the caller allows to be overwritten.
        unsafe { start.add(at).write_volatile(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_to_pages() {
        let page = page_size();
        assert!(page.is_power_of_two() && page >= 4096, "{page}");
        assert_eq!(in_pages(0), Some(page));
        assert_eq!(in_pages(page), Some(page));
        assert_eq!(in_pages(page + 1), Some(2 * page));
        assert_eq!(in_pages(usize::MAX), None);
    }
}
