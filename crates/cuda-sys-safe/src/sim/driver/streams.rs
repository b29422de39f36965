//! Streams.

use super::session::SimDriver;
use crate::sim::CallKind;
use crate::sim::state::hold::Hold;
use crate::sim::state::streams::{StreamOpKind, StreamState};
use crate::sim::state::work::{Label, StreamKey};
use crate::sim::state::{SimState, error};
use crate::*;

impl SimState {
    /// Returns the stream of a handle.
    pub(super) fn stream_key(&self, call: CallKind, handle: StreamHandle) -> Result<StreamKey> {
        if handle.raw() == 0 {
            return Ok(StreamState::legacy_key(handle.device()));
        }
        match self.streams.get(&handle.raw()) {
            Some(s) if !s.legacy && !s.destroyed && s.device == handle.device() => Ok(handle.raw()),
            _ => Err(error(call, CudaCode::INVALID_HANDLE, handle.device(), "no such stream")),
        }
    }

    pub(super) fn stream_create(&mut self, device: usize, flags: StreamFlags) -> StreamHandle {
        let key = self.fresh();
        self.streams.insert(key, StreamState::new(device, flags));
        // SAFETY: this driver has just created the object.
        unsafe { StreamHandle::from_raw(device, key) }
    }

    pub(super) fn stream_destroy(&mut self, handle: StreamHandle) -> Result<()> {
        let call = CallKind::StreamDestroy;
        let key = self.stream_key(call, handle)?;
        let device = handle.device();
        if handle.raw() == 0 {
            let why = "the default stream cannot be destroyed";
            return Err(error(call, CudaCode::INVALID_HANDLE, device, why));
        }
        // Destroying a stream ends the capture that began on it. A capture that the stream joined
        // continues without the stream.
        self.remove_captures(|origin, _| origin == key);
        if let Some(stream) = self.streams.get_mut(&key) {
            // Enqueued work still runs, but the stream leaves its capture.
            (stream.destroyed, stream.capture) = (true, None);
        }
        self.remove_if_done(key);
        Ok(())
    }
}

impl SimDriver {
    /// Holds a stream back: under any schedule, work enqueued from now on does not run until the
    /// returned [`Hold`] is opened or a call must wait for the work.
    ///
    /// # Errors
    /// The errors of [`Driver::launch_host_func`], such as [`DriverError::Cuda`] with
    /// [`CudaCode::INVALID_HANDLE`] if there is no such stream, and with
    /// [`CudaCode::STREAM_CAPTURE_UNSUPPORTED`] if the stream is being captured.
    pub fn hold(&self, stream: StreamHandle) -> Result<Hold> {
        let call = CallKind::LaunchHostFunc;
        let mut state = self.enter(call, stream.device())?;
        let key = state.stream_key(call, stream)?;
        let hold = Hold::new();
        let kind = StreamOpKind::Hold(hold.clone());
        let held = state.enqueue(key, Label::of(call), kind, &[]);
        self.unlock(state);
        held.map(|_| hold)
    }
}
