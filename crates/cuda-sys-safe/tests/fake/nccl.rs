//! A fake NCCL, compiled by `build.rs` for the tests in `fake_nccl.rs`. It computes nothing, and
//! ranks do not meet. It logs how communicators are made, split and aborted, and counts misuses,
//! such as uses of freed communicators, and concurrent calls. Communicators are numbered in order
//! of creation. Tests pass the index of the device as the count of a collective.
#![allow(missing_docs, non_snake_case, clippy::missing_safety_doc)]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const SUCCESS: c_uint = 0;
const INTERNAL_ERROR: c_uint = 3;
const INVALID_USAGE: c_uint = 5;
const IN_PROGRESS: c_uint = 7;

/// Number of threads in a call, by device.
static INSIDE: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// Number of times that two threads were in calls for the same device.
static OVERLAPS: AtomicUsize = AtomicUsize::new(0);
/// Number of times that threads were in calls for both devices.
static MEETINGS: AtomicUsize = AtomicUsize::new(0);
/// Number of calls that NCCL does not allow.
static MISUSES: AtomicUsize = AtomicUsize::new(0);
/// Number of live communicators.
static ALIVE: AtomicUsize = AtomicUsize::new(0);
/// Number of the latest communicator.
static NUMBER: AtomicUsize = AtomicUsize::new(0);
/// Whether an all-reduce waits for ranks that never come.
static HANG: AtomicBool = AtomicBool::new(false);
/// Whether a graph contains collectives. Aborts of blocking communicators wait until the graph is
/// destroyed.
static GRAPH: AtomicBool = AtomicBool::new(false);
/// Number of aborts that wait for the graph.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// Number of the communicator that never becomes ready.
static STALLED: AtomicUsize = AtomicUsize::new(0);
/// Lines that were logged since the last read.
static LOG: Mutex<String> = Mutex::new(String::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn log(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(lock(&LOG), "{line}");
}

fn misuse(what: &str) -> c_uint {
    MISUSES.fetch_add(1, SeqCst);
    log(format_args!("misuse: {what}"));
    INVALID_USAGE
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_overlaps() -> usize {
    OVERLAPS.load(SeqCst)
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_meetings() -> usize {
    MEETINGS.load(SeqCst)
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_misuses() -> usize {
    MISUSES.load(SeqCst)
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_alive() -> usize {
    ALIVE.load(SeqCst)
}

/// Returns the number of threads in a call on device 0.
#[unsafe(no_mangle)]
pub extern "C" fn fake_inside() -> usize {
    INSIDE[0].load(SeqCst)
}

/// Makes every later all-reduce hang until an abort. Returns the previous state.
#[unsafe(no_mangle)]
pub extern "C" fn fake_hang() -> usize {
    usize::from(HANG.swap(true, SeqCst))
}

/// Toggles whether a graph contains collectives. Returns the previous state.
#[unsafe(no_mangle)]
pub extern "C" fn fake_graph() -> usize {
    usize::from(GRAPH.fetch_xor(true, SeqCst))
}

/// Returns the number of aborts that wait for the graph.
#[unsafe(no_mangle)]
pub extern "C" fn fake_waiting() -> usize {
    WAITING.load(SeqCst)
}

/// Stalls a communicator, which then never becomes ready. The next `after` communicators that are created are skipped;
/// the communicator after them is stalled.
#[unsafe(no_mangle)]
pub extern "C" fn fake_stall(after: usize) {
    STALLED.store(NUMBER.load(SeqCst) + after + 1, SeqCst);
}

/// Returns the calls since the previous `fake_log`, one per line. The string is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn fake_log() -> *const c_char {
    CString::new(std::mem::take(&mut *lock(&LOG))).unwrap_or_default().into_raw()
}

/// `ncclConfig_t`.
#[repr(C)]
pub struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

/// A communicator. Its memory is never freed.
pub struct Comm {
    number: usize,
    rank: c_int,
    ranks: c_int,
    blocking: bool,
    shares: bool,
    aborted: Arc<AtomicBool>,
    freed: AtomicBool,
    /// Number of threads in a call on the communicator.
    inside: AtomicUsize,
    /// Number of polls until the running call is complete.
    polls_left: AtomicUsize,
    /// The destination and the result of a running split.
    splitting: Mutex<Option<(AtomicPtr<*mut Comm>, AtomicPtr<Comm>)>>,
}

/// Number of polls until a call is complete.
const POLLS: usize = 2;

impl Comm {
    /// Creates a communicator with the requested configuration.
    unsafe fn new(
        (rank, ranks): (c_int, c_int),
        config: *const Config,
        aborted: Arc<AtomicBool>,
    ) -> &'static Self {
        // SAFETY: callers pass a live configuration, as the real function requires.
        let config = unsafe { &*config };
        let number = NUMBER.fetch_add(1, SeqCst) + 1;
        ALIVE.fetch_add(1, SeqCst);
        let (blocking, shares) = (config.blocking == 1, config.split_share == 1);
        let (freed, inside) = (AtomicBool::new(false), AtomicUsize::new(0));
        let (polls_left, splitting) = (AtomicUsize::new(0), Mutex::new(None));
        Box::leak(Box::new(Self {
            number,
            rank,
            ranks,
            blocking,
            shares,
            aborted,
            freed,
            inside,
            polls_left,
            splitting,
        }))
    }

    fn kind(&self) -> String {
        let blocking = if self.blocking { "blocking" } else { "non-blocking" };
        format!("{}: {blocking}{}", self.number, if self.shares { ", sharing" } else { "" })
    }

    /// Returns the communicator of a call. Counts a misuse and returns `None` if the communicator
    /// is null or freed.
    unsafe fn of(comm: *mut Comm) -> Option<&'static Self> {
        if comm.is_null() {
            misuse("no communicator");
            return None;
        }
        // SAFETY: the memory of communicators is never freed.
        let comm = unsafe { &*comm };
        if comm.freed.load(SeqCst) {
            misuse("a communicator that is freed");
            return None;
        }
        Some(comm)
    }

    fn pointer(&self) -> *mut Self {
        std::ptr::from_ref(self).cast_mut()
    }
}

/// Returns the version that the environment names, or 2.28.0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_uint {
    let told = std::env::var("FAKE_NCCL_VERSION").ok().and_then(|text| text.parse().ok());
    // SAFETY: callers pass a pointer that is valid for writes, as the real function requires.
    unsafe { *version = told.unwrap_or(22_800) };
    SUCCESS
}

/// `ncclUniqueId`.
#[repr(C)]
pub struct Id([u8; 128]);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    slot: *mut *mut Comm,
    ranks: c_int,
    _: Id,
    rank: c_int,
    config: *mut Config,
) -> c_uint {
    // SAFETY: callers pass a live configuration, as the real function requires.
    let comm = unsafe { Comm::new((rank, ranks), config, Arc::default()) };
    log(format_args!("init {}", comm.kind()));
    comm.polls_left.store(POLLS, SeqCst);
    // SAFETY: callers pass a slot that is valid for writes.
    unsafe { *slot = comm.pointer() };
    IN_PROGRESS
}

/// Begins a split. The new communicator is written after some polls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommSplit(
    whole: *mut Comm,
    color: c_int,
    key: c_int,
    slot: *mut *mut Comm,
    config: *mut Config,
) -> c_uint {
    // SAFETY: callers pass a communicator of this library.
    let Some(whole) = (unsafe { Comm::of(whole) }) else { return INVALID_USAGE };
    let mut splitting = lock(&whole.splitting);
    if whole.polls_left.load(SeqCst) > 0 || splitting.is_some() || whole.blocking {
        return misuse("a split of a communicator that is not ready or that blocks");
    }
    whole.polls_left.store(POLLS, SeqCst);
    if color < 0 {
        log(format_args!("split {}, no color", whole.number));
        return IN_PROGRESS;
    }
    let aborted = if whole.shares { Arc::clone(&whole.aborted) } else { Arc::default() };
    // SAFETY: callers pass a live configuration, as the real function requires.
    let part = unsafe { Comm::new((key, whole.ranks), config, aborted) };
    log(format_args!("split {}, color {color}, key {key}, to {}", whole.number, part.kind()));
    *splitting = Some((AtomicPtr::new(slot), AtomicPtr::new(part.pointer())));
    IN_PROGRESS
}

impl Comm {
    /// Polls a running call. Returns `true` if the call is complete.
    fn poll(&self) -> bool {
        let mut splitting = lock(&self.splitting);
        let stalled = |number: usize| STALLED.load(SeqCst) == number;
        // SAFETY: the memory of communicators is never freed.
        let part = splitting.as_ref().map(|(_, part)| unsafe { &*part.load(SeqCst) });
        let number = part.map_or(self.number, |part| part.number);
        if self.polls_left.load(SeqCst) == 0 {
            return true;
        }
        if stalled(number) || self.polls_left.fetch_sub(1, SeqCst) > 1 {
            return false;
        }
        if let Some((slot, part)) = splitting.take() {
            // SAFETY: the caller of the split keeps the slot alive until the split is complete.
            unsafe { *slot.load(SeqCst) = part.load(SeqCst) };
        }
        true
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: *mut Comm, error: *mut c_uint) -> c_uint {
    // SAFETY: callers pass a communicator of this library.
    let Some(comm) = (unsafe { Comm::of(comm) }) else { return INVALID_USAGE };
    if comm.inside.load(SeqCst) > 0 && !never_blocks() {
        return misuse("a query of the state while another thread is in a call");
    }
    // SAFETY: callers pass a pointer that is valid for writes, as the real function requires.
    unsafe { *error = if comm.poll() { SUCCESS } else { IN_PROGRESS } };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommUserRank(comm: *mut Comm, rank: *mut c_int) -> c_uint {
    // SAFETY: callers pass a communicator of this library, and a pointer that is valid for writes.
    unsafe {
        let Some(comm) = Comm::of(comm) else { return INVALID_USAGE };
        *rank = comm.rank;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCount(comm: *mut Comm, ranks: *mut c_int) -> c_uint {
    // SAFETY: callers pass a communicator of this library, and a pointer that is valid for writes.
    unsafe {
        let Some(comm) = Comm::of(comm) else { return INVALID_USAGE };
        *ranks = comm.ranks;
    }
    SUCCESS
}

/// Ends a running split, and calls on communicators that share the abort flag. Frees the
/// communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: *mut Comm) -> c_uint {
    // SAFETY: callers pass a communicator of this library.
    let Some(comm) = (unsafe { Comm::of(comm) }) else { return INVALID_USAGE };
    log(format_args!("abort {}", comm.number));
    comm.aborted.store(true, SeqCst);
    if let Some((slot, part)) = lock(&comm.splitting).take() {
        // SAFETY: the caller of the split keeps the slot alive until the split is complete.
        unsafe { *slot.load(SeqCst) = part.load(SeqCst) };
    }
    if comm.inside.load(SeqCst) > 0 {
        misuse("an abort that frees a communicator in use");
    }
    WAITING.fetch_add(1, SeqCst);
    while comm.blocking && GRAPH.load(SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    WAITING.fetch_sub(1, SeqCst);
    comm.freed.store(true, SeqCst);
    ALIVE.fetch_sub(1, SeqCst);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    _: *mut c_void,
    _: *mut c_void,
    device: usize,
    _: c_int,
    _: c_int,
    comm: *mut Comm,
    _: *mut c_void,
) -> c_uint {
    // SAFETY: callers pass a communicator of this library.
    let Some(comm) = (unsafe { Comm::of(comm) }) else { return INVALID_USAGE };
    if !comm.blocking {
        return misuse("a collective that does not block");
    }
    comm.inside.fetch_add(1, SeqCst);
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
    if comm.polls_left.load(SeqCst) > 0 {
        return misuse("a call before the previous call is complete");
    }
    if never_blocks() {
        comm.polls_left.store(if HANG.load(SeqCst) { usize::MAX } else { POLLS }, SeqCst);
    }
    while !never_blocks() && HANG.load(SeqCst) && !comm.aborted.load(SeqCst) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let aborted = comm.aborted.load(SeqCst);
    if aborted {
        // Delay the return, so that the log shows which aborts wait for this call.
        std::thread::sleep(Duration::from_millis(50));
        log(format_args!("all-reduce on {} has ended", comm.number));
    }
    INSIDE[device].fetch_sub(1, SeqCst);
    comm.inside.fetch_sub(1, SeqCst);
    if aborted { INTERNAL_ERROR } else { SUCCESS }
}

/// Returns `true` if the environment makes all communicators non-blocking. As in NCCL, the
/// environment overrides the configuration.
fn never_blocks() -> bool {
    std::env::var("NCCL_COMM_BLOCKING").is_ok_and(|text| text == "0")
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> c_uint {
    if never_blocks() { IN_PROGRESS } else { SUCCESS }
}

macro_rules! plain {
    ($($name:ident)*) => {$(
        // Declared without parameters, because the arguments are not read.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_uint {
            SUCCESS
        }
    )*};
}

plain! {
    ncclGetUniqueId ncclGroupStart ncclBroadcast ncclReduce ncclAllGather ncclReduceScatter
    ncclSend ncclRecv
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(_: c_uint) -> *const c_char {
    c"an error".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_: *mut c_void) -> *const c_char {
    c"".as_ptr()
}
