//! Fault injection.

use super::session::SimDriver;
use crate::sim::state::faults::Fault;
use crate::*;

impl SimDriver {
    /// Arranges a failure. Of several that fit a call, the first arranged goes first.
    pub fn inject(&self, fault: Fault) {
        self.lock().faults.push(fault);
    }

    /// Forgets all failures that have not happened.
    pub fn clear_faults(&self) {
        self.lock().faults.clear();
    }

    /// Loses a device now, as if it had fallen off the bus.
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
        self.settle(state);
    }
}
