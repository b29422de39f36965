//! cuBLAS, found and loaded at run time.
//!
//! # Library search
//! If `WARPLINE_CUBLAS` is set, only its value is tried: the path of the library, or of the folder
//! that contains it, such as the `lib` folder of a Python wheel. Otherwise `libcublas.so.13`,
//! `libcublas.so.12` and `libcublas.so` are looked for on the loader's path, then in
//! `/usr/local/cuda/lib64`, `/usr/local/cuda-13/lib64`, `/usr/local/cuda-12/lib64`,
//! `/usr/lib/x86_64-linux-gnu` and `/usr/lib64`. On Windows the names are `cublas64_13.dll` and
//! `cublas64_12.dll`. Versions 12 and 13 are supported. If cuBLAS is found by its full path, the
//! `libcublasLt` that it needs is loaded from the same folder.
//!
//! # Column-major
//! cuBLAS stores matrices by columns. A row-major matrix is the transpose of the column-major
//! matrix in the same memory. So compute a row-major `C = A · B`, of `m × k` by `k × n`, as `Cᵀ =
//! Bᵀ · Aᵀ`: pass `B` as `a`, `A` as `b`, `n` as `m`, `m` as `n`, and row lengths as leading
//! dimensions. This module does not convert for you.

mod precision;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, c_char, c_int, c_longlong, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::cublas::sys::{
    cublasComputeType_t, cublasGemmAlgo_t, cublasHandle_t, cublasMath_t, cublasOperation_t,
    cudaDataType_t, cudaStream_t,
};

pub use precision::GemmPrecision;

use crate::device_handles::DeviceHandles;
use crate::dylib::{CUDA_FOLDERS, LibrarySearch, StatusCode, function_table, status_text};
use crate::{DevicePtr, Driver, DriverError, Result, StreamHandle, system};

pub(crate) const SEARCH: LibrarySearch = LibrarySearch {
    library: "cuBLAS",
    variable: "WARPLINE_CUBLAS",
    names: if cfg!(windows) {
        &["cublas64_13.dll", "cublas64_12.dll"]
    } else {
        &["libcublas.so.13", "libcublas.so.12", "libcublas.so"]
    },
    folders: CUDA_FOLDERS,
};

function_table! {
    struct CublasApi of "cuBLAS";
    required "cuBLAS 12.0" {
        cublasGetProperty(c_int, *mut c_int);
        cublasGetStatusString(StatusCode) -> *const c_char;
        cublasCreate_v2(*mut cublasHandle_t);
        cublasSetStream_v2(cublasHandle_t, cudaStream_t);
        cublasSetMathMode(cublasHandle_t, cublasMath_t);
        cublasSetWorkspace_v2(cublasHandle_t, *mut c_void, usize);
        cublasGemmStridedBatchedEx(
            cublasHandle_t,
            cublasOperation_t,
            cublasOperation_t,
            c_int,
            c_int,
            c_int,
            *const c_void,
            *const c_void,
            cudaDataType_t,
            c_int,
            c_longlong,
            *const c_void,
            cudaDataType_t,
            c_int,
            c_longlong,
            *const c_void,
            *mut c_void,
            cudaDataType_t,
            c_int,
            c_longlong,
            c_int,
            cublasComputeType_t,
            cublasGemmAlgo_t,
        );
    }
    optional {}
}

/// The element type of a product's operands and result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlasType {
    /// IEEE half, summed in `f32` unless [`GemmPrecision`] allows `f16`.
    F16,
    /// bfloat16, summed in `f32`.
    BF16,
    /// Single precision, summed in `f32`. Factors are rounded to TF32 only if [`GemmPrecision`] allows it.
    F32,
    /// Double precision, summed in `f64`.
    F64,
}

impl BlasType {
    const fn raw(self) -> cudaDataType_t {
        match self {
            Self::F16 => cudaDataType_t::CUDA_R_16F,
            Self::BF16 => cudaDataType_t::CUDA_R_16BF,
            Self::F32 => cudaDataType_t::CUDA_R_32F,
            Self::F64 => cudaDataType_t::CUDA_R_64F,
        }
    }
}

/// A batch of matrix products `C[i] = alpha · op(A[i]) · op(B[i]) + beta · C[i]`. Matrices are
/// [column-major](self#column-major).
#[derive(Clone, Copy, Debug)]
pub struct GemmArgs {
    /// Element type of `A` and `B`.
    pub dtype: BlasType,
    /// Element type of `C`: the same as `dtype`, or [`BlasType::F32`] if `dtype` is `F16` or
    /// `BF16`.
    pub result: BlasType,
    /// Whether `op(A)` is `A` transposed.
    pub transa: bool,
    /// Whether `op(B)` is `B` transposed.
    pub transb: bool,
    /// Number of rows of `op(A)` and `C`.
    pub m: usize,
    /// Number of columns of `op(B)` and `C`.
    pub n: usize,
    /// Number of columns of `op(A)`, and of rows of `op(B)`.
    pub k: usize,
    /// Factor of the product, rounded to `f32` except for [`BlasType::F64`].
    pub alpha: f64,
    /// Factor of the old `C`, rounded as `alpha` is. If 0, the old `C` is not read.
    pub beta: f64,
    /// Address of the first element of `A[0]`.
    pub a: DevicePtr,
    /// Distance from one column of `A` to the next, in elements.
    pub lda: usize,
    /// Distance from `A[i]` to `A[i + 1]`, in elements. If 0, all products use the same `A`.
    pub stride_a: i64,
    /// Address of the first element of `B[0]`.
    pub b: DevicePtr,
    /// Distance from one column of `B` to the next, in elements.
    pub ldb: usize,
    /// Distance from `B[i]` to `B[i + 1]`, in elements. If 0, all products use the same `B`.
    pub stride_b: i64,
    /// Address of the first element of `C[0]`.
    pub c: DevicePtr,
    /// Distance from one column of `C` to the next, in elements.
    pub ldc: usize,
    /// Distance from `C[i]` to `C[i + 1]`, in elements.
    pub stride_c: i64,
    /// Number of products.
    pub batch: usize,
    /// Reduced precision that is allowed.
    pub precision: GemmPrecision,
    /// Scratch memory on the stream's device, 256-byte aligned, and its size in bytes. No other
    /// stream may use the memory at the same time. If `None`, cuBLAS uses a workspace of its own,
    /// which it allocates when the handle is created.
    pub workspace: Option<(DevicePtr, usize)>,
}

/// The cuBLAS library, with one handle per device.
#[derive(Debug)]
pub struct Blas {
    api: CublasApi,
    version: (u32, u32),
    handles: DeviceHandles<BlasHandle>,
}

impl Blas {
    /// Returns the process's cuBLAS. The first call
    /// [searches](self#library-search) for the library; later calls return the
    /// same result.
    ///
    /// # Errors
    /// - [`DriverError::LibraryNotFound`] if no library is found.
    /// - [`DriverError::InvalidVariable`] if `WARPLINE_CUBLAS` does not name a usable library.
    /// - [`DriverError::MissingSymbol`] if the library is not cuBLAS 12 or newer.
    /// - [`DriverError::LibraryCall`] if cuBLAS does not return its version.
    pub fn load() -> Result<&'static Self> {
        static BLAS: OnceLock<Result<Blas>> = OnceLock::new();
        let load = || {
            let named = SEARCH.named_in_env();
            let loaded = Self::load_from(named.as_deref());
            loaded.map_err(|error| SEARCH.blame(named.as_deref(), error))
        };
        BLAS.get_or_init(load).as_ref().map_err(Clone::clone)
    }

    fn load_from(named: Option<&Path>) -> Result<Self> {
        let candidates = SEARCH.candidates(named);
        open_lt_beside(&candidates);
        let library = SEARCH.open(&candidates)?;
        // SAFETY: the signatures are those of cublas_api.h, which are the same in 12 and 13.
        let api = unsafe { CublasApi::resolve(library, |_| "unknown".to_owned()) }?;
        let mut version = [0; 2];
        for (property, value) in (0..).zip(&mut version) {
            // SAFETY: the pointer is valid for writes; the call needs no handle.
            let status = unsafe { (api.cublasGetProperty)(property, value) };
            check(&api, "cublasGetProperty", status, String::new)?;
        }
        let version = (version[0] as u32, version[1] as u32);
        if version.0 < 12 {
            return Err(DriverError::MissingSymbol {
                library: SEARCH.library,
                symbol: "complete 12.x interface",
                version: format!("{}.{}", version.0, version.1),
                needs: "cuBLAS 12.0",
            });
        }
        Ok(Self { api, version, handles: DeviceHandles::new() })
    }

    /// Returns the major and minor version, such as `(12, 4)`.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Returns the device's handle, which the first call creates for the life of the process.
    /// Creating a handle allocates device memory, and is allowed while a stream is captured.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if `driver` is not the real driver.
    /// - [`DriverError::LibraryCall`] if cuBLAS cannot create a handle.
    /// - Errors of the [driver call](Driver#errors) that makes the device current.
    pub fn handle(&'static self, driver: &dyn Driver, device: usize) -> Result<BlasHandle> {
        self.handles.get(("Blas::handle", SEARCH.library), driver, device, || {
            let mut raw: cublasHandle_t = ptr::null_mut();
            // SAFETY: the pointer is valid for writes; the device's context is current.
            let status = unsafe { (self.api.cublasCreate_v2)(&mut raw) };
            check(&self.api, "cublasCreate_v2", status, || format!("for cuda:{device}"))?;
            let raw = RawHandle { raw, math_mode: cublasMath_t::CUBLAS_DEFAULT_MATH };
            Ok(BlasHandle { blas: self, device, raw: Arc::new(Mutex::new(raw)) })
        })
    }
}

#[derive(Debug)]
struct RawHandle {
    raw: cublasHandle_t,
    /// The handle's present mode.
    math_mode: cublasMath_t,
}

// SAFETY: cuBLAS allows calls from any thread, one at a time. The mutex around the handle
// serializes them.
unsafe impl Send for RawHandle {}

/// A cuBLAS handle of one device. Clones share the handle, and any thread may use them.
#[derive(Clone, Debug)]
pub struct BlasHandle {
    blas: &'static Blas,
    device: usize,
    /// Locked from setting the stream until the work is enqueued, because a handle has one stream
    /// at a time.
    raw: Arc<Mutex<RawHandle>>,
}

impl BlasHandle {
    /// Returns the index of the handle's device.
    #[must_use]
    pub fn device(&self) -> usize {
        self.device
    }

    /// Enqueues a batch of matrix products. Call this function from [`DeviceCode::Library`]: the
    /// driver then makes the device's context current and refuses lost devices.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if the stream is on another device, or if a size, a
    ///   leading dimension or the batch does not fit `i32`.
    /// - [`DriverError::LibraryCall`] if cuBLAS refuses the call.
    ///
    /// # Safety
    /// The stream is alive. The matrices and the workspace lie in memory that this device can
    /// address and that stays valid until the work is done. The device's context is current.
    ///
    /// [`DeviceCode::Library`]: crate::DeviceCode::Library
    pub unsafe fn gemm_strided_batched(&self, stream: StreamHandle, args: &GemmArgs) -> Result<()> {
        const CALL: &str = "cublasGemmStridedBatchedEx";
        if stream.device() != self.device {
            let reason = format!(
                "the stream is on cuda:{}, the handle on cuda:{}",
                stream.device(),
                self.device
            );
            return Err(DriverError::InvalidArgument { call: CALL, reason });
        }
        let [m, n, k] = [int("m", args.m)?, int("n", args.n)?, int("k", args.k)?];
        let [lda, ldb, ldc] = [int("lda", args.lda)?, int("ldb", args.ldb)?, int("ldc", args.ldc)?];
        let batch = int("batch", args.batch)?;
        let (data, result, compute) = (args.dtype.raw(), args.result.raw(), args.compute_type());
        let (alpha32, beta32) = (args.alpha as f32, args.beta as f32);
        // The bits of 0 and 1 in `f16`.
        let [alpha16, beta16] =
            [args.alpha, args.beta].map(|factor| if factor == 0.0 { 0u16 } else { 0x3c00 });
        let (alpha, beta): (*const c_void, *const c_void) = if args.dtype == BlasType::F64 {
            ((&raw const args.alpha).cast(), (&raw const args.beta).cast())
        } else if args.sums_in_f16() {
            ((&raw const alpha16).cast(), (&raw const beta16).cast())
        } else {
            ((&raw const alpha32).cast(), (&raw const beta32).cast())
        };
        let api = &self.blas.api;
        let what = || format!("{args:?}");

        let mut handle = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        let raw = handle.raw;
        let math_mode = args.math_mode();
        if handle.math_mode != math_mode {
            // SAFETY: the handle is never destroyed.
            let status = unsafe { (api.cublasSetMathMode)(raw, math_mode) };
            check(api, "cublasSetMathMode", status, what)?;
            handle.math_mode = math_mode;
        }
        let status =
            // SAFETY: the handle is never destroyed, and the caller guarantees that the stream is
            // alive.
            unsafe { (api.cublasSetStream_v2)(raw, stream.raw() as usize as cudaStream_t) };
        check(api, "cublasSetStream_v2", status, String::new)?;
        // `cublasSetStream` has reset the handle to its own workspace.
        if let Some((workspace, bytes)) = args.workspace {
            // SAFETY: the caller guarantees that the workspace has this size and is valid on the
            // device.
            let status = unsafe { (api.cublasSetWorkspace_v2)(raw, mutable(workspace), bytes) };
            check(api, "cublasSetWorkspace_v2", status, what)?;
        }
        // SAFETY: the caller guarantees that the matrices are valid on the device. The factors have
        // the type that the compute type requires, and cuBLAS reads them before the call returns.
        let status = unsafe {
            (api.cublasGemmStridedBatchedEx)(
                raw,
                operation(args.transa),
                operation(args.transb),
                m,
                n,
                k,
                alpha,
                mutable(args.a).cast_const(),
                data,
                lda,
                args.stride_a,
                mutable(args.b).cast_const(),
                data,
                ldb,
                args.stride_b,
                beta,
                mutable(args.c),
                result,
                ldc,
                args.stride_c,
                batch,
                compute,
                cublasGemmAlgo_t::CUBLAS_GEMM_DFALT,
            )
        };
        check(api, CALL, status, what)
    }
}

const fn operation(transposed: bool) -> cublasOperation_t {
    if transposed { cublasOperation_t::CUBLAS_OP_T } else { cublasOperation_t::CUBLAS_OP_N }
}

fn mutable(ptr: DevicePtr) -> *mut c_void {
    ptr::without_provenance_mut(ptr.addr() as usize)
}

fn int(name: &str, value: usize) -> Result<c_int> {
    c_int::try_from(value).map_err(|_| DriverError::InvalidArgument {
        call: "cublasGemmStridedBatchedEx",
        reason: format!("{name} is {value}, more than cuBLAS can count"),
    })
}

fn check(
    api: &CublasApi,
    call: &'static str,
    status: StatusCode,
    detail: impl FnOnce() -> String,
) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: the function accepts every status, and returns null or a static string.
    let status = unsafe { status_text(status, (api.cublasGetStatusString)(status)) };
    Err(DriverError::LibraryCall { call, status, detail: detail(), location: None })
}

/// Opens the `libcublasLt` beside the first candidate with a full path that exists. cuBLAS loads
/// `libcublasLt` by name, and the loader may not search that folder.
fn open_lt_beside(candidates: &[PathBuf]) {
    let Some(path) = candidates.iter().find(|path| path.is_absolute() && path.is_file()) else {
        return;
    };
    let Some(name) = path.file_name().and_then(OsStr::to_str) else { return };
    let lt = path.with_file_name(name.replacen("cublas", "cublasLt", 1));
    // SAFETY: opening runs the initialisers of NVIDIA's library, which are sound.
    // An error is ignored: opening cuBLAS then reports the missing library.
    if let Ok(library) = unsafe { system::open_library(&lt) } {
        std::mem::forget(library);
    }
}
