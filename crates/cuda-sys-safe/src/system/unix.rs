//! The common part of all Unix systems.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

use libloading::Library;

use super::{Backing, HUGE, touch, variant};

/// Whether memory can be mapped at several addresses, and at chosen addresses.
pub(crate) const CAN_MAP_TWICE: bool = true;

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const NOTHING: i32 = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE;

/// Returns the size of a page, in bytes.
pub(crate) fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: the call takes and returns plain numbers.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
    })
}

/// Maps new addresses, chosen by the system. Release them with [`unmap`].
pub(crate) fn map(bytes: usize, backing: Backing) -> io::Result<NonNull<u8>> {
    let (protection, flags) = match backing {
        Backing::Inaccessible => (libc::PROT_NONE, NOTHING),
        Backing::OnTouch => (READ_WRITE, NOTHING),
        Backing::Memory => (READ_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON),
    };
    // SAFETY: the system chooses addresses that are not in use.
    mapped(unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) })
}

fn mapped(base: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// Releases addresses.
///
/// # Safety
/// The range is a mapping by [`map`], [`map_large`] or [`map_for_devices`], or whole pages of such
/// a mapping, and is not in use.
pub(crate) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller guarantees that the range lies in its own mapping and is not in use.
    unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
}

/// Maps zeroed memory in whole pages, as huge pages where possible.
pub(crate) fn map_large(bytes: usize) -> io::Result<NonNull<u8>> {
    // Map enough to align the start to a huge page, then unmap the excess.
    let room = if bytes >= HUGE { HUGE } else { 0 };
    let length = bytes.checked_add(room).ok_or(io::ErrorKind::OutOfMemory)?;
    let base = map(length, Backing::Memory)?;
    let before = if room == 0 { 0 } else { base.as_ptr().align_offset(HUGE).min(room) };
    let after = room - before;
    // SAFETY: all addresses lie in the mapping that was just made. The unmapped parts are not used
    // again.
    let start = unsafe {
        let start = base.add(before);
        if before > 0 {
            unmap(base, before);
        }
        if after > 0 {
            unmap(start.add(bytes), after);
        }
        start
    };
    if room > 0 {
        variant::advise_huge(start, bytes);
    }
    Ok(start)
}

/// Maps memory as [`map_large`] does, for direct access by devices. A forked child must not share
/// the memory: this process's next write would go to a copy, while devices would still use the old
/// pages.
pub(crate) fn map_for_devices(bytes: usize) -> io::Result<NonNull<u8>> {
    let start = map_large(bytes)?;
    variant::advise_for_devices(start, bytes);
    Ok(start)
}

/// Makes the system provide all pages of a part of a mapping.
///
/// # Safety
/// The range may be overwritten with zeros, and is not in use.
pub(crate) unsafe fn populate(start: NonNull<u8>, bytes: usize) -> io::Result<()> {
    if !variant::populate(start, bytes)? {
        // SAFETY: the caller allows the range to be overwritten with zeros.
        unsafe { touch(start, bytes) };
    }
    Ok(())
}

/// Maps a part of a file at addresses of this process.
///
/// # Safety
/// The range lies in a mapping by [`map`], consists of whole pages, and is not in use.
pub(crate) unsafe fn map_file(
    start: NonNull<u8>,
    bytes: usize,
    file: &MemoryFile,
    from: u64,
) -> io::Result<()> {
    let (fd, from) = (file.file.as_raw_fd(), from as libc::off_t);
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the caller guarantees that the range lies in its own mapping and is not in use.
    mapped(unsafe { libc::mmap(start.as_ptr().cast(), bytes, READ_WRITE, flags, fd, from) })
        .map(drop)
}

/// Makes addresses fault. Releases the memory behind them, unless the memory belongs to a file.
///
/// # Safety
/// The same as [`map_file`].
pub(crate) unsafe fn make_inaccessible(start: NonNull<u8>, bytes: usize) {
    let (at, flags) = (start.as_ptr().cast(), NOTHING | libc::MAP_FIXED);
    // SAFETY: the caller guarantees that the range lies in its own mapping and is not in use. If
    // the system refuses the change, the addresses stay as they are.
    unsafe { libc::mmap(at, bytes, libc::PROT_NONE, flags, -1, 0) };
}

/// A sparse file. Its pieces can be mapped at several addresses.
#[derive(Debug)]
pub(crate) struct MemoryFile {
    file: File,
    end: u64,
}

impl MemoryFile {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { file: variant::memory_file()?, end: 0 })
    }

    /// Adds a zeroed piece and returns its offset.
    pub(crate) fn extend(&mut self, bytes: usize) -> io::Result<u64> {
        let offset = self.end;
        let end = offset.checked_add(bytes as u64).ok_or(io::ErrorKind::OutOfMemory)?;
        self.file.set_len(end)?;
        self.end = end;
        Ok(offset)
    }

    /// Releases the memory of a piece, which then reads as zeros.
    pub(crate) fn punch(&self, offset: u64, bytes: usize) {
        variant::punch(&self.file, offset, bytes);
    }
}

/// A file in memory of fixed size, which can be shared with other processes.
#[derive(Debug)]
pub(crate) struct SharedFile {
    pub(crate) file: MemoryFile,
    /// Number of the file, the same for every process that opens it.
    pub(crate) id: u64,
}

impl SharedFile {
    /// Creates a file of zeros.
    pub(crate) fn create(bytes: usize) -> io::Result<Self> {
        let file = variant::shared_file()?;
        file.set_len(bytes as u64)?;
        variant::fix_size(&file)?;
        Self::new(file)
    }

    fn new(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self { id: metadata.ino(), file: MemoryFile { file, end: metadata.len() } })
    }

    /// Returns a descriptor with which another process opens the file.
    pub(crate) fn export(&self) -> io::Result<OwnedFd> {
        Ok(variant::open_again(&self.file.file)?.into())
    }

    /// Opens a file that another process exported. A file that could shrink is refused, because an
    /// access could then fault.
    pub(crate) fn import(handle: OwnedFd, bytes: usize) -> io::Result<Self> {
        let received = File::from(handle);
        if !variant::has_fixed_size(&received) || received.metadata()?.len() != bytes as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // Open the file again: a file lock belongs to the open file description, which all copies
        // of one descriptor share, in any process.
        Self::new(variant::open_again(&received)?)
    }

    /// Waits for the file's lock and takes it.
    pub(crate) fn lock(&self) -> io::Result<()> {
        loop {
            match self.file.file.lock() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                locked => return locked,
            }
        }
    }

    pub(crate) fn unlock(&self) {
        let _ = self.file.file.unlock();
    }
}

/// Calls `in_child` in every forked child from now on. `in_child` may only change atomics.
pub(crate) fn on_fork(in_child: extern "C" fn()) {
    // SAFETY: `in_child` only changes atomics, which is allowed in a forked child. Registration
    // fails only if memory is exhausted. Forks are then not noticed, and a child gets the driver's
    // own CUDA_ERROR_NOT_INITIALIZED.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// Returns `true` if the program has rights that the user who started it lacks (setuid). That user
/// must not choose its libraries.
pub(crate) fn has_elevated_rights() -> bool {
    variant::has_elevated_rights()
}

/// Returns folders that the environment adds to the search for libraries. There are none, because
/// the loader itself reads its environment variables.
pub(crate) fn library_folders() -> Vec<PathBuf> {
    Vec::new()
}

/// Opens a library by its path or its name.
///
/// # Safety
/// The library's initialisers run, and must be sound.
pub(crate) unsafe fn open_library(path: &Path) -> Result<Library, libloading::Error> {
    // SAFETY: the caller guarantees that the library's initialisers are sound.
    unsafe { Library::new(path) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_mapped_twice_hidden_and_punched() {
        let page = page_size();
        let mut file = MemoryFile::new().unwrap();
        let (first, second) = (file.extend(page).unwrap(), file.extend(2 * page).unwrap());
        assert_eq!((first, second), (0, page as u64));
        let range = map(4 * page, Backing::Inaccessible).unwrap();
        // SAFETY: the test owns the range, and accesses only pages to which the file is mapped.
        unsafe {
            map_file(range, page, &file, first).unwrap();
            map_file(range.add(2 * page), page, &file, first).unwrap();
            range.write(7);
            assert_eq!(range.add(2 * page).read(), 7, "one memory, two addresses");
            make_inaccessible(range, page);
            assert_eq!(range.add(2 * page).read(), 7);
            file.punch(first, page);
            map_file(range, page, &file, first).unwrap();
            assert_eq!(range.read(), 0, "punched memory reads as zero");
            unmap(range, 4 * page);
        }
    }
}
