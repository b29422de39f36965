//! Waits: of a stream for another one, and of the host for a stream.

use super::*;

impl Stream {
    /// Makes later work on this stream wait, on the GPU, for operation `op` of `other`. Work that
    /// `other` was given after `op` is not waited for where a checkpoint tells them apart.
    ///
    /// Does nothing if that order already holds.
    ///
    /// # Errors
    /// [`ErrorKind::RuntimeMismatch`], or the driver's own.
    #[track_caller]
    pub fn wait_for(&self, other: &Stream, op: OpNumber) -> Result<()> {
        if self.is_ordered_after(other, op)? {
            return Ok(());
        }
        self.check_same_devices(other.core(), "wait_for")?;
        let (event, point) = other.0.checkpoint(op)?;
        self.enqueue_wait("wait_for", &event, &point)
    }

    /// [`Stream::wait_for`] that counts as no order: later work does wait, but what asks whether
    /// the program has ordered its streams gets the answer that it had before.
    ///
    /// # Errors
    /// As [`Stream::wait_for`].
    #[track_caller]
    pub fn wait_for_silently(&self, other: &Stream, op: OpNumber) -> Result<()> {
        if self.is_ordered_after(other, op)? {
            return Ok(());
        }
        self.check_same_devices(other.core(), "wait_for")?;
        let (event, _) = other.0.checkpoint(op)?;
        let mut state = self.0.lock();
        // Another thread may have begun to capture it.
        self.refuse_capturing("wait_for")?;
        self.0.raw.wait_event(&event)?;
        self.0.advance(&mut state);
        Ok(())
    }

    /// Makes later work on this stream wait, on the GPU, for all work on `other` so far
    /// (`Stream.wait_stream`).
    ///
    /// # Errors
    /// As [`Stream::wait_for`].
    #[track_caller]
    pub fn wait_stream(&self, other: &Stream) -> Result<()> {
        if self == other {
            return Ok(());
        }
        self.check_same_devices(other.core(), "wait_stream")?;
        // Always recorded anew: `other` may have work that was not numbered.
        let event = PooledEvent::take(other.core(), crate::EventFlags::default())?;
        let point = other.record_into(&event, "wait_stream")?;
        self.enqueue_wait("wait_stream", &event, &point)
    }

    /// As [`Stream::wait_stream`], for all that `other` was given outside a capture: what it has
    /// captured is not waited for, and this stream joins no capture. Nothing if `other` is idle.
    ///
    /// # Errors
    /// As [`Stream::wait_for`].
    #[track_caller]
    pub fn wait_for_all(&self, other: &Stream) -> Result<()> {
        const CALL: &str = "wait_for_all";
        if self == other {
            return Ok(());
        }
        self.check_same_devices(other.core(), CALL)?;
        match other.0.checkpoint_of_all()? {
            Some((event, point)) => self.enqueue_wait(CALL, &event, &point),
            None => Ok(()),
        }
    }

    /// Makes later work on this stream wait, on the GPU, for the event's latest record
    /// (`Stream.wait_event`). Nothing if it was never recorded.
    ///
    /// # Errors
    /// As [`Stream::wait_for`].
    #[track_caller]
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        event.wait_as(self, "wait_event")
    }

    /// Records the event, or a new one without timing, after all work on this stream so far
    /// (`Stream.record_event`).
    ///
    /// # Errors
    /// As [`Event::record`].
    #[track_caller]
    pub fn record_event(&self, event: Option<&Event>) -> Result<Event> {
        let event = event.cloned().unwrap_or_default();
        event.record_as(self, "record_event", "the stream")?;
        Ok(event)
    }

    /// Records an event and says what it covers.
    #[track_caller]
    pub(crate) fn record_into(&self, event: &owned::Event, call: &'static str) -> Result<Point> {
        let location = Location::caller();
        self.with_acting(|inner, state| {
            inner.capture.refuse_ended(call, location)?;
            event.record(&inner.raw)?;
            Ok(inner.point(state))
        })
    }

    /// Records an event outside a capture, and says what it covers; `None` while the stream is captured.
    pub(crate) fn record_uncaptured(&self, event: &owned::Event) -> Result<Option<Point>> {
        let state = self.0.lock();
        if self.is_capturing() {
            return Ok(None);
        }
        event.record(&self.0.raw)?;
        Ok(Some(self.0.point(&state)))
    }

    /// Enqueues a wait for an event that was recorded at a point.
    #[track_caller]
    pub(crate) fn enqueue_wait(
        &self,
        call: &'static str,
        event: &owned::Event,
        point: &Point,
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
    pub(crate) fn check_same_devices(&self, core: &Core, call: &'static str) -> Result<()> {
        if self.0.core.world.id() == core.world.id() {
            return Ok(());
        }
        Err(ErrorKind::RuntimeMismatch.of(call))
    }

    /// Whether all its work is done (`Stream.query`).
    ///
    /// # Errors
    /// The driver's own, those of earlier asynchronous work among them.
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

    /// Blocks the host until all its work is done (`Stream.synchronize`).
    ///
    /// # Errors
    /// As [`Stream::query`]; [`ErrorKind::IndexCheck`], once, if an index was out of range in a launch
    /// of this thread, or of a thread that has ended.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        self.refuse_capturing("synchronize")?;
        self.refuse_twin("synchronize")?;
        let now = self.now();
        self.0.raw.synchronize().map_err(|e| self.surfaced(e))?;
        now.settle_and_report(self.core())
    }

    /// Blocks the host until operation `op` is done; later work is not waited for where a
    /// checkpoint tells them apart. Costs a compare when that is already known. Failed checks are left
    /// for [`Stream::synchronize`] to report.
    ///
    /// # Errors
    /// As [`Stream::query`].
    #[track_caller]
    pub fn host_wait(&self, op: OpNumber) -> Result<()> {
        if self.0.progress.is_known_done(op) {
            return Ok(());
        }
        self.refuse_twin("host_wait")?;
        let (event, point) = self.0.checkpoint(op)?;
        event.synchronize().map_err(|e| self.surfaced(e))?;
        point.settle(self.core());
        Ok(())
    }

    /// [`Stream::host_wait`] that counts as no order, as [`Stream::wait_for_silently`].
    ///
    /// # Errors
    /// As [`Stream::query`].
    #[track_caller]
    pub fn host_wait_silently(&self, op: OpNumber) -> Result<()> {
        if self.0.progress.is_known_done(op) {
            return Ok(());
        }
        self.refuse_twin("host_wait")?;
        let (event, point) = self.0.checkpoint(op)?;
        event.synchronize().map_err(|e| self.surfaced(e))?;
        self.core().world.checks.settle(&[point]);
        Ok(())
    }

    /// Whether operation `op` is done. False for a while longer where it has no checkpoint of
    /// its own.
    ///
    /// # Errors
    /// As [`Stream::query`].
    #[track_caller]
    pub fn is_done(&self, op: OpNumber) -> Result<bool> {
        if self.0.progress.is_known_done(op) {
            return Ok(true);
        }
        self.refuse_twin("is_done")?;
        let (event, point) = self.0.checkpoint(op)?;
        let done = event.query().map_err(|e| self.surfaced(e))?;
        if done {
            point.settle(self.core());
        }
        Ok(done)
    }
}
