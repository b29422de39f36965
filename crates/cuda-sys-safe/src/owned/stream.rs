//! Streams.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::refused::{ReleaseKind, release};
use super::{Event, same_driver};
use crate::{Driver, Result, StreamFlags, StreamHandle};

/// A stream of one device. Clones share it; the last one destroys it, unless it is borrowed.
#[derive(Clone, Debug)]
pub struct Stream(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    driver: Arc<dyn Driver>,
    handle: StreamHandle,
    owned: bool,
    id: u64,
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Stream {
    /// The legacy default stream of a device.
    #[must_use]
    pub fn default_of(driver: &Arc<dyn Driver>, device: usize) -> Self {
        let handle = StreamHandle::default_of(device);
        Self(Arc::new(Inner { driver: Arc::clone(driver), handle, owned: false, id: next_id() }))
    }

    /// A new stream.
    ///
    /// # Errors
    /// The driver's own.
    #[track_caller]
    pub fn new(driver: &Arc<dyn Driver>, device: usize, flags: StreamFlags) -> Result<Self> {
        let location = Location::caller();
        let handle = driver.stream_create(device, flags).map_err(|e| e.at(location))?;
        let driver = Arc::clone(driver);
        Ok(Self(Arc::new(Inner { driver, handle, owned: true, id: next_id() })))
    }

    /// Somebody else's stream, which is not destroyed on drop.
    ///
    /// # Safety
    /// The handle must be this driver's and outlive every clone of the result.
    #[must_use]
    pub unsafe fn from_external(driver: &Arc<dyn Driver>, handle: StreamHandle) -> Self {
        Self(Arc::new(Inner { driver: Arc::clone(driver), handle, owned: false, id: next_id() }))
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
    /// The driver's own.
    #[track_caller]
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        let location = Location::caller();
        same_driver("Stream::wait_event", &self.0.driver, event.driver())
            .map_err(|e| e.at(location))?;
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

impl Drop for Inner {
    fn drop(&mut self) {
        if self.owned {
            let handle = self.handle;
            // SAFETY: created by this driver and not destroyed before.
            let destroy = move |driver: &dyn Driver| unsafe { driver.stream_destroy(handle) };
            release(&self.driver, ReleaseKind::Stream, 0, destroy);
        }
    }
}
