//! Releases that a driver refused. They are kept and retried.
//!
//! A driver may refuse a valid call that frees, unmaps, unregisters or destroys an object, for
//! example while another thread captures a stream in CUDA's global mode. The object then still
//! exists, and so must everything that it depends on: pages stay mapped while they are registered,
//! and addresses stay reserved while memory is mapped at them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use crate::{CudaCode, Driver, DriverError, Result};

/// A kind of released object, with the call that releases it.
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
    /// The `free` of a [`CudaPluggableAllocator`](super::CudaPluggableAllocator), after a wait for
    /// the device.
    LibraryMemory,
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
    /// Every kind. A kind that keeps another kind alive comes first.
    pub const ALL: &'static [Self] = &[
        Self::Mapping,
        Self::PhysicalMemory,
        Self::Reservation,
        Self::DeviceMemory,
        Self::PinnedMemory,
        Self::RegisteredMemory,
        Self::PoolMemory,
        Self::SharedMemory,
        Self::LibraryMemory,
        Self::MemPool,
        Self::Stream,
        Self::Event,
        Self::Graph,
        Self::GraphExec,
        Self::Module,
    ];
}

const KINDS: usize = ReleaseKind::ALL.len();

/// Releases that a driver refused and has not accepted since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedCount {
    /// Number of releases.
    pub count: usize,
    /// Size of the memory or addresses to release, in bytes.
    pub bytes: usize,
}

/// The releases that a driver refused ([`Driver::refused`]). A release is retried when an object of
/// the same kind is dropped, before most allocations of memory and addresses of that kind, and by
/// [`retry_refused`]. Refused releases keep the driver alive.
#[derive(Debug, Default)]
pub struct Refused([ReleaseQueue; KINDS]);

/// The refused releases of one kind. Each kind has its own queue: a drop or an allocation retries
/// only the kinds that concern it, and so makes no unexpected kinds of driver calls.
#[derive(Debug, Default)]
struct ReleaseQueue {
    count: AtomicUsize,
    bytes: AtomicUsize,
    /// Releases that wait for a retry. A release that a thread is retrying is not in the list, so
    /// that the list need not be locked during the driver call.
    waiting: Mutex<VecDeque<RefusedRelease>>,
}

type ReleaseCall = dyn FnMut(&dyn Driver) -> Result<()> + Send;

/// A refused release. Its call owns everything that must live until the release is accepted.
struct RefusedRelease {
    driver: Arc<dyn Driver>,
    bytes: usize,
    call: Box<ReleaseCall>,
}

impl fmt::Debug for RefusedRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusedRelease").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Refused {
    /// Returns the number and size of all refused releases.
    #[must_use]
    pub fn all(&self) -> RefusedCount {
        ReleaseKind::ALL.iter().fold(RefusedCount::default(), |sum, &kind| {
            let RefusedCount { count, bytes } = self.of(kind);
            RefusedCount { count: sum.count + count, bytes: sum.bytes + bytes }
        })
    }

    /// Returns the number and size of the refused releases of one kind.
    #[must_use]
    pub fn of(&self, kind: ReleaseKind) -> RefusedCount {
        let ReleaseQueue { count, bytes, .. } = self.queue(kind);
        RefusedCount { count: count.load(Ordering::Relaxed), bytes: bytes.load(Ordering::Relaxed) }
    }

    fn queue(&self, kind: ReleaseKind) -> &ReleaseQueue {
        &self.0[kind as usize]
    }
}

impl ReleaseQueue {
    fn keep(&self, release: RefusedRelease) {
        self.bytes.fetch_add(release.bytes, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.wait(release);
    }

    fn wait(&self, release: RefusedRelease) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(release);
    }

    /// Takes the release that has waited longest. Does not block, because in a forked child the
    /// thread that holds the lock may not exist.
    fn next(&self) -> Option<RefusedRelease> {
        match self.waiting.try_lock() {
            Ok(mut waiting) => waiting.pop_front(),
            Err(TryLockError::Poisoned(waiting)) => waiting.into_inner().pop_front(),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Retries one release. Returns `false` if there is none, or if the driver refuses it again.
    fn retry_next(&self) -> bool {
        let Some(mut release) = self.next() else { return false };
        let accepted = accepted((release.call)(&*release.driver)).is_ok();
        if accepted {
            self.count.fetch_sub(1, Ordering::Relaxed);
            self.bytes.fetch_sub(release.bytes, Ordering::Relaxed);
        } else {
            self.wait(release);
        }
        accepted
    }

    /// Retries releases until the driver refuses one.
    #[cold]
    fn retry_some(&self) {
        while self.retry_next() {}
    }

    fn retry_all(&self) {
        // A release that is refused again moves to the end of the queue, so each is retried once.
        for _ in 0..self.count.load(Ordering::Relaxed) {
            self.retry_next();
        }
    }
}

/// Retries all refused releases. Returns the number and size of the releases that the driver
/// refuses again.
///
/// If the first attempt of a release waits for the device, so does its retry.
pub fn retry_refused(driver: &Arc<dyn Driver>) -> RefusedCount {
    let refused = driver.refused();
    ReleaseKind::ALL.iter().for_each(|&kind| refused.queue(kind).retry_all());
    refused.all()
}

/// Retries refused releases of a kind, until one is refused again. Called before a release of that
/// kind, and before an allocation that these releases may help.
#[inline]
pub(super) fn retry(driver: &Arc<dyn Driver>, kind: ReleaseKind) {
    let queue = driver.refused().queue(kind);
    if queue.count.load(Ordering::Relaxed) > 0 {
        queue.retry_some();
    }
}

/// Turns an error into success if nothing is left to release: the device is lost, the driver is
/// shutting down, or the object belongs to the parent of a forked process.
pub(super) fn accepted(released: Result<()>) -> Result<()> {
    released.or_else(|error| {
        let gone = error.loses_device()
            || matches!(error, DriverError::ForkedChild { .. })
            || error.code() == Some(CudaCode::DEINITIALIZED);
        if gone { Ok(()) } else { Err(error) }
    })
}

/// Releases an object, or keeps the call for a retry if the driver refuses it. The call owns
/// everything that must live until the release is accepted.
#[inline]
pub(super) fn release(
    driver: &Arc<dyn Driver>,
    kind: ReleaseKind,
    bytes: usize,
    mut call: impl FnMut(&dyn Driver) -> Result<()> + Send + 'static,
) {
    retry(driver, kind);
    if accepted(call(&**driver)).is_err() {
        let release = RefusedRelease { driver: Arc::clone(driver), bytes, call: Box::new(call) };
        driver.refused().queue(kind).keep(release);
    }
}
