//! Events.

use std::sync::{Arc, PoisonError};

use warpline_cuda_sys_safe::EventFlags;
use warpline_sync::{Mutex, MutexGuard};

use crate::clock::Point;
use crate::device::Core;
use crate::event_pool::PooledEvent;
use crate::stream::Stream;
use crate::{ErrorKind, Result};

/// A mark in a stream (`torch.cuda.Event`). Clones share it.
///
/// Nothing is made on a device before the first [`Event::record`]; from then on the event belongs
/// to that stream's device. Each record replaces the one before.
#[derive(Clone, Debug, Default)]
pub struct Event(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    flags: EventFlags,
    /// Taken before any stream's lock, never after.
    recorded: Mutex<Option<Recorded>>,
}

#[derive(Debug)]
struct Recorded {
    event: Arc<PooledEvent>,
    /// Where its stream was at the latest record.
    point: Point,
    device: usize,
    /// How often it was recorded.
    generation: u64,
}

impl Recorded {
    /// Refuses to wait on the host for captured work, which does not run.
    #[track_caller]
    fn refuse_captured(&self, call: &'static str) -> Result<()> {
        if self.point.capture.is_some() { Err(ErrorKind::CapturedEvent.of(call)) } else { Ok(()) }
    }
}

impl Event {
    /// An event that has not been recorded. It keeps no times (`torch.cuda.Event()`).
    #[must_use]
    pub fn new() -> Self {
        Self::with_flags(EventFlags::default())
    }

    /// An event that keeps times, for [`Event::elapsed_time`]
    /// (`torch.cuda.Event(enable_timing=True)`).
    #[must_use]
    #[doc(alias = "enable_timing")]
    pub fn timing() -> Self {
        Self::with_flags(EventFlags { timing: true, ..EventFlags::default() })
    }

    /// An event made otherwise than by default.
    #[must_use]
    pub fn with_flags(flags: EventFlags) -> Self {
        Self(Arc::new(Shared { flags, recorded: Mutex::new(None) }))
    }

    /// How it is made.
    #[must_use]
    pub fn flags(&self) -> EventFlags {
        self.0.flags
    }

    /// The index of its device; `None` before the first record.
    #[must_use]
    pub fn device_index(&self) -> Option<usize> {
        self.lock().as_ref().map(|r| r.device)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Recorded>> {
        self.0.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records all work enqueued on the stream so far (`Event.record`).
    ///
    /// # Errors
    /// [`ErrorKind::WrongDevice`] when it was first recorded on another device,
    /// [`ErrorKind::RuntimeMismatch`], or the driver's own.
    #[track_caller]
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.record_as(stream, "record", "the stream")
    }

    /// [`Event::record`] as an operation of another name, of which errors are to speak.
    #[track_caller]
    pub(crate) fn record_as(
        &self,
        stream: &Stream,
        call: &'static str,
        object: &'static str,
    ) -> Result<()> {
        let mut recorded = self.lock();
        let (event, generation) = match &*recorded {
            Some(old) => {
                stream.check_same_devices(old.event.core(), call)?;
                if old.device != stream.device_index() {
                    let (expected, found) = (old.device, stream.device_index());
                    return Err(ErrorKind::WrongDevice { object, expected, found }.of(call));
                }
                (Arc::clone(&old.event), old.generation + 1)
            }
            None => (Arc::new(PooledEvent::take(stream.core(), self.0.flags)?), 1),
        };
        let point = stream.record_into(&event, call)?;
        *recorded = Some(Recorded { event, point, device: stream.device_index(), generation });
        Ok(())
    }

    /// Makes later work on the stream wait, on the GPU, for the latest record (`Event.wait`).
    /// Nothing if it was never recorded.
    ///
    /// # Errors
    /// [`ErrorKind::RuntimeMismatch`], or the driver's own.
    #[track_caller]
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        self.wait_as(stream, "wait")
    }

    /// [`Event::wait`] as an operation of another name, of which errors are to speak.
    #[track_caller]
    pub(crate) fn wait_as(&self, stream: &Stream, call: &'static str) -> Result<()> {
        // Held throughout: a record in between would be what is waited for.
        let recorded = self.lock();
        let Some(recorded) = &*recorded else { return Ok(()) };
        stream.check_same_devices(recorded.event.core(), call)?;
        stream.enqueue_wait(call, &recorded.event, &recorded.point)
    }

    /// Whether the work of the latest record is done; true if never recorded (`Event.query`).
    ///
    /// # Errors
    /// The driver's own, those of earlier asynchronous work among them.
    #[track_caller]
    pub fn query(&self) -> Result<bool> {
        let recorded = self.lock();
        let Some(recorded) = &*recorded else { return Ok(true) };
        recorded.refuse_captured("query")?;
        let event = &recorded.event;
        let done = event.query().map_err(|e| event.core().surfaced(None, e))?;
        if done {
            recorded.point.settle(event.core());
        }
        Ok(done)
    }

    /// Blocks the host until the work of the latest record is done (`Event.synchronize`). Nothing
    /// if it was never recorded.
    ///
    /// # Errors
    /// As [`Event::query`]; [`ErrorKind::IndexCheck`] as of [`Stream::synchronize`].
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        self.wait_on_host("synchronize", Point::settle_and_report)
    }

    /// [`Event::synchronize`] that leaves failed checks for `synchronize` to report.
    ///
    /// # Errors
    /// As [`Event::query`].
    #[track_caller]
    pub fn host_wait(&self) -> Result<()> {
        self.wait_on_host("host_wait", |point, core| {
            point.settle(core);
            Ok(())
        })
    }

    #[track_caller]
    fn wait_on_host(
        &self,
        call: &'static str,
        settle: impl FnOnce(&Point, &Core) -> Result<()>,
    ) -> Result<()> {
        let (event, generation) = match &*self.lock() {
            Some(recorded) => {
                recorded.refuse_captured(call)?;
                (Arc::clone(&recorded.event), recorded.generation)
            }
            None => return Ok(()),
        };
        event.synchronize().map_err(|e| event.core().surfaced(None, e))?;
        // If it was recorded anew meanwhile, which record was waited for is not known.
        if let Some(recorded) = self.lock().as_ref().filter(|r| r.generation == generation) {
            settle(&recorded.point, event.core())?;
        }
        Ok(())
    }

    /// Milliseconds from this event's latest record to `end`'s (`Event.elapsed_time`).
    ///
    /// # Errors
    /// [`ErrorKind::NoTiming`], [`ErrorKind::EventNotRecorded`], [`ErrorKind::RuntimeMismatch`],
    /// [`ErrorKind::WrongDevice`] or [`ErrorKind::EventNotFinished`], or the driver's own.
    #[track_caller]
    pub fn elapsed_time(&self, end: &Event) -> Result<f32> {
        const CALL: &str = "elapsed_time";
        if !(self.0.flags.timing && end.0.flags.timing) {
            return Err(ErrorKind::NoTiming.of(CALL));
        }
        let event_of = |event: &Event| event.lock().as_ref().map(|r| Arc::clone(&r.event));
        let (Some(from), Some(to)) = (event_of(self), event_of(end)) else {
            return Err(ErrorKind::EventNotRecorded.of(CALL));
        };
        if from.core().world.id() != to.core().world.id() {
            return Err(ErrorKind::RuntimeMismatch.of(CALL));
        }
        if from.device() != to.device() {
            let (expected, found) = (from.device(), to.device());
            return Err(
                ErrorKind::WrongDevice { object: "the end event", expected, found }.of(CALL)
            );
        }
        if !(self.query()? && end.query()?) {
            return Err(ErrorKind::EventNotFinished.of(CALL));
        }
        Ok(from.elapsed(&to)?)
    }
}
