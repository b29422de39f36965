//! Stream capture: begin, end and status.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::sim::state::capture::{CaptureState, thread_number};
use crate::sim::state::graph::{BodyNodes, Frontier, GraphNodes};
use crate::sim::state::work::StreamKey;
use crate::sim::state::{SimState, error};
use crate::sim::{CallKind, SimDriver};
use crate::*;

impl SimDriver {
    /// Ends the capture of a stream after a failure of the call, as CUDA does unless a wrong thread made the call.
    pub(super) fn abandon_capture(&self, stream: StreamHandle) {
        let mut state = self.lock();
        state.abandon_capture(stream);
        self.unlock(state);
    }
}

impl SimState {
    fn abandon_capture(&mut self, stream: StreamHandle) {
        let Ok(key) = self.stream_key(CallKind::EndCapture, stream) else { return };
        let Some(id) = self.streams.get(&key).and_then(|s| s.capture) else { return };
        let may_end = self.captures.get(&id).is_some_and(|capture| {
            let is_thread =
                capture.mode == CaptureMode::Relaxed || capture.thread == thread_number();
            capture.origin == key && is_thread
        });
        if may_end {
            self.remove_capture(id);
        }
    }

    pub(super) fn begin_capture(&mut self, stream: StreamHandle, mode: CaptureMode) -> Result<()> {
        let call = CallKind::BeginCapture;
        let key = self.stream_key(call, stream)?;
        let device = stream.device();
        if stream.raw() == 0 {
            self.check_implicit(key, call)?;
            let why = "the legacy default stream cannot be captured";
            return Err(error(call, CudaCode::STREAM_CAPTURE_UNSUPPORTED, device, why));
        }
        if self.streams.get(&key).is_some_and(|s| s.capture.is_some()) {
            return Err(error(call, CudaCode::ILLEGAL_STATE, device, "already being captured"));
        }
        self.insert_capture(key, device, mode, None);
        Ok(())
    }

    /// Begins the capture of a stream, as a graph or into the body of a conditional node.
    pub(super) fn insert_capture(
        &mut self,
        key: StreamKey,
        device: usize,
        mode: CaptureMode,
        body: Option<(u64, BodyNodes)>,
    ) {
        let id = self.fresh();
        let capture = CaptureState {
            origin: key,
            device,
            mode,
            thread: thread_number(),
            nodes: Vec::new(),
            frontiers: BTreeMap::from([(key, Frontier::new())]),
            last_nodes: BTreeMap::new(),
            invalid: false,
            body,
        };
        self.captures.insert(id, capture);
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.capture = Some(id);
        }
    }

    pub(super) fn end_capture(&mut self, stream: StreamHandle) -> Result<GraphHandle> {
        let call = CallKind::EndCapture;
        let key = self.stream_key(call, stream)?;
        let device = stream.device();
        self.check_implicit(key, call)?;
        let refuse = |code| Err(error(call, code, device, ""));
        let Some(id) = self.streams.get(&key).and_then(|s| s.capture) else {
            return refuse(CudaCode::ILLEGAL_STATE);
        };
        let Some(capture) = self.captures.get_mut(&id) else {
            return refuse(CudaCode::ILLEGAL_STATE);
        };
        if capture.origin != key {
            capture.invalid = true;
            return refuse(CudaCode::STREAM_CAPTURE_UNMATCHED);
        }
        if capture.mode != CaptureMode::Relaxed && capture.thread != thread_number() {
            return refuse(CudaCode::STREAM_CAPTURE_WRONG_THREAD);
        }
        let Some(capture) = self.remove_capture(id) else {
            return refuse(CudaCode::ILLEGAL_STATE);
        };
        if capture.invalid {
            return refuse(CudaCode::STREAM_CAPTURE_INVALIDATED);
        }
        if !capture.joined() {
            return refuse(CudaCode::STREAM_CAPTURE_UNJOINED);
        }
        let nodes = Arc::new(GraphNodes::new(capture.nodes));
        let graph = match capture.body {
            Some((graph, body)) => {
                let _ = body.set(nodes);
                graph
            }
            None => {
                let graph = self.fresh();
                self.graphs.insert(graph, (device, nodes));
                graph
            }
        };
        // SAFETY: this driver has just created the object.
        Ok(unsafe { GraphHandle::from_raw(device, graph) })
    }

    pub(super) fn capture_status(&self, stream: StreamHandle) -> Result<CaptureStatus> {
        let call = CallKind::CaptureStatus;
        let key = self.stream_key(call, stream)?;
        let device = stream.device();
        if stream.raw() == 0 && !self.blocking_captures(device).is_empty() {
            return Err(error(call, CudaCode::STREAM_CAPTURE_IMPLICIT, device, ""));
        }
        let Some(id) = self.streams.get(&key).and_then(|s| s.capture) else {
            return Ok(CaptureStatus::None);
        };
        match self.captures.get(&id) {
            Some(capture) if capture.invalid => Ok(CaptureStatus::Invalidated),
            _ => Ok(CaptureStatus::Active(id)),
        }
    }

    pub(super) fn exchange_capture_mode(&mut self, mode: CaptureMode) -> CaptureMode {
        self.capture_modes.insert(thread_number(), mode).unwrap_or(CaptureMode::Global)
    }
}
