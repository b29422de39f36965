//! Copies windows of images into columns (im2col), and adds columns to images (col2im).

use warpline_kernels::conv::{Window, col2im, im2col};

use super::options::{PerDimension, options};
use super::window::{batched, last, not_negative, positive, window};
use crate::autograd::{linear, no_grad, record, should_record};
use crate::{CallScope, Error, ErrorKind, IntoOptions, Result, Tensor};

options! {
    /// Options of [`unfold`] and [`fold`]. One number sets height and width; an array sets each of the two.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    FoldOptions [] [] {
        /// Sets the distance from one element of the window to the next, in elements. Default: 1.
        dilation: [usize; 2] = [1; 2], impl PerDimension<2> => PerDimension::per_dimension;
        /// Sets the number of zeros on each side. Default: 0.
        padding: [usize; 2] = [0; 2], impl PerDimension<2> => PerDimension::per_dimension;
        /// Sets the distance from one window to the next, in elements. Default: 1.
        stride: [usize; 2] = [1; 2], impl PerDimension<2> => PerDimension::per_dimension;
    }
}

/// Copies the elements under each position of a window to a column (`torch.nn.functional.unfold`).
/// `[batch, channels, height, width]` gives `[batch, channels * window, positions]`, where `window` is the
/// number of elements of a window. An input without a batch gives a result without a batch.
///
/// ```
/// use warpline::arange;
/// use warpline::functional::{fold, unfold};
///
/// let image = arange(6f32, ())?.reshape([1, 1, 2, 3])?;
/// let columns = unfold(&image, 2, ())?;
/// assert_eq!(columns.to_vec::<f32>()?, [0.0, 1.0, 1.0, 2.0, 3.0, 4.0, 4.0, 5.0]);
/// let sums = fold(&columns, [2, 3], 2, ())?;
/// assert_eq!(sums.to_vec::<f32>()?, [0.0, 2.0, 2.0, 3.0, 8.0, 5.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`] if the input does not have three or four dimensions, or if the window is larger than
/// the padded image, or too large for 32-bit positions. [`ErrorKind::InvalidArgument`] if a kernel size, a stride or a
/// dilation is not positive, or if a padding is negative. [`ErrorKind::UnsupportedDType`] if the input is not floating
/// point. Errors of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn unfold(
    input: &Tensor,
    kernel_size: impl PerDimension<2>,
    options: impl IntoOptions<FoldOptions>,
) -> Result<Tensor> {
    const OP: &str = "unfold";
    let _call = CallScope::enter(OP);
    if input.dim() != 3 && input.dim() != 4 {
        let reason =
            format!("expects an image of 3 or 4 dimensions, not one of sizes {:?}", input.size());
        return Err(Error::shape(OP, reason));
    }
    let window =
        of_images(OP, input, last(input), kernel_size.per_dimension(), options.into_options())?;
    batched::<2>(input, |batch| image_to_columns(batch, window))
}

/// Adds up the columns of [`unfold`] in an image of `output_size` (`torch.nn.functional.fold`). This op is the
/// transpose of [`unfold`]. `[batch, channels * window, positions]` gives `[batch, channels, height, width]`.
/// An input without a batch gives a result without a batch.
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`] if the input's sizes are not those of the result of [`unfold`] for an image of
/// `output_size`. [`ErrorKind::InvalidArgument`] if an output size is negative. Otherwise the same as [`unfold`].
#[track_caller]
pub fn fold(
    input: &Tensor,
    output_size: impl PerDimension<2>,
    kernel_size: impl PerDimension<2>,
    options: impl IntoOptions<FoldOptions>,
) -> Result<Tensor> {
    const OP: &str = "fold";
    let _call = CallScope::enter(OP);
    let (output_size, kernel_size) = (output_size.per_dimension(), kernel_size.per_dimension());
    let window = of_images(OP, input, output_size, kernel_size, options.into_options())?;
    let fits = match *input.size() {
        [.., rows, positions] if input.dim() <= 3 => {
            rows.is_multiple_of(window.taps()) && positions == window.positions()
        }
        _ => false,
    };
    if !fits {
        let reason = format!(
            "columns of sizes {:?} do not fit: a window of size {kernel_size:?} has {} positions \
             on an image of size {output_size:?}",
            input.size(),
            window.positions()
        );
        return Err(Error::shape(OP, reason));
    }
    batched::<1>(input, |batch| columns_to_image(batch, window))
}

#[track_caller]
fn of_images(
    op: &'static str,
    input: &Tensor,
    sizes: [usize; 2],
    kernel: [usize; 2],
    options: FoldOptions,
) -> Result<Window> {
    let FoldOptions { dilation, padding, stride } = options;
    if !input.dtype().is_float() {
        return Err(ErrorKind::UnsupportedDType { dtype: input.dtype() }.of(op));
    }
    let mut output = sizes;
    not_negative(op, "output_size", &sizes)?;
    not_negative(op, "padding", &padding)?;
    for d in 0..2 {
        positive(op, "kernel_size", kernel[d])?;
        positive(op, "stride", stride[d])?;
        positive(op, "dilation", dilation[d])?;
        let reach = (kernel[d] - 1).saturating_mul(dilation[d]).saturating_add(1);
        let padded = padding[d].saturating_mul(2).saturating_add(sizes[d]);
        if padded < reach {
            let reason = format!(
                "a window of {reach} elements in dimension {d} does not fit into an image of \
                 {padded} elements, padding included"
            );
            return Err(Error::shape(op, reason));
        }
        output[d] = (padded - reach) / stride[d] + 1;
    }
    window(op, [sizes, output, kernel, stride, padding, dilation])
}

#[track_caller]
fn image_to_columns(x: &Tensor, of: Window) -> Result<Tensor> {
    let (exec, rows) = (x.exec()?, x.size()[1].saturating_mul(of.taps()));
    let out = exec.empty(&[x.size()[0], rows, of.positions()], x.dtype())?;
    im2col(exec.target(), x.as_view(), &of, out.as_view())?;
    if !should_record(&[x]) {
        return Ok(out);
    }
    record("im2col", out, &[x], linear(move |grad, _| columns_to_image(grad, of)))
}

#[track_caller]
fn columns_to_image(x: &Tensor, of: Window) -> Result<Tensor> {
    let exec = x.exec()?;
    let [batch, rows] = [x.size()[0], x.size()[1]];
    let [_, height, width] = of.input;
    let out = exec.empty(&[batch, rows / of.taps(), height, width], x.dtype())?;
    // The kernel requires stride 1 in the last dimension.
    let dense = no_grad(|| x.contiguous())?;
    col2im(exec.target(), dense.as_view(), &of, out.as_view())?;
    if !should_record(&[x]) {
        return Ok(out);
    }
    record("col2im", out, &[x], linear(move |grad, _| image_to_columns(grad, of)))
}
