//! Convolutions.

mod gradient;

use super::options::{PerDimension, options};
use super::window::{batched, last, not_negative, positive, window};
use crate::amp::autocast_operands;
use crate::exec::check_together;
use crate::{CallScope, Error, ErrorKind, IntoOptionalTensor, IntoOptions, Result, Tensor};
use gradient::{ConvGeometry, convolution, transposed};

/// Padding around the image that is convolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding<const D: usize> {
    /// Number of zeros on each side of each dimension.
    Zeros([usize; D]),
    /// Zeros such that the result has the image's sizes (`"same"`). If the number of zeros is odd, the end gets one
    /// more. The stride must be 1.
    Same,
    /// No padding (`"valid"`).
    Valid,
}

impl<const D: usize, N: PerDimension<D>> From<N> for Padding<D> {
    fn from(zeros: N) -> Self {
        Self::Zeros(zeros.per_dimension())
    }
}

/// The argument of the setter `padding` of a convolution: a number of zeros for all dimensions, one for each dimension,
/// or a [`Padding`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a padding of {D} dimensions",
    label = "expected an integer, an array or tuple of {D} integers, or a `Padding`",
    note = "\"same\" is `Padding::Same`, and \"valid\" is `Padding::Valid`"
)]
pub trait IntoPadding<const D: usize> {
    /// Returns the padding.
    fn into_padding(self) -> Padding<D>;
}

#[diagnostic::do_not_recommend]
impl<const D: usize, T: Into<Padding<D>>> IntoPadding<D> for T {
    fn into_padding(self) -> Padding<D> {
        self.into()
    }
}

options! {
    /// Options of [`conv1d`], [`conv2d`] and [`conv3d`]. One number sets all `D` dimensions; an array sets each
    /// dimension.
    ///
    /// ```
    /// use warpline::functional::{ConvOptions, Padding, conv1d};
    ///
    /// let (x, weight) = (warpline::ones([1, 8], ())?, warpline::ones([1, 1, 3], ())?);
    /// let strided = conv1d(&x, &weight, None, ConvOptions::new().stride(2).padding(1))?;
    /// assert_eq!(strided.size(), [1, 4]);
    /// let same = conv1d(&x, &weight, None, ConvOptions::new().padding(Padding::Same))?;
    /// assert_eq!(same.size(), [1, 8]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    ConvOptions [const D: usize] [D] {
        /// Sets the distance from one window to the next, in elements. Default: 1. Has no effect in a dimension with
        /// one result.
        stride: [usize; D] = [1; D], impl PerDimension<D> => PerDimension::per_dimension;
        /// Sets the padding around the image: the number of zeros on each side, or a [`Padding`]. Default: none.
        padding: Padding<D> = Padding::Valid, impl IntoPadding<D> => IntoPadding::into_padding;
        /// Sets the distance from one element of the window to the next, in elements. Default: 1. Has no effect if the
        /// window has one element.
        dilation: [usize; D] = [1; D], impl PerDimension<D> => PerDimension::per_dimension;
        /// Sets the number of channel groups. Each group of input channels gives one group of output channels.
        /// Default: 1.
        groups: usize = 1, usize;
    }
}

options! {
    /// Options of [`conv_transpose1d`], [`conv_transpose2d`] and [`conv_transpose3d`]. One number sets all `D`
    /// dimensions; an array sets each dimension.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    ConvTransposeOptions [const D: usize] [D] {
        /// Sets the stride of the convolution that is transposed, in elements. Default: 1.
        stride: [usize; D] = [1; D], impl PerDimension<D> => PerDimension::per_dimension;
        /// Sets the padding of the convolution that is transposed: this many elements are cut off on each side of
        /// the result. Default: 0.
        padding: [usize; D] = [0; D], impl PerDimension<D> => PerDimension::per_dimension;
        /// Sets the additional size at the end of the result, in elements. A strided convolution maps several image
        /// sizes to one result size, so for its transpose this option selects one of them. It must be less than the
        /// stride or the dilation. Default: 0.
        output_padding: [usize; D] = [0; D], impl PerDimension<D> => PerDimension::per_dimension;
        /// Sets the number of channel groups of the convolution that is transposed. Default: 1.
        groups: usize = 1, usize;
        /// Sets the dilation of the convolution that is transposed, in elements. Default: 1.
        dilation: [usize; D] = [1; D], impl PerDimension<D> => PerDimension::per_dimension;
    }
}

macro_rules! convolutions {
    ($($(#[$doc:meta])* $name:ident $d:literal $options:ident $run:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`ErrorKind::ShapeMismatch`] if `weight` does not have `D + 2` dimensions (`D`: the number of spatial
        /// dimensions), if `input` has neither `D + 1` nor `D + 2`, if the channels of `input` and `weight` do not
        /// match for `groups`, if `groups` does not divide the channels or outputs, if `bias` does not have one element
        /// per output channel, if the window is empty or larger than the padded image, if image, window or result is
        /// too large for 32-bit positions, or, for a transposed convolution, if a spatial size of the input is 0 or the
        /// padding leaves no elements. [`ErrorKind::InvalidArgument`] if a stride, a dilation or `groups` is not
        /// positive, if a padding is negative, if the padding is [`Padding::Same`] and a stride is not 1, or, for a
        /// transposed convolution, if an output padding is not smaller than the larger of stride and dilation.
        /// [`ErrorKind::UnsupportedDType`] if the input is not floating point. [`ErrorKind::OperandDTypes`] if the
        /// dtypes differ. Errors of [every op](Tensor#errors-of-every-op).
        #[track_caller]
        pub fn $name<'a>(
            input: &Tensor,
            weight: &Tensor,
            bias: impl IntoOptionalTensor<'a>,
            options: impl IntoOptions<$options<$d>>,
        ) -> Result<Tensor> {
            let _call = CallScope::enter(stringify!($name));
            let (bias, options) = (bias.into_optional(), options.into_options());
            autocast_operands!(Low, Low, [input, weight; bias] => $name(input, weight, bias, options));
            $run(stringify!($name), input, weight, bias, options)
        }
    )*};
}

convolutions! {
    /// Convolves rows (`torch.nn.functional.conv1d`). `input` is `[batch, channels, width]` or
    /// `[channels, width]`, `weight` is `[outputs, channels / groups, width]`, `bias` is `[outputs]`.
    conv1d 1 ConvOptions forward;
    /// Convolves images (`torch.nn.functional.conv2d`). `input` is `[batch, channels, height, width]` or
    /// `[channels, height, width]`, `weight` is `[outputs, channels / groups, height, width]`, `bias` is
    /// `[outputs]`.
    ///
    /// ```
    /// use warpline::functional::{ConvOptions, conv2d};
    /// use warpline::{arange, ones};
    ///
    /// let image = arange(9f32, ())?.reshape([1, 1, 3, 3])?;
    /// let sums = conv2d(&image, &ones([1, 1, 2, 2], ())?, None, ())?;
    /// assert_eq!(sums.to_vec::<f32>()?, [8.0, 12.0, 20.0, 24.0]);
    /// let options = ConvOptions::new().stride(2).padding(1);
    /// let strided = conv2d(&image, &ones([1, 1, 2, 2], ())?, None, options)?;
    /// assert_eq!(strided.to_vec::<f32>()?, [0.0, 3.0, 9.0, 24.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    conv2d 2 ConvOptions forward;
    /// Convolves volumes (`torch.nn.functional.conv3d`). `input` is `[batch, channels, depth, height, width]`
    /// or `[channels, depth, height, width]`, `weight` is `[outputs, channels / groups, depth, height, width]`,
    /// `bias` is `[outputs]`.
    conv3d 3 ConvOptions forward;
    /// The transpose of [`conv1d`] with this weight (`torch.nn.functional.conv_transpose1d`). `weight` is
    /// `[channels, outputs / groups, width]`.
    conv_transpose1d 1 ConvTransposeOptions transpose;
    /// The transpose of [`conv2d`] with this weight (`torch.nn.functional.conv_transpose2d`). `weight` is
    /// `[channels, outputs / groups, height, width]`.
    ///
    /// ```
    /// use warpline::functional::{ConvTransposeOptions, conv_transpose2d};
    /// use warpline::{arange, ones};
    ///
    /// let image = arange(4f32, ())?.reshape([1, 2, 2])?;
    /// let options = ConvTransposeOptions::new().stride(2);
    /// let larger = conv_transpose2d(&image, &ones([1, 1, 2, 2], ())?, None, options)?;
    /// assert_eq!(larger.size(), [1, 4, 4]);
    /// assert_eq!(larger.i(0)?.i(0)?.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    conv_transpose2d 2 ConvTransposeOptions transpose;
    /// The transpose of [`conv3d`] with this weight (`torch.nn.functional.conv_transpose3d`). `weight` is
    /// `[channels, outputs / groups, depth, height, width]`.
    conv_transpose3d 3 ConvTransposeOptions transpose;
}

#[track_caller]
fn forward<const D: usize>(
    op: &'static str,
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: ConvOptions<D>,
) -> Result<Tensor> {
    let ConvOptions { stride, padding, dilation, groups } = options;
    check::<D>(op, input, weight, bias, groups)?;
    let (channels, outputs) = (input.size()[input.dim() - D - 1], weight.size()[0]);
    let of_group = weight.size()[1];
    if of_group.checked_mul(groups) != Some(channels) || !outputs.is_multiple_of(groups) {
        let (expected, weight) = (of_group.saturating_mul(groups), weight.size());
        let reason = if expected == channels {
            format!("{groups} groups do not divide the {outputs} outputs of a weight of {weight:?}")
        } else {
            format!(
                "with {groups} groups a weight of {weight:?} expects {expected} channels, but the input of {:?} has \
                 {channels}",
                input.size()
            )
        };
        return Err(Error::shape(op, reason));
    }
    check_bias(op, bias, outputs)?;
    let sizes: [usize; D] = last(input);
    let kernel: [usize; D] = last(weight);
    let mut output = sizes;
    let mut begin = [0; D];
    if let Padding::Zeros(zeros) = &padding {
        not_negative(op, "padding", zeros)?;
    }
    for d in 0..D {
        positive(op, "stride", stride[d])?;
        positive(op, "dilation", dilation[d])?;
        let reach = window_extent(kernel[d], dilation[d]);
        match padding {
            Padding::Same if stride[d] != 1 => {
                let reason = "padding as `Same` needs a stride of 1";
                return Err(Error::invalid(op, reason));
            }
            Padding::Same if kernel[d] > 0 => {
                begin[d] = (reach - 1) / 2;
                continue;
            }
            Padding::Zeros(zeros) => begin[d] = zeros[d],
            Padding::Same | Padding::Valid => {}
        }
        let padded = begin[d].saturating_mul(2).saturating_add(sizes[d]);
        if padded < reach || kernel[d] == 0 {
            let reason = format!(
                "a window of {reach} elements in dimension {d} does not fit into an image of {padded}, padding included"
            );
            return Err(Error::shape(op, reason));
        }
        output[d] = (padded - reach) / stride[d] + 1;
    }
    let window = window(op, [sizes, output, kernel, stride, begin, dilation])?;
    let geometry = ConvGeometry { window, dims: D, groups, channels, outputs };
    batched::<D>(input, |batch| convolution(batch, weight, bias, geometry))
}

#[track_caller]
fn transpose<const D: usize>(
    op: &'static str,
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: ConvTransposeOptions<D>,
) -> Result<Tensor> {
    let ConvTransposeOptions { stride, padding, output_padding, dilation, groups } = options;
    check::<D>(op, input, weight, bias, groups)?;
    // The input's channels are the output channels of the convolution that is transposed.
    let outputs = input.size()[input.dim() - D - 1];
    let channels = weight.size()[1].saturating_mul(groups);
    if weight.size()[0] != outputs || !outputs.is_multiple_of(groups) {
        let reason = format!(
            "a weight of {:?} expects {} channels, which {groups} groups divide, but the input of {:?} has {outputs}",
            weight.size(),
            weight.size()[0],
            input.size()
        );
        return Err(Error::shape(op, reason));
    }
    check_bias(op, bias, channels)?;
    let sizes: [usize; D] = last(input);
    let kernel: [usize; D] = last(weight);
    let mut result = sizes;
    not_negative(op, "padding", &padding)?;
    not_negative(op, "output_padding", &output_padding)?;
    for d in 0..D {
        positive(op, "stride", stride[d])?;
        positive(op, "dilation", dilation[d])?;
        if output_padding[d] >= stride[d].max(dilation[d]) {
            let reason = format!(
                "output_padding {output_padding:?} must be smaller than stride {stride:?} or dilation {dilation:?}"
            );
            return Err(Error::invalid(op, reason));
        }
        let moved = sizes[d].saturating_sub(1).saturating_mul(stride[d]);
        let all = moved
            .saturating_add(window_extent(kernel[d], dilation[d]))
            .saturating_add(output_padding[d])
            .checked_sub(padding[d].saturating_mul(2));
        let Some(size) = all.filter(|n| *n > 0 && sizes[d] > 0 && kernel[d] > 0) else {
            let reason =
                format!("padding {padding:?} leaves nothing of an input of {:?}", input.size());
            return Err(Error::shape(op, reason));
        };
        result[d] = size;
    }
    let window = window(op, [result, sizes, kernel, stride, padding, dilation])?;
    let geometry = ConvGeometry { window, dims: D, groups, channels, outputs };
    batched::<D>(input, |batch| transposed(batch, weight, bias, geometry))
}

/// Returns the extent of a window of `kernel` elements with this dilation.
fn window_extent(kernel: usize, dilation: usize) -> usize {
    kernel.max(1).saturating_sub(1).saturating_mul(dilation).saturating_add(1)
}

#[track_caller]
fn check<const D: usize>(
    op: &'static str,
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    groups: usize,
) -> Result<()> {
    let dims = input.dim();
    if weight.dim() != D + 2 || (dims != D + 1 && dims != D + 2) {
        let reason = format!(
            "the weight must have {} dimensions and the input {} or {}, but their shapes are {:?} and {:?}",
            D + 2,
            D + 1,
            D + 2,
            weight.size(),
            input.size()
        );
        return Err(Error::shape(op, reason));
    }
    positive(op, "groups", groups)?;
    if !input.dtype().is_float() {
        return Err(ErrorKind::UnsupportedDType { dtype: input.dtype() }.of(op));
    }
    let others = [("input and weight", Some(weight)), ("input and bias", bias)];
    for (operands, other) in others {
        let Some(other) = other else { continue };
        check_together(op, input, other)?;
        if other.dtype() != input.dtype() {
            let (first, second) = (input.dtype(), other.dtype());
            return Err(ErrorKind::OperandDTypes { operands, first, second }.of(op));
        }
    }
    Ok(())
}

#[track_caller]
fn check_bias(op: &'static str, bias: Option<&Tensor>, outputs: usize) -> Result<()> {
    match bias {
        Some(bias) if bias.size() != [outputs] => {
            let reason = format!("a bias of {:?} for {outputs} outputs", bias.size());
            Err(Error::shape(op, reason))
        }
        _ => Ok(()),
    }
}
