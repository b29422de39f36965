//! The generators of devices.

use super::CudaDeviceArg;
use crate::called::Called as _;
use crate::generator::bytes;
use crate::{Result, Tensor, runtime};

/// Seeds the generator of the current device.
///
/// # Errors
/// [`ErrorKind::CudaUnavailable`](crate::ErrorKind::CudaUnavailable).
#[track_caller]
pub fn manual_seed(seed: u64) -> Result<()> {
    let runtime = runtime();
    let index = ().index_in(&runtime).of("manual_seed")?;
    runtime.device(index)?.manual_seed(seed);
    Ok(())
}

/// Seeds the generators of all devices. Nothing where there are none.
pub fn manual_seed_all(seed: u64) {
    let runtime = runtime();
    for index in 0..runtime.device_count() {
        if let Ok(gpu) = runtime.device(index) {
            gpu.manual_seed(seed);
        }
    }
}

/// The state of a device's generator, its seed and place in the sequence (`torch.cuda.get_rng_state`), in the bytes
/// that PyTorch has, on the host.
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn get_rng_state(device: impl CudaDeviceArg) -> Result<Tensor> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("get_rng_state")?;
    let gpu = runtime.device(index)?;
    let state = gpu.generator().state();
    crate::tensor(state, crate::Device::Cpu)
}

/// Makes a device's generator go on from a state (`torch.cuda.set_rng_state`), of PyTorch's too.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) unless it is a tensor of bytes on the host that holds a
/// state; as [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn set_rng_state(state: &Tensor, device: impl CudaDeviceArg) -> Result<()> {
    let state = bytes("set_rng_state", state)?;
    let runtime = runtime();
    let index = device.index_in(&runtime).of("set_rng_state")?;
    let gpu = runtime.device(index)?;
    gpu.generator().set_state(&state)
}
