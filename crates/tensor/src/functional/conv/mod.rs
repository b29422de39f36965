//! Convolutions.

mod gradient;

use std::panic::Location;

use warpline_kernels::conv::Window;

use crate::called::Called;
use crate::exec::check_together;
use crate::{Error, ErrorKind, Result, Tensor};
use gradient::{Geometry, convolution, transposed};

/// What is around the image that is convolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding<const D: usize> {
    /// So many zeros on both sides of each dimension.
    Zeros([usize; D]),
    /// As many as give a result of the image's sizes (`"same"`), the odd one at the end. The stride has to be 1.
    Same,
    /// Nothing (`"valid"`).
    Valid,
}

impl<const D: usize> From<usize> for Padding<D> {
    fn from(zeros: usize) -> Self {
        Self::Zeros([zeros; D])
    }
}

impl<const D: usize> From<[usize; D]> for Padding<D> {
    fn from(zeros: [usize; D]) -> Self {
        Self::Zeros(zeros)
    }
}

/// Options of [`conv1d`], [`conv2d`] and [`conv3d`], a number for each of `D` dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvOptions<const D: usize> {
    /// From one window to the next; 1. Without effect in a dimension with one result.
    pub stride: [usize; D],
    /// Around the image; nothing.
    pub padding: Padding<D>,
    /// From one element of the window to the next; 1. Without effect where the window has one element.
    pub dilation: [usize; D],
    /// Parts that the channels are divided into, each of which gives its part of the result's; 1.
    pub groups: usize,
}

impl<const D: usize> Default for ConvOptions<D> {
    fn default() -> Self {
        Self { stride: [1; D], padding: Padding::Valid, dilation: [1; D], groups: 1 }
    }
}

/// Options of [`conv_transpose1d`], [`conv_transpose2d`] and [`conv_transpose3d`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvTransposeOptions<const D: usize> {
    /// Of the convolution that it transposes; 1.
    pub stride: [usize; D],
    /// Of that convolution, hence what is cut off on both sides; 0.
    pub padding: [usize; D],
    /// What the result has more at the end, of the sizes that this convolution maps to one; 0.
    pub output_padding: [usize; D],
    /// Of that convolution; 1.
    pub dilation: [usize; D],
    /// Of that convolution; 1.
    pub groups: usize,
}

impl<const D: usize> Default for ConvTransposeOptions<D> {
    fn default() -> Self {
        let (none, one) = ([0; D], [1; D]);
        Self { stride: one, padding: none, output_padding: none, dilation: one, groups: 1 }
    }
}

macro_rules! convolutions {
    ($($(#[$doc:meta])* $name:ident $d:literal $options:ident $run:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`ErrorKind::ShapeMismatch`], [`ErrorKind::InvalidArgument`] for options that do not fit together,
        /// [`ErrorKind::UnsupportedDType`] for what is not a float, [`ErrorKind::OperandDTypes`], [`ErrorKind::DeviceMismatch`],
        /// and what the launches fail with.
        #[track_caller]
        pub fn $name(
            input: &Tensor,
            weight: &Tensor,
            bias: Option<&Tensor>,
            options: &$options<$d>,
        ) -> Result<Tensor> {
            $run(stringify!($name), input, weight, bias, options).of(stringify!($name))
        }
    )*};
}

convolutions! {
    /// Convolves rows, `[batch, channels, width]` or `[channels, width]`, with `weight` of
    /// `[outputs, channels / groups, width]` (`torch.nn.functional.conv1d`).
    conv1d 1 ConvOptions forward;
    /// Convolves images, `[batch, channels, height, width]` or one without the batch, with `weight` of
    /// `[outputs, channels / groups, height, width]`, and adds `bias` of `[outputs]`
    /// (`torch.nn.functional.conv2d`).
    ///
    /// ```
    /// use warpline::functional::{ConvOptions, conv2d};
    /// use warpline::{arange, ones};
    ///
    /// let image = arange(9f32, ())?.reshape([1, 1, 3, 3])?;
    /// let sums = conv2d(&image, &ones([1, 1, 2, 2], ())?, None, &ConvOptions::default())?;
    /// assert_eq!(sums.to_vec::<f32>()?, [8.0, 12.0, 20.0, 24.0]);
    /// let options = ConvOptions { stride: [2, 2], padding: 1.into(), ..Default::default() };
    /// let strided = conv2d(&image, &ones([1, 1, 2, 2], ())?, None, &options)?;
    /// assert_eq!(strided.to_vec::<f32>()?, [0.0, 3.0, 9.0, 24.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    conv2d 2 ConvOptions forward;
    /// Convolves volumes, `[batch, channels, depth, height, width]` or one without the batch
    /// (`torch.nn.functional.conv3d`).
    conv3d 3 ConvOptions forward;
    /// The transpose of [`conv1d`] with this weight, of `[channels, outputs / groups, width]`
    /// (`torch.nn.functional.conv_transpose1d`).
    conv_transpose1d 1 ConvTransposeOptions transpose;
    /// The transpose of [`conv2d`] with this weight, of `[channels, outputs / groups, height, width]`
    /// (`torch.nn.functional.conv_transpose2d`).
    ///
    /// ```
    /// use warpline::functional::{ConvTransposeOptions, conv_transpose2d};
    /// use warpline::{arange, ones};
    ///
    /// let image = arange(4f32, ())?.reshape([1, 2, 2])?;
    /// let options = ConvTransposeOptions { stride: [2, 2], ..Default::default() };
    /// let larger = conv_transpose2d(&image, &ones([1, 1, 2, 2], ())?, None, &options)?;
    /// assert_eq!(larger.size(), [1, 4, 4]);
    /// assert_eq!(larger.i(0)?.i(0)?.to_vec::<f32>()?, [0.0, 0.0, 1.0, 1.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    conv_transpose2d 2 ConvTransposeOptions transpose;
    /// The transpose of [`conv3d`] with this weight, of `[channels, outputs / groups, depth, height, width]`
    /// (`torch.nn.functional.conv_transpose3d`).
    conv_transpose3d 3 ConvTransposeOptions transpose;
}

#[track_caller]
fn forward<const D: usize>(
    op: &'static str,
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: &ConvOptions<D>,
) -> Result<Tensor> {
    let &ConvOptions { stride, padding, dilation, groups } = options;
    check::<D>(op, input, weight, bias, groups)?;
    let (channels, outputs) = (input.size()[input.dim() - D - 1], weight.size()[0]);
    let of_group = weight.size()[1];
    if of_group.checked_mul(groups) != Some(channels) || !outputs.is_multiple_of(groups) {
        let reason = format!(
            "with {groups} groups a weight of {:?} expects {} channels and a number of outputs that {groups} divides, \
             but the input of {:?} has {channels} channels",
            weight.size(),
            of_group.saturating_mul(groups),
            input.size()
        );
        return Err(mismatch(op, reason));
    }
    check_bias(op, bias, outputs)?;
    let sizes: [usize; D] = last(input);
    let kernel: [usize; D] = last(weight);
    let mut output = sizes;
    let mut begin = [0; D];
    for d in 0..D {
        positive(op, "stride", stride[d])?;
        positive(op, "dilation", dilation[d])?;
        let reach = reach(kernel[d], dilation[d]);
        match padding {
            Padding::Same if stride[d] != 1 => {
                let reason = "padding as `Same` needs a stride of 1";
                return Err(Error::invalid(op, reason));
            }
            Padding::Same => {
                begin[d] = (reach - 1) / 2;
                continue;
            }
            Padding::Zeros(zeros) => begin[d] = zeros[d],
            Padding::Valid => {}
        }
        let padded = begin[d].saturating_mul(2).saturating_add(sizes[d]);
        if padded < reach || kernel[d] == 0 {
            let reason = format!(
                "a window of {reach} elements in dimension {d} does not fit into an image of {padded}, padding included"
            );
            return Err(mismatch(op, reason));
        }
        output[d] = (padded - reach) / stride[d] + 1;
    }
    let window = window(op, [sizes, output, kernel, stride, begin, dilation])?;
    let geometry = Geometry { window, dims: D, groups, channels, outputs };
    batched::<D>(input, |input| convolution(input, weight, bias, geometry)).of(op)
}

#[track_caller]
fn transpose<const D: usize>(
    op: &'static str,
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: &ConvTransposeOptions<D>,
) -> Result<Tensor> {
    let &ConvTransposeOptions { stride, padding, output_padding, dilation, groups } = options;
    check::<D>(op, input, weight, bias, groups)?;
    // Of the convolution that it transposes.
    let outputs = input.size()[input.dim() - D - 1];
    let channels = weight.size()[1].saturating_mul(groups);
    if weight.size()[0] != outputs || !outputs.is_multiple_of(groups) {
        let reason = format!(
            "a weight of {:?} expects {} channels, which {groups} groups divide, but the input of {:?} has {outputs}",
            weight.size(),
            weight.size()[0],
            input.size()
        );
        return Err(mismatch(op, reason));
    }
    check_bias(op, bias, channels)?;
    let sizes: [usize; D] = last(input);
    let kernel: [usize; D] = last(weight);
    let mut result = sizes;
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
            .saturating_add(reach(kernel[d], dilation[d]))
            .saturating_add(output_padding[d])
            .checked_sub(padding[d].saturating_mul(2));
        let Some(size) = all.filter(|n| *n > 0 && sizes[d] > 0 && kernel[d] > 0) else {
            let reason =
                format!("padding {padding:?} leaves nothing of an input of {:?}", input.size());
            return Err(mismatch(op, reason));
        };
        result[d] = size;
    }
    let window = window(op, [result, sizes, kernel, stride, padding, dilation])?;
    let geometry = Geometry { window, dims: D, groups, channels, outputs };
    batched::<D>(input, |input| transposed(input, weight, bias, geometry)).of(op)
}

/// What a window of so many elements reaches over.
fn reach(kernel: usize, dilation: usize) -> usize {
    kernel.max(1).saturating_sub(1).saturating_mul(dilation).saturating_add(1)
}

#[track_caller]
pub(super) fn mismatch(op: &'static str, reason: String) -> Error {
    Error::shape(op, reason)
}

#[track_caller]
pub(super) fn positive(op: &'static str, name: &str, value: usize) -> Result<()> {
    if value > 0 {
        return Ok(());
    }
    Err(Error::invalid(op, format!("{name} must be greater than zero")))
}

/// The last dimensions' sizes.
pub(super) fn last<const D: usize>(tensor: &Tensor) -> [usize; D] {
    let at = tensor.dim() - D;
    std::array::from_fn(|d| tensor.size()[at + d])
}

/// Makes a checked window of three dimensions from sizes, results' sizes, kernel, stride, padding and dilation.
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

/// Calls with a batch of one where there is none.
#[track_caller]
pub(super) fn batched<const D: usize>(
    input: &Tensor,
    run: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    if input.dim() == D + 2 { run(input) } else { run(&input.unsqueeze(0)?)?.squeeze(0) }
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
            "a weight of {} dimensions takes an input of {} or {}, but they are of {:?} and {:?}",
            D + 2,
            D + 1,
            D + 2,
            weight.size(),
            input.size()
        );
        return Err(mismatch(op, reason));
    }
    positive(op, "groups", groups)?;
    if !input.dtype().is_float() {
        let (dtype, location) = (input.dtype(), Location::caller());
        return Err(ErrorKind::UnsupportedDType { dtype }.of(op).at(location));
    }
    for other in [Some(weight), bias].into_iter().flatten() {
        check_together(op, input, other)?;
        if other.dtype() != input.dtype() {
            let (first, second) = (input.dtype(), other.dtype());
            return Err(ErrorKind::OperandDTypes { first, second }.of(op));
        }
    }
    Ok(())
}

#[track_caller]
fn check_bias(op: &'static str, bias: Option<&Tensor>, outputs: usize) -> Result<()> {
    match bias {
        Some(bias) if bias.size() != [outputs] => {
            let reason = format!("a bias of {:?} for {outputs} outputs", bias.size());
            Err(mismatch(op, reason))
        }
        _ => Ok(()),
    }
}
