//! Bodies of conditional nodes: work of a capture that runs, or runs again, depending on a value on
//! the device.
//!
//! A body is captured on a stream of its own, which is in no other capture. This is a capture within
//! the capture: it has the same log, and its streams have twins. The body runs as a part of the
//! node, and the node takes its turn on the stream that it was added on. So the body's twin begins
//! with the clock of this stream's twin. This needs no wait in the driver, which would refuse a wait
//! between the two captures.
//!
//! The node gets its number on the stream's twin when the body has ended. Then this number stands
//! for all operations of the body. No clock outside the body has entries for them: a stream that
//! joins two bodies has two twins, which number their operations independently.
//!
//! A capture has at most one open body, and a body has at most one open body within. A capture that
//! ends first ends its open body, because the body belongs to the graph.
//!
//! Lock order: a capture's list of streams, then that of the capture of its body.

use std::panic::Location;
use std::sync::{Arc, PoisonError};

use warpline_cuda_sys_safe::ConditionHandle;
pub use warpline_cuda_sys_safe::ConditionalKind;
use warpline_cuda_sys_safe::owned::{self, LaunchToken};
use warpline_sync::Mutex;
use warpline_sync::atomic::Ordering;

use crate::capture::{CapturedStream, OngoingCapture};
use crate::clock::StreamPoint;
use crate::{ErrorKind, OpNumber, Result, Stream};

/// The capture of a body in progress.
#[derive(Debug)]
pub(crate) struct OpenBody {
    stream: Stream,
    twin: Stream,
    /// `None` after the end.
    raw: Mutex<Option<owned::BodyCapture>>,
    capture: Arc<OngoingCapture>,
}

impl OpenBody {
    /// Ends the capture of the body.
    #[track_caller]
    pub(crate) fn finish(&self, join: bool) -> Result<()> {
        let raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(raw) = raw else { return Err(ErrorKind::NotCapturing.of("end_capture")) };
        let ended = self.capture.finish(join, || raw.end());
        self.stream.core().captures.fetch_sub(1, Ordering::SeqCst);
        ended
    }
}

/// A body in progress. Dropping the guard ends the body and keeps its work in the graph.
#[derive(Debug)]
pub struct BodyGuard {
    outer: CapturedStream,
    body: Arc<OpenBody>,
    ended: bool,
}

impl CapturedStream {
    /// Makes this stream wait for all other streams of its capture.
    ///
    /// # Errors
    /// - [`ErrorKind::NotCapturing`] if the capture has ended.
    /// - [`ErrorKind::Driver`] if a driver call fails.
    #[track_caller]
    pub fn wait_for_capture(&self) -> Result<()> {
        let streams = self.capture().lock();
        let Some(streams) = &*streams else {
            return Err(ErrorKind::NotCapturing.of("wait_stream"));
        };
        for (_, other) in streams.iter().filter(|(_, other)| *other != *self.twin()) {
            self.twin().wait_for(other, other.last_op())?;
        }
        Ok(())
    }

    /// Creates a condition in the captured graph, for a captured kernel to set.
    ///
    /// # Errors
    /// - [`ErrorKind::NotCapturing`] if the capture has ended.
    /// - [`ErrorKind::Driver`] if the driver call fails, for example because the driver is older
    ///   than CUDA 12.3.
    #[track_caller]
    pub fn create_condition(&self, token: LaunchToken) -> Result<ConditionHandle> {
        let streams = self.capture().lock();
        if streams.is_none() {
            return Err(ErrorKind::NotCapturing.of("create_condition"));
        }
        Ok(self.twin().raw().create_condition(token)?)
    }

    /// Adds a conditional node after this stream's captured work, and captures `body` into the
    /// node's body until the guard is [ended](BodyGuard::end) or dropped. Later work of this stream
    /// runs after the node. `condition` was created by [`CapturedStream::create_condition`] of this
    /// capture.
    ///
    /// # Errors
    /// - [`ErrorKind::NotCapturing`] if the capture has ended.
    /// - [`ErrorKind::Capture`] if another body is being captured into the same graph.
    /// - [`ErrorKind::WrongDevice`] if `body` is on another device.
    /// - [`ErrorKind::RuntimeMismatch`] if `body` belongs to other [`Devices`](crate::Devices).
    /// - [`ErrorKind::CannotCapture`] if `body` is a default stream, a twin, or captured already.
    /// - [`ErrorKind::Driver`] if a driver call fails.
    #[track_caller]
    pub fn begin_body(
        &self,
        stream: &Stream,
        condition: ConditionHandle,
        kind: ConditionalKind,
        body: &Stream,
        token: LaunchToken,
    ) -> Result<BodyGuard> {
        const CALL: &str = "begin_body";
        let twin = self.twin();
        twin.check_same_devices(body.core(), CALL)?;
        if twin.device_index() != body.device_index() {
            let (expected, found) = (twin.device_index(), body.device_index());
            let object = "the stream of the body";
            return Err(ErrorKind::WrongDevice { object, expected, found }.of(CALL));
        }
        let streams = self.capture().lock();
        if streams.is_none() {
            return Err(ErrorKind::NotCapturing.of(CALL));
        }
        if self.capture().body().is_some() {
            let reason = "another body is being captured into the same graph; end it first";
            return Err(ErrorKind::Capture { reason: reason.into() }.of(CALL));
        }
        let home = self.home().unwrap_or(stream).clone();
        let log = Arc::clone(self.capture().log());
        let capture = OngoingCapture::new(log, token, twin.device_index(), Some(home));
        let capture = Arc::new(capture);
        let captures = &body.core().captures;
        captures.fetch_add(1, Ordering::SeqCst);
        let begun = match &mut *capture.lock() {
            Some(streams) => body.enter_capture(&capture, streams, |body_twin| {
                let begin = |at: &StreamPoint| {
                    let raw = twin.raw().capture_conditional(condition, kind, body.raw(), token)?;
                    body_twin.follow(at);
                    Ok((raw, body_twin.clone()))
                };
                twin.at_end(CALL, begin)
            }),
            // Unreachable, because no other thread has the capture yet.
            None => Err(ErrorKind::NotCapturing.of(CALL)),
        };
        let (raw, body_twin) = begun.inspect_err(|_| {
            captures.fetch_sub(1, Ordering::SeqCst);
        })?;
        let raw = Mutex::new(Some(raw));
        let body = Arc::new(OpenBody { stream: body.clone(), twin: body_twin, raw, capture });
        *self.capture().body() = Some(Arc::clone(&body));
        Ok(BodyGuard { outer: self.clone(), body, ended: false })
    }
}

impl BodyGuard {
    /// Returns the stream on which the body is captured.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.body.stream
    }

    /// Returns the twin of the body's stream.
    #[must_use]
    pub fn twin(&self) -> &Stream {
        &self.body.twin
    }

    /// Returns the twin of the stream that the node was added on.
    #[must_use]
    pub fn outer_twin(&self) -> &Stream {
        self.outer.twin()
    }

    /// Ends the body, and returns the number of the node on the stream that it was added on. The
    /// body ends even if this fails. With `join`, the body's stream first waits for all other
    /// streams that joined the body.
    ///
    /// # Errors
    /// - [`ErrorKind::NotCapturing`] if the enclosing capture has ended.
    /// - [`ErrorKind::Driver`] if a driver call fails; without `join`, also if the body's stream
    ///   does not wait for all other streams that joined the body.
    #[track_caller]
    pub fn end(mut self, join: bool) -> Result<OpNumber> {
        self.finish(join)
    }

    #[track_caller]
    fn finish(&mut self, join: bool) -> Result<OpNumber> {
        let location = Location::caller();
        self.ended = true;
        let mut open = self.outer.capture().body();
        if open.as_ref().is_some_and(|open| Arc::ptr_eq(open, &self.body)) {
            *open = None;
        }
        drop(open);
        let ended = self.body.finish(join);
        // Later work of the stream follows the node in any case.
        let op = self.outer.twin().number_enqueued();
        ended.map_err(|error| error.at(location))?;
        Ok(op)
    }
}

impl Drop for BodyGuard {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.finish(false);
        }
    }
}
