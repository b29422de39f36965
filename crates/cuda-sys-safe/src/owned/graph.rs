//! Capturing a stream's work as a graph, and replaying it.

use std::ffi::CStr;
use std::panic::Location;
use std::sync::{Arc, PoisonError};

use warpline_sync::Mutex;
use warpline_sync::atomic::{AtomicBool, Ordering};

use super::refused::{ReleaseKind, release};
use super::{Event, LaunchToken, Stream, same_driver};
use crate::{
    CaptureMode, CaptureStatus, Driver, DriverError, GraphExecHandle, GraphHandle, Result,
};

/// The membership of a stream, and of events recorded on it, in a capture.
#[derive(Debug, Default)]
pub(super) struct Membership {
    over: AtomicBool,
}

impl Membership {
    /// Returns `true` if the capture has not ended.
    pub(super) fn is_active(&self) -> bool {
        !self.over.load(Ordering::Acquire)
    }

    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }
}

/// A capture in progress. Dropping it ends the capture and discards the captured work.
#[derive(Debug)]
pub struct Capture {
    stream: Stream,
    membership: Arc<Membership>,
}

impl Stream {
    /// Begins to capture the stream: work enqueued from now on is recorded instead of run, until
    /// the result is [ended](Capture::end) or dropped. A default stream cannot be captured.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors).
    #[track_caller]
    pub fn begin_capture(&self, mode: CaptureMode, _token: LaunchToken) -> Result<Capture> {
        let location = Location::caller();
        let membership = Arc::<Membership>::default();
        let begin = || {
            // SAFETY: the handle is alive. The caller of each graph launch guarantees that the
            // captured memory is valid.
            unsafe { self.driver().begin_capture(self.handle(), mode) }
        };
        self.enter(&membership, begin).map_err(|e| e.at(location))?;
        Ok(Capture { stream: self.clone(), membership })
    }

    /// Makes this stream wait for the event, and so join the capture in which the event was last
    /// recorded: work enqueued from now on is recorded in that capture, too. If the stream takes
    /// part in the capture already, the call is only a wait.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if the event was not last recorded in a capture that is
    ///   in progress, or if stream and event belong to different drivers.
    /// - Errors of the [driver call](Driver#errors).
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

    /// Returns the capture status of the stream.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors).
    #[track_caller]
    pub fn capture_status(&self) -> Result<CaptureStatus> {
        let location = Location::caller();
        // SAFETY: the handle is alive.
        unsafe { self.driver().capture_status(self.handle()) }.map_err(|e| e.at(location))
    }
}

impl Capture {
    /// Ends the capture and returns its graph. The capture ends even if this call fails, unless the
    /// capture's mode allows only the thread that began the capture to end it.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors): a forbidden call invalidated the capture, a
    /// stream that joined was not joined back, or this thread may not end the capture.
    #[track_caller]
    pub fn end(self) -> Result<Graph> {
        let location = Location::caller();
        self.finish().map_err(|e| e.at(location))
    }

    fn finish(&self) -> Result<Graph> {
        let driver = self.stream.driver();
        // SAFETY: the handle is alive.
        let ended = unsafe { driver.end_capture(self.stream.handle()) };
        // A failed call leaves the capture active if only the thread that began the capture may end
        // it.
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

/// Captured work, destroyed on drop. Executable graphs made from it stay valid.
#[derive(Debug)]
pub struct Graph {
    driver: Arc<dyn Driver>,
    /// Locked during each use, because CUDA allows one thread at a time to use a graph, even to
    /// read it.
    handle: Mutex<GraphHandle>,
}

impl Graph {
    /// Makes an executable graph.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors).
    #[track_caller]
    pub fn instantiate(&self) -> Result<GraphExec> {
        let location = Location::caller();
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the graph is alive, and the lock keeps other threads from using it.
        let exec = unsafe { self.driver.graph_instantiate(*handle) }.map_err(|e| e.at(location))?;
        Ok(GraphExec { driver: Arc::clone(&self.driver), handle: Mutex::new(exec) })
    }
}

impl Graph {
    /// Returns the raw handle, which is valid as long as `self` lives.
    #[must_use]
    pub fn handle(&self) -> GraphHandle {
        *self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Describes the graph in the DOT language, in a file that is created or replaced.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors), for example if the file cannot be written.
    #[track_caller]
    pub fn debug_dot_print(&self, path: &CStr) -> Result<()> {
        let location = Location::caller();
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the graph is alive, and the lock keeps other threads from using it.
        unsafe { self.driver.graph_debug_dot_print(*handle, path) }.map_err(|e| e.at(location))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let handle = *self.handle.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: created by this driver and not destroyed before.
        let destroy = move |driver: &dyn Driver| unsafe { driver.graph_destroy(handle) };
        release(&self.driver, ReleaseKind::Graph, 0, destroy);
    }
}

/// An executable graph, destroyed on drop. A replay that is in progress still finishes.
#[derive(Debug)]
pub struct GraphExec {
    driver: Arc<dyn Driver>,
    handle: Mutex<GraphExecHandle>,
}

impl GraphExec {
    /// Returns the index of the device on which the graph was captured.
    #[must_use]
    pub fn device(&self) -> usize {
        self.handle().device()
    }

    /// Returns the raw handle, which is valid as long as `self` lives.
    #[must_use]
    pub fn handle(&self) -> GraphExecHandle {
        *self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues one replay. Replays of the same executable graph run one after another.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if the stream belongs to another driver.
    /// - Errors of the [driver call](Driver#errors).
    ///
    /// # Safety
    /// A replay runs the captured kernels on the captured addresses, even if that memory has
    /// another owner by then. Until the replay is done, the replay must be allowed to use all this
    /// memory, in the order of the stream.
    #[track_caller]
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        let location = Location::caller();
        same_driver("GraphExec::launch", &self.driver, stream.driver())
            .map_err(|e| e.at(location))?;
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: both handles are alive and of this driver. The caller guarantees that the replay
        // may use the captured memory.
        unsafe { self.driver.graph_launch(*handle, stream.handle()) }.map_err(|e| e.at(location))
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        let handle = *self.handle.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: created by this driver and not destroyed before.
        let destroy = move |driver: &dyn Driver| unsafe { driver.graph_exec_destroy(handle) };
        release(&self.driver, ReleaseKind::GraphExec, 0, destroy);
    }
}
