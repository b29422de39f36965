//! Capturing a stream's work as a graph, and replaying it.

use std::panic::Location;
use std::sync::{Arc, PoisonError};

use warpline_sync::Mutex;
use warpline_sync::atomic::{AtomicBool, Ordering};

use super::refused::{ReleaseKind, release};
use super::{Event, LaunchToken, Stream, same_driver};
use crate::{
    CaptureMode, CaptureStatus, Driver, DriverError, GraphExecHandle, GraphHandle, Result,
};

/// What a stream and the events recorded on it know of the capture that they take part in.
#[derive(Debug, Default)]
pub(super) struct Membership {
    over: AtomicBool,
}

impl Membership {
    /// Whether the capture is still under way.
    pub(super) fn is_active(&self) -> bool {
        !self.over.load(Ordering::Acquire)
    }

    fn end(&self) {
        self.over.store(true, Ordering::Release);
    }
}

/// A capture under way. Dropping it ends the capture and forgets what was captured.
#[derive(Debug)]
pub struct Capture {
    stream: Stream,
    membership: Arc<Membership>,
}

impl Stream {
    /// From now on records what is enqueued instead of running it, until the result is
    /// [ended](Capture::end) or dropped. Not on a default stream.
    ///
    /// # Errors
    /// The driver's own.
    #[track_caller]
    pub fn begin_capture(&self, mode: CaptureMode, _token: LaunchToken) -> Result<Capture> {
        let location = Location::caller();
        let membership = Arc::<Membership>::default();
        let begin = || {
            // SAFETY: the handle is alive; for replays whoever launches them vouches.
            unsafe { self.driver().begin_capture(self.handle(), mode) }
        };
        self.enter(&membership, begin).map_err(|e| e.at(location))?;
        Ok(Capture { stream: self.clone(), membership })
    }

    /// Takes this stream into the capture in which the event was recorded last, by a wait for it:
    /// what is enqueued from now on is recorded there too. Where the stream takes part already it is
    /// a wait and nothing more.
    ///
    /// # Errors
    /// [`DriverError::InvalidArgument`] if it was not recorded in a capture that is still under way;
    /// the driver's own.
    #[track_caller]
    pub fn join_capture(&self, event: &Event, _token: LaunchToken) -> Result<()> {
        const CALL: &str = "Stream::join_capture";
        let location = Location::caller();
        same_driver(CALL, self.driver(), event.driver()).map_err(|e| e.at(location))?;
        let recorded_in = event.recorded_in();
        let Some(membership) = recorded_in.as_ref().filter(|m| m.is_active()) else {
            let reason = "the event was not recorded in a capture that is under way".to_owned();
            return Err(DriverError::InvalidArgument { call: CALL, reason }.at(location));
        };
        let wait = || {
            // SAFETY: both handles are alive and of this driver.
            unsafe { self.driver().stream_wait_event(self.handle(), event.handle()) }
        };
        self.enter(membership, wait).map_err(|e| e.at(location))
    }

    /// Whether it is being captured.
    ///
    /// # Errors
    /// The driver's own.
    #[track_caller]
    pub fn capture_status(&self) -> Result<CaptureStatus> {
        let location = Location::caller();
        // SAFETY: the handle is alive.
        unsafe { self.driver().capture_status(self.handle()) }.map_err(|e| e.at(location))
    }
}

impl Capture {
    /// Ends the capture and returns what it recorded. The capture ends even if this fails, unless
    /// its mode has only the thread that began it end it.
    ///
    /// # Errors
    /// The driver's own: something forbidden was done meanwhile, other streams were not joined.
    #[track_caller]
    pub fn end(self) -> Result<Graph> {
        let location = Location::caller();
        self.finish().map_err(|e| e.at(location))
    }

    fn finish(&self) -> Result<Graph> {
        let driver = self.stream.driver();
        // SAFETY: the handle is alive.
        let ended = unsafe { driver.end_capture(self.stream.handle()) };
        // It goes on if another thread had to end it.
        let goes_on = |status| matches!(status, Ok(CaptureStatus::Active(_)));
        if ended.is_ok() || !goes_on(self.stream.capture_status()) {
            self.membership.end();
        }
        Ok(Graph { driver: Arc::clone(driver), handle: Mutex::new(ended?) })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.membership.is_active() {
            let _ = self.finish();
        }
    }
}

/// Captured work, destroyed on drop. Executables made from it stay.
#[derive(Debug)]
pub struct Graph {
    driver: Arc<dyn Driver>,
    /// Graphs may not be used by two threads at once, not even to read.
    handle: Mutex<GraphHandle>,
}

impl Graph {
    /// Makes an executable of it.
    ///
    /// # Errors
    /// The driver's own.
    #[track_caller]
    pub fn instantiate(&self) -> Result<GraphExec> {
        let location = Location::caller();
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the graph is alive, and nobody else uses it while the lock is held.
        let exec = unsafe { self.driver.graph_instantiate(*handle) }.map_err(|e| e.at(location))?;
        Ok(GraphExec { driver: Arc::clone(&self.driver), handle: Mutex::new(exec) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let handle = *self.handle.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: made by this driver and not destroyed before.
        let destroy = move |driver: &dyn Driver| unsafe { driver.graph_destroy(handle) };
        release(&self.driver, ReleaseKind::Graph, 0, destroy);
    }
}

/// An executable graph, destroyed on drop; a replay that is under way still finishes.
#[derive(Debug)]
pub struct GraphExec {
    driver: Arc<dyn Driver>,
    handle: Mutex<GraphExecHandle>,
}

impl GraphExec {
    /// The device it was captured on.
    #[must_use]
    pub fn device(&self) -> usize {
        self.handle().device()
    }

    /// The driver's handle, valid while this object lives.
    #[must_use]
    pub fn handle(&self) -> GraphExecHandle {
        *self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues one replay. Replays of the same executable run one after another.
    ///
    /// # Errors
    /// The driver's own.
    ///
    /// # Safety
    /// A replay runs the captured work on the memory and with the kernels that it was captured with,
    /// whoever owns that memory by now: all of it may be used so until the replay is done, in the
    /// order that the stream gives.
    #[track_caller]
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        let location = Location::caller();
        same_driver("GraphExec::launch", &self.driver, stream.driver())
            .map_err(|e| e.at(location))?;
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: both are alive and of this driver; for what the replay uses the caller vouches.
        unsafe { self.driver.graph_launch(*handle, stream.handle()) }.map_err(|e| e.at(location))
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        let handle = *self.handle.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: made by this driver and not destroyed before.
        let destroy = move |driver: &dyn Driver| unsafe { driver.graph_exec_destroy(handle) };
        release(&self.driver, ReleaseKind::GraphExec, 0, destroy);
    }
}
