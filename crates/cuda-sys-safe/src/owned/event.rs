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
    /// The capture in which the event was last recorded. Locked while the event is recorded or
    /// waited for, so that no record in a capture is taken for a record outside.
    recorded_in: Mutex<Option<Arc<Membership>>>,
    /// Whether other processes can open the event, or one of them created it.
    interprocess: bool,
}

impl Event {
    /// Creates an event, which has not been recorded.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors).
    #[track_caller]
    pub fn new(driver: &Arc<dyn Driver>, device: usize, flags: EventFlags) -> Result<Self> {
        let location = Location::caller();
        let handle = driver.event_create(device, flags).map_err(|e| e.at(location))?;
        Ok(Self::build(driver, handle, flags.interprocess))
    }

    /// Opens an event that another process exported with [`Event::ipc_handle`].
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors), such as for an event that is destroyed or that
    /// this process created.
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

    /// Returns `true` if streams of this device may wait for the event. NVIDIA driver 580 crashes if
    /// a stream waits for an interprocess event of another device.
    pub(super) fn can_be_waited_for_on(&self, device: usize) -> bool {
        !self.interprocess || self.device() == device
    }

    /// Returns a handle with which another process opens the event. The event must be
    /// `interprocess`.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors).
    #[track_caller]
    pub fn ipc_handle(&self) -> Result<IpcEventHandle> {
        let location = Location::caller();
        // SAFETY: the handle is alive.
        unsafe { self.driver.ipc_event_handle(self.handle) }.map_err(|e| e.at(location))
    }

    /// Returns the index of the event's device.
    #[must_use]
    pub fn device(&self) -> usize {
        self.handle.device()
    }

    /// Returns the raw handle, which is valid as long as `self` lives.
    #[must_use]
    pub fn handle(&self) -> EventHandle {
        self.handle
    }

    /// Records the event on a stream: the event completes when all work enqueued on the stream so
    /// far is done.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`](crate::DriverError::InvalidArgument) if the stream
    ///   belongs to another driver.
    /// - Errors of the [driver call](Driver#errors), such as for a stream of another device.
    #[track_caller]
    pub fn record(&self, stream: &Stream) -> Result<()> {
        let location = Location::caller();
        same_driver("Event::record", &self.driver, stream.driver()).map_err(|e| e.at(location))?;
        let mut recorded_in = self.recorded_in();
        // SAFETY: both handles are alive and of this driver.
        unsafe { self.driver.event_record(self.handle, stream.handle()) }
            .map_err(|e| e.at(location))?;
        // Read the stream's capture after the record. A capture that has ended by then is not kept:
        // no wait for the event can join it any more.
        *recorded_in = stream.active_capture();
        Ok(())
    }

    /// Records the event on a stream that is not being captured. The host can neither query nor
    /// wait for an event that was recorded in a capture, and the attempt would invalidate the
    /// capture.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`](crate::DriverError::InvalidArgument) if the stream is
    ///   being captured or belongs to another driver.
    /// - Errors of the [driver call](Driver#errors), such as for a stream of another device.
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

    /// Returns the event's driver.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Returns `true` if the work before the latest record is done, or if the event was never
    /// recorded.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors), including those of earlier asynchronous work.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        let location = Location::caller();
        // SAFETY: the handle is alive.
        unsafe { self.driver.event_query(self.handle) }.map_err(|e| e.at(location))
    }

    /// Blocks the host until the work before the latest record is done.
    ///
    /// # Errors
    /// The same as [`Event::query`].
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let location = Location::caller();
        // SAFETY: the handle is alive.
        unsafe { self.driver.event_synchronize(self.handle) }.map_err(|e| e.at(location))
    }

    /// Returns the time from the record of `self` to the record of `end`, in milliseconds. Both
    /// events must be timing events.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`](crate::DriverError::InvalidArgument) if the events belong
    ///   to different drivers.
    /// - Errors of the [driver call](Driver#errors): an event has no timing, was never recorded or
    ///   is not complete, or the events are on different devices.
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
