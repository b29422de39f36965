//! Streams, the numbering of their operations, and waits between them.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::Location;
use std::sync::{Arc, PoisonError, Weak};

use warpline_cuda_sys_safe::owned::{self, LaunchToken};
use warpline_cuda_sys_safe::{DriverError, StreamHandle};
use warpline_sync::{Mutex, MutexGuard, OnceLock};

use crate::capture::{Capture, Slot};
use crate::clock::{Before, Clock, Point};
use crate::device::Core;
use crate::event_pool::PooledEvent;
use crate::launches::Launches;
use crate::order::{Checkpoint, Checkpoints, Progress};
use crate::{Event, Mailbox, OpNumber, PendingLaunches, Result, StreamError};

/// A stream of one device. Clones share it; equality and hash go by [`Stream::id`].
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    raw: owned::Stream,
    core: Arc<Core>,
    progress: Arc<Progress>,
    /// Held while work is enqueued, so that its number is its place in the stream. Under it no lock
    /// of a second stream is taken but that of its twin; who ends a capture takes those of all that
    /// take part.
    state: Mutex<State>,
    /// Changed under the lock on `state` only.
    capture: Slot,
    /// What an error may be of. Changed under the lock on `state` only.
    launches: Launches,
    /// Where its kernels say that a check failed; there once one that checks was launched.
    mailbox: OnceLock<Arc<Mailbox>>,
}

#[derive(Debug, Default)]
struct State {
    checkpoints: Checkpoints,
    clock: Clock,
}

/// A stream on which nobody else enqueues.
pub(crate) struct Held<'a>(MutexGuard<'a, State>);

impl Inner {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn advance(&self, _held: &mut State) -> OpNumber {
        let op = self.progress.advance();
        if op == 1 && self.capture.twin_in().is_none() {
            self.core.world.count_stream();
        }
        op
    }

    /// Where the stream is, its lock being held.
    fn point(&self, state: &State) -> Point {
        self.point_at(self.progress.last(), state.clock.clone())
    }

    fn point_at(&self, op: OpNumber, before: Clock) -> Point {
        let (progress, capture) = (Arc::clone(&self.progress), self.capture.twin_in().cloned());
        Point { progress, op, before, capture }
    }

    /// Enqueues a wait for an event that was recorded at a point, the lock being held.
    #[track_caller]
    fn wait_at(&self, state: &mut State, event: &owned::Event, point: &Point) -> Result<()> {
        self.raw.wait_event(event)?;
        self.enter_wait(state, point);
        Ok(())
    }

    /// Enters such a wait.
    fn enter_wait(&self, state: &mut State, point: &Point) {
        // The wait is an operation of its own, so that later records are known to include it.
        self.advance(state);
        state.clock.join(&self.progress, point);
    }

    /// The earliest checkpoint at or after `op`, recorded now if there is none.
    #[track_caller]
    fn checkpoint(&self, op: OpNumber) -> Result<(Arc<PooledEvent>, Point)> {
        self.checkpoint_in(&mut self.lock(), op)
    }

    #[track_caller]
    fn checkpoint_in(&self, state: &mut State, op: OpNumber) -> Result<(Arc<PooledEvent>, Point)> {
        let last = self.progress.last();
        let op = op.min(last);
        let State { checkpoints, clock } = state;
        if checkpoints.at_or_after(op).is_none() {
            if self.capture.captured().is_some() {
                return Err(StreamError::Capturing { call: "wait_for" });
            }
            checkpoints.record(&self.core, &self.raw, last, clock)?;
        }
        match checkpoints.at_or_after(op).cloned() {
            Some(Checkpoint { op, before, event }) => Ok((event, self.point_at(op, before))),
            // Not reached: one was recorded at `last`, which is not before `op`.
            None => Err(StreamError::EventNotRecorded { call: "wait_for" }),
        }
    }

    /// Where the stream is.
    pub(crate) fn now(&self) -> Point {
        self.point(&self.lock())
    }
}

impl Stream {
    pub(crate) fn registered(
        core: &Arc<Core>,
        raw: owned::Stream,
        progress: Arc<Progress>,
    ) -> Self {
        let stream = Self::build(core, raw, progress, None);
        core.register(stream.downgrade());
        stream
    }

    fn build(
        core: &Arc<Core>,
        raw: owned::Stream,
        progress: Arc<Progress>,
        twin_in: Option<Weak<Capture>>,
    ) -> Self {
        Self(Arc::new(Inner {
            progress,
            raw,
            core: Arc::clone(core),
            state: Mutex::default(),
            capture: Slot::new(twin_in),
            launches: Launches::default(),
            mailbox: OnceLock::new(),
        }))
    }

    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.0)
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Self {
        Self(inner)
    }

    /// What stands for a stream in a capture.
    pub(crate) fn twin(of: &Stream, capture: Weak<Capture>) -> Self {
        let progress = Arc::new(Progress::new(of.id(), of.device_index()));
        Self::build(&of.0.core, of.0.raw.clone(), progress, Some(capture))
    }

    pub(crate) fn slot(&self) -> &Slot {
        &self.0.capture
    }

    /// Runs `f`, which begins a capture of this stream or lets it join one, while nobody enqueues
    /// on it.
    #[track_caller]
    pub(crate) fn change_capture<R>(&self, f: impl FnOnce(&Slot) -> Result<R>) -> Result<R> {
        let inner = &*self.0;
        let mut state = inner.lock();
        // Others can wait for earlier work without touching the stream.
        if inner.progress.last() > 0 && !self.is_capturing() {
            inner.checkpoint_in(&mut state, inner.progress.last())?;
        }
        f(&inner.capture)
    }

    /// Lets nobody enqueue on this stream as long as the answer is kept.
    pub(crate) fn hold(&self) -> Held<'_> {
        Held(self.0.lock())
    }

    /// Makes this stream wait for all of another; both are held.
    pub(crate) fn wait_held(
        &self,
        held: &mut Held<'_>,
        other: &Self,
        other_held: &mut Held<'_>,
    ) -> Result<()> {
        let last = other.last_op();
        if held.0.clock.covers(other.id(), last) {
            return Ok(());
        }
        let (event, point) = other.0.checkpoint_in(&mut other_held.0, last)?;
        self.0.wait_at(&mut held.0, &event, &point)
    }

    /// Runs `f` on what the driver's stream is numbered by, locked: the twin while it is captured.
    #[track_caller]
    fn with_acting<R>(&self, f: impl FnOnce(&Inner, &mut State) -> R) -> R {
        let mut state = self.0.lock();
        match self.captured() {
            // The stream's own lock is kept, so that the capture does not end meanwhile.
            Some(captured) => {
                let twin = &captured.twin().0;
                f(twin, &mut twin.lock())
            }
            None => f(&self.0, &mut state),
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    pub(crate) fn now(&self) -> Point {
        self.0.now()
    }

    /// What of its work is not known to be complete.
    pub(crate) fn pending(&self) -> Option<PendingLaunches> {
        let (launches, older) = self.0.launches.after(self.0.progress.done());
        let pending = PendingLaunches { stream: self.to_string(), launches, older };
        (!pending.launches.is_empty()).then_some(pending)
    }

    /// The index of its device.
    #[must_use]
    pub fn device_index(&self) -> usize {
        self.0.core.index
    }

    /// The [`Devices::id`](crate::Devices::id) of the devices that its own is one of.
    #[must_use]
    pub fn devices_id(&self) -> u64 {
        self.0.core.world.id()
    }

    /// The driver's stream, with which safe code can add order and ask questions, but not enqueue
    /// work nor change what is captured. What `unsafe` code enqueues on it directly is not numbered.
    #[must_use]
    pub fn raw(&self) -> &owned::Stream {
        &self.0.raw
    }

    /// A number that no other stream of the process has or will have.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.raw.id()
    }

    /// Whether it is its device's legacy default stream.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.0.raw.handle() == StreamHandle::default_of(self.0.core.index)
    }

    /// The priority the driver gave it; lower runs first.
    ///
    /// # Errors
    /// The driver's own.
    #[track_caller]
    pub fn priority(&self) -> Result<i32> {
        Ok(self.0.raw.priority()?)
    }

    /// Runs `f`, which enqueues one operation, with the exclusive right to enqueue on this
    /// stream, and numbers the operation. If `f` fails, nothing is numbered. While the stream is
    /// captured the number is its [twin](crate::Captured::twin)'s.
    ///
    /// `f` must use this stream only through the handle it is given, and no [`Event`]: it would
    /// wait for itself. The token says that it is a launch path that asks.
    ///
    /// # Errors
    /// What `f` returns.
    pub fn submit<R, E>(
        &self,
        _token: LaunchToken,
        f: impl FnOnce(StreamHandle) -> std::result::Result<R, E>,
    ) -> std::result::Result<(R, OpNumber), E> {
        self.with_acting(|inner, state| {
            let result = f(inner.raw.handle())?;
            let op = inner.advance(state);
            if inner.core.world.uses_many_streams() || inner.capture.twin_in().is_some() {
                // The operation is enqueued whether or not this works. Whoever waits for it finds
                // no checkpoint, records one, and gets the error.
                let State { checkpoints, clock } = state;
                let _ = checkpoints.record(&inner.core, &inner.raw, op, clock);
            }
            Ok((result, op))
        })
    }

    /// [`Stream::submit`] of an operation that is done when `f` returns, such as a copy to pageable
    /// memory. It, and what comes before it, is then known to be done, for which the holder of the
    /// token vouches; a failed check of that is left for a wait to report.
    ///
    /// # Errors
    /// What `f` returns.
    pub fn submit_waited<R>(
        &self,
        _token: LaunchToken,
        f: impl FnOnce(StreamHandle) -> Result<R>,
    ) -> Result<(R, OpNumber)> {
        let (result, op, point) = self.with_acting(|inner, state| {
            let result = f(inner.raw.handle())?;
            Ok::<_, StreamError>((result, inner.advance(state), inner.point(state)))
        })?;
        point.mark_done(self.core());
        Ok((result, op))
    }

    /// Says what the operation is that a closure given to [`Stream::submit`] has just enqueued, for
    /// errors that surface later. `operands` are dtypes and sizes. What is captured does not run
    /// yet, and is not noted.
    pub fn note_launch<'a>(
        &self,
        op: &'static str,
        location: &'static Location<'static>,
        operands: impl Iterator<Item = (&'static str, &'a [usize])>,
    ) {
        if !self.is_capturing() {
            self.0.launches.note(op, self.last_op() + 1, location, operands);
        }
    }

    pub(crate) fn mailbox_slot(&self) -> &OnceLock<Arc<Mailbox>> {
        &self.0.mailbox
    }

    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.0.progress
    }

    /// A driver's error at a wait, a query or a launch, with the launches it may be of: those of
    /// this stream that are not known to be complete and, where the device is lost, of its others.
    #[must_use]
    pub fn surfaced(&self, source: DriverError) -> StreamError {
        self.core().surfaced(Some(self.id()), source)
    }

    /// The number of the last operation enqueued; 0 if there was none.
    #[must_use]
    pub fn last_op(&self) -> OpNumber {
        self.0.progress.last()
    }

    /// What comes before its next operation.
    #[must_use]
    pub fn before(&self) -> Before {
        Before(self.now())
    }

    /// Whether the host has seen operation `op` done. Asks nobody; [`Stream::is_done`] does.
    #[must_use]
    pub fn is_known_done(&self, op: OpNumber) -> bool {
        self.0.progress.is_known_done(op)
    }

    /// Whether all later work on this stream comes after operation `op` of `other`: by stream
    /// order, by waits, through however many streams, or because the host has seen it done.
    ///
    /// # Errors
    /// None at present.
    pub fn is_ordered_after(&self, other: &Stream, op: OpNumber) -> Result<bool> {
        Ok(self == other
            || other.0.progress.is_known_done(op)
            || self.0.lock().clock.covers(other.id(), op))
    }

    /// Makes later work on this stream wait, on the GPU, for operation `op` of `other`. Work that
    /// `other` was given after `op` is not waited for where a checkpoint tells them apart.
    ///
    /// Does nothing if that order already holds.
    ///
    /// # Errors
    /// [`StreamError::OtherDevices`], or the driver's own.
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
        let point = other.record_into(&event)?;
        self.enqueue_wait("wait_stream", &event, &point)
    }

    /// Makes later work on this stream wait, on the GPU, for the event's latest record
    /// (`Stream.wait_event`). Nothing if it was never recorded.
    ///
    /// # Errors
    /// As [`Stream::wait_for`].
    #[track_caller]
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        event.wait(self)
    }

    /// Records the event, or a new one without timing, after all work on this stream so far
    /// (`Stream.record_event`).
    ///
    /// # Errors
    /// As [`Event::record`].
    #[track_caller]
    pub fn record_event(&self, event: Option<&Event>) -> Result<Event> {
        let event = event.cloned().unwrap_or_default();
        event.record(self)?;
        Ok(event)
    }

    /// Records an event and says what it covers.
    #[track_caller]
    pub(crate) fn record_into(&self, event: &owned::Event) -> Result<Point> {
        self.with_acting(|inner, state| {
            inner.capture.refuse_ended("record")?;
            event.record(&inner.raw)?;
            Ok(inner.point(state))
        })
    }

    /// Enqueues a wait for an event that was recorded at a point.
    #[track_caller]
    pub(crate) fn enqueue_wait(
        &self,
        call: &'static str,
        event: &owned::Event,
        point: &Point,
    ) -> Result<()> {
        let joins =
            self.with_acting(|inner, state| match (inner.capture.twin_in(), &point.capture) {
                (None, Some(capture)) => Ok(Some(capture)),
                (Some(own), Some(other)) if !own.ptr_eq(other) => {
                    Err(StreamError::OutsideCapture { call })
                }
                (Some(_), None) => Err(StreamError::OutsideCapture { call }),
                _ => {
                    inner.capture.refuse_ended(call)?;
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

    pub(crate) fn check_same_devices(&self, core: &Core, call: &'static str) -> Result<()> {
        if self.0.core.world.id() == core.world.id() {
            return Ok(());
        }
        Err(StreamError::OtherDevices { call })
    }

    /// Whether all its work is done (`Stream.query`).
    ///
    /// # Errors
    /// The driver's own, those of earlier asynchronous work among them.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        self.refuse_capturing("query")?;
        let now = self.now();
        let done = self.0.raw.query().map_err(|e| self.surfaced(e))?;
        if done {
            now.settle(self.core())?;
        }
        Ok(done)
    }

    /// Blocks the host until all its work is done (`Stream.synchronize`).
    ///
    /// # Errors
    /// As [`Stream::query`].
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        self.refuse_capturing("synchronize")?;
        let now = self.now();
        self.0.raw.synchronize().map_err(|e| self.surfaced(e))?;
        now.settle(self.core())
    }

    /// Blocks the host until operation `op` is done; later work is not waited for where a
    /// checkpoint tells them apart. Costs a compare when that is already known.
    ///
    /// # Errors
    /// As [`Stream::query`].
    #[track_caller]
    pub fn host_wait(&self, op: OpNumber) -> Result<()> {
        if self.0.progress.is_known_done(op) {
            return self.report_known(op);
        }
        self.refuse_twin("host_wait")?;
        let (event, point) = self.0.checkpoint(op)?;
        event.synchronize().map_err(|e| self.surfaced(e))?;
        point.settle(self.core())
    }

    /// [`Stream::host_wait`] that counts as no order, as [`Stream::wait_for_silently`].
    ///
    /// # Errors
    /// As [`Stream::query`].
    #[track_caller]
    pub fn host_wait_silently(&self, op: OpNumber) -> Result<()> {
        if self.0.progress.is_known_done(op) {
            return self.report_known(op);
        }
        let (event, point) = self.0.checkpoint(op)?;
        event.synchronize().map_err(|e| self.surfaced(e))?;
        self.core().world.checks.look(&[point], || ())
    }

    /// Reports a failed check of this stream, up to an operation that is known to be done.
    fn report_known(&self, op: OpNumber) -> Result<()> {
        let point = || Point::at(op, Arc::clone(&self.0.progress), Clock::default());
        self.core().world.checks.look_at(point)
    }

    /// Whether operation `op` is done. False for a while longer where it has no checkpoint of
    /// its own.
    ///
    /// # Errors
    /// As [`Stream::query`].
    #[track_caller]
    pub fn is_done(&self, op: OpNumber) -> Result<bool> {
        if self.0.progress.is_known_done(op) {
            return self.report_known(op).map(|()| true);
        }
        self.refuse_twin("is_done")?;
        let (event, point) = self.0.checkpoint(op)?;
        let done = event.query().map_err(|e| self.surfaced(e))?;
        if done {
            point.settle(self.core())?;
        }
        Ok(done)
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
        // Nearly always it is the same handle, which is known without following it.
        Arc::ptr_eq(&self.0, &other.0) || self.id() == other.id()
    }
}

impl Eq for Stream {}

impl Hash for Stream {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}
