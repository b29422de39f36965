//! Events: points of streams that can be recorded again.

use crate::sim::CallKind;
use crate::sim::state::streams::{EventState, StreamOpKind};
use crate::sim::state::work::{Label, Point};
use crate::sim::state::{SimState, error};
use crate::*;

impl SimState {
    pub(super) fn event_create(&mut self, device: usize, flags: EventFlags) -> Result<EventHandle> {
        if flags.interprocess && flags.timing {
            let why = "an interprocess event keeps no times";
            return Err(error(CallKind::EventCreate, CudaCode::INVALID_VALUE, device, why));
        }
        let id = self.fresh();
        let event = EventState { device, flags, latest: None, time: None, captured: None };
        self.events.insert(id, event);
        // SAFETY: this driver has just created the object.
        Ok(unsafe { EventHandle::from_raw(device, id) })
    }

    fn event(&self, call: CallKind, handle: EventHandle) -> Result<&EventState> {
        match self.events.get(&handle.raw()) {
            Some(event) if event.device == handle.device() => Ok(event),
            _ => Err(error(call, CudaCode::INVALID_HANDLE, handle.device(), "no such event")),
        }
    }

    pub(super) fn event_destroy(&mut self, handle: EventHandle) -> Result<()> {
        self.event(CallKind::EventDestroy, handle)?;
        self.events.remove(&handle.raw());
        Ok(())
    }

    pub(super) fn event_record(
        &mut self,
        handle: EventHandle,
        stream: StreamHandle,
    ) -> Result<Option<Point>> {
        let call = CallKind::EventRecord;
        let interprocess = self.event(call, handle)?.flags.interprocess;
        let key = self.stream_key(call, stream)?;
        self.check_captures(key, call)?;
        if handle.device() != stream.device() {
            let why = format!("the event is of cuda:{}", handle.device());
            return Err(error(call, CudaCode::INVALID_HANDLE, stream.device(), &why));
        }
        if let Some(captured) = self.capture_frontier(key) {
            if interprocess {
                let why = "an interprocess event cannot be recorded in a capture";
                let code = CudaCode::STREAM_CAPTURE_UNSUPPORTED;
                return Err(error(call, code, stream.device(), why));
            }
            if let Some(event) = self.events.get_mut(&handle.raw()) {
                event.captured = Some(captured);
            }
            return Ok(None);
        }
        let point = self.enqueue(key, Label::of(call), StreamOpKind::Record(handle.raw()), &[])?;
        if let Some(event) = self.events.get_mut(&handle.raw()) {
            (event.latest, event.time, event.captured) = (point, None, None);
        }
        Ok(point)
    }

    /// Makes the stream wait for the latest record of the event at this time.
    pub(super) fn stream_wait_event(
        &mut self,
        stream: StreamHandle,
        handle: EventHandle,
    ) -> Result<Option<Point>> {
        let call = CallKind::StreamWaitEvent;
        let key = self.stream_key(call, stream)?;
        let event = self.event(call, handle)?;
        let (latest, interprocess) = (event.latest, event.flags.interprocess);
        let captured = event.captured.clone();
        // Captures are checked even if the event has no pending work.
        self.check_captures(key, call)?;
        let capturing = self.capture_frontier(key).is_some();
        if let Some((capture, frontier)) = captured {
            self.capture_join(call, key, capture, &frontier)?;
            return Ok(None);
        }
        if capturing && (interprocess || latest.is_some()) {
            self.invalidate_capture_of(key);
            let (code, why) = match interprocess {
                true => (
                    CudaCode::STREAM_CAPTURE_UNSUPPORTED,
                    "an interprocess event cannot be waited for in a capture",
                ),
                false => (
                    CudaCode::STREAM_CAPTURE_ISOLATION,
                    "the event was recorded outside the capture",
                ),
            };
            return Err(error(call, code, stream.device(), why));
        }
        let Some(point) = latest else { return Ok(None) };
        if self.reached(point) {
            self.begin_after(key, point);
            return Ok(None);
        }
        self.enqueue(key, Label::of(call), StreamOpKind::Wait, &[point])
    }

    /// Returns the point of an event, for a query or a wait; `None` if the event was never
    /// recorded. Returns an error if the event was last recorded in a capture. For other events,
    /// returns an error if active captures forbid the call to this thread.
    pub(super) fn event_point(
        &mut self,
        call: CallKind,
        handle: EventHandle,
    ) -> Result<Option<Point>> {
        self.check_not_captured(call, handle)?;
        self.check_unsafe_call(call, handle.device())?;
        Ok(self.event(call, handle)?.latest)
    }

    fn check_not_captured(&mut self, call: CallKind, handle: EventHandle) -> Result<()> {
        match self.event(call, handle)?.captured {
            Some((id, _)) => Err(self.refuse_captured_event(call, handle.device(), id)),
            None => Ok(()),
        }
    }

    pub(super) fn event_elapsed(&mut self, start: EventHandle, end: EventHandle) -> Result<f32> {
        let call = CallKind::EventElapsed;
        let device = start.device();
        let no = |why| Err(error(call, CudaCode::INVALID_HANDLE, device, why));
        for event in [start, end] {
            self.check_not_captured(call, event)?;
            let event = self.event(call, event)?;
            if !event.flags.timing {
                return no("an event keeps no times");
            }
            if event.latest.is_none() {
                return no("an event was never recorded");
            }
        }
        if start.device() != end.device() {
            return no("the events are of different devices");
        }
        let (from, to) = (self.event(call, start)?, self.event(call, end)?);
        match (from.time, to.time) {
            (Some(from), Some(to)) => Ok(((to - from) / 1000.0) as f32),
            _ => Err(error(call, CudaCode::NOT_READY, device, "an event is not done")),
        }
    }
}
