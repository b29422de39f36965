//! The state of each device, and the checks that every call makes.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use cudarc::driver::sys::{CUcontext, CUdevice};

use super::CudaDriver;
use crate::dylib::StatusCode;
use crate::{CudaCode, CudaError, DriverError, Result};

/// A device that this process sees.
#[derive(Debug)]
pub(super) struct VisibleDevice {
    pub(super) raw: CUdevice,
    context: OnceLock<PrimaryContext>,
    /// Locked while a thread retains the primary context, so that only one thread does.
    retaining: Mutex<()>,
    /// Locked while NCCL enqueues work for the device.
    nccl: Mutex<()>,
    lost: OnceLock<Arc<CudaError>>,
}

#[derive(Clone, Copy, Debug)]
struct PrimaryContext(CUcontext);

// SAFETY: CUDA allows the use of a context from any thread.
unsafe impl Send for PrimaryContext {}
// SAFETY: a context is an opaque handle, and CUDA allows its use from several threads at once.
unsafe impl Sync for PrimaryContext {}

impl VisibleDevice {
    pub(super) fn new(raw: CUdevice) -> Self {
        let (retaining, nccl) = (Mutex::new(()), Mutex::new(()));
        Self { raw, context: OnceLock::new(), retaining, nccl, lost: OnceLock::new() }
    }

    /// Returns [`DriverError::DeviceLost`] if a sticky error lost the device.
    pub(super) fn lost_error(&self, device: usize) -> Option<DriverError> {
        let cause = Arc::clone(self.lost.get()?);
        Some(DriverError::DeviceLost { device, cause })
    }
}

impl CudaDriver {
    /// Returns an error in a forked child, for an unknown device and for a lost device.
    #[inline]
    pub(super) fn admit(&self, call: &'static str, device: usize) -> Result<&VisibleDevice> {
        self.admit_process(call)?;
        let Some(state) = self.devices.get(device) else {
            return Err(DriverError::InvalidDevice { device, count: self.devices.len() });
        };
        match state.lost_error(device) {
            Some(lost) => Err(lost),
            None => Ok(state),
        }
    }

    /// Returns an error in a forked child.
    #[inline]
    pub(super) fn admit_process(&self, call: &'static str) -> Result<()> {
        if self.owner.is_here() {
            Ok(())
        } else {
            Err(DriverError::ForkedChild { call, parent: self.owner.pid })
        }
    }

    /// Takes the turn to enqueue NCCL work for the device, on any communicator: NCCL requires one
    /// thread at a time. Returns `None` while another thread has the turn, which may last until
    /// other ranks have made their calls.
    #[inline]
    pub(crate) fn nccl_turn(
        &self,
        call: &'static str,
        device: usize,
    ) -> Result<Option<MutexGuard<'_, ()>>> {
        Ok(match self.admit(call, device)?.nccl.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        })
    }

    /// Makes the checks of [`Self::admit`], then makes the device's context current.
    #[inline]
    pub(super) fn enter(&self, call: &'static str, device: usize) -> Result<()> {
        let state = self.admit(call, device)?;
        let context = self.context_of(state, device)?;
        // SAFETY: the context is a primary context, which this driver has retained and never
        // releases.
        let status = unsafe { (self.api.cuCtxSetCurrent)(context) };
        self.check("cuCtxSetCurrent", device, status)
    }

    /// Returns the device's primary context, retained on first need.
    pub(super) fn context(&self, call: &'static str, device: usize) -> Result<CUcontext> {
        let state = self.admit(call, device)?;
        self.context_of(state, device)
    }

    #[inline]
    fn context_of(&self, state: &VisibleDevice, device: usize) -> Result<CUcontext> {
        match state.context.get() {
            Some(context) => Ok(context.0),
            None => self.retain(state, device),
        }
    }

    #[cold]
    fn retain(&self, state: &VisibleDevice, device: usize) -> Result<CUcontext> {
        let _retaining = state.retaining.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = state.context.get() {
            return Ok(context.0);
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer is valid for writes.
        let status = unsafe { (self.api.cuDevicePrimaryCtxRetain)(&mut context, state.raw) };
        if status != 0 {
            // Do not use `check` here. It would count the device as lost, but a device that is busy
            // now may be free later.
            let code = CudaCode(status);
            return Err(DriverError::cuda("cuDevicePrimaryCtxRetain", code, Some(device)));
        }
        Ok(state.context.get_or_init(|| PrimaryContext(context)).0)
    }

    /// Returns `true` if the device has a primary context, ours or another library's.
    pub(super) fn context_active(&self, state: &VisibleDevice, device: usize) -> Result<bool> {
        if state.context.get().is_some() {
            return Ok(true);
        }
        let (mut flags, mut active) = (0, 0);
        let status =
            // SAFETY: both pointers are valid for writes.
            unsafe { (self.api.cuDevicePrimaryCtxGetState)(state.raw, &mut flags, &mut active) };
        self.check("cuDevicePrimaryCtxGetState", device, status)?;
        Ok(active != 0)
    }

    /// Turns a status into an error. A sticky error loses all devices.
    #[inline]
    pub(super) fn check(
        &self,
        call: &'static str,
        device: usize,
        status: StatusCode,
    ) -> Result<()> {
        if status == 0 { Ok(()) } else { Err(self.failed(call, device, status)) }
    }

    #[cold]
    fn failed(&self, call: &'static str, device: usize, status: StatusCode) -> DriverError {
        let error = CudaError {
            call,
            code: CudaCode(status),
            device: Some(device),
            detail: None,
            location: None,
        };
        if error.code.is_sticky() {
            let cause = Arc::new(error.clone());
            for state in &self.devices {
                state.lost.get_or_init(|| Arc::clone(&cause));
            }
        }
        DriverError::Cuda(Box::new(error))
    }

    /// Returns `true` if the device is lost, so that releases have nothing to do.
    pub(super) fn is_lost(&self, device: usize) -> bool {
        self.devices.get(device).is_some_and(|state| state.lost.get().is_some())
    }
}
