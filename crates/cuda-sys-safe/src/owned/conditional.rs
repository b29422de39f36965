//! Conditional nodes: captured work that runs, or runs again, depending on a value on the device.
//!
//! A node is added in two steps. [`Stream::create_condition`] creates a condition, for a captured
//! kernel to set. [`Stream::capture_conditional`] then adds the node, and captures another stream
//! into the node's body until the returned [`BodyCapture`] ends.

use std::panic::Location;
use std::sync::Arc;

use super::graph::Membership;
use super::{LaunchToken, Stream, same_driver};
use crate::{CaptureStatus, ConditionHandle, ConditionalKind, Result};
#[cfg(doc)]
use crate::{Driver, DriverError};

/// A capture of a stream into the body of a conditional node. Dropping it ends the capture and
/// keeps the work that was captured.
#[derive(Debug)]
pub struct BodyCapture {
    stream: Stream,
    membership: Arc<Membership>,
}

impl Stream {
    /// Creates a condition in the graph that this stream is captured into. A captured kernel sets
    /// its value.
    ///
    /// # Errors
    /// - [`DriverError::MissingSymbol`] if the driver is older than CUDA 12.3.
    /// - Errors of the [driver call](Driver::condition_create).
    #[track_caller]
    pub fn create_condition(&self, _token: LaunchToken) -> Result<ConditionHandle> {
        let location = Location::caller();
        // SAFETY: the handle is alive.
        unsafe { self.driver().condition_create(self.handle()) }.map_err(|e| e.at(location))
    }

    /// Adds a conditional node after this stream's captured work, and captures `body` into the
    /// node's body until the result is [ended](BodyCapture::end) or dropped. This stream's later
    /// work runs after the node.
    ///
    /// # Errors
    /// - [`DriverError::InvalidArgument`] if the streams belong to different drivers.
    /// - Errors of the [driver calls](Driver::capture_conditional). If the node was added already,
    ///   its body stays empty.
    #[track_caller]
    pub fn capture_conditional(
        &self,
        condition: ConditionHandle,
        kind: ConditionalKind,
        body: &Stream,
        _token: LaunchToken,
    ) -> Result<BodyCapture> {
        let location = Location::caller();
        same_driver("Stream::capture_conditional", self.driver(), body.driver())
            .map_err(|e| e.at(location))?;
        let membership = Arc::<Membership>::default();
        let begin = || {
            // SAFETY: both streams are alive, and the holder of the token guarantees that the
            // condition belongs to the graph that this stream is captured into, and that this
            // graph outlives the capture of the body.
            unsafe {
                let graph = self.driver().capture_conditional(self.handle(), condition, kind)?;
                self.driver().begin_capture_to_body(body.handle(), graph)
            }
        };
        body.enter(&membership, begin).map_err(|e| e.at(location))?;
        Ok(BodyCapture { stream: body.clone(), membership })
    }
}

impl BodyCapture {
    /// Ends the capture. The capture ends even if this call fails.
    ///
    /// # Errors
    /// Errors of the [driver call](Driver#errors): a forbidden call invalidated the capture, or a
    /// stream that joined was not joined back.
    #[track_caller]
    pub fn end(self) -> Result<()> {
        let location = Location::caller();
        self.finish().map_err(|e| e.at(location))
    }

    fn finish(&self) -> Result<()> {
        // SAFETY: the handle is alive. The body belongs to its graph, so it is not destroyed here.
        let ended = unsafe { self.stream.driver().end_capture(self.stream.handle()) };
        let goes_on = |status| matches!(status, Ok(CaptureStatus::Active(_)));
        if ended.is_ok() || !goes_on(self.stream.capture_status()) {
            self.membership.end();
        }
        ended.map(drop)
    }
}

impl Drop for BodyCapture {
    fn drop(&mut self) {
        if self.membership.is_active() {
            let _ = self.finish();
        }
    }
}
