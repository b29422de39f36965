//! Device memory from the functions of a shared library.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use libloading::Library;

use super::ForeignMemory;
use super::refused::{ReleaseKind, release, retry};
use crate::device_handles::in_context;
use crate::dylib::complaint;
use crate::{CudaCode, DevicePtr, Driver, DriverError, Result, system};

type AllocFn = unsafe extern "C" fn(isize, c_int, *mut c_void) -> *mut c_void;
type FreeFn = unsafe extern "C" fn(*mut c_void, isize, c_int, *mut c_void);

/// Two functions of a shared library that allocate and free device memory
/// (`torch.cuda.memory.CUDAPluggableAllocator`):
///
/// ```c
/// void* my_alloc(ssize_t size, int device, cudaStream_t stream);
/// void my_free(void* ptr, ssize_t size, int device, cudaStream_t stream);
/// ```
///
/// Sizes are in bytes. Both functions are called with the device's context current, and with the
/// default stream (null), because any stream may use the memory. `my_alloc` returns null if there
/// is no memory. `my_free` is called after the device has done its work. Clones share the library.
/// The library stays loaded until the process ends.
///
/// ```no_run
/// use warpline_cuda_sys_safe::owned::CudaPluggableAllocator;
/// # let driver = warpline_cuda_sys_safe::open(Some("cuda"), None)?;
///
/// // SAFETY: the functions of this library call `cudaMalloc` and `cudaFree`.
/// let allocator = unsafe { CudaPluggableAllocator::load("./alloc.so", "my_alloc", "my_free") }?;
/// let memory = allocator.alloc(&driver, 0, 1 << 20)?;
/// assert_eq!(memory.bytes(), 1 << 20);
/// # Ok::<(), warpline_cuda_sys_safe::DriverError>(())
/// ```
#[derive(Clone)]
pub struct CudaPluggableAllocator {
    alloc: AllocFn,
    free: FreeFn,
    path: Arc<Path>,
}

/// Owner of one allocation of the library.
struct LibraryMemory {
    driver: Arc<dyn Driver>,
    ptr: *mut c_void,
    size: isize,
    device: c_int,
    free: FreeFn,
}

// SAFETY: the address is only passed to the library, which any thread may call.
unsafe impl Send for LibraryMemory {}

impl CudaPluggableAllocator {
    /// Loads a library and finds the functions `alloc` and `free` in it. A path without a folder is
    /// looked for by the system's loader.
    ///
    /// # Safety
    /// - The library's initialisers are sound.
    /// - The functions have the signatures above, and any thread may call them at any time. They
    ///   neither unwind nor call Warpline.
    /// - `alloc` returns null, or the address of at least `size` bytes that every stream of the
    ///   device can read and write at once, as after `cudaMalloc`. No other code uses the bytes
    ///   until they are passed to `free`.
    /// - The driver of each later call of [`alloc`](Self::alloc) is the driver of that memory. For
    ///   a library that calls CUDA, this is the real driver and not a simulated one.
    ///
    /// # Errors
    /// [`DriverError::AllocatorLibrary`] if the library cannot be loaded, or lacks one of the
    /// functions.
    pub unsafe fn load(path: impl AsRef<Path>, alloc: &str, free: &str) -> Result<Self> {
        let path = path.as_ref();
        let failed = |error: libloading::Error| DriverError::AllocatorLibrary {
            path: path.to_owned(),
            symbol: None,
            reason: complaint(&error),
        };
        // SAFETY: the caller guarantees that the initialisers are sound.
        let library = unsafe { system::open_library(path) }.map_err(failed)?;
        // SAFETY: the caller guarantees that the functions have these signatures.
        let (alloc, free) = unsafe {
            (function::<AllocFn>(&library, path, alloc)?, function::<FreeFn>(&library, path, free)?)
        };
        // Statics may hold memory of the library until the process ends.
        std::mem::forget(library);
        Ok(Self { alloc, free, path: path.into() })
    }

    /// Allocates `bytes` bytes on a device. Dropping the memory waits for the device, then calls
    /// the library's `free`. A refused wait is retried, as a [refused release](super::Refused).
    ///
    /// # Errors
    /// [`CudaCode::OUT_OF_MEMORY`] if the library returns null. Errors of the [driver
    /// call](Driver#errors) that makes the device's context current.
    pub fn alloc(
        &self,
        driver: &Arc<dyn Driver>,
        device: usize,
        bytes: usize,
    ) -> Result<ForeignMemory> {
        let out_of_memory = || {
            DriverError::cuda("alloc of a library", CudaCode::OUT_OF_MEMORY, Some(device))
                .with_detail(|| format!("{bytes} bytes from {}", self.path.display()))
        };
        let (Ok(size), Ok(index)) = (isize::try_from(bytes), c_int::try_from(device)) else {
            return Err(out_of_memory());
        };
        retry(driver, ReleaseKind::LibraryMemory);
        let (ptr, restored) = in_context(&**driver, device, || {
            // SAFETY: the caller of `load` guarantees the signature, and that any thread may call.
            unsafe { (self.alloc)(size, index, ptr::null_mut()) }
        })?;
        if ptr.is_null() {
            return Err(out_of_memory());
        }
        let free = self.free;
        let owner = LibraryMemory { driver: Arc::clone(driver), ptr, size, device: index, free };
        restored?;
        // SAFETY: the caller of `load` guarantees that the library returns memory of this driver,
        // and that nothing else uses this memory until `owner` frees it.
        Ok(unsafe {
            let at = DevicePtr::from_raw(ptr as usize as u64);
            ForeignMemory::new(driver, device, at, bytes, owner)
        })
    }
}

/// Returns a function of the library.
///
/// # Safety
/// The type `F` is the function's signature.
unsafe fn function<F: Copy>(library: &Library, path: &Path, name: &str) -> Result<F> {
    // SAFETY: the caller guarantees the signature.
    match unsafe { library.get::<F>(name) } {
        Ok(function) => Ok(*function),
        Err(error) => Err(DriverError::AllocatorLibrary {
            path: path.to_owned(),
            symbol: Some(name.to_owned()),
            reason: complaint(&error),
        }),
    }
}

impl Drop for LibraryMemory {
    fn drop(&mut self) {
        let (ptr, size, device, free) = (self.ptr as usize, self.size, self.device, self.free);
        let call = move |driver: &dyn Driver| {
            // The library's `free` need not wait for the streams that use the memory.
            driver.synchronize(device as usize)?;
            // SAFETY: the library returned this address, which is freed once: a failed wait
            // returns before this call. The work that used the memory is done.
            unsafe { free(ptr as *mut c_void, size, device, ptr::null_mut()) };
            Ok(())
        };
        release(&self.driver, ReleaseKind::LibraryMemory, self.size as usize, call);
    }
}

impl fmt::Debug for CudaPluggableAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaPluggableAllocator").field("path", &self.path).finish_non_exhaustive()
    }
}
