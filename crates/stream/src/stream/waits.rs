//! Waits of a stream for another stream, and of the host for a stream.
//!
//! The problem: each use of a tensor on another stream may need a wait, but most of these waits
//! repeat an order that already holds. The approach: a wait for an operation first asks the
//! waiting stream's vector clock (`clock.rs`), and returns without a driver call if the clock covers
//! the operation. Otherwise the driver's stream waits for an event: the op event after the operation
//! (`order.rs`), or a new event if the wait covers all work of a stream. Then the waiting stream's
//! clock takes over the clock of the event. A host wait marks the operation, and all work before it,
//! as complete.
//!
//! A wait for captured work makes the stream join the capture ([`Stream::wait_for`]), except
//! [`Stream::wait_for_all`], which leaves captured work out. The `_silently` variants wait without
//! changing the clock, so that a race detector does not take them for the program's own order.
//!
//! Limits: work that other code enqueues directly on the driver's stream has no number. A wait for the stream's last
//! operation may therefore leave out such work that follows the operation; [`Stream::wait_stream`] and events cover it.

use super::*;
#[cfg(doc)]
use crate::ErrorKind;

impl Stream {
    /// Makes later work on this stream wait, on the GPU, for operation `op` of `other`. The wait
    /// leaves out later work of `other` if an op event follows `op` directly.
    ///
    /// Does nothing if that order already holds.
    ///
    /// # Errors
    /// - [`ErrorKind::RuntimeMismatch`] if `other` belongs to other [`Devices`](crate::Devices).
    /// - [`ErrorKind::Capturing`] if `other` is captured and has no op event at or after `op`.
    /// - [`ErrorKind::OutsideCapture`] if this stream is captured, or is a twin, and `op` is not part
    ///   of its capture.
    /// - [`ErrorKind::CapturedEvent`] if `op` is part of a capture that has ended.
    /// - [`ErrorKind::CannotCapture`] or [`ErrorKind::WrongDevice`] if `op` is captured and this
    ///   stream cannot join the capture.
    /// - [`ErrorKind::NotCapturing`] if this stream is a twin in the capture of `op`, and that capture
    ///   has ended.
    /// - [`ErrorKind::Driver`] if a driver call fails.
    #[track_caller]
    pub fn wait_for(&self, other: &Stream, op: OpNumber) -> Result<()> {
        if self.is_ordered_after(other, op)? {
            return Ok(());
        }
        self.check_same_devices(other.core(), "wait_for")?;
        let (event, point) = other.0.event_at_or_after(op)?;
        self.enqueue_wait("wait_for", &event, &point)
    }

    /// Waits as [`Stream::wait_for`] does, without recording the order:
    /// [`Stream::is_ordered_after`] returns the same as before. With such a wait, a race detector
    /// still finds that the program itself does not order its streams.
    ///
    /// # Errors
    /// - [`ErrorKind::RuntimeMismatch`] if `other` belongs to other [`Devices`](crate::Devices).
    /// - [`ErrorKind::Capturing`] if this stream is captured, or if `other` is captured and has no
    ///   op event at or after `op`.
    /// - [`ErrorKind::Driver`] if a driver call fails.
    #[track_caller]
    pub fn wait_for_silently(&self, other: &Stream, op: OpNumber) -> Result<()> {
        if self.is_ordered_after(other, op)? {
            return Ok(());
        }
        self.check_same_devices(other.core(), "wait_for")?;
        let (event, _) = other.0.event_at_or_after(op)?;
        let mut state = self.0.lock();
        // Check under the lock, because another thread may have begun a capture of this stream.
        self.refuse_capturing("wait_for")?;
        self.0.record_op_event_before_wait(&mut state);
        self.0.raw.wait_event(&event)?;
        self.0.advance(&mut state);
        Ok(())
    }

    /// Makes later work on this stream wait, on the GPU, for all work enqueued on `other` so far
    /// (`Stream.wait_stream`).
    ///
    /// # Errors
    /// - [`ErrorKind::RuntimeMismatch`] if `other` belongs to other [`Devices`](crate::Devices).
    /// - [`ErrorKind::OutsideCapture`] if this stream is captured, or is a twin, and `other` is not
    ///   part of its capture.
    /// - [`ErrorKind::CannotCapture`] or [`ErrorKind::WrongDevice`] if `other` is captured and this
    ///   stream cannot join the capture.
    /// - [`ErrorKind::CapturedEvent`] if the capture of `other` ends during the call.
    /// - [`ErrorKind::NotCapturing`] if `other` is the twin of a capture that has ended.
    /// - [`ErrorKind::Driver`] if a driver call fails.
    #[track_caller]
    pub fn wait_stream(&self, other: &Stream) -> Result<()> {
        if self == other {
            return Ok(());
        }
        self.check_same_devices(other.core(), "wait_stream")?;
        // Record a new event instead of using an op event, because `other` may have work without a
        // number.
        let event = PooledEvent::take(other.core(), crate::EventFlags::default())?;
        let point = other.record_into(&event, "wait_stream")?;
        self.enqueue_wait("wait_stream", &event, &point)
    }

    /// Makes later work on this stream wait, on the GPU, for all work enqueued on `other` outside a capture. Captured
    /// work of `other` is left out, and this stream joins no capture. Does nothing if `other` is not captured and all
    /// its work is complete.
    ///
    /// # Errors
    /// - [`ErrorKind::RuntimeMismatch`] if `other` belongs to other [`Devices`](crate::Devices).
    /// - [`ErrorKind::OutsideCapture`] if this stream is captured, or is a twin, and `other` is captured or has
    ///   incomplete work.
    /// - [`ErrorKind::Driver`] if a driver call fails.
    #[track_caller]
    pub fn wait_for_all(&self, other: &Stream) -> Result<()> {
        const CALL: &str = "wait_for_all";
        if self == other {
            return Ok(());
        }
        self.check_same_devices(other.core(), CALL)?;
        match other.0.event_after_all()? {
            Some((event, point)) => self.enqueue_wait(CALL, &event, &point),
            None => Ok(()),
        }
    }

    /// Makes later work on this stream wait, on the GPU, for the event's latest record
    /// (`Stream.wait_event`). Does nothing if the event was never recorded.
    ///
    /// # Errors
    /// - [`ErrorKind::RuntimeMismatch`] if the event belongs to other [`Devices`](crate::Devices).
    /// - [`ErrorKind::OutsideCapture`] if this stream is captured, or is a twin, and the record is not part of its
    ///   capture.
    /// - [`ErrorKind::CapturedEvent`] if the record is part of a capture that has ended.
    /// - [`ErrorKind::CannotCapture`] or [`ErrorKind::WrongDevice`] if the record is captured and
    ///   the stream cannot join the capture.
    /// - [`ErrorKind::NotCapturing`] if this stream is a twin in the record's capture, and that capture has ended.
    /// - [`ErrorKind::Driver`] if a driver call fails.
    #[track_caller]
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        event.wait_as(self, "wait_event")
    }

    /// Records an event after all work on this stream so far, and returns the event
    /// (`Stream.record_event`). `None` creates an event without timing.
    ///
    /// # Errors
    /// - [`ErrorKind::WrongDevice`] if the event was first recorded on another device.
    /// - [`ErrorKind::RuntimeMismatch`] if the event was first recorded on a stream of other
    ///   [`Devices`](crate::Devices).
    /// - [`ErrorKind::NotCapturing`] if the stream is the twin of a capture that has ended.
    /// - [`ErrorKind::Driver`] if a driver call fails.
    #[track_caller]
    pub fn record_event(&self, event: Option<&Event>) -> Result<Event> {
        let event = event.cloned().unwrap_or_default();
        event.record_as(self, "record_event", "the stream")?;
        Ok(event)
    }

    /// Records an event and returns its point.
    #[track_caller]
    pub(crate) fn record_into(
        &self,
        event: &owned::Event,
        call: &'static str,
    ) -> Result<StreamPoint> {
        let location = Location::caller();
        self.with_acting(|inner, state| {
            inner.capture.refuse_ended(call, location)?;
            event.record(&inner.raw)?;
            Ok(inner.point(state))
        })
    }

    /// Records an event outside a capture and returns its point. `None` while the stream is
    /// captured.
    pub(crate) fn record_uncaptured(&self, event: &owned::Event) -> Result<Option<StreamPoint>> {
        let state = self.0.lock();
        if self.is_capturing() {
            return Ok(None);
        }
        event.record(&self.0.raw)?;
        Ok(Some(self.0.point(&state)))
    }

    /// Enqueues a wait for an event that was recorded at `point`.
    #[track_caller]
    pub(crate) fn enqueue_wait(
        &self,
        call: &'static str,
        event: &owned::Event,
        point: &StreamPoint,
    ) -> Result<()> {
        let location = Location::caller();
        let joins =
            self.with_acting(|inner, state| match (inner.capture.twin_in(), &point.capture) {
                (None, Some(capture)) => Ok(Some(capture)),
                (Some(own), Some(other)) if !own.ptr_eq(other) => {
                    Err(ErrorKind::OutsideCapture.of(call).at(location))
                }
                (Some(_), None) => Err(ErrorKind::OutsideCapture.of(call).at(location)),
                _ => {
                    inner.capture.refuse_ended(call, location)?;
                    inner.wait_at(state, event, point).map(|()| None)
                }
            })?;
        let Some(capture) = joins else { return Ok(()) };
        self.join_capture(capture, call, |twin, token| {
            let mut state = twin.0.lock();
            twin.0.raw.join_capture(event, token)?;
            twin.0.enter_wait(&mut state, point);
            Ok(())
        })
    }

    #[track_caller]
    pub(crate) fn check_same_devices(&self, core: &DeviceCore, call: &'static str) -> Result<()> {
        if self.0.core.shared.id() == core.shared.id() {
            return Ok(());
        }
        Err(ErrorKind::RuntimeMismatch.of(call))
    }

    /// Returns whether all work on this stream is complete (`Stream.query`).
    ///
    /// # Errors
    /// - [`ErrorKind::Capturing`] if the stream is captured or is a twin.
    /// - [`ErrorKind::Surfaced`] or [`ErrorKind::Driver`] if the driver reports a failure, including one of earlier
    ///   asynchronous work.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        self.refuse_capturing("query")?;
        self.refuse_twin("query")?;
        let now = self.now();
        let done = self.0.raw.query().map_err(|e| self.surfaced(e))?;
        if done {
            now.settle(self.core());
        }
        Ok(done)
    }

    /// Blocks the host until all work on this stream is complete (`Stream.synchronize`).
    ///
    /// # Errors
    /// - [`ErrorKind::IndexCheck`], once, if an index was out of range in a launch of this thread,
    ///   or of a thread that has ended.
    /// - [`ErrorKind::Capturing`] if the stream is captured or is a twin.
    /// - [`ErrorKind::Surfaced`] or [`ErrorKind::Driver`] if the driver reports a failure, including one of earlier
    ///   asynchronous work.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        self.refuse_capturing("synchronize")?;
        self.refuse_twin("synchronize")?;
        let now = self.now();
        self.0.raw.synchronize().map_err(|e| self.surfaced(e))?;
        now.settle_and_report(self.core())
    }

    /// Blocks the host until operation `op` is complete. The wait leaves out later work if an op event follows `op`
    /// directly. Costs one comparison if `op` is known to be complete. [`Stream::synchronize`] reports failed index
    /// checks; this function does not.
    ///
    /// # Errors
    /// - [`ErrorKind::Capturing`] if the stream is a twin, or is captured and has no op event at
    ///   or after `op`.
    /// - [`ErrorKind::Surfaced`] or [`ErrorKind::Driver`] if the driver reports a failure, including one of earlier
    ///   asynchronous work.
    #[track_caller]
    pub fn host_wait(&self, op: OpNumber) -> Result<()> {
        if self.0.progress.is_known_done(op) {
            return Ok(());
        }
        self.refuse_twin("host_wait")?;
        let (event, point) = self.0.event_at_or_after(op)?;
        event.synchronize().map_err(|e| self.surfaced(e))?;
        point.settle(self.core());
        Ok(())
    }

    /// Waits as [`Stream::host_wait`] does, without recording the order. See
    /// [`Stream::wait_for_silently`].
    ///
    /// # Errors
    /// - [`ErrorKind::Capturing`] if the stream is a twin, or is captured and has no op event at
    ///   or after `op`.
    /// - [`ErrorKind::Surfaced`] or [`ErrorKind::Driver`] if the driver reports a failure, including one of earlier
    ///   asynchronous work.
    #[track_caller]
    pub fn host_wait_silently(&self, op: OpNumber) -> Result<()> {
        if self.0.progress.is_known_done(op) {
            return Ok(());
        }
        self.refuse_twin("host_wait")?;
        let (event, point) = self.0.event_at_or_after(op)?;
        event.synchronize().map_err(|e| self.surfaced(e))?;
        self.core().shared.checks.settle(&[point]);
        Ok(())
    }

    /// Returns whether operation `op` is complete. If `op` has no op event of its own, the result
    /// is `false` until the next op event completes.
    ///
    /// # Errors
    /// - [`ErrorKind::Capturing`] if the stream is a twin, or is captured and has no op event at
    ///   or after `op`.
    /// - [`ErrorKind::Surfaced`] or [`ErrorKind::Driver`] if the driver reports a failure, including one of earlier
    ///   asynchronous work.
    #[track_caller]
    pub fn is_done(&self, op: OpNumber) -> Result<bool> {
        if self.0.progress.is_known_done(op) {
            return Ok(true);
        }
        self.refuse_twin("is_done")?;
        let (event, point) = self.0.event_at_or_after(op)?;
        let done = event.query().map_err(|e| self.surfaced(e))?;
        if done {
            point.settle(self.core());
        }
        Ok(done)
    }
}
