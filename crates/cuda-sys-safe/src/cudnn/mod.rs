//! cuDNN, found and loaded at run time.
//!
//! # Library search
//! If `WARPLINE_CUDNN` is set, only its value is tried: the path of the library, or of the folder
//! that contains it, such as the `lib` folder of a Python wheel. Otherwise `libcudnn.so.9` and
//! `libcudnn.so` are looked for on the loader's path, then in the folders where
//! [cuBLAS](crate::blas#library-search) is looked for. On Windows the name is `cudnn64_9.dll`. Version 9.0
//! and newer are supported. cuDNN loads the libraries of its engines from its own folder, and uses
//! the cuBLAS of the process, so both must be built for the same major version of CUDA.
//!
//! # Graphs, plans and engines
//! cuDNN takes an operation as a graph of descriptors. Its heuristics name engines that can compute the graph, the
//! fastest first, and an engine with its settings becomes an execution plan. [`CudnnHandle::convolution_plans`] does
//! this for a convolution; [`CudnnHandle::execute`] enqueues a plan.

mod convolution;
mod descriptor;

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock};

use cudarc::cudnn::sys::{
    cudaStream_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t,
    cudnnBackendDescriptor_t, cudnnBackendDescriptorType_t, cudnnHandle_t,
};

use crate::blas::Blas;
use crate::device_handles::DeviceHandles;
use crate::dylib::{CUDA_FOLDERS, LibrarySearch, StatusCode, function_table, status_text};
use crate::{Driver, DriverError, Result};

pub use convolution::{Convolution, ConvolutionKind, ConvolutionPlan, Float, TensorLayout};

pub(crate) const SEARCH: LibrarySearch = LibrarySearch {
    library: "cuDNN",
    variable: "WARPLINE_CUDNN",
    names: if cfg!(windows) { &["cudnn64_9.dll"] } else { &["libcudnn.so.9", "libcudnn.so"] },
    folders: CUDA_FOLDERS,
};

function_table! {
    struct CudnnApi of "cuDNN";
    required "cuDNN 9.0" {
        cudnnGetVersion() -> usize;
        cudnnGetCudartVersion() -> usize;
        cudnnGetErrorString(StatusCode) -> *const c_char;
        cudnnGetLastErrorString(*mut c_char, usize) -> ();
        cudnnCreate(*mut cudnnHandle_t);
        cudnnSetStream(cudnnHandle_t, cudaStream_t);
        cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t, *mut cudnnBackendDescriptor_t);
        cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t);
        cudnnBackendSetAttribute(
            cudnnBackendDescriptor_t,
            cudnnBackendAttributeName_t,
            cudnnBackendAttributeType_t,
            i64,
            *const c_void,
        );
        cudnnBackendGetAttribute(
            cudnnBackendDescriptor_t,
            cudnnBackendAttributeName_t,
            cudnnBackendAttributeType_t,
            i64,
            *mut i64,
            *mut c_void,
        );
        cudnnBackendFinalize(cudnnBackendDescriptor_t);
        cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t);
    }
    optional {}
}

/// The cuDNN library, with one handle per device.
#[derive(Debug)]
pub struct Cudnn {
    api: CudnnApi,
    version: (u32, u32, u32),
    handles: DeviceHandles<CudnnHandle>,
}

impl Cudnn {
    /// Returns the process's cuDNN. The first call [searches](self#library-search) for the library;
    /// later calls return the same result.
    ///
    /// # Errors
    /// - [`DriverError::LibraryNotFound`] if no library is found.
    /// - [`DriverError::InvalidVariable`] if `WARPLINE_CUDNN` does not name a usable library.
    /// - [`DriverError::MissingSymbol`] if the library is not cuDNN 9.0 or newer.
    /// - [`DriverError::OtherCuda`] if cuDNN is built for another major version of CUDA than the
    ///   process's cuBLAS.
    /// - The errors of [`Blas::load`], because cuDNN uses cuBLAS.
    pub fn load() -> Result<&'static Self> {
        static CUDNN: OnceLock<Result<Cudnn>> = OnceLock::new();
        let load = || {
            // cuDNN finds the process's cuBLAS by name, so cuBLAS must be loaded first.
            let (cublas, _) = Blas::load()?.version();
            let named = SEARCH.named_in_env();
            let loaded = Self::load_from(named.as_deref());
            loaded
                .and_then(|cudnn| cudnn.built_for(cublas))
                .map_err(|e| SEARCH.blame(named.as_deref(), e))
        };
        CUDNN.get_or_init(load).as_ref().map_err(Clone::clone)
    }

    fn load_from(named: Option<&Path>) -> Result<Self> {
        let library = SEARCH.open(&SEARCH.candidates(named))?;
        // SAFETY: the signatures are those of cudnn_graph.h, which are the same in all versions of
        // cuDNN 9.
        let api = unsafe { CudnnApi::resolve(library, |_| "unknown".to_owned()) }?;
        // SAFETY: the call has no arguments and needs no handle.
        let version = unsafe { (api.cudnnGetVersion)() } as u32;
        let version = (version / 10_000, version / 100 % 100, version % 100);
        if version.0 < 9 {
            return Err(DriverError::MissingSymbol {
                library: SEARCH.library,
                symbol: "complete 9.x interface",
                version: format!("{}.{}.{}", version.0, version.1, version.2),
                needs: "cuDNN 9.0",
            });
        }
        Ok(Self { api, version, handles: DeviceHandles::new() })
    }

    /// Returns the library if it is built for this major version of CUDA.
    fn built_for(self, cuda: u32) -> Result<Self> {
        // SAFETY: the call has no arguments and needs no handle.
        let own = unsafe { (self.api.cudnnGetCudartVersion)() } as u32 / 1000;
        if own == cuda {
            return Ok(self);
        }
        Err(DriverError::OtherCuda { library: SEARCH.library, cuda: own, cublas: cuda })
    }

    /// Returns the major, minor and patch version, such as `(9, 14, 0)`.
    #[must_use]
    pub fn version(&self) -> (u32, u32, u32) {
        self.version
    }

    /// Returns the device's handle, which the first call creates for the life of the process.
    /// Creating a handle allocates device memory, and is allowed while a stream is captured.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if `driver` is not the real driver.
    /// - [`DriverError::LibraryCall`] if cuDNN cannot create a handle.
    /// - Errors of the [driver call](Driver#errors) that makes the device current.
    pub fn handle(&'static self, driver: &dyn Driver, device: usize) -> Result<CudnnHandle> {
        self.handles.get(("Cudnn::handle", SEARCH.library), driver, device, || {
            let mut raw: cudnnHandle_t = ptr::null_mut();
            // SAFETY: the pointer is valid for writes; the device's context is current.
            let status = unsafe { (self.api.cudnnCreate)(&mut raw) };
            self.check("cudnnCreate", status)?;
            Ok(CudnnHandle { cudnn: self, device, raw: Arc::new(Mutex::new(RawHandle(raw))) })
        })
    }

    fn check(&self, call: &'static str, status: StatusCode) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function accepts every status, and returns null or a static string.
        let status = unsafe { status_text(status, (self.api.cudnnGetErrorString)(status)) };
        let mut text = [0; 512];
        // SAFETY: the buffer is valid for writes of this many bytes.
        unsafe { (self.api.cudnnGetLastErrorString)(text.as_mut_ptr(), text.len()) };
        let bytes: Vec<u8> = text.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
        let detail = String::from_utf8_lossy(&bytes).into_owned();
        Err(DriverError::LibraryCall { call, status, detail, location: None })
    }
}

#[derive(Debug)]
struct RawHandle(cudnnHandle_t);

// SAFETY: cuDNN allows calls from any thread, one at a time for each handle. The mutex around the
// handle is locked during every call that uses the handle.
unsafe impl Send for RawHandle {}

/// A cuDNN handle of one device. Clones share the handle, and any thread may use them.
#[derive(Clone, Debug)]
pub struct CudnnHandle {
    cudnn: &'static Cudnn,
    device: usize,
    /// Locked from setting the stream until the work is enqueued, because a handle has one stream
    /// at a time.
    raw: Arc<Mutex<RawHandle>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_error() {
        let error = Cudnn::load_from(Some(Path::new("/nonexistent/libcudnn.so.9"))).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/nonexistent/libcudnn.so.9"), "{text}");
        assert!(text.contains("WARPLINE_CUDNN"), "{text}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn another_library_lacks_the_symbols() {
        let error = Cudnn::load_from(Some(Path::new("libc.so.6"))).unwrap_err();
        assert!(
            matches!(error, DriverError::MissingSymbol { symbol: "cudnnGetVersion", .. }),
            "{error}"
        );
    }
}
