//! Random number generators of devices.

use super::CudaDeviceArg;
#[cfg(doc)]
use crate::ErrorKind;
use crate::called::Called as _;
use crate::generator::{bytes, not_captured};
use crate::{Device, Result, Tensor, runtime};

/// Seeds the generator of the current device (`torch.cuda.manual_seed`).
///
/// # Errors
/// [`ErrorKind::CudaUnavailable`] if there is no GPU. [`ErrorKind::InvalidVariable`] if an environment variable has an
/// invalid value. [`ErrorKind::Driver`] if loading or initializing the driver fails for another reason.
/// [`ErrorKind::Capture`] if the device's current stream is being captured and the seed is another one than before.
#[track_caller]
pub fn manual_seed(seed: u64) -> Result<()> {
    let runtime = runtime();
    let index = ().index_in(&runtime).of("manual_seed")?;
    let gpu = runtime.device(index)?;
    if gpu.generator().lock().initial_seed() != seed {
        not_captured("manual_seed", Device::cuda(index))?;
    }
    gpu.manual_seed(seed);
    Ok(())
}

/// Seeds the generators of all devices (`torch.cuda.manual_seed_all`). Has no effect if there is no device, or on ops that
/// are being captured.
pub fn manual_seed_all(seed: u64) {
    let runtime = runtime();
    for index in 0..runtime.device_count() {
        if let Ok(gpu) = runtime.device(index) {
            gpu.manual_seed(seed);
        }
    }
}

/// Returns the state of a device's generator, which is its seed and its offset (`torch.cuda.get_rng_state`): a
/// `uint8` tensor on the CPU, in PyTorch's format of 16 bytes.
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used. [`ErrorKind::Capture`] if the device's current stream is being captured.
#[track_caller]
pub fn get_rng_state(device: impl CudaDeviceArg) -> Result<Tensor> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("get_rng_state")?;
    not_captured("get_rng_state", Device::cuda(index))?;
    let gpu = runtime.device(index)?;
    let state = gpu.generator().lock().state();
    crate::tensor(state, crate::Device::Cpu)
}

/// Restores a state of a device's generator, from this crate or from PyTorch (`torch.cuda.set_rng_state`).
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `state` is not a `uint8` tensor on the CPU, or its bytes are not a valid
/// state. [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the
/// device is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used. [`ErrorKind::Capture`] if the device's current stream is being captured.
#[track_caller]
pub fn set_rng_state(state: &Tensor, device: impl CudaDeviceArg) -> Result<()> {
    let state = bytes("set_rng_state", state)?;
    let runtime = runtime();
    let index = device.index_in(&runtime).of("set_rng_state")?;
    not_captured("set_rng_state", Device::cuda(index))?;
    let gpu = runtime.device(index)?;
    gpu.generator().lock().set_state(&state)
}
