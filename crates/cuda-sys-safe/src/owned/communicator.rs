//! A rank's end of an NCCL communicator.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use warpline_sync::{Mutex, MutexGuard};

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
    timeout: Duration,
    handle: Handle,
}

/// Held while NCCL is called. None once it was aborted.
struct Handle(Mutex<Option<CommHandle>>);

/// How long NCCL is asked again and again before the thread sleeps between the questions.
const SPIN: Duration = Duration::from_micros(100);

/// The longest sleep between two questions.
const NAP: Duration = Duration::from_millis(1);

impl Communicator {
    /// Joins a communicator of `ranks` as `rank`, with this device, and waits until all have
    /// (`ncclCommInitRankConfig`). All are given the same `id`. What is enqueued later may take no
    /// longer than `timeout` either until NCCL has taken it.
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
            let pending = Pending::new(driver, nccl.comm_init(device, id, ranks, rank)?);
            let who = format!("rank {rank} of {ranks} (cuda:{device})");
            pending.ready(CALL, timeout, &who)?;
            pending.communicator(nccl, timeout)
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
            let child = child.map(|handle| Pending::new(&shared.driver, handle));
            shared.handle.ready(nccl, CALL, timeout, &self.who())?;
            let Some(child) = child else { return Ok(None) };
            child.ready(CALL, timeout, &self.who())?;
            child.communicator(nccl, shared.timeout).map(Some)
        };
        split().map_err(|e: DriverError| e.at(location))
    }

    /// Whether the last call is through, and no rank has failed (`ncclCommGetAsyncError`).
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

    /// Ends it at once: what it has enqueued ends without a result, and all later uses are refused
    /// (`ncclCommAbort`). The other ranks have to do the same. Doing it twice does nothing.
    pub fn abort(&self) {
        self.0.handle.abort(&*self.0.driver);
    }

    /// Whether it was aborted.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.0.handle.lock().is_none()
    }

    /// Enqueues calls as one group (`ncclGroupStart` to `ncclGroupEnd`). What launches it calls this
    /// from [`DeviceCode::Collective`](crate::DeviceCode::Collective).
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
        let state = shared.handle.with(CALL, |handle| {
            // SAFETY: alive, and used by nobody else while it is locked; the rest is the caller's.
            unsafe { nccl.enqueue(handle, calls, stream) }
        })?;
        match state {
            CommState::Ready => Ok(()),
            CommState::InProgress => shared.handle.ready(nccl, CALL, shared.timeout, &self.who()),
        }
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
        self.handle.abandon(&self.driver);
    }
}

/// A communicator that is being made.
struct Pending {
    driver: Arc<dyn Driver>,
    device: usize,
    handle: Handle,
}

impl Pending {
    fn new(driver: &Arc<dyn Driver>, handle: CommHandle) -> Self {
        let device = handle.device();
        Self { driver: Arc::clone(driver), device, handle: Handle(Mutex::new(Some(handle))) }
    }

    fn ready(&self, call: &'static str, timeout: Duration, who: &str) -> Result<()> {
        self.handle.ready(self.driver.nccl()?, call, timeout, who)
    }

    fn communicator(self, nccl: &dyn Nccl, timeout: Duration) -> Result<Communicator> {
        let (rank, ranks) = self.handle.with("ncclCommUserRank", |handle| {
            // SAFETY: alive, and used by nobody else while it is locked.
            unsafe { nccl.comm_rank(handle) }
        })?;
        let handle = Handle(Mutex::new(self.handle.lock().take()));
        let (driver, device) = (Arc::clone(&self.driver), self.device);
        Ok(Communicator(Arc::new(Shared { driver, device, ranks, rank, timeout, handle })))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.handle.abandon(&self.driver);
    }
}

impl Handle {
    fn lock(&self) -> MutexGuard<'_, Option<CommHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls NCCL.
    fn with<R>(&self, call: &'static str, f: impl FnOnce(CommHandle) -> Result<R>) -> Result<R> {
        let locked = self.lock();
        match *locked {
            Some(handle) => f(handle),
            None => Err(failed(call, "ncclInvalidUsage", "the communicator was aborted".into())),
        }
    }

    fn state(&self, nccl: &dyn Nccl) -> Result<CommState> {
        self.with("ncclCommGetAsyncError", |handle| {
            // SAFETY: alive, and used by nobody else while it is locked.
            unsafe { nccl.comm_state(handle) }
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
        let mut locked = self.lock();
        if let (Some(handle), Ok(nccl)) = (locked.take(), driver.nccl()) {
            // SAFETY: alive until now, and used by nobody else while it is locked. An error of an
            // abort changes nothing: the handle is gone.
            let _ = unsafe { nccl.comm_abort(handle) };
        }
    }

    /// Aborts it where nobody waits for that: the library's abort may take long.
    fn abandon(&self, driver: &Arc<dyn Driver>) {
        if driver.name() != "cuda" {
            return self.abort(&**driver);
        }
        let Some(handle) = self.lock().take() else { return };
        let driver = Arc::clone(driver);
        // Without a thread it is leaked, which is better than to hang.
        let _ = std::thread::Builder::new().name("warpline-nccl-abort".into()).spawn(move || {
            if let Ok(nccl) = driver.nccl() {
                // SAFETY: alive until now, and nobody else has it any more.
                let _ = unsafe { nccl.comm_abort(handle) };
            }
        });
    }
}

fn failed(call: &'static str, status: &str, detail: String) -> DriverError {
    DriverError::LibraryCall { call, status: status.into(), detail, location: None }
}
