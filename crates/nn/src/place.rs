//! Where a module's input has to be.

use std::panic::Location;

use warpline::{Error, Result, Tensor};

/// Refuses an input that is elsewhere than a parameter, by the parameter's name and both devices.
#[track_caller]
pub(crate) fn check(
    module: &'static str,
    input: &Tensor,
    name: &str,
    parameter: &Tensor,
) -> Result<()> {
    let (first, second) = (input.device(), parameter.device());
    // Devices with access to each other's memory may meet; the op looks at that.
    if first == second || (first.is_cuda() && second.is_cuda()) {
        return Ok(());
    }
    Err(Error::DeviceMismatch {
        location: Location::caller(),
        op: module,
        first: format!("{first} (the input)"),
        second: format!("{second} (the parameter `{name}`)"),
    })
}
