//! Fault injection.

use super::session::SimDriver;
use crate::sim::state::faults::Fault;
use crate::*;

impl SimDriver {
    /// Adds a failure. If several failures match a call, the one added first occurs.
    ///
    /// A call that fails has no effect, except that a failed
    /// [`CallKind::EndCapture`](crate::sim::CallKind::EndCapture) ends the capture, as on hardware.
    pub fn inject(&self, fault: Fault) {
        self.lock().faults.push(fault);
    }

    /// Removes all failures that have not occurred.
    pub fn clear_faults(&self) {
        self.lock().faults.clear();
    }

    /// Loses a device now, with `code` as the cause, as if it had fallen off the bus.
    pub fn lose_device(&self, device: usize, code: CudaCode) {
        let mut state = self.lock();
        if device < state.devices.len() {
            state.lose(
                device,
                CudaError {
                    call: "device",
                    code,
                    device: Some(device),
                    detail: Some("the device was taken away".into()),
                    location: None,
                },
            );
        }
        self.unlock(state);
    }
}
