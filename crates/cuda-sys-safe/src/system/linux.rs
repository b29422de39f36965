//! The variant for Linux.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;

/// Requests huge pages.
pub(super) fn advise_huge(start: NonNull<u8>, bytes: usize) {
    // SAFETY: `madvise` with `MADV_HUGEPAGE` changes no byte of the caller's mapping. A failure
    // only makes accesses slower.
    unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
}

/// Asks the system to give a forked child its own zeros at these addresses.
///
/// Zeros (`MADV_WIPEONFORK`) are better than no mapping (`MADV_DONTFORK`): safe code in the child
/// may still hold the addresses, and without a mapping, other memory could appear there. With
/// either advice, a fork leaves this process's pages in place.
pub(super) fn advise_for_devices(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the mapping is new, and no code uses it. Before Linux 4.14 the advice fails, and a
    // child shares the pages until one side writes.
    unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_WIPEONFORK) };
}

/// Makes the system provide pages in one call. Returns `false` if the system cannot (before Linux
/// 5.14).
pub(super) fn populate(start: NonNull<u8>, bytes: usize) -> io::Result<bool> {
    // SAFETY: the call changes no byte of the mapping.
    if unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EINVAL) { Ok(false) } else { Err(error) }
}

/// Creates an empty file in memory.
pub(super) fn memory_file() -> io::Result<File> {
    // SAFETY: the name is a literal with a NUL.
    let fd = unsafe { libc::memfd_create(c"warpline-sim".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created, and no other code owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Creates an empty file in memory whose size can be fixed.
pub(super) fn shared_file() -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a literal with a NUL.
    let fd = unsafe { libc::memfd_create(c"warpline-shared".as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created, and no other code owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Seals that fix a file's size.
const FIXED: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Fixes the size of a file by [`shared_file`] permanently, for all processes.
pub(super) fn fix_size(file: &File) -> io::Result<()> {
    // SAFETY: the file is open.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, FIXED) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns `true` if the file's size is fixed and the file is writable. Returns `false` for a file
/// of hugetlbfs: its pages come from a separate pool, which may be exhausted when a released page
/// is accessed again.
pub(super) fn has_fixed_size(file: &File) -> bool {
    // SAFETY: the file is open. For a file that is not in memory, the result is negative.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    // SAFETY: the fields are plain integers, for which zero is valid.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the file is open, and the pointer is valid for writes.
    let known = unsafe { libc::fstatfs(file.as_raw_fd(), &mut system) } == 0;
    seals == FIXED && known && system.f_type == libc::TMPFS_MAGIC
}

/// Opens the same file again, as another process would.
pub(super) fn open_again(file: &File) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::options().read(true).write(true).open(path)
}

/// Turns a part of a file into a hole.
pub(super) fn punch(file: &File, offset: u64, bytes: usize) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let (offset, bytes) = (offset as libc::off_t, bytes as libc::off_t);
    // SAFETY: the file is open.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, bytes) };
}

/// Returns `true` in the cases in which `secure_getenv` ignores the environment: setuid, setgid,
/// file capabilities, a request of a security module.
pub(super) fn has_elevated_rights() -> bool {
    // SAFETY: the call takes and returns plain numbers.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}
