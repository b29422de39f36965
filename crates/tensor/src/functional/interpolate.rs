//! Resampling of images to other sizes.

use warpline_kernels::resample::{Interpolation, resample, resample_backward};

use super::options::options;
use super::pool::{adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d};
use crate::amp::autocast_operands;
use crate::autograd::{linear, no_grad, record, should_record};
use crate::methods::composite::signed;
use crate::{CallScope, Error, ErrorKind, Integer, IntoOptions, IntoShape, Result, Tensor};

/// The interpolation of [`interpolate`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InterpolateMode {
    /// The element at or before the position (`"nearest"`).
    #[default]
    Nearest,
    /// The element whose centre is nearest to the position (`"nearest-exact"`).
    NearestExact,
    /// Linear, between two neighbours. For `[batch, channels, width]` (`"linear"`).
    Linear,
    /// Linear in both dimensions. For `[batch, channels, height, width]` (`"bilinear"`).
    Bilinear,
    /// Cubic, between four neighbours in each dimension. For `[batch, channels, height, width]` (`"bicubic"`).
    Bicubic,
    /// Linear in all three dimensions. For `[batch, channels, depth, height, width]` (`"trilinear"`).
    Trilinear,
    /// The average of the area that an element covers (`"area"`).
    Area,
}

options! {
    /// Options of [`interpolate`]. Exactly one of `size` and `scale_factor` must be set.
    #[derive(Clone, Debug, PartialEq)]
    InterpolateOptions [] [] {
        /// Sets the sizes of the result, without batch and channels: one number for all dimensions, or one per
        /// dimension. Default: none.
        size: Option<Vec<usize>> = None, impl IntoShape => |sizes| Some(IntoShape::into_shape(sizes).to_vec());
        /// Sets the ratio of the result's size to the image's size: one number for all dimensions, or one per
        /// dimension. Default: none.
        scale_factor: Option<ScaleFactor> = None, impl Into<ScaleFactor> => |factor| Some(Into::into(factor));
        /// Sets the interpolation. Default: nearest.
        mode: InterpolateMode = InterpolateMode::Nearest, InterpolateMode;
        /// Sets whether the centres of the corner elements of image and result are aligned, instead of their outer
        /// edges. Only for linear and cubic modes. Default: `false`.
        align_corners: bool = false, bool;
        /// Sets whether positions are computed from the ratio of the image's size to the result's rounded size, instead
        /// of from `scale_factor`. Default: `false`.
        recompute_scale_factor: bool = false, bool;
    }
}

/// Factors by which [`interpolate`] resizes an image: one for all dimensions, or one per dimension. Converts from `f64`
/// or an integer, an array of these, or a slice of `f64`.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleFactor(Vec<f64>);

impl ScaleFactor {
    /// Returns one factor for all dimensions, or one per dimension.
    #[must_use]
    pub fn factors(&self) -> &[f64] {
        &self.0
    }
}

impl From<f64> for ScaleFactor {
    fn from(factor: f64) -> Self {
        Self(vec![factor])
    }
}

impl<const N: usize> From<[f64; N]> for ScaleFactor {
    fn from(factors: [f64; N]) -> Self {
        Self(factors.to_vec())
    }
}

impl<I: Integer> From<I> for ScaleFactor {
    fn from(factor: I) -> Self {
        Self(vec![factor.into_isize() as f64])
    }
}

impl<I: Integer, const N: usize> From<[I; N]> for ScaleFactor {
    fn from(factors: [I; N]) -> Self {
        Self(factors.map(|factor| factor.into_isize() as f64).to_vec())
    }
}

impl From<&[f64]> for ScaleFactor {
    fn from(factors: &[f64]) -> Self {
        Self(factors.to_vec())
    }
}

/// Resizes images: `[batch, channels, …]` with one to three spatial dimensions
/// (`torch.nn.functional.interpolate`, without antialiasing).
///
/// ```
/// use warpline::functional::{InterpolateMode, InterpolateOptions, interpolate};
/// use warpline::tensor;
///
/// let image = tensor(&[[1f32, 2.0], [3.0, 4.0]], ())?.reshape([1, 1, 2, 2])?;
/// let options = InterpolateOptions::new().size([1, 3]).mode(InterpolateMode::Bilinear);
/// assert_eq!(interpolate(&image, options)?.to_vec::<f32>()?, [2.0, 2.5, 3.0]);
/// let options = InterpolateOptions::new().scale_factor(2); // or 2.0, [1, 2] or [1.0, 2.5]
/// assert_eq!(interpolate(&image, options)?.size(), [1, 1, 4, 4]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if not exactly one of `size` and `scale_factor` is set, if `recompute_scale_factor`
/// is set with a `size`, if `align_corners` is set for a mode that is neither linear nor cubic, if the mode or the
/// length of `size` or `scale_factor` does not match the number of spatial dimensions, or if a factor is not finite and
/// positive. [`ErrorKind::ShapeMismatch`] if the input does not have three to five dimensions, if a spatial size of
/// image or result is 0, or if image or result is too large for 32-bit positions. [`ErrorKind::UnsupportedDType`] if
/// the input is not floating point. Errors of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn interpolate(
    input: &Tensor,
    options: impl IntoOptions<InterpolateOptions>,
) -> Result<Tensor> {
    let _call = CallScope::enter("interpolate");
    resize(input, &options.into_options())
}

#[track_caller]
fn resize(input: &Tensor, options: &InterpolateOptions) -> Result<Tensor> {
    const OP: &str = "interpolate";
    let (sizes, scales) = target_sizes(OP, input, options)?;
    let dims = sizes.len();
    let mode = options.mode;
    let fits = match mode {
        InterpolateMode::Linear => dims == 1,
        InterpolateMode::Bilinear | InterpolateMode::Bicubic => dims == 2,
        InterpolateMode::Trilinear => dims == 3,
        _ => true,
    };
    if !fits {
        let reason = format!("{mode:?} does not take an image of {dims} dimensions");
        return Err(Error::invalid(OP, reason));
    }
    let kind = match mode {
        InterpolateMode::Nearest => Interpolation::Nearest,
        InterpolateMode::NearestExact => Interpolation::NearestExact,
        InterpolateMode::Bicubic => Interpolation::Cubic,
        _ => Interpolation::Linear,
    };
    let is_smooth = matches!(kind, Interpolation::Linear | Interpolation::Cubic)
        && mode != InterpolateMode::Area;
    if options.align_corners && !is_smooth {
        let reason = format!("align_corners is for linear and cubic modes, not {mode:?}");
        return Err(Error::invalid(OP, reason));
    }
    if !input.dtype().is_float() {
        return Err(ErrorKind::UnsupportedDType { dtype: input.dtype() }.of(OP));
    }
    if input.size()[2..].contains(&0) || sizes.contains(&0) {
        let reason =
            format!("cannot resize {:?} to {sizes:?}: neither may be empty", &input.size()[2..]);
        return Err(Error::shape(OP, reason));
    }
    if mode != InterpolateMode::Area {
        autocast_operands!(F32, Keep, [input] => resize(input, options));
    }
    if mode == InterpolateMode::Area {
        return match sizes[..] {
            [width] => adaptive_avg_pool1d(input, [width]),
            [height, width] => adaptive_avg_pool2d(input, [height, width]),
            [depth, height, width] => adaptive_avg_pool3d(input, [depth, height, width]),
            _ => Ok(input.clone()),
        };
    }
    // Half-width floats are interpolated in `float32`, so that the result is rounded only once.
    let wide = if is_smooth { input.widened()? } else { input.clone() };
    let mut out = wide.clone();
    for (d, (&size, &scale)) in sizes.iter().zip(&scales).enumerate().rev() {
        let from = out.size()[2 + d];
        // Resampling would not change this dimension.
        let is_same = from == size && (scale == 1.0 || options.align_corners);
        if is_same {
            continue;
        }
        let along = DimResize { kind, align_corners: options.align_corners, scale, from, to: size };
        let mut result = signed(out.size());
        result[2 + d] = size as isize;
        let outer = out.size()[..2 + d].iter().product::<usize>() as isize;
        let inner = out.size()[3 + d..].iter().product::<usize>() as isize;
        let rows = out.reshape([outer, from as isize, inner])?;
        out = resized(&rows, along)?.reshape(&result)?;
    }
    // Copies the image if no dimension was resampled, so that the result is never the image itself.
    if out.is_same(input) { out.copy() } else { out.to(input.dtype()) }
}

/// Returns the sizes of the result, and the scales: image elements per element of the result.
#[track_caller]
fn target_sizes(
    op: &'static str,
    input: &Tensor,
    options: &InterpolateOptions,
) -> Result<(Vec<usize>, Vec<f64>)> {
    if !(3..=5).contains(&input.dim()) {
        let reason = format!(
            "expects an image of 3, 4 or 5 dimensions, not one of sizes {:?}",
            input.size()
        );
        return Err(Error::shape(op, reason));
    }
    let own = &input.size()[2..];
    let of_sizes = |sizes: &[usize]| -> Vec<f64> {
        own.iter().zip(sizes).map(|(&from, &to)| from as f64 / to as f64).collect()
    };
    let count = |n: usize, name: &str| {
        if n == own.len() {
            return Ok(());
        }
        Err(format!("{name} has {n} numbers for an image of {} dimensions", own.len()))
    };
    let result = match (&options.size, &options.scale_factor) {
        (Some(_), Some(_)) => Err("only one of size or scale_factor should be defined".into()),
        (None, None) => Err("either size or scale_factor should be defined".into()),
        (Some(_), None) if options.recompute_scale_factor => {
            Err("recompute_scale_factor is not meaningful with an explicit size".into())
        }
        (Some(size), None) => {
            let sizes = for_all(size, own.len());
            count(sizes.len(), "size").map(|()| {
                let scales = of_sizes(&sizes);
                (sizes, scales)
            })
        }
        (None, Some(ScaleFactor(factors))) => {
            let factors = for_all(factors, own.len());
            count(factors.len(), "scale_factor").and_then(|()| {
                if factors.iter().any(|f| !f.is_finite() || *f <= 0.0) {
                    return Err(format!("scale_factor {factors:?} must be positive"));
                }
                let of = own.iter().zip(&factors);
                let sizes: Vec<usize> = of.map(|(&n, f)| (n as f64 * f) as usize).collect();
                let scales = if options.recompute_scale_factor {
                    of_sizes(&sizes)
                } else {
                    factors.iter().map(|f| 1.0 / f).collect()
                };
                Ok((sizes, scales))
            })
        }
    };
    match result {
        Ok(result) => Ok(result),
        Err(reason) => Err(Error::invalid(op, reason)),
    }
}

/// Repeats a single number for all dimensions.
fn for_all<T: Copy>(numbers: &[T], dims: usize) -> Vec<T> {
    match *numbers {
        [number] => vec![number; dims],
        _ => numbers.to_vec(),
    }
}

/// Parameters for resampling one dimension.
#[derive(Clone, Copy)]
struct DimResize {
    kind: Interpolation,
    align_corners: bool,
    scale: f64,
    from: usize,
    to: usize,
}

/// Resamples the middle dimension of `[outer, from, inner]`.
#[track_caller]
fn resized(image: &Tensor, of: DimResize) -> Result<Tensor> {
    let x = no_grad(|| image.contiguous())?;
    let exec = image.exec()?;
    let out = exec.empty(&[image.size()[0], of.to, image.size()[2]], image.dtype())?;
    let how = (of.kind, of.align_corners, of.scale);
    resample(exec.target(), x.as_view(), how, out.as_view())?;
    if !should_record(&[image]) {
        return Ok(out);
    }
    record("interpolate", out, &[image], linear(move |grad, _| resized_gradient(grad, of)))
}

/// Computes the gradient of [`resized`], which is the transpose of [`resized`]. The gradient of the transpose is
/// [`resized`].
#[track_caller]
fn resized_gradient(grad: &Tensor, of: DimResize) -> Result<Tensor> {
    let y = no_grad(|| grad.contiguous())?;
    let exec = grad.exec()?;
    let out = exec.empty(&[grad.size()[0], of.from, grad.size()[2]], grad.dtype())?;
    let how = (of.kind, of.align_corners, of.scale);
    resample_backward(exec.target(), y.as_view(), how, out.as_view())?;
    if !should_record(&[grad]) {
        return Ok(out);
    }
    record("interpolate_backward", out, &[grad], linear(move |grad, _| resized(grad, of)))
}
