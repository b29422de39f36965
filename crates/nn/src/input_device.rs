//! Checks that a module's input is on the device of one of the module's parameters or buffers, or on a GPU with peer
//! access, so that the error can name the parameter or buffer.

use warpline::{ErrorKind, Result, Tensor};

/// Returns [`ErrorKind::DeviceMismatch`] unless `input` and `parameter` are both on the host, on one GPU, or on two
/// GPUs of which one can access the other.
#[track_caller]
pub(crate) fn check(
    module: &'static str,
    input: &Tensor,
    name: &str,
    parameter: &Tensor,
) -> Result<()> {
    let (own, other) = (input.storage(), parameter.storage());
    let meet = match (own.cuda_device(), other.cuda_device()) {
        // With peer access in either direction, the op itself checks whether it has the access that it needs.
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
