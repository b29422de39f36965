//! Tests of the library search and of the settings that reach calls.

use super::*;

#[test]
fn a_missing_library_is_an_error() {
    let error = Blas::load_from(Some(Path::new("/nonexistent/libcublas.so.12"))).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("/nonexistent/libcublas.so.12"), "{text}");
    assert!(text.contains("WARPLINE_CUBLAS"), "{text}");
}

#[cfg(target_os = "linux")]
#[test]
fn another_library_lacks_the_symbols() {
    let error = Blas::load_from(Some(Path::new("libc.so.6"))).unwrap_err();
    assert!(
        matches!(error, DriverError::MissingSymbol { symbol: "cublasGetProperty", .. }),
        "{error}"
    );
}

#[test]
fn extents_beyond_i32_are_refused() {
    assert_eq!(int("m", i32::MAX as usize).unwrap(), i32::MAX);
    let error = int("m", i32::MAX as usize + 1).unwrap_err();
    assert!(error.to_string().contains("m is 2147483648"), "{error}");
}

/// The math mode that a product set, if it set one, and the product's compute type with the first
/// 16 bits of alpha.
type Settings = (Option<cublasMath_t>, Option<(cublasComputeType_t, u16)>);

/// The settings of the last product that reached the fake cuBLAS.
static CALL: Mutex<Settings> = Mutex::new((None, None));

unsafe extern "C" fn set_math_mode(_: cublasHandle_t, mode: cublasMath_t) -> StatusCode {
    CALL.lock().unwrap().0 = Some(mode);
    0
}

unsafe extern "C" fn gemm(
    _: cublasHandle_t,
    _: cublasOperation_t,
    _: cublasOperation_t,
    _: c_int,
    _: c_int,
    _: c_int,
    alpha: *const c_void,
    _: *const c_void,
    _: cudaDataType_t,
    _: c_int,
    _: c_longlong,
    _: *const c_void,
    _: cudaDataType_t,
    _: c_int,
    _: c_longlong,
    _: *const c_void,
    _: *mut c_void,
    _: cudaDataType_t,
    _: c_int,
    _: c_longlong,
    _: c_int,
    compute: cublasComputeType_t,
    _: cublasGemmAlgo_t,
) -> StatusCode {
    // SAFETY: alpha points to a factor, which has at least two bytes in every compute type.
    CALL.lock().unwrap().1 = Some((compute, unsafe { alpha.cast::<u16>().read() }));
    0
}

unsafe extern "C" fn property(_: c_int, _: *mut c_int) -> StatusCode {
    0
}

unsafe extern "C" fn status_string(_: StatusCode) -> *const c_char {
    ptr::null()
}

unsafe extern "C" fn create(_: *mut cublasHandle_t) -> StatusCode {
    0
}

unsafe extern "C" fn set_stream(_: cublasHandle_t, _: cudaStream_t) -> StatusCode {
    0
}

unsafe extern "C" fn set_workspace(_: cublasHandle_t, _: *mut c_void, _: usize) -> StatusCode {
    0
}

#[test]
fn precision_settings_reach_the_call() {
    use cublasComputeType_t::{
        CUBLAS_COMPUTE_16F, CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_64F,
    };
    use cublasMath_t::{CUBLAS_DEFAULT_MATH, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION};
    let api = CublasApi {
        cublasGetProperty: property,
        cublasGetStatusString: status_string,
        cublasCreate_v2: create,
        cublasSetStream_v2: set_stream,
        cublasSetMathMode: set_math_mode,
        cublasSetWorkspace_v2: set_workspace,
        cublasGemmStridedBatchedEx: gemm,
        version: String::new(),
    };
    let handles = DeviceHandles::new();
    let blas: &'static Blas = Box::leak(Box::new(Blas { api, version: (12, 0), handles }));
    let raw = RawHandle { raw: ptr::null_mut(), math_mode: CUBLAS_DEFAULT_MATH };
    let handle = BlasHandle { blas, device: 0, raw: Arc::new(Mutex::new(raw)) };
    // SAFETY: the fake library reads no addresses and ignores the stream.
    let (stream, nowhere) = unsafe { (StreamHandle::from_raw(0, 1), DevicePtr::from_raw(0)) };
    let run = |dtype, result, precision| {
        let args = GemmArgs {
            dtype,
            result,
            transa: false,
            transb: false,
            m: 1,
            n: 1,
            k: 1,
            alpha: 1.0,
            beta: 0.0,
            a: nowhere,
            lda: 1,
            stride_a: 0,
            b: nowhere,
            ldb: 1,
            stride_b: 0,
            c: nowhere,
            ldc: 1,
            stride_c: 0,
            batch: 1,
            precision,
            workspace: None,
        };
        *CALL.lock().unwrap() = (None, None);
        // SAFETY: the fake library reads no operand, and ignores the stream.
        unsafe { handle.gemm_strided_batched(stream, &args) }.unwrap();
        let (mode, call) = *CALL.lock().unwrap();
        (mode, call.unwrap())
    };
    use BlasType::{BF16, F16, F32, F64};
    let plain = GemmPrecision::DEFAULT;
    let tf32 = GemmPrecision { tf32: true, ..plain };
    let exact = GemmPrecision { reduced_precision_reduction: false, ..plain };
    let fp16 = GemmPrecision { fp16_accumulation: true, ..plain };
    let one = (1f32.to_bits() & 0xffff) as u16;
    assert_eq!(run(F32, F32, plain), (None, (CUBLAS_COMPUTE_32F, one)));
    assert_eq!(run(F32, F32, tf32).1.0, CUBLAS_COMPUTE_32F_FAST_TF32);
    assert_eq!(run(F64, F64, tf32).1.0, CUBLAS_COMPUTE_64F);
    assert_eq!(run(BF16, BF16, tf32), (None, (CUBLAS_COMPUTE_32F, one)));
    let disallows = Some(CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    assert_eq!(run(F16, F16, exact), (disallows, (CUBLAS_COMPUTE_32F, one)));
    assert_eq!(run(BF16, F32, exact).0, None, "the handle keeps its mode");
    assert_eq!(run(F32, F32, exact).0, Some(CUBLAS_DEFAULT_MATH));
    assert_eq!(run(F16, F16, fp16), (None, (CUBLAS_COMPUTE_16F, 0x3c00)));
    assert_eq!(run(F16, F32, fp16), (None, (CUBLAS_COMPUTE_32F, one)));
}
