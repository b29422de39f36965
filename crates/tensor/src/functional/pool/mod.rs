//! Pools: the largest element or the average of the elements under a window.

mod gradient;

use warpline_kernels::pool::{Divisor, Regions, Window};

use super::options::{PerDimension, options};
use super::window::{batched, last, not_negative, positive, window};
use crate::amp::autocast_operands;
use crate::{CallScope, Error, ErrorKind, IntoOptions, Result, Tensor};
use gradient::{Pooling, averages, largest};

options! {
    /// Options of [`max_pool1d`], [`max_pool2d`] and [`max_pool3d`]. One number sets all `D` dimensions; an array
    /// sets each dimension.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    MaxPoolOptions [const D: usize] [D] {
        /// Sets the distance from one window to the next, in elements. Default: the window's sizes.
        stride: Option<[usize; D]> = None, impl PerDimension<D> => |n| Some(PerDimension::per_dimension(n));
        /// Sets the padding on each side, in elements, at most half of the window. Elements of the padding are smaller
        /// than any number. Default: 0.
        padding: [usize; D] = [0; D], impl PerDimension<D> => PerDimension::per_dimension;
        /// Sets the distance from one element of the window to the next, in elements. Default: 1.
        dilation: [usize; D] = [1; D], impl PerDimension<D> => PerDimension::per_dimension;
        /// Sets whether the result includes a last window that extends beyond the padded image. Default: `false`.
        ceil_mode: bool = false, bool;
    }
}

options! {
    /// Options of [`avg_pool1d`], [`avg_pool2d`] and [`avg_pool3d`]. One number sets all `D` dimensions; an
    /// array sets each dimension.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    AvgPoolOptions [const D: usize] [D] {
        /// Sets the distance from one window to the next, in elements. Default: the window's sizes.
        stride: Option<[usize; D]> = None, impl PerDimension<D> => |n| Some(PerDimension::per_dimension(n));
        /// Sets the number of zeros on each side, at most half of the window. Default: 0.
        padding: [usize; D] = [0; D], impl PerDimension<D> => PerDimension::per_dimension;
        /// Sets whether the result includes a last window that extends beyond the padded image. Default: `false`.
        ceil_mode: bool = false, bool;
        /// Sets whether the divisor counts the elements in the padding. Default: `true`.
        count_include_pad: bool = true, bool;
        /// Sets the divisor of the sum, which must not be 0. Default: the number of elements.
        divisor_override: Option<i64> = None, impl Into<Option<i64>> => Into::into;
    }
}

macro_rules! pools {
    ($($(#[$doc:meta])* $name:ident $with_indices:ident $d:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`ErrorKind::ShapeMismatch`] if the input is neither `[batch, channels, …]` nor `[channels, …]` with the
        /// number of spatial dimensions in the function's name, if a spatial size is 0, if the window is larger than
        /// the padded image (with `ceil_mode`, by at least the stride), or if the image or the result is too large for
        /// 32-bit positions. [`ErrorKind::InvalidArgument`] if a kernel size, a stride or a dilation is not positive,
        /// or if a padding is negative or exceeds half of the window. [`ErrorKind::UnsupportedDType`] if the input is
        /// not floating point. Errors of [every op](Tensor#errors-of-every-op).
        #[track_caller]
        pub fn $name(
            input: &Tensor,
            kernel_size: impl PerDimension<$d>,
            options: impl IntoOptions<MaxPoolOptions<$d>>,
        ) -> Result<Tensor> {
            let _call = CallScope::enter(stringify!($name));
            let (kernel, options) = (kernel_size.per_dimension(), options.into_options());
            Ok(max(stringify!($name), input, kernel, options)?.0)
        }

        #[doc = concat!("[`", stringify!($name), "`] and the index of each largest element among the elements of its ")]
        #[doc = "channel, as `int64` (`return_indices=True`)."]
        ///
        /// # Errors
        #[doc = concat!("The same as [`", stringify!($name), "`].")]
        #[track_caller]
        pub fn $with_indices(
            input: &Tensor,
            kernel_size: impl PerDimension<$d>,
            options: impl IntoOptions<MaxPoolOptions<$d>>,
        ) -> Result<(Tensor, Tensor)> {
            let _call = CallScope::enter(stringify!($with_indices));
            let (kernel, options) = (kernel_size.per_dimension(), options.into_options());
            max(stringify!($with_indices), input, kernel, options)
        }
    )*};
}

pools! {
    /// The largest element under each position of a window (`torch.nn.functional.max_pool1d`). `input` is
    /// `[batch, channels, width]` or `[channels, width]`. NaN counts as larger than any number.
    max_pool1d max_pool1d_with_indices 1;
    /// The largest element under each position of a window (`torch.nn.functional.max_pool2d`). `input` is
    /// `[batch, channels, height, width]` or `[channels, height, width]`. NaN counts as larger than any number.
    ///
    /// ```
    /// use warpline::arange;
    /// use warpline::functional::max_pool2d_with_indices;
    ///
    /// let image = arange(16f32, ())?.reshape([1, 1, 4, 4])?;
    /// let (largest, indices) = max_pool2d_with_indices(&image, 2, ())?;
    /// assert_eq!(largest.to_vec::<f32>()?, [5.0, 7.0, 13.0, 15.0]);
    /// assert_eq!(indices.to_vec::<i64>()?, [5, 7, 13, 15]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    max_pool2d max_pool2d_with_indices 2;
    /// The largest element under each position of a window (`torch.nn.functional.max_pool3d`). `input` is
    /// `[batch, channels, depth, height, width]` or `[channels, depth, height, width]`. NaN counts as larger than any
    /// number.
    max_pool3d max_pool3d_with_indices 3;
}

macro_rules! averages {
    ($($(#[$doc:meta])* $name:ident $d:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`ErrorKind::ShapeMismatch`] if the input is neither `[batch, channels, …]` nor `[channels, …]` with the
        /// number of spatial dimensions in the function's name, if a spatial size is 0, if the window is larger than
        /// the padded image (with `ceil_mode`, by at least the stride), or if the image or the result is too large for
        /// 32-bit positions. [`ErrorKind::InvalidArgument`] if a kernel size or a stride is not positive, if the
        /// divisor is zero, or if a padding is negative or exceeds half of the window. [`ErrorKind::UnsupportedDType`]
        /// if the input is not floating point. Errors of [every op](Tensor#errors-of-every-op).
        #[track_caller]
        pub fn $name(
            input: &Tensor,
            kernel_size: impl PerDimension<$d>,
            options: impl IntoOptions<AvgPoolOptions<$d>>,
        ) -> Result<Tensor> {
            let _call = CallScope::enter(stringify!($name));
            average(stringify!($name), input, kernel_size.per_dimension(), options.into_options())
        }
    )*};
}

averages! {
    /// The average under each position of a window (`torch.nn.functional.avg_pool1d`). `input` is
    /// `[batch, channels, width]` or `[channels, width]`.
    avg_pool1d 1;
    /// The average under each position of a window (`torch.nn.functional.avg_pool2d`). `input` is
    /// `[batch, channels, height, width]` or `[channels, height, width]`.
    ///
    /// ```
    /// use warpline::arange;
    /// use warpline::functional::avg_pool2d;
    ///
    /// let image = arange(16f32, ())?.reshape([1, 1, 4, 4])?;
    /// let means = avg_pool2d(&image, 2, ())?;
    /// assert_eq!(means.to_vec::<f32>()?, [2.5, 4.5, 10.5, 12.5]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    avg_pool2d 2;
    /// The average under each position of a window (`torch.nn.functional.avg_pool3d`). `input` is
    /// `[batch, channels, depth, height, width]` or `[channels, depth, height, width]`.
    avg_pool3d 3;
}

macro_rules! adaptive {
    ($($avg:ident $max:ident $with_indices:ident $d:literal;)*) => {$(
        #[doc = concat!("The averages of `output_size` parts of the image per dimension (`torch.nn.functional.",
            stringify!($avg), "`).")]
        ///
        /// # Errors
        /// [`ErrorKind::ShapeMismatch`] if the input is neither `[batch, channels, …]` nor `[channels, …]` with the
        /// number of spatial dimensions in the function's name, if a spatial size of the image is 0, or if the image or
        /// the result is too large for 32-bit positions. [`ErrorKind::InvalidArgument`] if an output size is negative.
        /// [`ErrorKind::UnsupportedDType`] if the input is not floating point. Errors of
        /// [every op](Tensor#errors-of-every-op).
        #[track_caller]
        pub fn $avg(input: &Tensor, output_size: impl PerDimension<$d>) -> Result<Tensor> {
            let _call = CallScope::enter(stringify!($avg));
            adaptive_average(stringify!($avg), input, output_size.per_dimension())
        }

        #[doc = "The largest elements of `output_size` parts of the image per dimension "]
        #[doc = concat!("(`torch.nn.functional.", stringify!($max), "`).")]
        ///
        /// # Errors
        #[doc = concat!("The same as [`", stringify!($avg), "`].")]
        #[track_caller]
        pub fn $max(input: &Tensor, output_size: impl PerDimension<$d>) -> Result<Tensor> {
            let _call = CallScope::enter(stringify!($max));
            Ok($with_indices(input, output_size)?.0)
        }

        #[doc = concat!("[`", stringify!($max), "`] and the index of each largest element among the elements of its ")]
        #[doc = "channel, as `int64` (`return_indices=True`)."]
        ///
        /// # Errors
        #[doc = concat!("The same as [`", stringify!($avg), "`].")]
        #[track_caller]
        pub fn $with_indices(
            input: &Tensor,
            output_size: impl PerDimension<$d>,
        ) -> Result<(Tensor, Tensor)> {
            let _call = CallScope::enter(stringify!($with_indices));
            adaptive_max(stringify!($with_indices), input, output_size.per_dimension())
        }
    )*};
}

adaptive! {
    adaptive_avg_pool1d adaptive_max_pool1d adaptive_max_pool1d_with_indices 1;
    adaptive_avg_pool2d adaptive_max_pool2d adaptive_max_pool2d_with_indices 2;
    adaptive_avg_pool3d adaptive_max_pool3d adaptive_max_pool3d_with_indices 3;
}

#[track_caller]
fn max<const D: usize>(
    op: &'static str,
    input: &Tensor,
    kernel: [usize; D],
    options: MaxPoolOptions<D>,
) -> Result<(Tensor, Tensor)> {
    if D == 3 {
        autocast_operands!(Keep, F32, [input] => max(op, input, kernel, options));
    }
    let MaxPoolOptions { stride, padding, dilation, ceil_mode } = options;
    let window =
        pool_window(op, input, [kernel, stride.unwrap_or(kernel), padding, dilation], ceil_mode)?;
    max_with_indices::<D>(input, Pooling { window, regions: Regions::Moving, dims: D })
}

#[track_caller]
fn adaptive_max<const D: usize>(
    op: &'static str,
    input: &Tensor,
    output: [usize; D],
) -> Result<(Tensor, Tensor)> {
    if D == 3 {
        autocast_operands!(Keep, F32, [input] => adaptive_max(op, input, output));
    }
    max_with_indices::<D>(input, adaptive_pool(op, input, output)?)
}

#[track_caller]
fn adaptive_average<const D: usize>(
    op: &'static str,
    input: &Tensor,
    output: [usize; D],
) -> Result<Tensor> {
    if D == 3 {
        autocast_operands!(Keep, F32, [input] => adaptive_average(op, input, output));
    }
    let pooling = adaptive_pool(op, input, output)?;
    batched::<D>(input, |batch| averages(batch, pooling, Divisor::Inside))
}

#[track_caller]
fn max_with_indices<const D: usize>(input: &Tensor, pooling: Pooling) -> Result<(Tensor, Tensor)> {
    if input.dim() == D + 2 {
        return largest(input, pooling);
    }
    let (values, indices) = largest(&input.unsqueeze(0)?, pooling)?;
    Ok((values.squeeze(0)?, indices.squeeze(0)?))
}

#[track_caller]
fn average<const D: usize>(
    op: &'static str,
    input: &Tensor,
    kernel: [usize; D],
    options: AvgPoolOptions<D>,
) -> Result<Tensor> {
    if D == 3 {
        autocast_operands!(Keep, F32, [input] => average(op, input, kernel, options));
    }
    let AvgPoolOptions { stride, padding, ceil_mode, count_include_pad, divisor_override } =
        options;
    let window =
        pool_window(op, input, [kernel, stride.unwrap_or(kernel), padding, [1; D]], ceil_mode)?;
    let divisor = match divisor_override {
        Some(0) => return Err(Error::invalid(op, "divisor_override must not be zero")),
        Some(number) => Divisor::Number(number),
        None if count_include_pad => Divisor::Padded,
        None => Divisor::Inside,
    };
    let pooling = Pooling { window, regions: Regions::Moving, dims: D };
    batched::<D>(input, |batch| averages(batch, pooling, divisor))
}

#[track_caller]
fn check<const D: usize>(op: &'static str, input: &Tensor) -> Result<()> {
    if input.dim() != D + 1 && input.dim() != D + 2 {
        let of = input.size();
        return Err(Error::shape(
            op,
            format!(
                "expects an input of {} or {} dimensions, not one of sizes {of:?}",
                D + 1,
                D + 2
            ),
        ));
    }
    if !input.dtype().is_float() {
        return Err(ErrorKind::UnsupportedDType { dtype: input.dtype() }.of(op));
    }
    Ok(())
}

/// Creates and checks the window of a pool from kernel, stride, padding and dilation, in this order.
#[track_caller]
fn pool_window<const D: usize>(
    op: &'static str,
    input: &Tensor,
    [kernel, stride, padding, dilation]: [[usize; D]; 4],
    ceil_mode: bool,
) -> Result<Window> {
    check::<D>(op, input)?;
    let sizes: [usize; D] = last(input);
    let mut output = sizes;
    not_negative(op, "padding", &padding)?;
    for d in 0..D {
        positive(op, "kernel_size", kernel[d])?;
        positive(op, "stride", stride[d])?;
        positive(op, "dilation", dilation[d])?;
        let reach = (kernel[d] - 1).saturating_mul(dilation[d]).saturating_add(1);
        if padding[d] > reach / 2 {
            let reason = format!(
                "pad should be at most half of effective kernel size, but got pad={}, kernel_size={} and dilation={}",
                padding[d], kernel[d], dilation[d]
            );
            return Err(Error::invalid(op, reason));
        }
        let padded = padding[d].saturating_mul(2).saturating_add(sizes[d]);
        let signed = |n: usize| isize::try_from(n).unwrap_or(isize::MAX);
        // In ceil mode, the last window may extend beyond the padded image.
        let beyond = if ceil_mode { signed(stride[d]) - 1 } else { 0 };
        let rest = signed(padded).saturating_sub(signed(reach)).saturating_add(beyond);
        if rest < 0 || sizes[d] == 0 {
            let reason = format!(
                "a window of {reach} elements in dimension {d} does not fit into an image of \
                 {padded} elements, padding included"
            );
            return Err(Error::shape(op, reason));
        }
        output[d] = rest as usize / stride[d] + 1;
        // The last window must begin inside the image or the padding before it.
        if ceil_mode
            && (output[d] - 1).saturating_mul(stride[d]) >= sizes[d].saturating_add(padding[d])
        {
            output[d] -= 1;
        }
    }
    window(op, [sizes, output, kernel, stride, padding, dilation])
}

/// Creates an adaptive pool: it divides each dimension of the image into `output` windows.
#[track_caller]
fn adaptive_pool<const D: usize>(
    op: &'static str,
    input: &Tensor,
    output: [usize; D],
) -> Result<Pooling> {
    check::<D>(op, input)?;
    not_negative(op, "output_size", &output)?;
    let sizes: [usize; D] = last(input);
    if sizes.contains(&0) {
        let reason = format!("an image of sizes {sizes:?} has no elements");
        return Err(Error::shape(op, reason));
    }
    let window = window(op, [sizes, output, [1; D], [1; D], [0; D], [1; D]])?;
    Ok(Pooling { window, regions: Regions::Adaptive, dims: D })
}
