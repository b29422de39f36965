//! The variant for macOS, where programs use the CPU and simulated devices, because macOS has no
//! CUDA.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Does nothing, because macOS has no request for huge pages.
pub(super) fn advise_huge(_start: NonNull<u8>, _bytes: usize) {}

/// Does nothing. No device accesses the pages, so forked children may share them.
pub(super) fn advise_for_devices(_start: NonNull<u8>, _bytes: usize) {}

/// Returns `false`: the system provides pages only when they are touched.
pub(super) fn populate(_start: NonNull<u8>, _bytes: usize) -> io::Result<bool> {
    Ok(false)
}

/// Creates an empty file without a name. It is a temporary file, because the size of `shm_open`'s
/// files can be set only once.
pub(super) fn memory_file() -> io::Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("warpline-sim-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    fs::remove_file(path)?;
    Ok(file)
}

/// Not supported. The size of a file cannot be fixed, so any process that has the file open could
/// make others fault.
pub(super) fn shared_file() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn fix_size(_file: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn has_fixed_size(_file: &File) -> bool {
    false
}

pub(super) fn open_again(_file: &File) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Turns a part of a file into a hole.
pub(super) fn punch(file: &File, offset: u64, bytes: usize) {
    let hole = libc::fpunchhole_t {
        fp_flags: 0,
        reserved: 0,
        fp_offset: offset as libc::off_t,
        fp_length: bytes as libc::off_t,
    };
    // SAFETY: the file is open, and the hole outlives the call.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_PUNCHHOLE, &raw const hole) };
}

/// Returns `true` if the program is or was setuid or setgid.
pub(super) fn has_elevated_rights() -> bool {
    // SAFETY: the call takes no arguments and returns a plain number.
    unsafe { libc::issetugid() != 0 }
}
