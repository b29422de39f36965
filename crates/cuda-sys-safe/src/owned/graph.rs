//! Capturing a stream's work as a graph, and replaying it.

use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

use super::refused::{ReleaseKind, release};
use super::{Stream, same_driver};
use crate::{CaptureMode, CaptureStatus, Driver, GraphExecHandle, GraphHandle, Result};

impl Stream {
    /// From now on records what is enqueued instead of running it. Not on a default stream.
    ///
    /// # Errors
    /// The driver's own.
    ///
    /// # Safety
    /// A replay runs the captured work on the memory it was captured with, whoever owns that by
    /// then. The caller sees to it that whatever is captured may use its memory at every
    /// [`GraphExec::launch`] of the result, until that replay is done.
    #[track_caller]
    pub unsafe fn begin_capture(&self, mode: CaptureMode) -> Result<()> {
        let location = Location::caller();
        // SAFETY: the handle is alive; for replays the caller vouches.
        unsafe { self.driver().begin_capture(self.handle(), mode) }.map_err(|e| e.at(location))
    }

    /// Ends the capture and answers what it recorded. The capture ends even if this fails.
    ///
    /// # Errors
    /// The driver's own: something forbidden was done meanwhile, other streams were not joined.
    #[track_caller]
    pub fn end_capture(&self) -> Result<Graph> {
        let location = Location::caller();
        let handle =
            // SAFETY: the handle is alive.
            unsafe { self.driver().end_capture(self.handle()) }.map_err(|e| e.at(location))?;
        Ok(Graph { driver: Arc::clone(self.driver()), handle: Mutex::new(handle) })
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
        self.handle.lock().unwrap_or_else(PoisonError::into_inner).device()
    }

    /// Enqueues one replay. Replays of the same executable run one after another.
    ///
    /// # Errors
    /// The driver's own.
    #[track_caller]
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        let location = Location::caller();
        same_driver("GraphExec::launch", &self.driver, stream.driver())
            .map_err(|e| e.at(location))?;
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: both are alive and of this driver; for the memory that replays use, whoever
        // captured the launches vouched (`Stream::begin_capture`).
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
