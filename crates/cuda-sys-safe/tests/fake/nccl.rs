//! An NCCL without GPUs, for `fake_nccl.rs`, which compiles it. Communicators are ready at once, and
//! nothing is computed; it notes which threads are inside together. For that, the count of a call says
//! which device it is on.
#![allow(missing_docs, non_snake_case, clippy::missing_safety_doc)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How many threads are inside, by device.
static INSIDE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// How often there was more than one for a device.
static OVERLAPS: AtomicUsize = AtomicUsize::new(0);
/// How often there was one for each device.
static MEETINGS: AtomicUsize = AtomicUsize::new(0);

#[unsafe(no_mangle)]
pub extern "C" fn fake_overlaps() -> usize {
    OVERLAPS.load(SeqCst)
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_meetings() -> usize {
    MEETINGS.load(SeqCst)
}

/// As the environment says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_uint {
    let told = std::env::var("FAKE_NCCL_VERSION").ok().and_then(|text| text.parse().ok());
    // SAFETY: callers pass live pointers, as those of the real functions do.
    unsafe { *version = told.unwrap_or(22_800) };
    0
}

/// `ncclUniqueId`.
#[repr(C)]
pub struct Id([u8; 128]);

/// Ready, with any rank's handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut *mut c_void,
    _: c_int,
    _: Id,
    _: c_int,
    _: *mut c_void,
) -> c_uint {
    // SAFETY: callers pass live pointers, as those of the real functions do.
    unsafe { *comm = comm.cast() };
    0
}

unsafe fn zero(number: *mut c_int, value: c_int) -> c_uint {
    // SAFETY: callers pass live pointers, as those of the real functions do.
    unsafe { *number = value };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(_: *mut c_void, error: *mut c_int) -> c_uint {
    // SAFETY: the caller's.
    unsafe { zero(error, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommUserRank(_: *mut c_void, rank: *mut c_int) -> c_uint {
    // SAFETY: the caller's.
    unsafe { zero(rank, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCount(_: *mut c_void, ranks: *mut c_int) -> c_uint {
    // SAFETY: the caller's.
    unsafe { zero(ranks, 1) }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclAllReduce(
    _: *mut c_void,
    _: *mut c_void,
    device: usize,
    _: c_int,
    _: c_int,
    _: *mut c_void,
    _: *mut c_void,
) -> c_uint {
    if INSIDE[device].fetch_add(1, SeqCst) > 0 {
        OVERLAPS.fetch_add(1, SeqCst);
    }
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2) {
        if INSIDE[1 - device].load(SeqCst) > 0 {
            MEETINGS.fetch_add(1, SeqCst);
        }
        std::thread::yield_now();
    }
    INSIDE[device].fetch_sub(1, SeqCst);
    0
}

macro_rules! plain {
    ($($name:ident)*) => {$(
        // The arguments it is called with stay unread.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_uint {
            0
        }
    )*};
}

plain! {
    ncclGetUniqueId ncclCommSplit ncclCommAbort ncclGroupStart ncclGroupEnd ncclBroadcast ncclReduce
    ncclAllGather ncclReduceScatter ncclSend ncclRecv
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(_: c_uint) -> *const c_char {
    c"an error".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_: *mut c_void) -> *const c_char {
    c"".as_ptr()
}
