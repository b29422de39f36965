//! Checks that a module's input is on the device of its first parameter, so that the error names
//! both.

use warpline::{ErrorKind, Result, Tensor};

/// Refuses an input that is elsewhere than a parameter, by the parameter's name and both devices.
#[track_caller]
pub(crate) fn check(
    module: &'static str,
    input: &Tensor,
    name: &str,
    parameter: &Tensor,
) -> Result<()> {
    let (own, other) = (input.storage(), parameter.storage());
    let meet = match (own.cuda_device(), other.cuda_device()) {
        // Devices may have access to each other's memory; which needs it, the op knows.
        (Some(a), Some(b)) => {
            let reaches = |a, b| own.runtime().peer_access_enabled(a, b);
            reaches(a.index(), b.index()) || reaches(b.index(), a.index())
        }
        (device, peer) => device.is_none() && peer.is_none(),
    };
    if meet {
        return Ok(());
    }
    let (first, second) = (input.device(), parameter.device());
    Err(ErrorKind::DeviceMismatch { first, second, parameter: name.to_owned() }.of(module))
}
