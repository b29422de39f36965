//! Events.

use std::panic::Location;
use std::sync::{Arc, PoisonError};

use warpline_sync::{Mutex, MutexGuard};

use super::graph::Membership;
use super::refused::{ReleaseKind, release};
use super::{Stream, same_driver};
use crate::{Driver, EventFlags, EventHandle, IpcEventHandle, Result};

/// An event of one device, destroyed on drop.
#[derive(Debug)]
pub struct Event {
    driver: Arc<dyn Driver>,
    handle: EventHandle,
    /// The capture in which it was recorded last. Held while it is recorded or waited for: nobody
    /// takes a record in a capture for one outside.
    recorded_in: Mutex<Option<Arc<Membership>>>,
    /// Whether it is for other processes, or another one's.
    interprocess: bool,
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
        Ok(Self::build(driver, handle, flags.interprocess))
    }

    /// Opens an event of another process.
    ///
    /// # Errors
    /// The driver's own: the event is gone, or was made by this very process.
    #[track_caller]
    pub fn open_ipc(
        driver: &Arc<dyn Driver>,
        device: usize,
        handle: IpcEventHandle,
    ) -> Result<Self> {
        let location = Location::caller();
        let handle = driver.ipc_open_event(device, handle).map_err(|e| e.at(location))?;
        Ok(Self::build(driver, handle, true))
    }

    fn build(driver: &Arc<dyn Driver>, handle: EventHandle, interprocess: bool) -> Self {
        Self { driver: Arc::clone(driver), handle, recorded_in: Mutex::default(), interprocess }
    }

    /// Whether streams of this device may wait for it. The driver (580) crashes in a wait of another
    /// device's stream for an event for other processes.
    pub(super) fn can_be_waited_for_on(&self, device: usize) -> bool {
        !self.interprocess || self.device() == device
    }

    /// A handle with which another process opens it. Only of an `interprocess` event.
    ///
    /// # Errors
    /// The driver's own.
    #[track_caller]
    pub fn ipc_handle(&self) -> Result<IpcEventHandle> {
        let location = Location::caller();
        // SAFETY: the handle is alive.
        unsafe { self.driver.ipc_event_handle(self.handle) }.map_err(|e| e.at(location))
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
        same_driver("Event::record", &self.driver, stream.driver()).map_err(|e| e.at(location))?;
        let mut recorded_in = self.recorded_in();
        // SAFETY: both handles are alive and of this driver.
        unsafe { self.driver.event_record(self.handle, stream.handle()) }
            .map_err(|e| e.at(location))?;
        // Asked afterwards: if that capture is over by now, no wait for the event joins it.
        *recorded_in = stream.capture_under_way();
        Ok(())
    }

    /// [`Event::record`] of a stream that is in no capture: the host can neither ask nor wait for what
    /// is recorded in one, and the attempt spoils it.
    ///
    /// # Errors
    /// As [`Event::record`]; [`crate::DriverError::InvalidArgument`] for a stream that is captured.
    #[track_caller]
    pub fn record_outside_captures(&self, stream: &Stream) -> Result<()> {
        const CALL: &str = "Event::record_outside_captures";
        let location = Location::caller();
        same_driver(CALL, &self.driver, stream.driver()).map_err(|e| e.at(location))?;
        let mut recorded_in = self.recorded_in();
        // SAFETY: both handles are alive and of this driver.
        let record = || unsafe { self.driver.event_record(self.handle, stream.handle()) };
        stream.outside_captures(CALL, record).map_err(|e| e.at(location))?;
        *recorded_in = None;
        Ok(())
    }

    pub(super) fn recorded_in(&self) -> MutexGuard<'_, Option<Arc<Membership>>> {
        self.recorded_in.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The driver it belongs to.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
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
        same_driver("Event::elapsed", &self.driver, &end.driver).map_err(|e| e.at(location))?;
        // SAFETY: both handles are alive and of this driver.
        unsafe { self.driver.event_elapsed(self.handle, end.handle) }.map_err(|e| e.at(location))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let handle = self.handle;
        // SAFETY: created by this driver and not destroyed before.
        let destroy = move |driver: &dyn Driver| unsafe { driver.event_destroy(handle) };
        release(&self.driver, ReleaseKind::Event, 0, destroy);
    }
}
