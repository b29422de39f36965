//! Events.

use std::sync::{Arc, PoisonError};

use warpline_cuda_sys_safe::EventFlags;
use warpline_sync::{Mutex, MutexGuard};

use crate::clock::StreamPoint;
use crate::device::DeviceCore;
use crate::event_pool::PooledEvent;
use crate::stream::Stream;
use crate::{ErrorKind, Result};

/// A marker in a stream (`torch.cuda.Event`). Clones share the event.
///
/// The first [`Event::record`] takes a driver's event from a pool, or creates one, and binds the
/// event to the stream's device. Each record replaces the previous record.
#[derive(Clone, Debug, Default)]
pub struct Event(Arc<EventInner>);

#[derive(Debug, Default)]
struct EventInner {
    flags: EventFlags,
    /// Lock this before any stream's lock, never while a stream's lock is held.
    recorded: Mutex<Option<EventRecord>>,
}

#[derive(Debug)]
struct EventRecord {
    event: Arc<PooledEvent>,
    /// The stream's end at the latest record.
    point: StreamPoint,
    device: usize,
    /// Number of records so far.
    generation: u64,
}

impl EventRecord {
    /// Fails if the latest record is captured, because captured work does not run and the host
    /// would wait forever.
    #[track_caller]
    fn refuse_captured(&self, call: &'static str) -> Result<()> {
        if self.point.capture.is_some() { Err(ErrorKind::CapturedEvent.of(call)) } else { Ok(()) }
    }
}

impl Event {
    /// Creates an event that has not been recorded (`torch.cuda.Event`). `flags` is `()` or
    /// [`EventFlags`]. [`Event::elapsed_time`] needs two events with
    /// [`enable_timing`](EventFlags::enable_timing).
    #[must_use]
    #[doc(alias = "enable_timing")]
    pub fn new(flags: impl Into<EventFlags>) -> Self {
        Self(Arc::new(EventInner { flags: flags.into(), recorded: Mutex::new(None) }))
    }

    /// Returns the event's flags.
    #[must_use]
    pub fn flags(&self) -> EventFlags {
        self.0.flags
    }

    /// Returns the index of the event's device. `None` before the first record.
    #[must_use]
    pub fn device_index(&self) -> Option<usize> {
        self.lock().as_ref().map(|r| r.device)
    }

    fn lock(&self) -> MutexGuard<'_, Option<EventRecord>> {
        self.0.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the event after all work enqueued on the stream so far (`Event.record`).
    ///
    /// # Errors
    /// - [`ErrorKind::WrongDevice`] if the event was first recorded on another device.
    /// - [`ErrorKind::RuntimeMismatch`] if the event was first recorded on a stream of other
    ///   [`Devices`](crate::Devices).
    /// - [`ErrorKind::NotCapturing`] if the stream is the twin of a capture that has ended.
    /// - [`ErrorKind::Driver`] if a driver call fails.
    #[track_caller]
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.record_as(stream, "record", "the stream")
    }

    /// Records as [`Event::record`] does. Errors name the operation `call` and the object `object`.
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
        *recorded = Some(EventRecord { event, point, device: stream.device_index(), generation });
        Ok(())
    }

    /// Makes later work on the stream wait, on the GPU, for the latest record (`Event.wait`). Does
    /// nothing if the event was never recorded.
    ///
    /// # Errors
    /// - [`ErrorKind::RuntimeMismatch`] if the event belongs to other [`Devices`](crate::Devices).
    /// - [`ErrorKind::OutsideCapture`] if the stream is captured, or is a twin, and the record is not part of its
    ///   capture.
    /// - [`ErrorKind::CapturedEvent`] if the record is part of a capture that has ended.
    /// - [`ErrorKind::CannotCapture`] or [`ErrorKind::WrongDevice`] if the record is captured and
    ///   the stream cannot join the capture.
    /// - [`ErrorKind::NotCapturing`] if the stream is a twin in the record's capture, and that capture has ended.
    /// - [`ErrorKind::Driver`] if a driver call fails.
    #[track_caller]
    pub fn wait(&self, stream: &Stream) -> Result<()> {
        self.wait_as(stream, "wait")
    }

    /// Waits as [`Event::wait`] does. Errors name the operation `call`.
    #[track_caller]
    pub(crate) fn wait_as(&self, stream: &Stream, call: &'static str) -> Result<()> {
        // Hold the lock until the wait is enqueued, so that `point` describes the record that the
        // driver waits for.
        let recorded = self.lock();
        let Some(recorded) = &*recorded else { return Ok(()) };
        stream.check_same_devices(recorded.event.core(), call)?;
        stream.enqueue_wait(call, &recorded.event, &recorded.point)
    }

    /// Returns whether the work of the latest record is complete (`Event.query`). `true` if the
    /// event was never recorded.
    ///
    /// # Errors
    /// - [`ErrorKind::CapturedEvent`] if the latest record is captured.
    /// - [`ErrorKind::Surfaced`] or [`ErrorKind::Driver`] if the driver reports a failure, including one of earlier
    ///   asynchronous work.
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

    /// Blocks the host until the work of the latest record is complete (`Event.synchronize`). Does
    /// nothing if the event was never recorded.
    ///
    /// # Errors
    /// - [`ErrorKind::IndexCheck`], once, if an index was out of range in a launch of this thread,
    ///   or of a thread that has ended.
    /// - [`ErrorKind::CapturedEvent`] if the latest record is captured.
    /// - [`ErrorKind::Surfaced`] or [`ErrorKind::Driver`] if the driver reports a failure, including one of earlier
    ///   asynchronous work.
    #[track_caller]
    pub fn synchronize(&self) -> Result<()> {
        self.wait_on_host("synchronize", StreamPoint::settle_and_report)
    }

    /// Waits as [`Event::synchronize`] does, but reports no failed index checks: a later `synchronize` reports them.
    ///
    /// # Errors
    /// - [`ErrorKind::CapturedEvent`] if the latest record is captured.
    /// - [`ErrorKind::Surfaced`] or [`ErrorKind::Driver`] if the driver reports a failure, including one of earlier
    ///   asynchronous work.
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
        settle: impl FnOnce(&StreamPoint, &DeviceCore) -> Result<()>,
    ) -> Result<()> {
        let (event, generation) = match &*self.lock() {
            Some(recorded) => {
                recorded.refuse_captured(call)?;
                (Arc::clone(&recorded.event), recorded.generation)
            }
            None => return Ok(()),
        };
        event.synchronize().map_err(|e| event.core().surfaced(None, e))?;
        // If another thread recorded the event again, the driver may have waited for either record.
        if let Some(recorded) = self.lock().as_ref().filter(|r| r.generation == generation) {
            settle(&recorded.point, event.core())?;
        }
        Ok(())
    }

    /// Returns the time from this event's latest record to that of `end`, in milliseconds
    /// (`Event.elapsed_time`).
    ///
    /// # Errors
    /// - [`ErrorKind::NoTiming`] if one of the events has no timing.
    /// - [`ErrorKind::EventNotRecorded`] if one of the events was never recorded.
    /// - [`ErrorKind::RuntimeMismatch`] if the events belong to different
    ///   [`Devices`](crate::Devices).
    /// - [`ErrorKind::WrongDevice`] if the events are on different devices.
    /// - [`ErrorKind::EventNotFinished`] if the work of one of the records is not complete.
    /// - The errors of [`Event::query`].
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
        if from.core().shared.id() != to.core().shared.id() {
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
