//! Windows over images, as convolutions, pools and `unfold` use them.

use warpline_kernels::conv::Window;

use crate::{Error, Result, Tensor};

/// Fails unless the option `name` is above zero. Negative numbers are above `isize::MAX`
/// ([`PerDimension`](super::PerDimension)).
#[track_caller]
pub(super) fn positive(op: &'static str, name: &str, value: usize) -> Result<()> {
    if value > 0 && isize::try_from(value).is_ok() {
        return Ok(());
    }
    Err(Error::invalid(op, format!("{name} must be greater than zero, but is {}", value as isize)))
}

/// Fails if a number of the option `name` is negative, as [`positive`] does.
#[track_caller]
pub(super) fn not_negative(op: &'static str, name: &str, values: &[usize]) -> Result<()> {
    match values.iter().find(|value| isize::try_from(**value).is_err()) {
        None => Ok(()),
        Some(value) => {
            let reason = format!("{name} must not be negative, but is {}", *value as isize);
            Err(Error::invalid(op, reason))
        }
    }
}

/// Returns the sizes of the last `D` dimensions.
pub(super) fn last<const D: usize>(tensor: &Tensor) -> [usize; D] {
    let at = tensor.dim() - D;
    std::array::from_fn(|d| tensor.size()[at + d])
}

/// Creates and checks a three-dimensional window from input sizes, output sizes, kernel, stride, padding and
/// dilation, in this order.
#[track_caller]
pub(super) fn window<const D: usize>(op: &'static str, of: [[usize; D]; 6]) -> Result<Window> {
    let filled = |values: [usize; D], none: usize| {
        let mut all = [none; 3];
        all[3 - D..].copy_from_slice(&values);
        all
    };
    let window = Window {
        input: filled(of[0], 1),
        output: filled(of[1], 1),
        kernel: filled(of[2], 1),
        stride: filled(of[3], 1),
        padding: filled(of[4], 0),
        dilation: filled(of[5], 1),
    };
    window.check(op)?;
    Ok(window)
}

/// Calls `f` with a batch of images. Adds the batch dimension to an input without one, and removes it from the result.
#[track_caller]
pub(super) fn batched<const D: usize>(
    input: &Tensor,
    f: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    if input.dim() == D + 2 { f(input) } else { f(&input.unsqueeze(0)?)?.squeeze(0) }
}
