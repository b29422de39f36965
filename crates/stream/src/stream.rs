//! Streams, the numbering of their operations, and waits between them.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use smallvec::SmallVec;
use warpline_cuda_sys_safe::{DriverError, StreamHandle, owned};

use crate::device::Core;
use crate::event_pool::PooledEvent;
use crate::launches::Launches;
use crate::order::{After, Checkpoints, Progress, Synced};
use crate::{Event, OpNumber, PendingLaunches, Result, StreamError};

/// A stream of one device. Clones share it; equality and hash go by [`Stream::id`].
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    raw: owned::Stream,
    core: Arc<Core>,
    progress: Arc<Progress>,
    /// Held while work is enqueued, so that its number is its place in the stream. No second
    /// stream's lock is ever taken under it.
    state: Mutex<State>,
    /// What an error may be of. Changed under the lock on `state` only.
    launches: Launches,
}

#[derive(Debug, Default)]
struct State {
    checkpoints: Checkpoints,
    synced: Synced,
}

/// A record of a stream's work, and what is known to come before it.
pub(crate) struct Point {
    pub(crate) progress: Arc<Progress>,
    /// The last operation that the record covers.
    pub(crate) op: OpNumber,
    /// Operations of other streams that come before `op`.
    pub(crate) before: SmallVec<[After; 4]>,
}

impl Inner {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn advance(&self, _held: &mut State) -> OpNumber {
        let op = self.progress.advance();
        if op == 1 {
            self.core.world.count_stream();
        }
        op
    }

    fn point(&self, state: &State, op: OpNumber) -> Point {
        let before = state.synced.known_at(op).cloned().collect();
        Point { progress: Arc::clone(&self.progress), op, before }
    }

    /// The earliest checkpoint at or after `op`, recorded now if there is none.
    #[track_caller]
    fn checkpoint(&self, state: &mut State, op: OpNumber) -> Result<(OpNumber, Arc<PooledEvent>)> {
        let last = self.progress.last();
        let op = op.min(last);
        if state.checkpoints.at_or_after(op).is_none() {
            state.checkpoints.record(&self.core, &self.raw, last)?;
        }
        match state.checkpoints.at_or_after(op) {
            Some((at, event)) => Ok((*at, Arc::clone(event))),
            // Not reached: one was recorded at `last`, which is not before `op`.
            None => Err(StreamError::EventNotRecorded { call: "wait_for" }),
        }
    }

    /// What a record of the stream at its operation `op` says of this and other streams.
    pub(crate) fn point_at(&self, op: OpNumber) -> Point {
        self.point(&self.lock(), op)
    }

    /// Enters that the host has seen operation `op` done, and with it all that came before it.
    pub(crate) fn mark_done(&self, op: OpNumber) {
        self.progress.mark_done(op);
        for after in self.lock().synced.known_at(op) {
            // Waits for a lost device end although its work was not done.
            if after.other.device == self.core.index
                || self.core.driver.lost(after.other.device).is_none()
            {
                after.other.mark_done(after.op);
            }
        }
    }
}

impl Stream {
    pub(crate) fn new(core: &Arc<Core>, raw: owned::Stream) -> Self {
        let progress = Arc::new(Progress::new(raw.id(), core.index));
        let core = Arc::clone(core);
        let inner = Arc::new(Inner {
            raw,
            core,
            progress,
            state: Mutex::default(),
            launches: Launches::default(),
        });
        inner.core.register(Arc::downgrade(&inner));
        Self(inner)
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Self {
        Self(inner)
    }

    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.0)
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.0.progress
    }

    pub(crate) fn mark_done(&self, op: OpNumber) {
        self.0.mark_done(op);
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

    /// The driver's stream. Work enqueued through it directly is not numbered.
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
    /// stream, and numbers the operation. If `f` fails, nothing is numbered.
    ///
    /// `f` must use this stream only through the handle it is given, and no [`Event`]: it would
    /// wait for itself.
    ///
    /// # Errors
    /// What `f` answers.
    pub fn submit<R, E>(
        &self,
        f: impl FnOnce(StreamHandle) -> std::result::Result<R, E>,
    ) -> std::result::Result<(R, OpNumber), E> {
        let inner = &*self.0;
        let mut state = inner.lock();
        let result = f(inner.raw.handle())?;
        let op = inner.advance(&mut state);
        if inner.core.world.uses_many_streams() {
            // The operation is enqueued whether or not this works. Whoever waits for it finds no
            // checkpoint, records one, and gets the error.
            let _ = state.checkpoints.record(&inner.core, &inner.raw, op);
        }
        Ok((result, op))
    }

    /// Says what the operation is that a closure given to [`Stream::submit`] has just enqueued, for
    /// errors that surface later. `operands` are dtypes and sizes.
    pub fn note_launch<'a>(
        &self,
        op: &'static str,
        location: &'static Location<'static>,
        operands: impl Iterator<Item = (&'static str, &'a [usize])>,
    ) {
        self.0.launches.note(op, self.last_op() + 1, location, operands);
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

    /// Whether all later work on this stream is known to come after operation `op` of `other`:
    /// by stream order, by waits, or because the host has seen it done.
    ///
    /// It is never wrong when true. It may be false for an order that came about through a third
    /// stream.
    ///
    /// # Errors
    /// None at present.
    pub fn is_ordered_after(&self, other: &Stream, op: OpNumber) -> Result<bool> {
        Ok(self == other
            || other.0.progress.is_known_done(op)
            || self.0.lock().synced.covers(other.id(), op))
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
        let (event, point) = {
            let mut state = other.0.lock();
            let (at, event) = other.0.checkpoint(&mut state, op)?;
            (event, other.0.point(&state, at))
        };
        self.enqueue_wait(&event, &point)
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
        self.enqueue_wait(&event, &point)
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
        let state = self.0.lock();
        event.record(&self.0.raw)?;
        Ok(self.0.point(&state, self.last_op()))
    }

    /// Enqueues a wait for an event that was recorded at a point.
    #[track_caller]
    pub(crate) fn enqueue_wait(&self, event: &owned::Event, point: &Point) -> Result<()> {
        let mut state = self.0.lock();
        self.0.raw.wait_event(event)?;
        // The wait is an operation of its own, so that later records are known to include it.
        let since = self.0.advance(&mut state);
        state.synced.raise(&point.progress, point.op, since);
        for after in &point.before {
            if after.other.stream != self.id() {
                state.synced.raise(&after.other, after.op, since);
            }
        }
        Ok(())
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
        let op = self.last_op();
        let done = self.0.raw.query().map_err(|e| self.surfaced(e))?;
        if done {
            self.mark_done(op);
        }
        Ok(done)
    }

    /// Blocks the host until all its work is done (`Stream.synchronize`).
    ///
    /// # Errors
    /// As [`Stream::query`].
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        let op = self.last_op();
        self.0.raw.synchronize().map_err(|e| self.surfaced(e))?;
        self.mark_done(op);
        Ok(())
    }

    /// Blocks the host until operation `op` is done; later work is not waited for where a
    /// checkpoint tells them apart. Costs a compare when that is already known.
    ///
    /// # Errors
    /// As [`Stream::query`].
    #[track_caller]
    pub fn host_wait(&self, op: OpNumber) -> Result<()> {
        if self.0.progress.is_known_done(op) {
            return Ok(());
        }
        // The lock is given back before blocking: others may go on enqueueing.
        let (at, event) = self.0.checkpoint(&mut self.0.lock(), op)?;
        event.synchronize().map_err(|e| self.surfaced(e))?;
        self.mark_done(at);
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
        let (at, event) = self.0.checkpoint(&mut self.0.lock(), op)?;
        let done = event.query().map_err(|e| self.surfaced(e))?;
        if done {
            self.mark_done(at);
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
        self.id() == other.id()
    }
}

impl Eq for Stream {}

impl Hash for Stream {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}
