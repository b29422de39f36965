//! Conditional nodes of graphs.

use crate::sim::CallKind;
use crate::sim::state::graph::{BodyNodes, ConditionalWork};
use crate::sim::state::streams::StreamOpKind;
use crate::sim::state::work::{DeviceWork, Label, StreamKey};
use crate::sim::state::{SimState, error};
use crate::*;

impl SimState {
    /// Returns the key of a captured stream, and its capture.
    fn captured_stream(
        &mut self,
        call: CallKind,
        stream: StreamHandle,
    ) -> Result<(StreamKey, u64)> {
        let key = self.stream_key(call, stream)?;
        self.check_captures(key, call)?;
        match self.streams.get(&key).and_then(|stream| stream.capture) {
            Some(capture) => Ok((key, capture)),
            None => {
                let why = "the stream is not captured";
                Err(error(call, CudaCode::ILLEGAL_STATE, stream.device(), why))
            }
        }
    }

    pub(super) fn condition_create(&mut self, stream: StreamHandle) -> Result<ConditionHandle> {
        let (_, capture) = self.captured_stream(CallKind::ConditionCreate, stream)?;
        let id = self.fresh();
        self.conditions.insert(id, capture);
        // SAFETY: this driver has just created the object.
        Ok(unsafe { ConditionHandle::from_raw(stream.device(), id) })
    }

    pub(super) fn capture_conditional(
        &mut self,
        stream: StreamHandle,
        condition: ConditionHandle,
        kind: ConditionalKind,
    ) -> Result<GraphHandle> {
        let (call, device) = (CallKind::CaptureConditional, stream.device());
        let (key, capture) = self.captured_stream(call, stream)?;
        // A condition is for one node, of the graph in which the condition was created.
        if self.conditions.get(&condition.raw()) != Some(&capture) {
            let why = "no such condition in the captured graph, or a node has it already";
            return Err(error(call, CudaCode::INVALID_VALUE, device, why));
        }
        self.conditions.remove(&condition.raw());
        let body = BodyNodes::default();
        let node = ConditionalWork { condition: condition.raw(), kind, body: body.clone() };
        let op = match kind {
            ConditionalKind::If => "if",
            ConditionalKind::While => "while",
        };
        let label = Label { op, ..Label::of(call) };
        let work = StreamOpKind::Work(DeviceWork::Conditional(node.into()));
        self.enqueue(key, label, work, &[])?;
        let id = self.fresh();
        self.bodies.insert(id, (device, body));
        // SAFETY: this driver has just created the object.
        Ok(unsafe { GraphHandle::from_raw(device, id) })
    }

    pub(super) fn begin_capture_to_body(
        &mut self,
        stream: StreamHandle,
        body: GraphHandle,
    ) -> Result<()> {
        let (call, device) = (CallKind::BeginCaptureToBody, stream.device());
        let key = self.stream_key(call, stream)?;
        if stream.raw() == 0 {
            let why = "the legacy default stream cannot be captured";
            return Err(error(call, CudaCode::STREAM_CAPTURE_UNSUPPORTED, device, why));
        }
        if self.streams.get(&key).is_some_and(|s| s.capture.is_some()) {
            return Err(error(call, CudaCode::ILLEGAL_STATE, device, "already being captured"));
        }
        let Some((_, nodes)) = self.bodies.remove(&body.raw()).filter(|(on, _)| *on == device)
        else {
            let why = "no such body, or its capture has begun already";
            return Err(error(call, CudaCode::INVALID_VALUE, device, why));
        };
        self.insert_capture(key, device, CaptureMode::Relaxed, Some((body.raw(), nodes)));
        Ok(())
    }
}
