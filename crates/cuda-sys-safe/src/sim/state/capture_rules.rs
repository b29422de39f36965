//! Captures: recording work, and refusing the calls that captures forbid.

use std::collections::BTreeSet;

use super::capture::{CaptureState, thread_number};
use super::graph::{Frontier, GraphNode};
use super::streams::{StreamOpKind, StreamState};
use super::work::{DeviceWork, Label, StreamKey};
use super::{SimState, error};
use crate::sim::CallKind;
use crate::*;

const CAPTURE_OVER: &str = "the event was last recorded in a capture that is over or invalid";

impl SimState {
    /// Adds an operation to a capture instead of a queue.
    pub(crate) fn capture_op(
        &mut self,
        id: u64,
        key: StreamKey,
        label: Label,
        kind: StreamOpKind,
    ) -> Result<()> {
        let device = self.streams.get(&key).map_or(0, |s| s.device);
        let Some(capture) = self.captures.get_mut(&id) else { return Ok(()) };
        let refuse = |code, why| Err(error(label.call, code, device, why));
        match kind {
            StreamOpKind::Graph(_) => {
                let why = "a graph cannot be launched in a capture";
                refuse(CudaCode::STREAM_CAPTURE_UNSUPPORTED, why)
            }
            StreamOpKind::Host(_) | StreamOpKind::Hold(_) => {
                if let StreamOpKind::Host(f) = kind {
                    self.cancelled_fns.push(f);
                }
                let why = "a host function that runs once cannot be captured";
                refuse(CudaCode::STREAM_CAPTURE_UNSUPPORTED, why)
            }
            StreamOpKind::WaitValue(..) | StreamOpKind::WriteValue(..) => {
                let why = "a word in host memory is written and waited for outside captures";
                refuse(CudaCode::STREAM_CAPTURE_UNSUPPORTED, why)
            }
            _ if capture.invalid => refuse(CudaCode::STREAM_CAPTURE_INVALIDATED, ""),
            StreamOpKind::Work(DeviceWork::Group(_)) if capture.body.is_some() => {
                let why = "the body of a conditional node cannot hold collectives";
                refuse(CudaCode::STREAM_CAPTURE_UNSUPPORTED, why)
            }
            StreamOpKind::Work(work) => {
                let node = Frontier::from([capture.nodes.len()]);
                let mut after = capture.frontiers.insert(key, node).unwrap_or_default();
                // The operations of a communicator keep their order in a graph, too.
                if let Some(comm) = work.communicator() {
                    after.extend(capture.last_nodes.insert(comm, capture.nodes.len()));
                }
                capture.nodes.push(GraphNode { device, label, work, after });
                Ok(())
            }
            StreamOpKind::Record(_)
            | StreamOpKind::Wait
            | StreamOpKind::PoolAlloc(_)
            | StreamOpKind::PoolFree(_) => Ok(()),
        }
    }

    /// Returns the capture of a stream, and the nodes before an event that is recorded now.
    pub(crate) fn capture_frontier(&self, key: StreamKey) -> Option<(u64, Frontier)> {
        let id = self.streams.get(&key)?.capture?;
        let capture = self.captures.get(&id)?;
        Some((id, capture.frontiers.get(&key).cloned().unwrap_or_default()))
    }

    /// Makes a stream wait for an event of a capture, and so join the capture.
    pub(crate) fn capture_join(
        &mut self,
        call: CallKind,
        key: StreamKey,
        id: u64,
        frontier: &Frontier,
    ) -> Result<()> {
        let Some(stream) = self.streams.get_mut(&key) else { return Ok(()) };
        let device = stream.device;
        let own = stream.capture.filter(|&own| own != id);
        let Some(capture) = self.captures.get_mut(&id).filter(|capture| !capture.invalid) else {
            if let Some(own) = own {
                self.invalidate(own);
            }
            return Err(error(call, CudaCode::INVALID_VALUE, device, CAPTURE_OVER));
        };
        if stream.legacy {
            capture.invalid = true;
            return Err(error(call, CudaCode::STREAM_CAPTURE_IMPLICIT, device, ""));
        }
        if let Some(own) = own {
            self.invalidate(own);
            self.invalidate(id);
            return Err(error(call, CudaCode::STREAM_CAPTURE_MERGE, device, ""));
        }
        stream.capture = Some(id);
        capture.frontiers.entry(key).or_default().extend(frontier);
        Ok(())
    }

    /// Removes a capture, and takes all streams out of it.
    pub(crate) fn remove_capture(&mut self, id: u64) -> Option<CaptureState> {
        for stream in self.streams.values_mut().filter(|s| s.capture == Some(id)) {
            stream.capture = None;
        }
        self.conditions.retain(|_, capture| *capture != id);
        self.captures.remove(&id)
    }

    /// Removes captures that cannot be ended any more: those of a stream that is destroyed, or of a
    /// device that is lost.
    pub(crate) fn remove_captures(&mut self, gone: impl Fn(StreamKey, usize) -> bool) {
        let captures = self.captures.iter().filter(|(_, c)| gone(c.origin, c.device));
        let ids: Vec<u64> = captures.map(|(&id, _)| id).collect();
        for id in ids {
            self.remove_capture(id);
        }
    }

    /// Returns an error if the stream's capture is invalid.
    pub(crate) fn check_valid(&self, key: StreamKey, call: CallKind) -> Result<()> {
        let Some(stream) = self.streams.get(&key) else { return Ok(()) };
        match stream.capture.and_then(|id| self.captures.get(&id)) {
            Some(capture) if capture.invalid => {
                Err(error(call, CudaCode::STREAM_CAPTURE_INVALIDATED, stream.device, ""))
            }
            _ => Ok(()),
        }
    }

    /// Returns an error if the stream's capture is invalid, or if the call would make the legacy
    /// default stream depend on a capture.
    pub(crate) fn check_captures(&mut self, key: StreamKey, call: CallKind) -> Result<()> {
        self.check_valid(key, call)?;
        self.check_implicit(key, call)
    }

    /// Returns the error of a query of an event that was last recorded in a capture. A query or a
    /// wait invalidates the capture; reading the elapsed time does not.
    pub(crate) fn refuse_captured_event(
        &mut self,
        call: CallKind,
        device: usize,
        id: u64,
    ) -> DriverError {
        if self.captures.get(&id).is_some_and(|capture| !capture.invalid) {
            if call != CallKind::EventElapsed {
                self.invalidate(id);
            }
            return error(call, CudaCode::CAPTURED_EVENT, device, "");
        }
        error(call, CudaCode::INVALID_VALUE, device, CAPTURE_OVER)
    }

    /// Invalidates the capture of a stream whose work was refused, because the work cannot be a
    /// node.
    pub(crate) fn invalidate_stream_capture(&mut self, stream: StreamHandle) {
        if stream.raw() != 0 {
            self.invalidate_capture_of(stream.raw());
        }
    }

    fn invalidate(&mut self, id: u64) {
        if let Some(capture) = self.captures.get_mut(&id) {
            capture.invalid = true;
        }
    }

    pub(crate) fn invalidate_capture_of(&mut self, key: StreamKey) {
        if let Some(id) = self.streams.get(&key).and_then(|s| s.capture) {
            self.invalidate(id);
        }
    }

    /// Returns the captures of the device's blocking streams.
    pub(crate) fn blocking_captures(&self, device: usize) -> BTreeSet<u64> {
        let blocking = self.streams.values().filter(|s| s.device == device && s.blocking());
        blocking.filter_map(|s| s.capture).collect()
    }

    /// Returns an error if the call would make the legacy default stream depend on a capture.
    pub(crate) fn check_implicit(&mut self, key: StreamKey, call: CallKind) -> Result<()> {
        let Some(StreamState { legacy: true, device, .. }) = self.streams.get(&key) else {
            return Ok(());
        };
        let device = *device;
        let captures = self.blocking_captures(device);
        if captures.is_empty() {
            return Ok(());
        }
        // `CudaDriver` queries the stream's capture before it enqueues a host function. The query
        // fails in this case, but invalidates no capture.
        if call != CallKind::LaunchHostFunc {
            captures.into_iter().for_each(|id| self.invalidate(id));
        }
        Err(error(call, CudaCode::STREAM_CAPTURE_IMPLICIT, device, ""))
    }

    /// Returns an error for a call on a stream that is being captured, and invalidates the capture.
    /// On other streams, makes the checks of [`Self::check_implicit`] and
    /// [`Self::check_unsafe_call`].
    pub(crate) fn refuse_in_capture(&mut self, call: CallKind, key: StreamKey) -> Result<()> {
        let Some(stream) = self.streams.get(&key) else { return Ok(()) };
        let device = stream.device;
        if stream.capture.is_some() {
            self.invalidate_capture_of(key);
            return Err(error(call, CudaCode::STREAM_CAPTURE_UNSUPPORTED, device, ""));
        }
        self.check_implicit(key, call)?;
        self.check_unsafe_call(call, device)
    }

    /// Returns an error for a device-wide wait while a stream of the device is being captured.
    pub(crate) fn refuse_while_capturing(&mut self, call: CallKind, device: usize) -> Result<()> {
        let here = |s: &&StreamState| s.device == device;
        let ids: BTreeSet<u64> =
            self.streams.values().filter(here).filter_map(|s| s.capture).collect();
        self.invalidate_matching(call, device, |id, _| ids.contains(&id))
    }

    /// Returns an error if captures forbid the call to this thread, and invalidates these captures.
    pub(crate) fn check_unsafe_call(&mut self, call: CallKind, device: usize) -> Result<()> {
        if self.captures.is_empty() {
            return Ok(());
        }
        let thread = thread_number();
        let mode = self.capture_modes.get(&thread).copied().unwrap_or(CaptureMode::Global);
        if mode == CaptureMode::Relaxed {
            return Ok(());
        }
        self.invalidate_matching(call, device, |_, capture| {
            if capture.thread == thread {
                capture.mode != CaptureMode::Relaxed
            } else {
                mode == CaptureMode::Global && capture.mode == CaptureMode::Global
            }
        })
    }

    fn invalidate_matching(
        &mut self,
        call: CallKind,
        device: usize,
        which: impl Fn(u64, &CaptureState) -> bool,
    ) -> Result<()> {
        let mut any = false;
        for (_, capture) in self.captures.iter_mut().filter(|(id, c)| which(**id, c)) {
            capture.invalid = true;
            any = true;
        }
        if !any {
            return Ok(());
        }
        let why = "the call is forbidden during a capture, and has made the capture invalid";
        Err(error(call, CudaCode::STREAM_CAPTURE_UNSUPPORTED, device, why))
    }
}
