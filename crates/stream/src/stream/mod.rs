//! Streams, the numbering of their operations, and waits between them.
//!
//! Each stream numbers its operations. The numbering belongs to the driver's stream: a driver's
//! stream that is wrapped again gets the existing stream object, or continues its numbers. `submit`
//! enqueues and numbers in one step. `wait_for(other, op)` makes later work of this stream wait, on
//! the GPU, for an operation of another stream. If that order is already known, it costs one
//! comparison.
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

use crate::capture::{Capture, Slot};
use crate::clock::{Before, Clock, Point};
use crate::device::Core;
use crate::event_pool::PooledEvent;
use crate::launches::Launches;
use crate::order::{Checkpoint, Checkpoints, Progress};
use crate::{Device, Error, ErrorKind, Event, Mailbox, OpNumber, PendingLaunches, Result, Site};

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
    /// Where its kernels report failed checks. Made on first use.
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
                return Err(ErrorKind::Capturing.of("wait_for"));
            }
            checkpoints.record(&self.core, &self.raw, last, clock)?;
        }
        match checkpoints.at_or_after(op).cloned() {
            Some(Checkpoint { op, before, event }) => Ok((event, self.point_at(op, before))),
            // Not reached: one was recorded at `last`, which is not before `op`.
            None => Err(ErrorKind::EventNotRecorded.of("wait_for")),
        }
    }

    /// A checkpoint after all that it was given outside a capture, numbered or not; `None` if that is
    /// done.
    #[track_caller]
    fn checkpoint_of_all(&self) -> Result<Option<(Arc<PooledEvent>, Point)>> {
        let mut state = self.lock();
        if self.capture.captured().is_none() {
            if self.raw.query().unwrap_or(false) {
                return Ok(None);
            }
            self.record_checkpoint(&mut state)?;
        }
        // While it is captured: the one that was recorded as that began.
        match state.checkpoints.latest().cloned() {
            Some(Checkpoint { op, before, event }) => Ok(Some((event, self.point_at(op, before)))),
            None => Err(ErrorKind::Capturing.of("wait_for_all")),
        }
    }

    /// Records a checkpoint although there may be one after the last operation: the allocator gives
    /// streams waits that have no number.
    #[track_caller]
    fn record_checkpoint(&self, state: &mut State) -> Result<()> {
        let State { checkpoints, clock } = state;
        checkpoints.record(&self.core, &self.raw, self.progress.last(), clock)?;
        Ok(())
    }

    /// Where the stream is.
    pub(crate) fn now(&self) -> Point {
        self.point(&self.lock())
    }
}

/// What [`Stream::new`] makes a stream on: a [`Device`], or what another crate has for naming one. `In` only
/// keeps implementations of several crates apart.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a GPU",
    label = "expected a GPU: an index, a name such as \"cuda:1\", a `Device`, or `()` for the current one"
)]
pub trait StreamDevice<In> {
    /// What it can fail with.
    type Error;

    /// A stream from the pool of that device.
    ///
    /// # Errors
    /// The driver's own; what the name of a device can fail with.
    fn stream(self, priority: i32) -> std::result::Result<Stream, Self::Error>;
}

impl StreamDevice<()> for &Device {
    type Error = Error;

    #[track_caller]
    fn stream(self, priority: i32) -> Result<Stream> {
        self.stream_from_pool(priority)
    }
}

impl Stream {
    /// A stream of a device (`torch.cuda.Stream(device)`), from its pool of 32, which is handed out in
    /// turn: the 33rd is the first again.
    ///
    /// # Errors
    /// The driver's own; what the name of a device can fail with.
    #[track_caller]
    pub fn new<In, D: StreamDevice<In>>(device: D) -> std::result::Result<Self, D::Error> {
        device.stream(0)
    }

    /// [`Stream::new`] of a priority, from 0, the least, to -3 (`torch.cuda.Stream(device, priority)`).
    /// Each has a pool of its own.
    ///
    /// # Errors
    /// As [`Stream::new`].
    #[track_caller]
    pub fn with_priority<In, D: StreamDevice<In>>(
        device: D,
        priority: i32,
    ) -> std::result::Result<Self, D::Error> {
        device.stream(priority)
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
        // Others can wait for earlier work, what has no number included, without touching the stream.
        if !self.is_capturing() {
            inner.record_checkpoint(&mut state)?;
        }
        f(&inner.capture)
    }

    /// Lets nobody enqueue on this stream as long as the result is kept.
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

    /// An event recorded at or after an operation, and where.
    #[track_caller]
    pub(crate) fn checkpoint(&self, op: OpNumber) -> Result<(Arc<PooledEvent>, Point)> {
        self.0.checkpoint(op)
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
    /// What `f` returns; [`ErrorKind::NotCapturing`] for the twin of a capture that is over.
    #[track_caller]
    pub fn submit<R, E: From<Error>>(
        &self,
        _token: LaunchToken,
        f: impl FnOnce(StreamHandle) -> std::result::Result<R, E>,
    ) -> std::result::Result<(R, OpNumber), E> {
        let location = Location::caller();
        self.with_acting(|inner, state| {
            // What a twin numbers from then on would run, under numbers that the stream gives too.
            inner.capture.refuse_ended("submit", location)?;
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
    /// token vouches.
    ///
    /// # Errors
    /// As [`Stream::submit`].
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

    /// Says what the operation is that a closure given to [`Stream::submit`] has just enqueued, for
    /// errors that surface later. `operands` are dtypes and sizes. What is captured does not run
    /// yet, and is not noted.
    pub fn note_launch<'a>(
        &self,
        site: Site,
        operands: impl Iterator<Item = (&'static str, &'a [usize])>,
    ) {
        if !self.is_capturing() {
            self.0.launches.note(self.last_op() + 1, site, operands);
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
    pub fn surfaced(&self, source: DriverError) -> Error {
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
