//! Fault injection.

use super::state::State;
use super::{CallKind, SimDriver};
use crate::*;

/// A failure to come.
///
/// ```
/// use warpline_cuda_sys_safe::{CudaCode, Driver, sim::{CallKind, Fault, SimConfig}};
/// let sim = SimConfig::new(1).build();
/// sim.inject(Fault::new(CallKind::MemAlloc, CudaCode::OUT_OF_MEMORY).after(1));
/// assert!(sim.mem_alloc(0, 512).is_ok());
/// assert!(sim.mem_alloc(0, 512).unwrap_err().is_out_of_memory());
/// assert!(sim.mem_alloc(0, 512).is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which kind of call fails.
    pub call: CallKind,
    /// On which device; any, if none.
    pub device: Option<usize>,
    /// How many such calls succeed before.
    pub after: usize,
    /// How many fail.
    pub times: usize,
    /// With what. A sticky code also loses the device.
    pub code: CudaCode,
    /// Whether the call succeeds and its work fails when it runs.
    pub at_run: bool,
}

impl Fault {
    /// The next call of that kind fails, on whatever device.
    #[must_use]
    pub fn new(call: CallKind, code: CudaCode) -> Self {
        Self { call, device: None, after: 0, times: 1, code, at_run: false }
    }

    /// Only calls on this device.
    #[must_use]
    pub fn on(self, device: usize) -> Self {
        Self { device: Some(device), ..self }
    }

    /// Only once so many have succeeded.
    #[must_use]
    pub fn after(self, calls: usize) -> Self {
        Self { after: calls, ..self }
    }

    /// So many in a row.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }

    /// The call succeeds; its work fails when it runs, which loses the device.
    #[must_use]
    pub fn at_run(self) -> Self {
        Self { at_run: true, ..self }
    }
}

/// A fault with what is left of it.
pub(super) struct Armed(Fault);

impl SimDriver {
    /// Arranges a failure. Of several that fit a call, the first arranged goes first.
    pub fn inject(&self, fault: Fault) {
        self.lock().faults.push(Armed(fault));
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

impl State {
    pub(super) fn fault_at_call(&mut self, call: CallKind, device: usize) -> Option<CudaCode> {
        self.fault(call, device, false)
    }

    pub(super) fn fault_at_run(&mut self, call: CallKind, device: usize) -> Option<CudaCode> {
        self.fault(call, device, true)
    }

    fn fault(&mut self, call: CallKind, device: usize, at_run: bool) -> Option<CudaCode> {
        let mut hit = None;
        for Armed(fault) in &mut self.faults {
            let fits = fault.call == call
                && fault.at_run == at_run
                && fault.device.is_none_or(|d| d == device);
            if !fits {
                continue;
            }
            if fault.after > 0 {
                fault.after -= 1;
            } else if hit.is_none() && fault.times > 0 {
                fault.times -= 1;
                hit = Some(fault.code);
            }
        }
        self.faults.retain(|Armed(fault)| fault.times > 0);
        hit
    }
}
