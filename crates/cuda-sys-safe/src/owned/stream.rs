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

/// A stream of one device. Clones share the stream. Dropping the last clone destroys the stream,
/// unless it is a default stream or comes from [`Stream::from_external`].
///
/// Safe code can add order between streams, query them and wait for them. It cannot enqueue work
/// that accesses memory, and cannot begin or join a capture without a
/// [`LaunchToken`](super::LaunchToken).
#[derive(Clone, Debug)]
pub struct Stream(Arc<SharedStream>);

struct SharedStream {
    driver: Arc<dyn Driver>,
    handle: StreamHandle,
    owned: bool,
    id: u64,
    numbering: OnceLock<Arc<dyn Any + Send + Sync>>,
    /// Whether the stream was ever captured. If not, records of events need not look at
    /// `membership`.
    was_captured: AtomicBool,
    /// The current or last capture of the stream.
    membership: Mutex<Option<Arc<Membership>>>,
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// All streams except default streams, by driver and handle. All wrappers of a driver's stream share
/// one object. Neither driver nor handle is reused while the object lives.
static REGISTRY: std::sync::Mutex<StreamRegistry> = std::sync::Mutex::new(BTreeMap::new());

type RegistryKey = (usize, usize, u64);
type StreamRegistry = BTreeMap<RegistryKey, Weak<SharedStream>>;

fn registry() -> std::sync::MutexGuard<'static, StreamRegistry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn registry_key(driver: &Arc<dyn Driver>, handle: StreamHandle) -> RegistryKey {
    (Arc::as_ptr(driver).cast::<()>().addr(), handle.device(), handle.raw())
}

impl Stream {
    /// Returns the legacy default stream of a device.
    #[must_use]
    pub fn default_of(driver: &Arc<dyn Driver>, device: usize) -> Self {
        Self::build(driver, StreamHandle::default_of(device), false)
    }

    /// Creates a stream.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors).
    #[track_caller]
    pub fn new(driver: &Arc<dyn Driver>, device: usize, flags: StreamFlags) -> Result<Self> {
        let location = Location::caller();
        let handle = driver.stream_create(device, flags).map_err(|e| e.at(location))?;
        Ok(Self::enter_alive(&mut registry(), driver, handle, true))
    }

    /// Wraps a stream that other code owns, and does not destroy it on drop. Wrapping a handle that
    /// is already wrapped returns the same stream.
    ///
    /// # Safety
    /// The handle must belong to this driver and outlive every clone of the result.
    #[must_use]
    pub unsafe fn from_external(driver: &Arc<dyn Driver>, handle: StreamHandle) -> Self {
        if handle == StreamHandle::default_of(handle.device()) {
            return Self::build(driver, handle, false);
        }
        let mut registry = registry();
        match registry.get(&registry_key(driver, handle)).and_then(Weak::upgrade) {
            Some(there) => Self(there),
            None => Self::enter_alive(&mut registry, driver, handle, false),
        }
    }

    fn enter_alive(
        registry: &mut StreamRegistry,
        driver: &Arc<dyn Driver>,
        handle: StreamHandle,
        owned: bool,
    ) -> Self {
        let stream = Self::build(driver, handle, owned);
        registry.insert(registry_key(driver, handle), Arc::downgrade(&stream.0));
        stream
    }

    fn build(driver: &Arc<dyn Driver>, handle: StreamHandle, owned: bool) -> Self {
        Self(Arc::new(SharedStream {
            driver: Arc::clone(driver),
            handle,
            owned,
            id: next_id(),
            numbering: OnceLock::new(),
            was_captured: AtomicBool::new(false),
            membership: Mutex::default(),
        }))
    }

    /// Returns a slot for the layer that numbers the stream's work. All wrappers of a stream share
    /// the slot while one of them exists. For a default stream, only clones share it.
    #[must_use]
    pub fn numbering(&self) -> &OnceLock<Arc<dyn Any + Send + Sync>> {
        &self.0.numbering
    }

    /// Runs `f`, which begins a capture of the stream or makes the stream join a capture.
    pub(super) fn enter(
        &self,
        membership: &Arc<Membership>,
        f: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // Set the flag before the driver captures anything. A thread that reads the flag after a
        // record then takes the lock and waits.
        self.0.was_captured.store(true, Ordering::SeqCst);
        let mut slot = self.0.membership.lock().unwrap_or_else(PoisonError::into_inner);
        f()?;
        *slot = Some(Arc::clone(membership));
        Ok(())
    }

    /// Runs `f` while the stream is in no capture. Returns an error if the stream is being
    /// captured.
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

    /// Returns the capture that the stream is in.
    pub(super) fn active_capture(&self) -> Option<Arc<Membership>> {
        if !self.0.was_captured.load(Ordering::SeqCst) {
            return None;
        }
        let membership = self.0.membership.lock().unwrap_or_else(PoisonError::into_inner);
        membership.clone().filter(|membership| membership.is_active())
    }

    /// Returns the stream's driver.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.0.driver
    }

    /// Returns the index of the stream's device.
    #[must_use]
    pub fn device(&self) -> usize {
        self.0.handle.device()
    }

    /// Returns the raw handle, which is valid as long as `self` lives.
    #[must_use]
    pub fn handle(&self) -> StreamHandle {
        self.0.handle
    }

    /// Returns a number that identifies the stream object, unique for the life of the process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Returns `true` if all work on the stream is done.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors), including those of earlier asynchronous work.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        let location = Location::caller();
        // SAFETY: the handle is alive.
        unsafe { self.0.driver.stream_query(self.0.handle) }.map_err(|e| e.at(location))
    }

    /// Blocks the host until all work on the stream is done.
    ///
    /// # Errors
    /// The same as [`Stream::query`].
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let location = Location::caller();
        // SAFETY: the handle is alive.
        unsafe { self.0.driver.stream_synchronize(self.0.handle) }.map_err(|e| e.at(location))
    }

    /// Makes later work on this stream wait, on the device, for the event's latest record.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if the event was last recorded in a capture in which this
    ///   stream takes no part (use [`Stream::join_capture`]), if the event is interprocess and on
    ///   another device, or if stream and event belong to different drivers.
    /// - Errors of the [driver call](Driver#errors).
    #[track_caller]
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        const CALL: &str = "Stream::wait_event";
        let location = Location::caller();
        same_driver(CALL, &self.0.driver, event.driver()).map_err(|e| e.at(location))?;
        if !event.can_be_waited_for_on(self.device()) {
            let reason = "an interprocess event belongs to another device than the stream; record \
                          one without `interprocess` after it for this stream to wait for";
            let reason = reason.to_owned();
            return Err(DriverError::InvalidArgument { call: CALL, reason }.at(location));
        }
        let recorded_in = event.recorded_in();
        if let Some(other) = recorded_in.as_ref().filter(|other| other.is_active())
            && !self.active_capture().is_some_and(|own| Arc::ptr_eq(&own, other))
        {
            let reason = "the event was recorded in a capture that this stream has no part in";
            let reason = reason.to_owned();
            return Err(DriverError::InvalidArgument { call: CALL, reason }.at(location));
        }
        // SAFETY: both handles are alive and of this driver.
        unsafe { self.0.driver.stream_wait_event(self.0.handle, event.handle()) }
            .map_err(|e| e.at(location))
    }

    /// Returns the priority that the driver gave the stream.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors).
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

impl std::fmt::Debug for SharedStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("driver", &self.driver)
            .field("handle", &self.handle)
            .field("owned", &self.owned)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Drop for SharedStream {
    fn drop(&mut self) {
        // Remove the entry before the handle is destroyed, because the driver may reuse the handle.
        let registry_key = registry_key(&self.driver, self.handle);
        let mut registry = registry();
        if registry.get(&registry_key).is_some_and(|there| there.strong_count() == 0) {
            registry.remove(&registry_key);
        }
        drop(registry);
        if self.owned {
            let handle = self.handle;
            // SAFETY: created by this driver and not destroyed before.
            let destroy = move |driver: &dyn Driver| unsafe { driver.stream_destroy(handle) };
            release(&self.driver, ReleaseKind::Stream, 0, destroy);
        }
    }
}
