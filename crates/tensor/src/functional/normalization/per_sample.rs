//! Normalization over dimensions of each sample.

use smallvec::{SmallVec, smallvec};

use super::fused_layer_norm::RowNorm;
#[cfg(doc)]
use crate::ErrorKind;
use crate::amp::{autocast_operands, casts};
use crate::autograd::{Gradients, NodeInputs, OpBackward, record_all, saved, should_record};
use crate::functional::options::options;
use crate::methods::composite::signed;
use crate::{CallScope, DType, Error, IntoOptionalTensor, IntoOptions, IntoShape, Result, Tensor};

/// Returns the dimensions to normalize: the last dimensions of the input. Fails if `shape` does not match their sizes.
#[track_caller]
fn normalized_dims(op: &'static str, input: &Tensor, shape: &[usize]) -> Result<Vec<isize>> {
    if shape.is_empty() || !input.size().ends_with(shape) {
        return Err(Error::shape(
            op,
            format!(
                "normalized_shape {shape:?} must be the last dimensions of the input, which has shape {:?}",
                input.size()
            ),
        ));
    }
    Ok((1..=shape.len() as isize).map(|d| -d).collect())
}

#[track_caller]
fn check_parameters(
    op: &'static str,
    parameters: &[(&str, Option<&Tensor>)],
    sizes: &[usize],
) -> Result<()> {
    for (name, parameter) in parameters {
        if let Some(parameter) = parameter
            && parameter.size() != sizes
        {
            return Err(Error::shape(
                op,
                format!(
                    "the {name} must have shape {sizes:?}, but has shape {:?}",
                    parameter.size()
                ),
            ));
        }
    }
    Ok(())
}

/// Returns `x * weight + bias` in `dtype`. Weight and bias are optional.
#[track_caller]
pub(super) fn scaled(
    x: Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    dtype: DType,
) -> Result<Tensor> {
    match (weight, bias) {
        (Some(weight), Some(bias)) => bias.addcmul(&x, weight, 1)?.to(dtype),
        (Some(weight), None) => x.mul(weight)?.to(dtype),
        (None, Some(bias)) => x.add(bias)?.to(dtype),
        (None, None) => x.to(dtype),
    }
}

/// The result of [`standardized`] and its intermediates.
pub(super) struct StandardizedOutput {
    pub(super) result: Tensor,
    /// Mean and variance, detached from the graph. `None` if the mean was not subtracted.
    pub(super) moments: Option<(Tensor, Tensor)>,
    /// Reciprocal of the root mean square.
    pub(super) scale: Tensor,
}

/// Subtracts the mean over dimensions if `centred`, then divides by the root mean square. Recorded as one
/// node, whose gradient takes a few launches.
#[track_caller]
pub(super) fn standardized(
    x: &Tensor,
    dims: &[isize],
    eps: f64,
    centred: bool,
) -> Result<StandardizedOutput> {
    let plain = x.detach();
    let (result, scale, moments) = if centred {
        let made = plain.moments(dims)?;
        let var = made.squares.mean_keepdim(dims)?;
        let scale = var.add(eps)?.rsqrt()?;
        (made.centred.mul(&scale)?, scale, Some((made.mean, var)))
    } else {
        let scale = plain.square()?.mean_keepdim(dims)?.add(eps)?.rsqrt()?;
        (plain.mul(&scale)?, scale, None)
    };
    if should_record(&[x]) {
        let count = x.numel() as f64 / scale.numel().max(1) as f64;
        let dims: SmallVec<[isize; 6]> = dims.into();
        // The scale is also a result of the node, so that gradients of gradients flow through it.
        let saved = Standardize { y: result.clone(), scale: scale.clone(), dims, count, centred };
        record_all("standardize", &[&result, &scale], &[x], saved)?;
    }
    Ok(StandardizedOutput { result, moments, scale })
}

saved! {
    struct Standardize {
        y: Tensor,
        scale: Tensor,
        dims: SmallVec<[isize; 6]>,
        /// Number of elements per mean.
        count: f64,
        centred: bool,
    }
}

impl OpBackward<[Option<Tensor>]> for Standardize {
    fn backward(&self, grads: &[Option<Tensor>], _: &NodeInputs<'_>) -> Result<Gradients> {
        let Self { y, scale, .. } = self;
        let mut of_x = None;
        if let Some(grad) = &grads[0] {
            let dims = &self.dims[..];
            let along = grad.mul(y)?.mean_keepdim(dims)?;
            let rest = grad.addcmul(y, &along, -1)?;
            let rest = if self.centred { rest.sub(&grad.mean_keepdim(dims)?)? } else { rest };
            of_x = Some(rest.mul(scale)?);
        }
        if let Some(grad) = &grads[1] {
            let step = scale.square()?.mul(grad)?.div(-self.count)?.mul(y)?;
            of_x = Some(of_x.map_or(Ok(step.clone()), |own| own.add(&step))?);
        }
        Ok(smallvec![of_x])
    }
}

options! {
    /// Options of [`layer_norm`] and [`add_layer_norm`].
    #[derive(Clone, Copy, Debug)]
    LayerNormOptions ['a] ['a] {
        /// Sets the factor of each normalized element, of shape `normalized_shape`. Default: none.
        weight: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets the summand of each normalized element, of shape `normalized_shape`. Default: none.
        bias: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets the number that is added to the variance. Default: 1e-5.
        eps: f64 = 1e-5, f64;
    }
}

options! {
    /// Options of [`rms_norm`] and [`add_rms_norm`].
    #[derive(Clone, Copy, Debug)]
    RMSNormOptions ['a] ['a] {
        /// Sets the factor of each normalized element, of shape `normalized_shape`. Default: none.
        weight: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets the number that is added to the mean square. Default: the machine epsilon of the normalized tensor's
        /// dtype.
        eps: Option<f64> = None, impl Into<Option<f64>> => Into::into;
    }
}

options! {
    /// Options of [`group_norm`].
    #[derive(Clone, Copy, Debug)]
    GroupNormOptions ['a] ['a] {
        /// Sets the factor of each channel, `[channels]`. Default: none.
        weight: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets the summand of each channel, `[channels]`. Default: none.
        bias: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets the number that is added to the variance. Default: 1e-5.
        eps: f64 = 1e-5, f64;
    }
}

/// Normalizes the last dimensions, those of `normalized_shape`, to mean 0 and variance 1, then multiplies by
/// `weight` and adds `bias` (`torch.nn.functional.layer_norm`). Half-width floats are computed in `f32`.
///
/// ```
/// # use warpline::functional::{LayerNormOptions, layer_norm};
/// # use warpline::tensor;
/// let t = layer_norm(&tensor([[1f32, 3.0]], ())?, 2, LayerNormOptions::new().eps(0.0))?;
/// assert_eq!(t.to_vec::<f32>()?, [-1.0, 1.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`] if `normalized_shape` is not the shape of the input's last dimensions, or `weight` or
/// `bias` has a different shape. [`ErrorKind::UnsupportedDType`] if the input is not floating point. Errors of
/// [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn layer_norm<'a>(
    input: &Tensor,
    normalized_shape: impl IntoShape,
    options: impl IntoOptions<LayerNormOptions<'a>>,
) -> Result<Tensor> {
    let _call = CallScope::enter("layer_norm");
    by_layer(input, &normalized_shape.into_shape(), options.into_options())
}

#[track_caller]
fn by_layer(input: &Tensor, shape: &[usize], options: LayerNormOptions<'_>) -> Result<Tensor> {
    let LayerNormOptions { weight, bias, eps } = options;
    let op = "layer_norm";
    autocast_operands!(F32, Keep, [input; weight, bias] => by_layer(input, shape, LayerNormOptions { weight, bias, eps }));
    let dims = normalized_dims(op, input, shape)?;
    check_parameters(op, &[("weight", weight), ("bias", bias)], shape)?;
    by_row(RowNorm { dims, eps, centred: true }, input, weight, bias)
}

/// Computes a norm over the last dimensions.
#[track_caller]
fn by_row(
    of: RowNorm,
    input: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    if let Some(out) = of.clone().launched(input, weight, bias)? {
        return Ok(out);
    }
    let x = standardized(&input.widened()?, &of.dims, of.eps, of.centred)?;
    scaled(x.result, weight, bias, input.dtype())
}

/// Adds a residual, and computes a norm of the sum. Returns the normalized sum, then the sum.
#[track_caller]
fn by_row_of_sum(
    of: RowNorm,
    input: &Tensor,
    residual: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    if let Some(results) = of.clone().fused_with(input, residual, weight, bias)? {
        return Ok(results);
    }
    let sum = input.add(residual)?;
    Ok((by_row(of, &sum, weight, bias)?, sum))
}

/// Adds `residual` to the input, and normalizes the sum as [`layer_norm`] does, in one launch. Returns the normalized
/// sum, then the sum, which is rounded to the dtype before it is normalized. PyTorch has no such function; its
/// counterpart is `s = x + r; return F.layer_norm(s, shape, w, b), s`.
///
/// Input and residual must have the same sizes. Operands of different dtypes are promoted as by [`Tensor::add`]; the
/// function then takes several launches.
///
/// ```
/// # use warpline::functional::{LayerNormOptions, add_layer_norm};
/// # use warpline::tensor;
/// let (x, residual) = (tensor([[1f32, 3.0]], ())?, tensor([[0f32, 2.0]], ())?);
/// let (normalized, sum) = add_layer_norm(&x, &residual, 2, LayerNormOptions::new().eps(0.0))?;
/// assert_eq!(sum.to_vec::<f32>()?, [1.0, 5.0]);
/// assert_eq!(normalized.to_vec::<f32>()?, [-1.0, 1.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// The same as [`layer_norm`] of the sum. [`ErrorKind::ShapeMismatch`] if the residual has different sizes than the
/// input.
#[track_caller]
pub fn add_layer_norm<'a>(
    input: &Tensor,
    residual: &Tensor,
    normalized_shape: impl IntoShape,
    options: impl IntoOptions<LayerNormOptions<'a>>,
) -> Result<(Tensor, Tensor)> {
    let _call = CallScope::enter("add_layer_norm");
    let LayerNormOptions { weight, bias, eps } = options.into_options();
    let (op, shape) = ("add_layer_norm", normalized_shape.into_shape());
    check_residual(op, input, residual)?;
    if casts() {
        // The region may compute the norm in a different dtype than the sum.
        let sum = input.add(residual)?;
        return Ok((by_layer(&sum, &shape, LayerNormOptions { weight, bias, eps })?, sum));
    }
    let dims = normalized_dims(op, input, &shape)?;
    check_parameters(op, &[("weight", weight), ("bias", bias)], &shape)?;
    by_row_of_sum(RowNorm { dims, eps, centred: true }, input, residual, weight, bias)
}

#[track_caller]
fn check_residual(op: &'static str, input: &Tensor, residual: &Tensor) -> Result<()> {
    if residual.size() == input.size() {
        return Ok(());
    }
    let (expected, actual) = (input.size(), residual.size());
    Err(Error::shape(
        op,
        format!("the residual must have shape {expected:?}, but has shape {actual:?}"),
    ))
}

/// Divides by the square root of the mean square over the last dimensions, those of `normalized_shape`, then
/// multiplies by `weight` (`torch.nn.functional.rms_norm`). Half-width floats are computed in `f32`.
///
/// # Errors
/// The same as [`layer_norm`].
#[track_caller]
pub fn rms_norm<'a>(
    input: &Tensor,
    normalized_shape: impl IntoShape,
    options: impl IntoOptions<RMSNormOptions<'a>>,
) -> Result<Tensor> {
    let _call = CallScope::enter("rms_norm");
    by_mean_square(input, &normalized_shape.into_shape(), options.into_options())
}

#[track_caller]
fn by_mean_square(input: &Tensor, shape: &[usize], options: RMSNormOptions<'_>) -> Result<Tensor> {
    let RMSNormOptions { weight, eps } = options;
    let op = "rms_norm";
    let dims = normalized_dims(op, input, shape)?;
    check_parameters(op, &[("weight", weight)], shape)?;
    let eps = eps.unwrap_or_else(|| machine_epsilon(input.dtype()));
    by_row(RowNorm { dims, eps, centred: false }, input, weight, None)
}

/// Adds `residual` to the input, and normalizes the sum as [`rms_norm`] does, in one launch. Returns the normalized
/// sum, then the sum, which is rounded to the dtype before it is normalized. PyTorch has no such function; its
/// counterpart is `s = x + r; return F.rms_norm(s, shape, w), s`.
///
/// Input and residual must have the same sizes. Operands of different dtypes are promoted as by [`Tensor::add`]; the
/// function then takes several launches.
///
/// ```
/// # use warpline::functional::{RMSNormOptions, add_rms_norm};
/// # use warpline::{IsCloseOptions, tensor};
/// let (x, residual) = (tensor([[1f32, 5.0]], ())?, tensor([[0f32, 2.0]], ())?);
/// let (normalized, sum) = add_rms_norm(&x, &residual, 2, RMSNormOptions::new().eps(0.0))?;
/// assert_eq!(sum.to_vec::<f32>()?, [1.0, 7.0]);
/// let expected = tensor([[0.2f32, 1.4]], ())?;
/// assert!(normalized.allclose(&expected, IsCloseOptions::new().rtol(1e-6).atol(0.0))?);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// The same as [`rms_norm`] of the sum. [`ErrorKind::ShapeMismatch`] if the residual has different sizes than the
/// input.
#[track_caller]
pub fn add_rms_norm<'a>(
    input: &Tensor,
    residual: &Tensor,
    normalized_shape: impl IntoShape,
    options: impl IntoOptions<RMSNormOptions<'a>>,
) -> Result<(Tensor, Tensor)> {
    let _call = CallScope::enter("add_rms_norm");
    let RMSNormOptions { weight, eps } = options.into_options();
    let (op, shape) = ("add_rms_norm", normalized_shape.into_shape());
    check_residual(op, input, residual)?;
    let dims = normalized_dims(op, input, &shape)?;
    check_parameters(op, &[("weight", weight)], &shape)?;
    let eps = eps.unwrap_or_else(|| machine_epsilon(input.dtype().promote(residual.dtype())));
    by_row_of_sum(RowNorm { dims, eps, centred: false }, input, residual, weight, None)
}

/// Returns the machine epsilon of a dtype. For integers, returns the machine epsilon of `float32`.
fn machine_epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => half::f16::EPSILON.into(),
        DType::BF16 => half::bf16::EPSILON.into(),
        DType::F64 => f64::EPSILON,
        _ => f32::EPSILON.into(),
    }
}

/// Normalizes each group of channels, with all dimensions after the channels, to mean 0 and variance 1, then
/// multiplies by each channel's `weight` and adds its `bias` (`torch.nn.functional.group_norm`). Channels are
/// the second dimension. Half-width floats are computed in `f32`.
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`] if the input has fewer than two dimensions, or if `weight` or `bias` does not have one
/// element per channel. [`ErrorKind::InvalidArgument`] if `num_groups` is zero or does not divide the channels.
/// [`ErrorKind::UnsupportedDType`] if the input is not floating point. Errors of
/// [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn group_norm<'a>(
    input: &Tensor,
    num_groups: usize,
    options: impl IntoOptions<GroupNormOptions<'a>>,
) -> Result<Tensor> {
    let _call = CallScope::enter("group_norm");
    let GroupNormOptions { weight, bias, eps } = options.into_options();
    by_group(input, num_groups, weight, bias, eps)
}

/// Computes [`group_norm`].
#[track_caller]
pub(super) fn by_group(
    input: &Tensor,
    num_groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let op = "group_norm";
    autocast_operands!(F32, Keep, [input; weight, bias] => by_group(input, num_groups, weight, bias, eps));
    let &[batch, channels, ..] = input.size() else {
        return Err(Error::shape(
            op,
            format!("needs at least 2 dimensions, but the input has {}", input.dim()),
        ));
    };
    if num_groups == 0 || !channels.is_multiple_of(num_groups) {
        let reason = format!("{num_groups} groups must divide {channels} channels");
        return Err(Error::invalid(op, reason));
    }
    check_parameters(op, &[("weight", weight), ("bias", bias)], &[channels])?;
    let x = input.widened()?;
    // Computed here, because -1 in the shape would be ambiguous for a tensor without elements.
    let rest = input.size()[1..].iter().product::<usize>() / num_groups;
    let groups = x.reshape([batch, num_groups, rest])?;
    let x = standardized(&groups, &[-1], eps, true)?.result;
    let x = x.reshape(signed(input.size()))?;
    let shaped = |t: &Tensor| per_channel(t, input.dim());
    let weight = weight.map(shaped).transpose()?;
    let bias = bias.map(shaped).transpose()?;
    scaled(x, weight.as_ref(), bias.as_ref(), input.dtype())
}

/// Reshapes a vector with one element per channel, so that it broadcasts along the second dimension.
#[track_caller]
pub(super) fn per_channel(vector: &Tensor, dims: usize) -> Result<Tensor> {
    let mut sizes = vec![1; dims];
    sizes[1] = vector.numel() as isize;
    vector.reshape(&sizes)
}
