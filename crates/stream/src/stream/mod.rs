//! Streams, the numbering of their operations, and waits between them.
//!
//! Each stream numbers its operations. The numbering belongs to the driver's stream. Wrapping a driver's stream again
//! returns the existing `Stream` if there is one; otherwise the new `Stream` continues the numbers. `submit` enqueues
//! and numbers in one step. `wait_for(other, op)` makes later work of this stream wait, on the GPU, for an operation of
//! another stream. If that order is already known, the call makes no driver call.
//!
//! Lock order: an event, then a capture's list of streams, then a stream's submit lock, then the
//! submit lock of its twin. Only the thread that ends a capture holds the locks of several streams.

mod waits;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::Location;
use std::sync::{Arc, PoisonError, Weak};

use warpline_cuda_sys_safe::owned::{self, LaunchToken};
use warpline_cuda_sys_safe::{DriverError, StreamHandle};
use warpline_sync::{Mutex, MutexGuard, OnceLock};

use crate::capture::{OngoingCapture, StreamCaptureState};
use crate::clock::{Before, Clock, StreamPoint};
use crate::device::DeviceCore;
use crate::event_pool::PooledEvent;
use crate::launch_ring::Launches;
use crate::order::{OpEventRecord, OpEvents, StreamProgress};
use crate::{Device, Error, ErrorKind, Event, Mailbox, OpNumber, PendingLaunches, Result, Site};

/// A CUDA stream of one device (`torch.cuda.Stream`). Clones share the stream. Streams are equal if
/// their [`Stream::id`] is equal.
#[derive(Clone)]
pub struct Stream(Arc<StreamInner>);

#[derive(Debug)]
pub(crate) struct StreamInner {
    raw: owned::Stream,
    core: Arc<DeviceCore>,
    progress: Arc<StreamProgress>,
    /// The submit lock, held while work is enqueued, so that numbers follow the order of the
    /// stream. A thread that holds this lock takes at most one other submit lock, that of this
    /// stream's twin. Only the thread that ends a capture takes more: the locks of all streams and
    /// twins of the capture.
    state: Mutex<SubmitState>,
    /// Changed under the lock on `state` only.
    capture: StreamCaptureState,
    /// Launches to list in error messages. Changed under the lock on `state` only.
    launches: Launches,
    /// Reports of failed index checks by the stream's kernels. Created on first use.
    mailbox: OnceLock<Arc<Mailbox>>,
}

#[derive(Debug, Default)]
struct SubmitState {
    op_events: OpEvents,
    clock: Clock,
}

/// Guard of a stream's submit lock. No other thread can enqueue on the stream.
pub(crate) struct SubmitGuard<'a>(MutexGuard<'a, SubmitState>);

impl StreamInner {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, SubmitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn advance(&self, _held: &mut SubmitState) -> OpNumber {
        self.progress.advance()
    }

    /// Returns the current end of the stream. The caller holds the stream's lock.
    fn point(&self, state: &SubmitState) -> StreamPoint {
        self.point_at(self.progress.last(), state.clock.clone())
    }

    fn point_at(&self, op: OpNumber, before: Clock) -> StreamPoint {
        let (progress, capture) = (Arc::clone(&self.progress), self.capture.twin_in().cloned());
        StreamPoint { progress, op, before, capture }
    }

    /// Enqueues a wait for an event that was recorded at `point`. The caller holds the lock.
    #[track_caller]
    fn wait_at(
        &self,
        state: &mut SubmitState,
        event: &owned::Event,
        point: &StreamPoint,
    ) -> Result<()> {
        self.record_op_event_before_wait(state);
        self.raw.wait_event(event)?;
        self.enter_wait(state, point);
        Ok(())
    }

    /// Records an op event after the last work, unless the work has one or is done. Call it before this stream enqueues
    /// a wait: another stream that waits for the last work then does not also wait for the target of that wait. A
    /// failure is ignored, because a later wait for the work records an op event itself.
    fn record_op_event_before_wait(&self, state: &mut SubmitState) {
        let SubmitState { op_events, clock } = state;
        let op = op_events.last_work;
        if !self.progress.is_known_done(op) && op_events.at_or_after(op).is_none() {
            let _ = op_events.record(&self.core, &self.raw, (op, &self.progress), clock);
        }
    }

    /// Numbers a wait for `point` and adds that point to the stream's clock.
    fn enter_wait(&self, state: &mut SubmitState, point: &StreamPoint) {
        // Number the wait, so that an op event recorded before the wait does not count as an op event after
        // it.
        self.advance(state);
        state.clock.join(&self.progress, point);
    }

    /// Returns the earliest op event at or after `op`. Records an op event if there is none.
    #[track_caller]
    fn event_at_or_after(&self, op: OpNumber) -> Result<(Arc<PooledEvent>, StreamPoint)> {
        self.event_at_or_after_in(&mut self.lock(), op)
    }

    #[track_caller]
    fn event_at_or_after_in(
        &self,
        state: &mut SubmitState,
        op: OpNumber,
    ) -> Result<(Arc<PooledEvent>, StreamPoint)> {
        let last = self.progress.last();
        let op = op.min(last);
        let SubmitState { op_events, clock } = state;
        op_events.note_wait(op, last);
        if op_events.at_or_after(op).is_none() {
            if self.capture.captured().is_some() {
                return Err(ErrorKind::Capturing.of("wait_for"));
            }
            op_events.record(&self.core, &self.raw, (last, &self.progress), clock)?;
        }
        match op_events.at_or_after(op).cloned() {
            Some(OpEventRecord { op, before, event }) => Ok((event, self.point_at(op, before))),
            // Unreachable: an op event was recorded at `last`, and `last` is not before `op`.
            None => Err(ErrorKind::EventNotRecorded.of("wait_for")),
        }
    }

    /// Returns an op event after all work enqueued outside a capture, numbered or not. `None` if the
    /// stream is not captured and that work is complete.
    #[track_caller]
    fn event_after_all(&self) -> Result<Option<(Arc<PooledEvent>, StreamPoint)>> {
        let mut state = self.lock();
        if self.capture.captured().is_none() {
            if self.raw.query().unwrap_or(false) {
                return Ok(None);
            }
            self.record_op_event(&mut state)?;
        }
        // For a captured stream, this is the op event that was recorded when it entered the capture.
        match state.op_events.latest().cloned() {
            Some(OpEventRecord { op, before, event }) => {
                Ok(Some((event, self.point_at(op, before))))
            }
            None => Err(ErrorKind::Capturing.of("wait_for_all")),
        }
    }

    /// Records an op event, even if the last operation has one, because the allocator enqueues
    /// waits without numbers.
    #[track_caller]
    fn record_op_event(&self, state: &mut SubmitState) -> Result<()> {
        let SubmitState { op_events, clock } = state;
        let op = (self.progress.last(), &*self.progress);
        op_events.record(&self.core, &self.raw, op, clock)?;
        Ok(())
    }

    /// Returns the current end of the stream.
    pub(crate) fn now(&self) -> StreamPoint {
        self.point(&self.lock())
    }
}

/// The options of [`Stream::new`]: a GPU, such as a [`Device`], or a GPU with a priority. Other
/// crates implement this trait for their own types. `In` only keeps the implementations of
/// different crates apart.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a GPU",
    label = "expected a GPU: an index, a name such as \"cuda:1\", a `Device`, or `()` for the current one",
    note = "`StreamOptions` has a GPU and a priority"
)]
pub trait StreamDevice<In> {
    /// Error of a failed selection.
    type Error;

    /// Returns a stream from one of the device's pools.
    ///
    /// # Errors
    /// [`ErrorKind::Driver`] if the driver cannot create the stream, and errors of resolving `self`
    /// to a device.
    fn stream(self) -> std::result::Result<Stream, Self::Error>;
}

impl StreamDevice<()> for &Device {
    type Error = Error;

    #[track_caller]
    fn stream(self) -> Result<Stream> {
        self.stream_from_pool(0)
    }
}

impl Stream {
    /// Returns a stream (`torch.cuda.Stream`). `options` is a device or, in the crate `warpline`,
    /// also `StreamOptions`, which include a priority. Each priority has a pool of 32 streams,
    /// which are handed out in turn: the 33rd call returns the first stream again.
    ///
    /// # Errors
    /// [`ErrorKind::Driver`] if the driver cannot create the stream, and errors of resolving
    /// `options` to a device.
    #[track_caller]
    pub fn new<In, D: StreamDevice<In>>(options: D) -> std::result::Result<Self, D::Error> {
        options.stream()
    }
}

impl Stream {
    pub(crate) fn registered(
        core: &Arc<DeviceCore>,
        raw: owned::Stream,
        progress: Arc<StreamProgress>,
    ) -> Self {
        let stream = Self::build(core, raw, progress, None);
        core.register(stream.downgrade());
        stream
    }

    fn build(
        core: &Arc<DeviceCore>,
        raw: owned::Stream,
        progress: Arc<StreamProgress>,
        twin_in: Option<Weak<OngoingCapture>>,
    ) -> Self {
        Self(Arc::new(StreamInner {
            progress,
            raw,
            core: Arc::clone(core),
            state: Mutex::default(),
            capture: StreamCaptureState::new(twin_in),
            launches: Launches::default(),
            mailbox: OnceLock::new(),
        }))
    }

    pub(crate) fn downgrade(&self) -> Weak<StreamInner> {
        Arc::downgrade(&self.0)
    }

    pub(crate) fn from_inner(inner: Arc<StreamInner>) -> Self {
        Self(inner)
    }

    /// Creates the twin of a stream for a capture.
    pub(crate) fn twin(of: &Stream, capture: Weak<OngoingCapture>) -> Self {
        let progress = Arc::new(StreamProgress::new(of.id(), of.device_index()));
        Self::build(&of.0.core, of.0.raw.clone(), progress, Some(capture))
    }

    pub(crate) fn capture_state(&self) -> &StreamCaptureState {
        &self.0.capture
    }

    /// Runs `f` under the stream's lock, so that no other thread enqueues work on the stream. `f`
    /// begins a capture of this stream or makes the stream join a capture.
    #[track_caller]
    pub(crate) fn change_capture<R>(
        &self,
        f: impl FnOnce(&StreamCaptureState) -> Result<R>,
    ) -> Result<R> {
        let inner = &*self.0;
        let mut state = inner.lock();
        // Record an op event after all earlier work, with or without numbers, so that other
        // streams can wait for that work during the capture.
        if !self.is_capturing() {
            inner.record_op_event(&mut state)?;
        }
        f(&inner.capture)
    }

    /// Takes the submit lock. No other thread enqueues on this stream until the guard is dropped.
    pub(crate) fn hold(&self) -> SubmitGuard<'_> {
        SubmitGuard(self.0.lock())
    }

    /// Makes this stream wait for all work of `other`. The caller holds both submit locks.
    pub(crate) fn wait_held(
        &self,
        held: &mut SubmitGuard<'_>,
        other: &Self,
        other_held: &mut SubmitGuard<'_>,
    ) -> Result<()> {
        let last = other.last_op();
        if held.0.clock.covers(other.id(), last) {
            return Ok(());
        }
        let (event, point) = other.0.event_at_or_after_in(&mut other_held.0, last)?;
        self.0.wait_at(&mut held.0, &event, &point)
    }

    /// Runs `f` on the stream that numbers the enqueued work, under its lock: the twin during a
    /// capture, else this stream.
    #[track_caller]
    fn with_acting<R>(&self, f: impl FnOnce(&StreamInner, &mut SubmitState) -> R) -> R {
        let mut state = self.0.lock();
        match self.captured() {
            // The stream's own lock stays held, so that the capture does not end meanwhile.
            Some(captured) => {
                let twin = &captured.twin().0;
                f(twin, &mut twin.lock())
            }
            None => f(&self.0, &mut state),
        }
    }

    /// Calls `f` with the current end of this stream, a twin, under the stream's lock.
    #[track_caller]
    pub(crate) fn at_end<R>(
        &self,
        call: &'static str,
        f: impl FnOnce(&StreamPoint) -> Result<R>,
    ) -> Result<R> {
        let location = Location::caller();
        let state = self.0.lock();
        self.0.capture.refuse_ended(call, location)?;
        f(&self.0.point(&state))
    }

    /// Records that all later work on this stream comes after `point`, without a wait.
    pub(crate) fn follow(&self, point: &StreamPoint) {
        self.0.lock().clock.join(&self.0.progress, point);
    }

    /// Numbers an operation that is enqueued already.
    pub(crate) fn number_enqueued(&self) -> OpNumber {
        let mut state = self.0.lock();
        let op = self.0.advance(&mut state);
        let SubmitState { op_events, clock } = &mut *state;
        op_events.last_work = op;
        if self.is_capturing() {
            // As in `submit`, a failure is returned by the next wait for the operation.
            let _ = op_events.record_automatic(&self.0.core, &self.0.raw, op, clock);
        }
        op
    }

    /// Returns an event recorded at or after operation `op`, and its point.
    #[track_caller]
    pub(crate) fn event_at_or_after(
        &self,
        op: OpNumber,
    ) -> Result<(Arc<PooledEvent>, StreamPoint)> {
        self.0.event_at_or_after(op)
    }

    pub(crate) fn core(&self) -> &Arc<DeviceCore> {
        &self.0.core
    }

    pub(crate) fn now(&self) -> StreamPoint {
        self.0.now()
    }

    /// Returns the launches that are not known to be complete. `None` if there are none.
    pub(crate) fn pending(&self) -> Option<PendingLaunches> {
        let (launches, older) = self.0.launches.after(self.0.progress.done());
        let pending = PendingLaunches { stream: self.to_string(), launches, older };
        (!pending.launches.is_empty()).then_some(pending)
    }

    /// Returns the index of the stream's device.
    #[must_use]
    pub fn device_index(&self) -> usize {
        self.0.core.index
    }

    /// Returns the [`Devices::id`](crate::Devices::id) of the devices that the stream belongs to.
    #[must_use]
    pub fn devices_id(&self) -> u64 {
        self.0.core.shared.id()
    }

    /// Returns the driver's stream. Safe code can use it to query, wait and record, but not to
    /// enqueue work or to change a capture. Work that `unsafe` code enqueues on it directly is not
    /// numbered.
    #[must_use]
    pub fn raw(&self) -> &owned::Stream {
        &self.0.raw
    }

    /// Returns an identifier that is unique among all streams of the process, past and future.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.raw.id()
    }

    /// Returns whether this is the legacy default stream of its device.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.0.raw.handle() == StreamHandle::default_of(self.0.core.index)
    }

    /// Returns the driver's priority for this stream. Lower numbers run first.
    ///
    /// # Errors
    /// [`ErrorKind::Driver`] if the driver's query fails.
    #[track_caller]
    pub fn priority(&self) -> Result<i32> {
        Ok(self.0.raw.priority()?)
    }

    /// Runs `f`, which enqueues one operation, with the exclusive right to enqueue on this stream,
    /// and numbers the operation. If `f` fails, no number is used. During a capture the number
    /// belongs to the stream's [twin](crate::CapturedStream::twin).
    ///
    /// `f` must use this stream only through the handle that is passed to it, and must not use an
    /// [`Event`], which would deadlock. By passing the token, the caller guarantees that the
    /// enqueued work is sound.
    ///
    /// # Errors
    /// Errors of `f`, and [`ErrorKind::NotCapturing`] if this stream is the twin of a capture that
    /// has ended.
    #[track_caller]
    pub fn submit<R, E: From<Error>>(
        &self,
        _token: LaunchToken,
        f: impl FnOnce(StreamHandle) -> std::result::Result<R, E>,
    ) -> std::result::Result<(R, OpNumber), E> {
        let location = Location::caller();
        self.with_acting(|inner, state| {
            // After the end of a capture, work submitted to the twin would run, under numbers that
            // the stream also uses.
            inner.capture.refuse_ended("submit", location)?;
            let result = f(inner.raw.handle())?;
            let op = inner.advance(state);
            let SubmitState { op_events, clock } = state;
            op_events.last_work = op;
            if op_events.are_wanted_at(op) || inner.capture.twin_in().is_some() {
                // The operation is enqueued already, so a failure here is ignored. The next wait for
                // the operation finds no op event, tries to record one, and returns the error.
                let _ = op_events.record_automatic(&inner.core, &inner.raw, op, clock);
            }
            Ok((result, op))
        })
    }

    /// Runs `f` as [`Stream::submit`] does, for an operation that is complete when `f` returns,
    /// such as a copy to pageable memory. When `f` returns, the operation and all earlier work on
    /// the stream count as complete. By passing the token, the caller guarantees that this is true.
    ///
    /// # Errors
    /// The same as [`Stream::submit`].
    #[track_caller]
    pub fn submit_waited<R>(
        &self,
        _token: LaunchToken,
        f: impl FnOnce(StreamHandle) -> Result<R>,
    ) -> Result<(R, OpNumber)> {
        let location = Location::caller();
        let (result, op, point) = self.with_acting(|inner, state| {
            inner.capture.refuse_ended("submit_waited", location)?;
            let result = f(inner.raw.handle())?;
            Ok::<_, Error>((result, inner.advance(state), inner.point(state)))
        })?;
        point.settle(self.core());
        Ok((result, op))
    }

    /// Names the operation that a closure passed to [`Stream::submit`] has just enqueued, for
    /// errors that surface later. `operands` are dtypes and shapes. Does nothing during a capture,
    /// because captured work does not run yet.
    pub fn note_launch<'a>(
        &self,
        site: Site,
        operands: impl Iterator<Item = (&'static str, &'a [usize])>,
    ) {
        if !self.is_capturing() {
            self.0.launches.record(self.last_op() + 1, site, operands);
        }
    }

    pub(crate) fn mailbox_cell(&self) -> &OnceLock<Arc<Mailbox>> {
        &self.0.mailbox
    }

    pub(crate) fn progress(&self) -> &Arc<StreamProgress> {
        &self.0.progress
    }

    /// Converts a driver's error at a wait, a query or a launch into an [`Error`] that lists the
    /// launches that may have failed: those of this stream that are not known to be complete and,
    /// if the device is lost, those of the device's other streams.
    #[must_use]
    pub fn surfaced(&self, source: DriverError) -> Error {
        self.core().surfaced(Some(self.id()), source)
    }

    /// Returns the number of the last enqueued operation. 0 if there is none.
    #[must_use]
    pub fn last_op(&self) -> OpNumber {
        self.0.progress.last()
    }

    /// Returns the operations that come before this stream's next operation.
    #[must_use]
    pub fn before(&self) -> Before {
        Before(self.now())
    }

    /// Returns whether the host has observed that operation `op` is complete. Does not query the
    /// device; [`Stream::is_done`] does.
    #[must_use]
    pub fn is_known_done(&self, op: OpNumber) -> bool {
        self.0.progress.is_known_done(op)
    }

    /// Returns whether all later work on this stream comes after operation `op` of `other`: by
    /// stream order, by a chain of waits across streams, or because the host has observed that `op`
    /// is complete.
    ///
    /// # Errors
    /// Never fails.
    pub fn is_ordered_after(&self, other: &Stream, op: OpNumber) -> Result<bool> {
        Ok(self == other
            || other.0.progress.is_known_done(op)
            || self.0.lock().clock.covers(other.id(), op))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("device", &self.device_index())
            .field("id", &self.id())
            .field("handle", &self.0.raw.handle().raw())
            .field("last_op", &self.last_op())
            .finish()
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_default() {
            return write!(f, "the default stream of cuda:{}", self.device_index());
        }
        write!(f, "stream {} of cuda:{}", self.id(), self.device_index())
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        // Compare pointers first: the streams are usually clones, and this needs no access to the stream.
        Arc::ptr_eq(&self.0, &other.0) || self.id() == other.id()
    }
}

impl Eq for Stream {}

impl Hash for Stream {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}
