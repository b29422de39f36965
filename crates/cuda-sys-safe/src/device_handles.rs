//! The handles of a CUDA library, one per device.

use std::sync::{Mutex, PoisonError};

use crate::{CaptureMode, Driver, DriverError, Result};

/// Handles that are created on first use and kept for the life of the process.
#[derive(Debug)]
pub(crate) struct DeviceHandles<H>(Mutex<Vec<(usize, H)>>);

impl<H: Clone> DeviceHandles<H> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Returns the device's handle. The first call creates it with `create`, which may allocate
    /// device memory while a stream is captured. `call` and `library` are named in the error for a
    /// driver other than the real one.
    pub(crate) fn get(
        &self,
        (call, library): (&'static str, &str),
        driver: &dyn Driver,
        device: usize,
        create: impl FnOnce() -> Result<H>,
    ) -> Result<H> {
        if driver.name() != "cuda" {
            let reason = format!("{library} cannot work with the {} driver", driver.name());
            return Err(DriverError::InvalidArgument { call, reason });
        }
        let mut handles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, handle)) = handles.iter().find(|(of, _)| *of == device) {
            return Ok(handle.clone());
        }
        let (created, restored) = in_context(driver, device, create)?;
        let handle = created?;
        handles.push((device, handle.clone()));
        restored.map(|()| handle)
    }
}

/// Calls `f`, code of a library, with the device's context current and with allocations permitted during a capture. Also
/// returns the result of the driver call that restores the thread's capture mode.
pub(crate) fn in_context<R>(
    driver: &dyn Driver,
    device: usize,
    f: impl FnOnce() -> R,
) -> Result<(R, Result<()>)> {
    // This driver call makes the device's context current.
    let mode = driver.exchange_capture_mode(device, CaptureMode::Relaxed)?;
    let answer = f();
    Ok((answer, driver.exchange_capture_mode(device, mode).map(drop)))
}
