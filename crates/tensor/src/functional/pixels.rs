//! Rearrangement of channels into pixels, and of pixels into channels.

#[cfg(doc)]
use crate::ErrorKind;
use crate::{CallScope, Error, Result, Tensor};

/// Splits the sizes into batch sizes and the last three sizes.
#[track_caller]
fn split_image_sizes(op: &'static str, input: &Tensor) -> Result<(Vec<usize>, [usize; 3])> {
    match input.size() {
        &[ref batch @ .., channels, height, width] => {
            Ok((batch.to_vec(), [channels, height, width]))
        }
        sizes => Err(Error::shape(
            op,
            format!("needs at least 3 dimensions, but the input has sizes {sizes:?}"),
        )),
    }
}

/// Rearranges channels into squares of pixels: `[.., C·r², H, W]` to `[.., C, H·r, W·r]`, where `r` is
/// `upscale_factor` (`torch.nn.functional.pixel_shuffle`).
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`] if the input has fewer than three dimensions. [`ErrorKind::InvalidArgument`] if
/// the factor is zero, or its square does not divide the channels. Errors of
/// [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn pixel_shuffle(input: &Tensor, upscale_factor: usize) -> Result<Tensor> {
    let _call = CallScope::enter("pixel_shuffle");
    let (op, r) = ("pixel_shuffle", upscale_factor);
    let (batch, [channels, h, w]) = split_image_sizes(op, input)?;
    let square = r.saturating_mul(r);
    if r == 0 || !channels.is_multiple_of(square) {
        let reason = format!("the square of {r} must divide {channels} channels");
        return Err(Error::invalid(op, reason));
    }
    let c = channels / square;
    let all = batch.iter().product::<usize>();
    let apart = input.reshape([all, c, r, r, h, w])?;
    let shuffled = apart.permute([0, 1, 4, 2, 5, 3])?;
    shuffled.reshape([&batch[..], &[c, h * r, w * r]].concat())
}

/// The inverse of [`pixel_shuffle`] (`torch.nn.functional.pixel_unshuffle`).
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`] if the input has fewer than three dimensions. [`ErrorKind::InvalidArgument`] if
/// the factor is zero, or does not divide height and width. Errors of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn pixel_unshuffle(input: &Tensor, downscale_factor: usize) -> Result<Tensor> {
    let _call = CallScope::enter("pixel_unshuffle");
    let (op, r) = ("pixel_unshuffle", downscale_factor);
    let (batch, [c, height, width]) = split_image_sizes(op, input)?;
    if r == 0 || !height.is_multiple_of(r) || !width.is_multiple_of(r) {
        let reason = format!("{r} must divide height and width, but they are {height} and {width}");
        return Err(Error::invalid(op, reason));
    }
    let (h, w) = (height / r, width / r);
    let all = batch.iter().product::<usize>();
    let apart = input.reshape([all, c, h, r, w, r])?;
    let shuffled = apart.permute([0, 1, 3, 5, 2, 4])?;
    shuffled.reshape([&batch[..], &[c * r * r, h, w]].concat())
}
