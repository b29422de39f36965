//! A fake `libcuda`, compiled by `build.rs` for the tests in `fake_driver.rs` and `fake_nccl.rs`.
//! Every function counts its calls, and returns success or the status that the test has set.
#![allow(missing_docs, non_snake_case, clippy::missing_safety_doc)]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Mutex;

#[derive(Default)]
struct FakeState {
    answers: HashMap<String, u32>,
    calls: HashMap<String, u32>,
    order: Vec<String>,
    arguments: Vec<u64>,
}

static STATE: Mutex<Option<FakeState>> = Mutex::new(None);

fn with<T>(f: impl FnOnce(&mut FakeState) -> T) -> T {
    f(STATE.lock().unwrap().get_or_insert_default())
}

fn called(name: &str) -> u32 {
    with(|state| {
        *state.calls.entry(name.to_owned()).or_default() += 1;
        state.order.push(name.to_owned());
        state.answers.get(name).copied().unwrap_or(0)
    })
}

/// Makes the function `name` return `status` from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_answer(name: *const c_char, status: u32) {
    // SAFETY: the test passes a live NUL-terminated string.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned();
    with(|state| state.answers.insert(name, status));
}

/// Returns the number of calls of `name`, or of all functions if the name is empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_calls(name: *const c_char) -> u32 {
    // SAFETY: the test passes a live NUL-terminated string.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap();
    with(|state| match name {
        "" => state.calls.values().sum(),
        name => state.calls.get(name).copied().unwrap_or(0),
    })
}

/// Returns the position of the latest call of `name` among all calls, or the maximum if there was
/// none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_latest(name: *const c_char) -> u32 {
    // SAFETY: the test passes a live NUL-terminated string.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap();
    with(|state| {
        state.order.iter().rposition(|called| called == name).map_or(u32::MAX, |at| at as u32)
    })
}

/// Returns argument `index` of the last kernel launch, read as 64 bits.
#[unsafe(no_mangle)]
pub extern "C" fn fake_argument(index: usize) -> u64 {
    with(|state| state.arguments[index])
}

macro_rules! plain {
    ($($name:ident)*) => {$(
        // Declared without parameters, because the arguments are not read.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> u32 {
            called(stringify!($name))
        }
    )*};
}

plain! {
    cuInit cuDeviceGetName cuDeviceGetUuid_v2 cuDeviceTotalMem_v2 cuDeviceGetAttribute
    cuDevicePrimaryCtxGetState cuCtxSetCurrent cuCtxSynchronize cuCtxGetStreamPriorityRange
    cuMemGetInfo_v2 cuMemFree_v2 cuMemHostAlloc cuMemFreeHost cuMemHostRegister_v2
    cuMemHostUnregister cuPointerGetAttribute cuMemcpy cuMemcpyHtoD_v2 cuMemcpyDtoH_v2
    cuMemcpyDtoD_v2 cuMemcpyPeer cuMemcpyAsync cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2
    cuMemcpyDtoDAsync_v2 cuMemcpyPeerAsync cuMemsetD8Async cuMemsetD16Async cuMemsetD32Async
    cuStreamCreateWithPriority cuStreamDestroy_v2 cuStreamQuery cuStreamSynchronize
    cuStreamWaitEvent cuStreamGetPriority cuStreamIsCapturing cuEventCreate cuEventDestroy_v2
    cuEventRecord cuEventQuery cuEventSynchronize cuEventElapsedTime cuModuleUnload
    cuModuleGetFunction cuFuncSetAttribute cuStreamBeginCapture_v2 cuStreamEndCapture
    cuStreamGetCaptureInfo_v2 cuThreadExchangeStreamCaptureMode cuGraphInstantiateWithFlags
    cuGraphLaunch cuGraphDebugDotPrint cuGraphDestroy cuGraphExecDestroy cuCtxEnablePeerAccess
    cuMemAddressReserve cuMemAddressFree cuMemCreate cuMemRelease cuMemMap cuMemSetAccess cuMemUnmap
    cuMemPoolCreate cuMemPoolDestroy cuMemAllocFromPoolAsync cuMemFreeAsync
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> u32 {
    // SAFETY: callers pass a pointer that is valid for writes, as the real function requires.
    unsafe { *version = 12040 };
    called("cuDriverGetVersion")
}

/// Returns two devices, unless the test has set another count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> u32 {
    let told = with(|state| state.answers.get("count").copied());
    // SAFETY: callers pass a pointer that is valid for writes, as the real function requires.
    unsafe { *count = told.unwrap_or(2) as c_int };
    called("cuDeviceGetCount")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> u32 {
    // SAFETY: callers pass a pointer that is valid for writes, as the real function requires.
    unsafe { *device = ordinal };
    called("cuDeviceGet")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> u32 {
    // SAFETY: callers pass a pointer that is valid for writes, as the real function requires.
    unsafe { *context = 0x1000 + device as usize };
    called("cuDevicePrimaryCtxRetain")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(ptr: *mut u64, _: usize) -> u32 {
    // SAFETY: callers pass a pointer that is valid for writes, as the real function requires.
    unsafe { *ptr = 0x7000_0000 };
    called("cuMemAlloc_v2")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(
    _: *mut c_void,
    f: extern "C" fn(*mut c_void),
    data: *mut c_void,
) -> u32 {
    let status = called("cuLaunchHostFunc");
    if status == 0 {
        f(data);
    }
    status
}

/// Returns the length of the image as the module. Writes `bad line` to the error log if the call
/// fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut usize,
    image: *const c_char,
    _: u32,
    options: *const u32,
    values: *const *mut u8,
) -> u32 {
    const ERROR_LOG_BUFFER: u32 = 5;
    // SAFETY: callers pass live pointers and a NUL-terminated image, as the real function requires.
    unsafe {
        *module = CStr::from_ptr(image).count_bytes();
        let status = called("cuModuleLoadDataEx");
        if status != 0 && *options == ERROR_LOG_BUFFER {
            let log = b"bad line\n";
            std::ptr::copy_nonoverlapping(log.as_ptr(), *values, log.len());
        }
        status
    }
}

/// Stores the first two arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    _: *mut c_void,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
    _: *mut c_void,
    arguments: *const *const u64,
    _: *const *const c_void,
) -> u32 {
    // SAFETY: callers pass an array of at least two argument addresses.
    let read = |i| unsafe { (*arguments.add(i)).read_unaligned() };
    with(|state| state.arguments = vec![read(0), read(1)]);
    called("cuLaunchKernel")
}
