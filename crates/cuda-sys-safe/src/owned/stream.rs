//! Streams.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::{Arc, OnceLock, PoisonError, Weak, atomic::AtomicU64};

use warpline_sync::Mutex;
use warpline_sync::atomic::{AtomicBool, Ordering};

use super::graph::Membership;
use super::refused::{ReleaseKind, release};
use super::{Event, same_driver};
use crate::{Driver, DriverError, Result, StreamFlags, StreamHandle};

/// A stream of one device. Clones share it; the last one destroys it, unless it is borrowed.
///
/// What safe code can do with it adds order and asks questions. It cannot enqueue work, nor begin, join
/// or end a capture without a [`LaunchToken`](super::LaunchToken).
#[derive(Clone, Debug)]
pub struct Stream(Arc<Inner>);

struct Inner {
    driver: Arc<dyn Driver>,
    handle: StreamHandle,
    owned: bool,
    id: u64,
    numbering: OnceLock<Arc<dyn Any + Send + Sync>>,
    /// Whether it was ever captured: without, no record of an event need ask.
    was_captured: AtomicBool,
    /// The capture that it takes part in, or did last.
    membership: Mutex<Option<Arc<Membership>>>,
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// All streams but default ones, so that one driver's stream is one object, whoever wraps it. By
/// driver and handle, neither of which goes to anybody else while the object lives.
static ALIVE: std::sync::Mutex<Alive> = std::sync::Mutex::new(BTreeMap::new());

type Key = (usize, usize, u64);
type Alive = BTreeMap<Key, Weak<Inner>>;

fn alive() -> std::sync::MutexGuard<'static, Alive> {
    ALIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(driver: &Arc<dyn Driver>, handle: StreamHandle) -> Key {
    (Arc::as_ptr(driver).cast::<()>().addr(), handle.device(), handle.raw())
}

impl Stream {
    /// The legacy default stream of a device.
    #[must_use]
    pub fn default_of(driver: &Arc<dyn Driver>, device: usize) -> Self {
        Self::build(driver, StreamHandle::default_of(device), false)
    }

    /// A new stream.
    ///
    /// # Errors
    /// The driver's own.
    #[track_caller]
    pub fn new(driver: &Arc<dyn Driver>, device: usize, flags: StreamFlags) -> Result<Self> {
        let location = Location::caller();
        let handle = driver.stream_create(device, flags).map_err(|e| e.at(location))?;
        Ok(Self::enter_alive(&mut alive(), driver, handle, true))
    }

    /// Somebody else's stream, which is not destroyed on drop. A handle that is wrapped already gives
    /// the same stream again.
    ///
    /// # Safety
    /// The handle must be this driver's and outlive every clone of the result.
    #[must_use]
    pub unsafe fn from_external(driver: &Arc<dyn Driver>, handle: StreamHandle) -> Self {
        if handle == StreamHandle::default_of(handle.device()) {
            return Self::build(driver, handle, false);
        }
        let mut alive = alive();
        match alive.get(&key(driver, handle)).and_then(Weak::upgrade) {
            Some(there) => Self(there),
            None => Self::enter_alive(&mut alive, driver, handle, false),
        }
    }

    fn enter_alive(
        alive: &mut Alive,
        driver: &Arc<dyn Driver>,
        handle: StreamHandle,
        owned: bool,
    ) -> Self {
        let stream = Self::build(driver, handle, owned);
        alive.insert(key(driver, handle), Arc::downgrade(&stream.0));
        stream
    }

    fn build(driver: &Arc<dyn Driver>, handle: StreamHandle, owned: bool) -> Self {
        Self(Arc::new(Inner {
            driver: Arc::clone(driver),
            handle,
            owned,
            id: next_id(),
            numbering: OnceLock::new(),
            was_captured: AtomicBool::new(false),
            membership: Mutex::default(),
        }))
    }

    /// What the layer that numbers the stream's work keeps with it: one numbering for all who wrap
    /// the stream, for as long as it exists.
    #[must_use]
    pub fn numbering(&self) -> &OnceLock<Arc<dyn Any + Send + Sync>> {
        &self.0.numbering
    }

    /// Runs `f`, which takes the stream into a capture.
    pub(super) fn enter(
        &self,
        membership: &Arc<Membership>,
        f: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // Before the driver captures anything: whoever asks after a record then waits for the lock.
        self.0.was_captured.store(true, Ordering::SeqCst);
        let mut slot = self.0.membership.lock().unwrap_or_else(PoisonError::into_inner);
        f()?;
        *slot = Some(Arc::clone(membership));
        Ok(())
    }

    /// Runs `f` with the stream in no capture all the while, or refuses to.
    pub(super) fn outside_captures<R>(
        &self,
        call: &'static str,
        f: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let membership = self.0.membership.lock().unwrap_or_else(PoisonError::into_inner);
        if membership.as_ref().is_some_and(|membership| membership.is_active()) {
            let reason = "the stream is being captured".to_owned();
            return Err(DriverError::InvalidArgument { call, reason });
        }
        f()
    }

    /// The capture that it takes part in.
    pub(super) fn capture_under_way(&self) -> Option<Arc<Membership>> {
        if !self.0.was_captured.load(Ordering::SeqCst) {
            return None;
        }
        let membership = self.0.membership.lock().unwrap_or_else(PoisonError::into_inner);
        membership.clone().filter(|membership| membership.is_active())
    }

    /// The driver it belongs to.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.0.driver
    }

    /// The device it belongs to.
    #[must_use]
    pub fn device(&self) -> usize {
        self.0.handle.device()
    }

    /// The raw handle. It is alive as long as `self` is.
    #[must_use]
    pub fn handle(&self) -> StreamHandle {
        self.0.handle
    }

    /// A number that no other stream object of the process has or will have.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Whether all its work is done.
    ///
    /// # Errors
    /// The driver's own, those of earlier asynchronous work among them.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        let location = Location::caller();
        // SAFETY: the handle is alive.
        unsafe { self.0.driver.stream_query(self.0.handle) }.map_err(|e| e.at(location))
    }

    /// Blocks the host until all its work is done.
    ///
    /// # Errors
    /// As [`Stream::query`].
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let location = Location::caller();
        // SAFETY: the handle is alive.
        unsafe { self.0.driver.stream_synchronize(self.0.handle) }.map_err(|e| e.at(location))
    }

    /// Makes later work on this stream wait, on the device, for the event's latest record.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] if that was in a capture in which this stream has no part,
    /// which [`Stream::join_capture`] gives it, or the event is for other processes and of another
    /// device; the driver's own.
    #[track_caller]
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        const CALL: &str = "Stream::wait_event";
        let location = Location::caller();
        same_driver(CALL, &self.0.driver, event.driver()).map_err(|e| e.at(location))?;
        if !event.can_be_waited_for_on(self.device()) {
            let reason = "an event for other processes is of another device than the stream; record \
                          one without `interprocess` after it for this stream to wait for";
            let reason = reason.to_owned();
            return Err(DriverError::InvalidArgument { call: CALL, reason }.at(location));
        }
        let recorded_in = event.recorded_in();
        if let Some(other) = recorded_in.as_ref().filter(|other| other.is_active())
            && !self.capture_under_way().is_some_and(|own| Arc::ptr_eq(&own, other))
        {
            let reason = "the event was recorded in a capture that this stream has no part in";
            let reason = reason.to_owned();
            return Err(DriverError::InvalidArgument { call: CALL, reason }.at(location));
        }
        // SAFETY: both handles are alive and of this driver.
        unsafe { self.0.driver.stream_wait_event(self.0.handle, event.handle()) }
            .map_err(|e| e.at(location))
    }

    /// The priority the driver gave it.
    ///
    /// # Errors
    /// The driver's own.
    #[track_caller]
    pub fn priority(&self) -> Result<i32> {
        let location = Location::caller();
        // SAFETY: the handle is alive.
        unsafe { self.0.driver.stream_priority(self.0.handle) }.map_err(|e| e.at(location))
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Stream {}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("driver", &self.driver)
            .field("handle", &self.handle)
            .field("owned", &self.owned)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Before the driver may give its handle to another stream.
        let key = key(&self.driver, self.handle);
        let mut alive = alive();
        if alive.get(&key).is_some_and(|there| there.strong_count() == 0) {
            alive.remove(&key);
        }
        drop(alive);
        if self.owned {
            let handle = self.handle;
            // SAFETY: created by this driver and not destroyed before.
            let destroy = move |driver: &dyn Driver| unsafe { driver.stream_destroy(handle) };
            release(&self.driver, ReleaseKind::Stream, 0, destroy);
        }
    }
}
