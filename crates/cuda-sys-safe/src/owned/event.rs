//! Events.

use std::panic::Location;
use std::sync::Arc;

use super::Stream;
use crate::{Driver, EventFlags, EventHandle, Result};

/// An event of one device, destroyed on drop.
#[derive(Debug)]
pub struct Event {
    driver: Arc<dyn Driver>,
    handle: EventHandle,
}

impl Event {
    /// A new event that has not been recorded.
    ///
    /// # Errors
    /// The driver's own.
    #[track_caller]
    pub fn new(driver: &Arc<dyn Driver>, device: usize, flags: EventFlags) -> Result<Self> {
        let location = Location::caller();
        let handle = driver.event_create(device, flags).map_err(|e| e.at(location))?;
        Ok(Self { driver: Arc::clone(driver), handle })
    }

    /// The device it belongs to.
    #[must_use]
    pub fn device(&self) -> usize {
        self.handle.device()
    }

    /// The raw handle. It is alive as long as `self` is.
    #[must_use]
    pub fn handle(&self) -> EventHandle {
        self.handle
    }

    /// Records all work enqueued on the stream so far.
    ///
    /// # Errors
    /// The driver's own, a stream of another device among them.
    #[track_caller]
    pub fn record(&self, stream: &Stream) -> Result<()> {
        let location = Location::caller();
        // SAFETY: both handles are alive.
        unsafe { self.driver.event_record(self.handle, stream.handle()) }
            .map_err(|e| e.at(location))
    }

    /// Whether the work of the latest record is done; true if never recorded.
    ///
    /// # Errors
    /// The driver's own, those of earlier asynchronous work among them.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        let location = Location::caller();
        // SAFETY: the handle is alive.
        unsafe { self.driver.event_query(self.handle) }.map_err(|e| e.at(location))
    }

    /// Blocks the host until the work of the latest record is done.
    ///
    /// # Errors
    /// As [`Event::query`].
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let location = Location::caller();
        // SAFETY: the handle is alive.
        unsafe { self.driver.event_synchronize(self.handle) }.map_err(|e| e.at(location))
    }

    /// Milliseconds between the records of two timing events.
    ///
    /// # Errors
    /// The driver's own: an event without timing, unrecorded, unfinished, or of another device.
    #[track_caller]
    pub fn elapsed(&self, end: &Event) -> Result<f32> {
        let location = Location::caller();
        // SAFETY: both handles are alive.
        unsafe { self.driver.event_elapsed(self.handle, end.handle) }.map_err(|e| e.at(location))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by this driver and not destroyed before.
        let _ = unsafe { self.driver.event_destroy(self.handle) };
    }
}
