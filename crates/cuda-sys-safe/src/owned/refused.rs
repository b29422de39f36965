//! Releases that a driver refused, which are kept and tried again.
//!
//! A driver may refuse to free, unmap, unregister or destroy something that is in order: while
//! another thread captures a stream in CUDA's global mode, for one. What was to go is then still
//! there, and with it what must outlive it: pages stay mapped while they are registered, addresses
//! stay reserved while something is mapped at them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use crate::{CudaCode, Driver, DriverError, Result};

/// What is released, and by which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseKind {
    /// `cuMemUnmap`.
    Mapping,
    /// `cuMemRelease`.
    PhysicalMemory,
    /// `cuMemAddressFree`.
    Reservation,
    /// `cuMemFree`.
    DeviceMemory,
    /// `cuMemFreeHost`.
    PinnedMemory,
    /// `cuMemHostUnregister`.
    RegisteredMemory,
    /// `cuMemFreeAsync`.
    PoolMemory,
    /// `cuIpcCloseMemHandle`.
    SharedMemory,
    /// `cuMemPoolDestroy`.
    MemPool,
    /// `cuStreamDestroy`.
    Stream,
    /// `cuEventDestroy`.
    Event,
    /// `cuGraphDestroy`.
    Graph,
    /// `cuGraphExecDestroy`.
    GraphExec,
    /// `cuModuleUnload`.
    Module,
}

impl ReleaseKind {
    /// Every kind; what keeps another alive comes before it.
    pub const ALL: &'static [Self] = &[
        Self::Mapping,
        Self::PhysicalMemory,
        Self::Reservation,
        Self::DeviceMemory,
        Self::PinnedMemory,
        Self::RegisteredMemory,
        Self::PoolMemory,
        Self::SharedMemory,
        Self::MemPool,
        Self::Stream,
        Self::Event,
        Self::Graph,
        Self::GraphExec,
        Self::Module,
    ];
}

const KINDS: usize = ReleaseKind::ALL.len();

/// How many releases a driver refused and has not accepted since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedCount {
    /// How many.
    pub count: usize,
    /// The bytes of memory or addresses that were to be released.
    pub bytes: usize,
}

/// The releases that one driver refused ([`Driver::refused`]). They are tried again when something
/// of their kind is released or allocated, and by [`retry_refused`]. They keep the driver alive.
#[derive(Debug, Default)]
pub struct Refused([List; KINDS]);

/// Those of one kind: so a retry makes no other call than whoever meets it makes anyway.
#[derive(Debug, Default)]
struct List {
    count: AtomicUsize,
    bytes: AtomicUsize,
    /// But for those that a thread is trying again just now. Not held during a driver call.
    waiting: Mutex<VecDeque<Entry>>,
}

type Call = dyn FnMut(&dyn Driver) -> Result<()> + Send;

/// One of them. The call owns what must not go before it is accepted.
struct Entry {
    driver: Arc<dyn Driver>,
    bytes: usize,
    call: Box<Call>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Refused {
    /// All of them.
    #[must_use]
    pub fn all(&self) -> RefusedCount {
        ReleaseKind::ALL.iter().fold(RefusedCount::default(), |sum, &kind| {
            let RefusedCount { count, bytes } = self.of(kind);
            RefusedCount { count: sum.count + count, bytes: sum.bytes + bytes }
        })
    }

    /// Those of one kind.
    #[must_use]
    pub fn of(&self, kind: ReleaseKind) -> RefusedCount {
        let List { count, bytes, .. } = self.list(kind);
        RefusedCount { count: count.load(Ordering::Relaxed), bytes: bytes.load(Ordering::Relaxed) }
    }

    fn list(&self, kind: ReleaseKind) -> &List {
        &self.0[kind as usize]
    }
}

impl List {
    fn keep(&self, entry: Entry) {
        self.bytes.fetch_add(entry.bytes, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.wait(entry);
    }

    fn wait(&self, entry: Entry) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(entry);
    }

    /// The one that waited for longest. Does not block: in a forked child nobody may be left to
    /// let go of the lock.
    fn next(&self) -> Option<Entry> {
        match self.waiting.try_lock() {
            Ok(mut waiting) => waiting.pop_front(),
            Err(TryLockError::Poisoned(waiting)) => waiting.into_inner().pop_front(),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Tries one again; false if there is none, or it is refused again.
    fn retry_next(&self) -> bool {
        let Some(mut entry) = self.next() else { return false };
        let accepted = accepted((entry.call)(&*entry.driver)).is_ok();
        if accepted {
            self.count.fetch_sub(1, Ordering::Relaxed);
            self.bytes.fetch_sub(entry.bytes, Ordering::Relaxed);
        } else {
            self.wait(entry);
        }
        accepted
    }

    /// Tries as many again as are accepted: where none is, that is one call.
    #[cold]
    fn retry_some(&self) {
        while self.retry_next() {}
    }

    fn retry_all(&self) {
        // Each once: those that are refused again come last.
        for _ in 0..self.count.load(Ordering::Relaxed) {
            self.retry_next();
        }
    }
}

/// Tries all releases again that the driver refused. Returns what is left of them.
///
/// It may wait for work of the devices, as those releases do.
pub fn retry_refused(driver: &Arc<dyn Driver>) -> RefusedCount {
    let refused = driver.refused();
    ReleaseKind::ALL.iter().for_each(|&kind| refused.list(kind).retry_all());
    refused.all()
}

/// Before something of this kind is allocated: tries those again that were refused.
#[inline]
pub(super) fn retry(driver: &Arc<dyn Driver>, kind: ReleaseKind) {
    let list = driver.refused().list(kind);
    if list.count.load(Ordering::Relaxed) > 0 {
        list.retry_some();
    }
}

/// Whether a release is over: accepted, or nothing is left to release, because the device or the
/// whole driver is gone or all of it is another process's.
pub(super) fn accepted(released: Result<()>) -> Result<()> {
    released.or_else(|error| {
        let gone = error.loses_device()
            || matches!(error, DriverError::ForkedChild { .. })
            || error.code() == Some(CudaCode::DEINITIALIZED);
        if gone { Ok(()) } else { Err(error) }
    })
}

/// Releases something, or keeps the call for later if the driver refuses it. The call owns what
/// must not go before.
#[inline]
pub(super) fn release(
    driver: &Arc<dyn Driver>,
    kind: ReleaseKind,
    bytes: usize,
    mut call: impl FnMut(&dyn Driver) -> Result<()> + Send + 'static,
) {
    retry(driver, kind);
    if accepted(call(&**driver)).is_err() {
        let entry = Entry { driver: Arc::clone(driver), bytes, call: Box::new(call) };
        driver.refused().list(kind).keep(entry);
    }
}
