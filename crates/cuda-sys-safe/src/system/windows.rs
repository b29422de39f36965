//! The variant for Windows.

use std::env;
use std::io;
use std::os::windows::io::OwnedHandle;
use std::path::{Path, PathBuf, absolute};
use std::ptr::{NonNull, null};
use std::sync::OnceLock;

use libloading::Library;
use libloading::os::windows as dll;
use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEM_DECOMMIT, MEM_RELEASE, MEM_RESERVE, PAGE_NOACCESS, PAGE_READWRITE,
    VirtualAlloc, VirtualFree,
};
use windows_sys::Win32::System::SystemInformation::{GetSystemInfo, SYSTEM_INFO};

use super::{Backing, touch};

/// Whether memory can be mapped at several addresses, and at chosen addresses. Windows can do this
/// with placeholders, but simulated virtual memory has not been needed there.
pub(crate) const CAN_MAP_TWICE: bool = false;

/// Returns the size of a page, in bytes.
pub(crate) fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        let mut info = SYSTEM_INFO::default();
        // SAFETY: the pointer is valid for writes.
        unsafe { GetSystemInfo(&mut info) };
        Some(info.dwPageSize as usize).filter(|size| size.is_power_of_two()).unwrap_or(4096)
    })
}

/// Maps new addresses, chosen by the system. Release them with [`unmap`].
pub(crate) fn map(bytes: usize, backing: Backing) -> io::Result<NonNull<u8>> {
    let (kind, protection) = match backing {
        Backing::Inaccessible => (MEM_RESERVE, PAGE_NOACCESS),
        Backing::OnTouch | Backing::Memory => (MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE),
    };
    // SAFETY: the system chooses addresses that are not in use.
    let base = unsafe { VirtualAlloc(null(), bytes, kind, protection) };
    NonNull::new(base.cast()).ok_or_else(io::Error::last_os_error)
}

/// Releases addresses.
///
/// # Safety
/// The range is a whole mapping by [`map`], [`map_large`] or [`map_for_devices`], and is not in
/// use.
pub(crate) unsafe fn unmap(start: NonNull<u8>, _bytes: usize) {
    // SAFETY: the caller guarantees that the range is a whole mapping and not in use. The size must
    // be 0, which means the whole mapping.
    unsafe { VirtualFree(start.as_ptr().cast(), 0, MEM_RELEASE) };
}

/// Maps zeroed memory in whole pages. Huge pages would need a privilege that few programs have.
pub(crate) fn map_large(bytes: usize) -> io::Result<NonNull<u8>> {
    map(bytes, Backing::Memory)
}

/// The same as [`map_large`], because there are no forks.
pub(crate) fn map_for_devices(bytes: usize) -> io::Result<NonNull<u8>> {
    map_large(bytes)
}

/// Makes the system provide all pages of a part of a mapping.
///
/// # Safety
/// The range may be overwritten with zeros, and is not in use.
pub(crate) unsafe fn populate(start: NonNull<u8>, bytes: usize) -> io::Result<()> {
    // SAFETY: the caller allows the range to be overwritten with zeros.
    unsafe { touch(start, bytes) };
    Ok(())
}

/// Cannot be called, because there is no [`MemoryFile`] on Windows.
///
/// # Safety
/// No requirement, because this function cannot be called.
pub(crate) unsafe fn map_file(
    _start: NonNull<u8>,
    _bytes: usize,
    file: &MemoryFile,
    _from: u64,
) -> io::Result<()> {
    match *file {}
}

/// Makes addresses fault, and releases the memory behind them.
///
/// # Safety
/// The range lies in a mapping by [`map`], consists of whole pages, and is not in use.
pub(crate) unsafe fn make_inaccessible(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller guarantees that the range lies in its own mapping and is not in use.
    unsafe { VirtualFree(start.as_ptr().cast(), bytes, MEM_DECOMMIT) };
}

/// A file to be mapped at several addresses. Does not exist on Windows.
#[derive(Debug)]
pub(crate) enum MemoryFile {}

impl MemoryFile {
    pub(crate) fn new() -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn extend(&mut self, _bytes: usize) -> io::Result<u64> {
        match *self {}
    }

    pub(crate) fn punch(&self, _offset: u64, _bytes: usize) {
        match *self {}
    }
}

/// Memory of simulated devices that can be shared. Does not exist on Windows.
#[derive(Debug)]
pub(crate) struct SharedFile {
    pub(crate) file: MemoryFile,
    pub(crate) id: u64,
}

impl SharedFile {
    pub(crate) fn create(_bytes: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn export(&self) -> io::Result<OwnedHandle> {
        match self.file {}
    }

    pub(crate) fn import(_handle: OwnedHandle, _bytes: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn lock(&self) -> io::Result<()> {
        match self.file {}
    }

    pub(crate) fn unlock(&self) {
        match self.file {}
    }
}

/// Does nothing, because there are no forks.
pub(crate) fn on_fork(_in_child: extern "C" fn()) {}

/// Returns `false`: a program has the rights of its caller, or was started by a program with more
/// rights.
pub(crate) fn has_elevated_rights() -> bool {
    false
}

/// Returns folders that the environment adds to the search for libraries: the folders of the CUDA
/// toolkit, and those in `PATH`. The flags that [`open_library`] passes to the loader exclude
/// `PATH`.
pub(crate) fn library_folders() -> Vec<PathBuf> {
    let toolkit = env::var_os("CUDA_PATH").map(PathBuf::from);
    let toolkit = toolkit.iter().flat_map(|path| [path.join("bin\\x64"), path.join("bin")]);
    let path = env::var_os("PATH").unwrap_or_default();
    toolkit.chain(env::split_paths(&path)).filter(|folder| folder.is_absolute()).collect()
}

/// Opens a library by its path or its name. A name is looked for beside the program and in the
/// system's folders, never in the current folder.
///
/// # Safety
/// The library's initialisers run, and must be sound.
pub(crate) unsafe fn open_library(path: &Path) -> Result<Library, libloading::Error> {
    let mut flags = dll::LOAD_LIBRARY_SEARCH_DEFAULT_DIRS;
    let mut path = path.to_owned();
    if path.components().count() > 1 {
        // The library's own dependencies lie in the same folder.
        flags |= dll::LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR;
        path = absolute(&path).unwrap_or(path);
    }
    // SAFETY: the caller guarantees that the library's initialisers are sound.
    unsafe { dll::Library::load_with_flags(path, flags) }.map(Library::from)
}
