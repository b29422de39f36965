//! Lost devices: the work that is dropped with them, and the calls that report the loss.

use std::sync::Arc;

use super::{SimState, error};
use crate::sim::CallKind;
use crate::*;

impl SimState {
    /// Loses a device and, unless faults are isolated, all other devices of the driver (on
    /// hardware, of the process). Queues are emptied, and later calls on these devices fail, except
    /// releases.
    pub(crate) fn lose(&mut self, device: usize, cause: CudaError) {
        let cause = Arc::new(cause);
        let isolated = self.config.isolate_faults;
        let gone =
            |state: &Self, d: usize| (d == device || !isolated) && state.devices[d].lost.is_none();
        let all: Vec<usize> = (0..self.devices.len()).filter(|&d| gone(self, d)).collect();
        for &device in &all {
            self.devices[device].lost = Some(Arc::clone(&cause));
        }
        self.remove_captures(|_, of| all.contains(&of));
        self.kill_ranks(&all);
        let keys: Vec<_> = self.streams.keys().copied().collect();
        for key in keys {
            if all.contains(&self.streams[&key].device) {
                self.drop_unfinished(key);
            }
        }
    }

    /// Makes the ranks on these devices leave their communicators as if their process had died.
    pub(crate) fn kill_ranks(&self, devices: &[usize]) {
        let participants = self.comms.values().map(|comm| &comm.participant);
        participants
            .filter(|participant| devices.contains(&participant.device()))
            .for_each(|participant| participant.die());
    }

    /// Returns the error of a lost device: the sticky error itself on the first call,
    /// [`DriverError::DeviceLost`] later. The first call marks the error as reported on all
    /// devices that were lost with the device.
    pub(crate) fn report_loss(&mut self, call: CallKind, device: usize) -> Result<()> {
        let Some(cause) = self.devices[device].lost.clone() else { return Ok(()) };
        if self.devices[device].loss_reported {
            return Err(DriverError::DeviceLost { device, cause });
        }
        self.mark_loss_reported(device);
        let mut why = format!("raised by earlier work: {}", cause.call);
        if let Some(detail) = &cause.detail {
            why = format!("{why}, {detail}");
        }
        if let Some(location) = cause.location {
            why = format!("{why}, launched at {location}");
        }
        Err(error(call, cause.code, device, &why))
    }

    /// Records that a call has returned a device's error.
    pub(crate) fn mark_loss_reported(&mut self, device: usize) {
        let isolated = self.config.isolate_faults;
        for (index, state) in self.devices.iter_mut().enumerate() {
            state.loss_reported |= state.lost.is_some() && (index == device || !isolated);
        }
    }
}
