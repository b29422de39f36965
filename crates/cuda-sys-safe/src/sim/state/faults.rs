//! Failures that tests inject.

use crate::sim::CallKind;
use crate::*;

/// A failure to inject.
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
    /// Kind of call that fails.
    pub call: CallKind,
    /// Index of the device, or `None` for any device.
    pub device: Option<usize>,
    /// Number of matching calls that succeed before the failure.
    pub after: usize,
    /// Number of calls that fail.
    pub times: usize,
    /// Code of the error. A sticky code also loses the device.
    pub code: CudaCode,
    /// Whether the call itself succeeds, and its work fails later, when it runs.
    pub at_run: bool,
}

impl Fault {
    /// Creates a failure of the next call of a kind, on any device.
    #[must_use]
    pub fn new(call: CallKind, code: CudaCode) -> Self {
        Self { call, device: None, after: 0, times: 1, code, at_run: false }
    }

    /// Limits the failure to calls on this device.
    #[must_use]
    pub fn on(self, device: usize) -> Self {
        Self { device: Some(device), ..self }
    }

    /// Lets this number of matching calls succeed first. Default: 0.
    #[must_use]
    pub fn after(self, calls: usize) -> Self {
        Self { after: calls, ..self }
    }

    /// Sets the number of calls that fail in a row. Default: 1.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }

    /// Parses a failure as in `WARPLINE_DRIVER`: `CALL[:CODE][@N][..]`, such as `cuMemAlloc`, `cuMemcpyAsync@3`,
    /// `cuMemcpyAsync@3..` or `cuLaunchKernel:700@3`.
    ///
    /// `CALL` is a [name](CallKind::name), with or without its suffix `_v2`. `CODE` is the number of the error; default:
    /// the first of [`CallKind::errors`]. The call fails after `N` successful ones;
    /// default: 0. With `..`, all later calls fail, too. Returns `None` if `text` has another form.
    pub(crate) fn from_spec(text: &str) -> Option<Self> {
        let (text, times) = text.strip_suffix("..").map_or((text, 1), |text| (text, usize::MAX));
        let (text, after) = text.split_once('@').map_or((text, None), |(text, n)| (text, Some(n)));
        let (name, code) =
            text.split_once(':').map_or((text, None), |(name, code)| (name, Some(code)));
        let is_named =
            |call: &CallKind| call.name() == name || call.name().strip_suffix("_v2") == Some(name);
        let call = CallKind::ALL.iter().copied().find(is_named)?;
        let code = code.map_or(Some(call.errors()[0]), |code| code.parse().ok().map(CudaCode))?;
        let after = after.map_or(Some(0), |n| n.parse().ok())?;
        // 0 is success.
        (code.0 > 0).then_some(Self::new(call, code).after(after).times(times))
    }

    /// Lets the call succeed. Its work fails when it runs, which loses the device.
    #[must_use]
    pub fn at_run(self) -> Self {
        Self { at_run: true, ..self }
    }
}

/// Injected failures that have not occurred, in the order of injection.
pub(crate) struct Faults(Vec<Fault>);

impl Faults {
    pub(crate) fn new(faults: &[Fault]) -> Self {
        Self(faults.to_vec())
    }

    pub(crate) fn push(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Counts a call on a device or, if `at_run`, the run of the call's work. Returns the code of
    /// the failure to inject, if there is one.
    pub(crate) fn hit(&mut self, call: CallKind, device: usize, at_run: bool) -> Option<CudaCode> {
        let mut hit = None;
        for fault in &mut self.0 {
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
        self.0.retain(|fault| fault.times > 0);
        hit
    }
}
