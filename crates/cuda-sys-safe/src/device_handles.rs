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
        // Libraries use the current context. This driver call makes the device's context current,
        // and permits allocations during a capture.
        let mode = driver.exchange_capture_mode(device, CaptureMode::Relaxed)?;
        let created = create();
        let restored = driver.exchange_capture_mode(device, mode);
        let handle = created?;
        handles.push((device, handle.clone()));
        restored.map(|_| handle)
    }
}
