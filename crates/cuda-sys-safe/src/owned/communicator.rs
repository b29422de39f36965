//! A rank's end of an NCCL communicator. It lets one thread in at a time, and polls the making of a
//! communicator with a limit. When its last clone is dropped it is aborted, in a thread of its own
//! where that could take long.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use warpline_sync::atomic::{AtomicBool, Ordering};
use warpline_sync::{Mutex, MutexGuard, OnceLock};

use crate::nccl::{Collective, CommHandle, CommState, Nccl, UniqueId};
use crate::{Driver, DriverError, Result, StreamHandle};

/// A rank's end of an NCCL communicator on one device (`ncclComm_t`). Clones share it; when the last
/// one is dropped it is aborted, and nothing is waited for. Any thread may use it: they take turns.
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
pub struct Communicator(Arc<Shared>);

struct Shared {
    driver: Arc<dyn Driver>,
    device: usize,
    ranks: usize,
    rank: usize,
    handle: Arc<Handle>,
}

/// What a communicator is for NCCL.
struct Handle {
    comm: CommHandle,
    /// Held while NCCL is called, which may take as long as other ranks do.
    calling: Mutex<()>,
    /// Whether an abort has begun. It is set without `calling`.
    aborted: AtomicBool,
    /// There once it was freed: whoever aborts too waits for that.
    freed: OnceLock<()>,
}

/// How long NCCL is asked again and again before the thread sleeps between the questions.
const SPIN: Duration = Duration::from_micros(100);

/// The longest sleep between two questions.
const NAP: Duration = Duration::from_millis(1);

impl Communicator {
    /// Joins a communicator of `ranks` as `rank`, with this device, and waits until all have
    /// (`ncclCommInitRankConfig`). All are given the same `id`.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] for a rank that there is not;
    /// [`DriverError::LibraryNotFound`] without NCCL; [`DriverError::LibraryCall`] with NCCL's own,
    /// and with `ncclInProgress` where not all ranks have come within `timeout`.
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
            // NCCL counts in C's ints.
            if rank >= ranks || i32::try_from(ranks).is_err() {
                let reason = format!("rank {rank} was asked for of {ranks} ranks");
                return Err(DriverError::InvalidArgument { call: CALL, reason });
            }
            let nccl = driver.nccl()?;
            let new = Shared::new(driver, nccl.comm_init(device, id, ranks, rank)?);
            let who = format!("rank {rank} of {ranks} (cuda:{device})");
            new.made(nccl, CALL, (timeout, &who))
        };
        join().map_err(|e: DriverError| e.at(location))
    }

    /// Makes communicators of parts of this one's ranks: those with one `color` make one, in the
    /// order of `key`; `None` takes part and gets none (`ncclCommSplit`). All ranks have to call it.
    ///
    /// # Errors
    /// As of [`Self::new`].
    #[track_caller]
    pub fn split(&self, color: Option<u32>, key: usize, timeout: Duration) -> Result<Option<Self>> {
        const CALL: &str = "ncclCommSplit";
        let location = Location::caller();
        let shared = &*self.0;
        let split = || {
            let nccl = shared.driver.nccl()?;
            let child = shared.handle.with(CALL, |handle| {
                // SAFETY: alive, and used by nobody else while it is locked.
                unsafe { nccl.comm_split(handle, color, key) }
            })?;
            let child = child.map(|handle| Shared::new(&shared.driver, handle));
            shared.handle.ready(nccl, CALL, timeout, &self.who())?;
            let Some(child) = child else { return Ok(None) };
            child.made(nccl, CALL, (timeout, &self.who())).map(Some)
        };
        split().map_err(|e: DriverError| e.at(location))
    }

    /// Whether the last call is through, and no rank has failed (`ncclCommGetAsyncError`). It never
    /// blocks: while another thread is in a call, that is [`CommState::InProgress`].
    ///
    /// # Errors
    /// [`DriverError::LibraryCall`] with NCCL's own: `ncclRemoteError` where a rank is gone that the
    /// others wait for, and after [`Self::abort`]. [`DriverError::CollectiveMismatch`], which only a
    /// simulated NCCL finds.
    #[track_caller]
    pub fn state(&self) -> Result<CommState> {
        let location = Location::caller();
        let state = || self.0.handle.state(self.0.driver.nccl()?);
        state().map_err(|e| e.at(location))
    }

    /// Ends it at once: what it has enqueued ends without a result, a call that hangs on another
    /// thread returns an error, and all later uses are refused (`ncclCommAbort`). The other ranks have
    /// to do the same. Doing it twice does nothing.
    ///
    /// Where several ranks are threads of one process, NCCL's last abort of theirs frees what all of
    /// them have, on all their devices, for which the driver may need the others' threads. So until all
    /// ranks have aborted it, none of these threads may wait on the host for work that needs a rank
    /// which has not: let the threads meet after the abort.
    ///
    /// NCCL's abort also waits until those graphs are destroyed in which its calls were captured, and
    /// the last one of several threads for all of theirs. What was launched has ended by then, and new
    /// uses are refused at once; but a thread that has yet to destroy such a graph lets another one abort.
    pub fn abort(&self) {
        self.0.handle.abort(&*self.0.driver);
    }

    /// Whether it was aborted, or is being aborted. It never blocks.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.0.handle.is_aborted()
    }

    /// Enqueues calls as one group (`ncclGroupStart` to `ncclGroupEnd`). What launches it calls this
    /// from [`DeviceCode::Collective`](crate::DeviceCode::Collective). The first call of a kind connects
    /// the ranks, and blocks until the others make it too, or another thread calls [`Self::abort`].
    ///
    /// # Errors
    /// [`DriverError::LibraryCall`] with NCCL's own, and after [`Self::abort`].
    ///
    /// # Safety
    /// The stream is alive and of the communicator's device. The memory is the device's, as large as
    /// the calls say, and stays valid until the work is done or [`Self::abort`] has returned. Of what
    /// is captured all replays are launched in [`Self::while_usable`].
    pub unsafe fn enqueue(&self, calls: &[Collective], stream: StreamHandle) -> Result<()> {
        const CALL: &str = "ncclGroupEnd";
        let shared = &*self.0;
        let nccl = shared.driver.nccl()?;
        shared.handle.with(CALL, |handle| {
            // SAFETY: alive, and used by nobody else while it is locked; the rest is the caller's.
            unsafe { nccl.enqueue(handle, calls, stream) }
        })
    }

    /// Calls `f`, which launches a graph in which the communicator takes part; it is not aborted
    /// meanwhile.
    ///
    /// # Errors
    /// [`DriverError::LibraryCall`] after [`Self::abort`].
    pub fn while_usable<R>(&self, f: impl FnOnce() -> R) -> Result<R> {
        self.0.handle.with("cuGraphLaunch", |_| Ok(f()))
    }

    /// The driver of its device.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.0.driver
    }

    /// The device it is on.
    #[must_use]
    pub fn device(&self) -> usize {
        self.0.device
    }

    /// How many ranks it has.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.0.ranks
    }

    /// Which of them this one is.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// A number that it shares with its clones, and no other one alive has.
    #[must_use]
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    fn who(&self) -> String {
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

impl Drop for Shared {
    fn drop(&mut self) {
        Handle::abandon(&self.handle, &self.driver);
    }
}

impl Shared {
    /// What is being made. It does not know its rank yet.
    fn new(driver: &Arc<dyn Driver>, comm: CommHandle) -> Self {
        let (driver, handle) = (Arc::clone(driver), Arc::new(Handle::new(comm)));
        Self { driver, device: comm.device(), ranks: 0, rank: 0, handle }
    }

    /// Waits until it is made.
    fn made(
        mut self,
        nccl: &dyn Nccl,
        call: &'static str,
        (timeout, who): (Duration, &str),
    ) -> Result<Communicator> {
        self.handle.ready(nccl, call, timeout, who)?;
        (self.rank, self.ranks) = self.handle.with("ncclCommUserRank", |comm| {
            // SAFETY: alive, and used by nobody else while it is locked.
            unsafe { nccl.comm_rank(comm) }
        })?;
        Ok(Communicator(Arc::new(self)))
    }
}

impl Handle {
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

    /// Calls NCCL.
    fn with<R>(&self, call: &'static str, f: impl FnOnce(CommHandle) -> Result<R>) -> Result<R> {
        self.with_locked(call, self.lock(), f)
    }

    /// It is freed once the lock was held after `aborted` was set: here it is alive.
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
        // What an abort has ended has failed of that, whatever NCCL makes of it.
        f(self.comm).map_err(|error| if self.is_aborted() { aborted() } else { error })
    }

    fn state(&self, nccl: &dyn Nccl) -> Result<CommState> {
        const CALL: &str = "ncclCommGetAsyncError";
        let calling = match self.calling.try_lock() {
            Ok(calling) => calling,
            Err(TryLockError::Poisoned(calling)) => calling.into_inner(),
            // Another thread is in a call, perhaps for long; or it aborts.
            Err(TryLockError::WouldBlock) if !self.is_aborted() => {
                return Ok(CommState::InProgress);
            }
            Err(TryLockError::WouldBlock) => {
                let why = "the communicator was aborted".into();
                return Err(failed(CALL, "ncclInvalidUsage", why));
            }
        };
        self.with_locked(CALL, calling, |comm| {
            // SAFETY: alive, and used by nobody else while it is locked.
            unsafe { nccl.comm_state(comm) }
        })
    }

    /// Waits until the last call is through. Others may abort it meanwhile.
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
            if waited < SPIN {
                std::thread::yield_now();
            } else {
                std::thread::sleep((waited / 4).min(NAP));
            }
        }
        Ok(())
    }

    fn abort(&self, driver: &dyn Driver) {
        self.freed.get_or_init(|| {
            self.aborted.store(true, Ordering::Release);
            // Errors change nothing: nobody uses it any more.
            let Ok(nccl) = driver.nccl() else { return };
            // SAFETY: alive until it is freed below, and only here.
            let interrupted = unsafe { nccl.comm_interrupt(self.comm) };
            // A call on another thread soon returns. Where NCCL could not be told, it may not.
            let calling = match interrupted {
                Ok(()) => Some(self.lock()),
                Err(_) => self.calling.try_lock().ok(),
            };
            let Some(calling) = calling else { return };
            // Who gets it from now on is refused. NCCL may wait until a graph is destroyed, by a thread
            // that may want to launch it first.
            drop(calling);
            // SAFETY: alive until now, and nobody uses it any more: see `with_locked`.
            let _ = unsafe { nccl.comm_abort(self.comm) };
        });
    }

    /// Aborts it where nobody waits for that: the library's abort may take long.
    fn abandon(handle: &Arc<Self>, driver: &Arc<dyn Driver>) {
        if handle.is_aborted() || driver.name() != "cuda" {
            return handle.abort(&**driver);
        }
        let (handle, driver) = (Arc::clone(handle), Arc::clone(driver));
        // Without a thread it is leaked, which is better than to hang.
        let thread = std::thread::Builder::new().name("warpline-nccl-abort".into());
        let _ = thread.spawn(move || handle.abort(&*driver));
    }
}

fn failed(call: &'static str, status: &str, detail: String) -> DriverError {
    DriverError::LibraryCall { call, status: status.into(), detail, location: None }
}
