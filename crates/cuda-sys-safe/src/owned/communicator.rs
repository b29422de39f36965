//! A rank's end of an NCCL communicator. One thread at a time calls NCCL with it; only an abort
//! does not wait for a call on another thread. A new communicator is polled until it is ready or a
//! timeout has passed. Dropping the last clone aborts the communicator, on a new thread if the
//! abort may take long.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use warpline_sync::atomic::{AtomicBool, Ordering};
use warpline_sync::{Mutex, MutexGuard, OnceLock};

use crate::nccl::{Collective, CommHandle, CommState, Nccl, UniqueId};
use crate::{Driver, DriverError, Result, StreamHandle};

/// A rank's end of an NCCL communicator on one device (`ncclComm_t`). Clones share it. Dropping the
/// last clone aborts the communicator without waiting. Several threads may use a communicator;
/// their calls run one after another.
///
/// ```
/// use std::{sync::Arc, thread, time::Duration};
/// use warpline_cuda_sys_safe::{Driver, owned::Communicator, sim::SimConfig};
///
/// let driver: Arc<dyn Driver> = SimConfig::new(2).build();
/// let id = driver.nccl()?.unique_id()?;
/// thread::scope(|scope| {
///     for rank in 0..2 {
///         let driver = &driver;
///         scope.spawn(move || {
///             let limit = Duration::from_secs(60);
///             let comm = Communicator::new(driver, rank, &id, 2, rank, limit).unwrap();
///             assert_eq!((comm.rank(), comm.ranks()), (rank, 2));
///         });
///     }
/// });
/// # Ok::<(), warpline_cuda_sys_safe::DriverError>(())
/// ```
#[derive(Clone)]
pub struct Communicator(Arc<CommunicatorInner>);

struct CommunicatorInner {
    driver: Arc<dyn Driver>,
    device: usize,
    ranks: usize,
    rank: usize,
    handle: Arc<CommunicatorHandle>,
}

/// NCCL's handle of a communicator, with the state of its use.
struct CommunicatorHandle {
    comm: CommHandle,
    /// Locked during a call of NCCL, which may wait for other ranks.
    calling: Mutex<()>,
    /// Whether an abort has begun. Set without holding `calling`.
    aborted: AtomicBool,
    /// Set when the abort is over: the communicator has been freed, or is leaked because it may
    /// still be in use. A concurrent abort waits for this.
    freed: OnceLock<()>,
}

/// Time for which NCCL is polled without sleeping.
const SPIN_TIME: Duration = Duration::from_micros(100);

/// Longest sleep between two polls.
const MAX_SLEEP: Duration = Duration::from_millis(1);

impl Communicator {
    /// Joins a communicator of `ranks` ranks as rank `rank`, on `device`, and waits until all ranks
    /// have joined (`ncclCommInitRankConfig`). All ranks must pass the same `id`.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if `rank` is not less than `ranks`, if `ranks` does not
    ///   fit `i32`, or if the process is ending.
    /// - [`DriverError::LibraryCall`] if NCCL refuses the call, and with the status
    ///   `ncclInProgress` if not all ranks have joined within `timeout`.
    /// - Errors of [`Driver::nccl`], and of the [driver call](Driver#errors) that makes the device
    ///   current.
    #[track_caller]
    pub fn new(
        driver: &Arc<dyn Driver>,
        device: usize,
        id: &UniqueId,
        ranks: usize,
        rank: usize,
        timeout: Duration,
    ) -> Result<Self> {
        const CALL: &str = "ncclCommInitRankConfig";
        let location = Location::caller();
        let join = || {
            // NCCL takes both numbers as `int`.
            if rank >= ranks || i32::try_from(ranks).is_err() {
                let reason = format!("there is no rank {rank} among {ranks} ranks");
                return Err(DriverError::InvalidArgument { call: CALL, reason });
            }
            let nccl = driver.nccl()?;
            let new = CommunicatorInner::new(driver, nccl.comm_init(device, id, ranks, rank)?);
            let who = format!("rank {rank} of {ranks} (cuda:{device})");
            new.into_ready(nccl, CALL, (timeout, &who))
        };
        join().map_err(|e: DriverError| e.at(location))
    }

    /// Splits the communicator: ranks that pass the same `color` form a new communicator, ordered
    /// by `key` (`ncclCommSplit`). A rank that passes `None` takes part in the split, but joins no
    /// new communicator. All ranks must call this function.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if `color` or `key` does not fit `i32`, or if the process
    ///   is ending. The simulated NCCL accepts all values of `color` and `key`.
    /// - [`DriverError::LibraryCall`] if NCCL refuses the call, with the status `ncclInProgress` if
    ///   not all ranks have joined within `timeout`, and after [`Self::abort`].
    /// - [`DriverError::CollectiveMismatch`] if ranks made different calls before. Only the
    ///   simulated NCCL detects this.
    /// - Errors of the [driver call](Driver#errors) that makes the device current.
    #[track_caller]
    pub fn split(&self, color: Option<u32>, key: usize, timeout: Duration) -> Result<Option<Self>> {
        const CALL: &str = "ncclCommSplit";
        let location = Location::caller();
        let shared = &*self.0;
        let split = || {
            let nccl = shared.driver.nccl()?;
            let child = shared.handle.with(CALL, |handle| {
                // SAFETY: the communicator is alive, and the lock keeps other threads from using
                // it.
                unsafe { nccl.comm_split(handle, color, key) }
            })?;
            let child = child.map(|handle| CommunicatorInner::new(&shared.driver, handle));
            shared.handle.ready(nccl, CALL, timeout, &self.describe())?;
            let Some(child) = child else { return Ok(None) };
            child.into_ready(nccl, CALL, (timeout, &self.describe())).map(Some)
        };
        split().map_err(|e: DriverError| e.at(location))
    }

    /// Returns [`CommState::Ready`] if the last call is complete and no rank has failed
    /// (`ncclCommGetAsyncError`). Never blocks: while another thread is in a call, the result is
    /// [`CommState::InProgress`].
    ///
    /// # Errors
    /// - [`DriverError::LibraryCall`] with NCCL's status, such as `ncclRemoteError`, if a rank
    ///   waits for a rank that is gone, and after [`Self::abort`].
    /// - [`DriverError::CollectiveMismatch`] if ranks made different calls. Only the simulated NCCL
    ///   detects this.
    /// - [`DriverError::InvalidArgument`] if the process is ending.
    #[track_caller]
    pub fn state(&self) -> Result<CommState> {
        let location = Location::caller();
        let state = || self.0.handle.state(self.0.driver.nccl()?);
        state().map_err(|e| e.at(location))
    }

    /// Aborts the communicator without waiting for its collectives (`ncclCommAbort`). Enqueued
    /// collectives end without a result, a call that hangs on another thread returns an error, and
    /// all later uses are refused. The other ranks must abort, too. A second abort only waits for
    /// the first.
    ///
    /// If several ranks are threads of one process, the last of their aborts frees the resources of
    /// all these ranks, on all their devices. For this, the driver may need progress of the other
    /// threads. Until all ranks have aborted, none of these threads may therefore block on work
    /// that needs a rank that has not aborted. Synchronize the threads only after the abort.
    ///
    /// NCCL's abort also waits until all graphs that captured calls of the communicator are
    /// destroyed. With several threads, the last abort waits for the graphs of all of them.
    /// Launched work has ended by then, and new uses are refused at once. A thread that still has
    /// to destroy such a graph must leave the abort to another thread.
    pub fn abort(&self) {
        self.0.handle.abort(&*self.0.driver);
    }

    /// Returns `true` if the communicator was aborted or is being aborted. Never blocks.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.0.handle.is_aborted()
    }

    /// Enqueues calls as one group (`ncclGroupStart` to `ncclGroupEnd`). Call this function from
    /// [`DeviceCode::Collective`](crate::DeviceCode::Collective). The first call of a kind connects
    /// the ranks: it blocks until the other ranks make the call, too, or until another thread calls
    /// [`Self::abort`].
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if the stream is on another device, or if the process is
    ///   ending. The simulated NCCL also returns it for invalid calls, such as one whose root is no
    ///   rank.
    /// - [`DriverError::LibraryCall`] if NCCL refuses a call, and after [`Self::abort`].
    /// - [`DriverError::CollectiveMismatch`] if ranks made different calls before. Only the
    ///   simulated NCCL detects this.
    /// - Errors of the [driver call](Driver#errors) that makes the device current.
    ///
    /// # Safety
    /// The stream is alive. The memory of the calls is on the communicator's device, as large as
    /// the calls require, and stays valid until the work is done or [`Self::abort`] has returned.
    /// All replays of captured calls are launched in [`Self::while_usable`].
    pub unsafe fn enqueue(&self, calls: &[Collective], stream: StreamHandle) -> Result<()> {
        const CALL: &str = "ncclGroupEnd";
        let shared = &*self.0;
        let nccl = shared.driver.nccl()?;
        shared.handle.with(CALL, |handle| {
            // SAFETY: the communicator is alive, and the lock keeps other threads from using it.
            // The caller guarantees that the stream is alive and the memory valid.
            unsafe { nccl.enqueue(handle, calls, stream) }
        })
    }

    /// Calls `f`, which launches a graph that contains calls of the communicator. The communicator
    /// is not freed while `f` runs.
    ///
    /// # Errors
    /// [`DriverError::LibraryCall`] if [`Self::abort`] was called.
    pub fn while_usable<R>(&self, f: impl FnOnce() -> R) -> Result<R> {
        self.0.handle.with("cuGraphLaunch", |_| Ok(f()))
    }

    /// Returns the driver of the communicator's device.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.0.driver
    }

    /// Returns the index of the communicator's device.
    #[must_use]
    pub fn device(&self) -> usize {
        self.0.device
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.0.ranks
    }

    /// Returns the rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Returns a number that identifies the communicator among all that are alive. Clones have the
    /// same number.
    #[must_use]
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    fn describe(&self) -> String {
        format!("rank {} of {} (cuda:{})", self.0.rank, self.0.ranks, self.0.device)
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.0.rank)
            .field("ranks", &self.0.ranks)
            .field("device", &self.0.device)
            .finish_non_exhaustive()
    }
}

impl Drop for CommunicatorInner {
    fn drop(&mut self) {
        CommunicatorHandle::abort_in_background(&self.handle, &self.driver);
    }
}

impl CommunicatorInner {
    /// Wraps a communicator that is being made. Its rank is not known yet.
    fn new(driver: &Arc<dyn Driver>, comm: CommHandle) -> Self {
        let (driver, handle) = (Arc::clone(driver), Arc::new(CommunicatorHandle::new(comm)));
        Self { driver, device: comm.device(), ranks: 0, rank: 0, handle }
    }

    /// Waits until the communicator is ready.
    fn into_ready(
        mut self,
        nccl: &dyn Nccl,
        call: &'static str,
        (timeout, who): (Duration, &str),
    ) -> Result<Communicator> {
        self.handle.ready(nccl, call, timeout, who)?;
        (self.rank, self.ranks) = self.handle.with("ncclCommUserRank", |comm| {
            // SAFETY: the communicator is alive, and the lock keeps other threads from using it.
            unsafe { nccl.comm_rank(comm) }
        })?;
        Ok(Communicator(Arc::new(self)))
    }
}

impl CommunicatorHandle {
    fn new(comm: CommHandle) -> Self {
        let (calling, aborted) = (Mutex::new(()), AtomicBool::new(false));
        Self { comm, calling, aborted, freed: OnceLock::new() }
    }

    fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.calling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls NCCL under the lock.
    fn with<R>(&self, call: &'static str, f: impl FnOnce(CommHandle) -> Result<R>) -> Result<R> {
        self.with_locked(call, self.lock(), f)
    }

    /// Calls NCCL with the lock held. The communicator is alive in `f`, because an abort sets
    /// `aborted` and then takes the lock before it frees the communicator.
    fn with_locked<R>(
        &self,
        call: &'static str,
        _calling: MutexGuard<'_, ()>,
        f: impl FnOnce(CommHandle) -> Result<R>,
    ) -> Result<R> {
        let aborted = || failed(call, "ncclInvalidUsage", "the communicator was aborted".into());
        if self.is_aborted() {
            return Err(aborted());
        }
        // NCCL may return any error for a call that an abort ended. Report the abort instead.
        f(self.comm).map_err(|error| if self.is_aborted() { aborted() } else { error })
    }

    fn state(&self, nccl: &dyn Nccl) -> Result<CommState> {
        const CALL: &str = "ncclCommGetAsyncError";
        let calling = match self.calling.try_lock() {
            Ok(calling) => calling,
            Err(TryLockError::Poisoned(calling)) => calling.into_inner(),
            // Another thread holds the lock: during a call, which may take long, or during an
            // abort.
            Err(TryLockError::WouldBlock) if !self.is_aborted() => {
                return Ok(CommState::InProgress);
            }
            Err(TryLockError::WouldBlock) => {
                let why = "the communicator was aborted".into();
                return Err(failed(CALL, "ncclInvalidUsage", why));
            }
        };
        self.with_locked(CALL, calling, |comm| {
            // SAFETY: the communicator is alive, and the lock keeps other threads from using it.
            unsafe { nccl.comm_state(comm) }
        })
    }

    /// Waits until the last call is complete. Other threads may abort the communicator meanwhile.
    fn ready(
        &self,
        nccl: &dyn Nccl,
        call: &'static str,
        timeout: Duration,
        who: &str,
    ) -> Result<()> {
        let began = Instant::now();
        while self.state(nccl)? == CommState::InProgress {
            let waited = began.elapsed();
            if waited >= timeout {
                let why = format!("{who} has waited {waited:.1?} for the other ranks");
                return Err(failed(call, "ncclInProgress", why));
            }
            if waited < SPIN_TIME {
                std::thread::yield_now();
            } else {
                std::thread::sleep((waited / 4).min(MAX_SLEEP));
            }
        }
        Ok(())
    }

    fn abort(&self, driver: &dyn Driver) {
        self.freed.get_or_init(|| {
            self.aborted.store(true, Ordering::Release);
            // Errors are ignored, because the communicator is not used any more.
            let Ok(nccl) = driver.nccl() else { return };
            // SAFETY: only `comm_abort` below frees the communicator, and `get_or_init` runs this
            // once.
            let interrupted = unsafe { nccl.comm_interrupt(self.comm) };
            // After the interrupt, a call on another thread soon returns. If the interrupt failed,
            // the call may hang forever; the communicator is then leaked.
            let calling = match interrupted {
                Ok(()) => Some(self.lock()),
                Err(_) => self.calling.try_lock().ok(),
            };
            let Some(calling) = calling else { return };
            // Release the lock first: a thread that takes it now sees `aborted` and is refused.
            // NCCL's abort may wait until another thread destroys a graph, and that thread may try
            // to launch the graph first.
            drop(calling);
            // SAFETY: the communicator is alive. No call is using it, because this thread held the
            // lock after it set `aborted`, and `with_locked` refuses every later call.
            let _ = unsafe { nccl.comm_abort(self.comm) };
        });
    }

    /// Aborts the communicator without blocking the caller for long. The abort of the NCCL library
    /// may take long, so it runs on a new thread.
    fn abort_in_background(handle: &Arc<Self>, driver: &Arc<dyn Driver>) {
        if handle.is_aborted() || driver.name() != "cuda" {
            return handle.abort(&**driver);
        }
        let (handle, driver) = (Arc::clone(handle), Arc::clone(driver));
        // If no thread can be started, the communicator is leaked. An abort here could hang.
        let thread = std::thread::Builder::new().name("warpline-nccl-abort".into());
        let _ = thread.spawn(move || handle.abort(&*driver));
    }
}

fn failed(call: &'static str, status: &str, detail: String) -> DriverError {
    DriverError::LibraryCall { call, status: status.into(), detail, location: None }
}
