//! Normalization by channel.

use super::fused_batch_norm;
use super::per_sample::{by_group, per_channel, scaled, standardized};
use crate::amp::keep_operands;
use crate::functional::options::options;
use crate::{CallScope, Error, ErrorKind, IntoOptionalTensor, IntoOptions, Result, Tensor};

options! {
    /// Options of [`batch_norm`].
    #[derive(Clone, Copy, Debug)]
    BatchNormOptions ['a] ['a] {
        /// Sets the factor of each channel, `[channels]`. Default: none.
        weight: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets the summand of each channel, `[channels]`. Default: none.
        bias: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets whether to use mean and variance of the batch, and to update the running statistics in place. Default:
        /// `false`.
        training: bool = false, bool;
        /// Sets the weight of the batch's statistics in the running statistics, from 0 to 1. Default: 0.1.
        momentum: f64 = 0.1, f64;
        /// Sets the number that is added to the variance. Default: 1e-5.
        eps: f64 = 1e-5, f64;
    }
}

/// Normalizes each channel, which is the second dimension, to mean 0 and variance 1, then multiplies by `weight` and
/// adds `bias` (`torch.nn.functional.batch_norm`). In training, mean and variance are computed over the batch, and
/// `running_mean` and `running_var`, if given, are updated in place. Otherwise mean and variance are `running_mean` and
/// `running_var`. Half-width floats are computed in `f32`.
///
/// ```
/// # use warpline::functional::{BatchNormOptions, batch_norm};
/// # use warpline::{tensor, zeros};
/// let mean = zeros(1, ())?;
/// let options = BatchNormOptions::new().training(true).eps(0.0);
/// let t = batch_norm(&tensor([[1f32], [3.0]], ())?, &mean, None, options)?;
/// assert_eq!(t.to_vec::<f32>()?, [-1.0, 1.0]);
/// assert_eq!(mean.to_vec::<f32>()?, [0.2]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`] if the input has fewer than two dimensions, or another tensor does not have one element
/// per channel. [`ErrorKind::InvalidArgument`] if there is only one value per channel in training, or if a running
/// statistic is missing outside training. [`ErrorKind::UnsupportedDType`] if the input is not floating point. Errors of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn batch_norm<'a>(
    input: &Tensor,
    running_mean: impl IntoOptionalTensor<'a>,
    running_var: impl IntoOptionalTensor<'a>,
    options: impl IntoOptions<BatchNormOptions<'a>>,
) -> Result<Tensor> {
    let _call = CallScope::enter("batch_norm");
    by_batch(
        input,
        running_mean.into_optional(),
        running_var.into_optional(),
        &options.into_options(),
    )
}

#[track_caller]
fn by_batch(
    input: &Tensor,
    running_mean: Option<&Tensor>,
    running_var: Option<&Tensor>,
    options: &BatchNormOptions<'_>,
) -> Result<Tensor> {
    let op = "batch_norm";
    if !input.dtype().is_float() {
        return Err(ErrorKind::UnsupportedDType { dtype: input.dtype() }.of(op));
    }
    let channels = check(op, input, [running_mean, running_var, options.weight, options.bias])?;
    let each = input.numel() / channels.max(1);
    if options.training {
        if each == 1 {
            let reason = format!(
                "in training there must be more than one value per channel, but the input has shape {:?}",
                input.size()
            );
            return Err(Error::invalid(op, reason));
        }
        let running = running_mean.zip(running_var).map(|(mean, var)| [mean, var]);
        if running.is_some() == (running_mean.is_some() || running_var.is_some())
            && let Some(out) = fused_batch_norm::in_training(input, running, options)?
        {
            return Ok(out);
        }
        let dims: Vec<isize> = (0..input.dim() as isize).filter(|d| *d != 1).collect();
        let x = input.widened()?;
        let [weight, bias] = of_channels(options, input)?;
        let made = standardized(&x, &dims, options.eps, true)?;
        if let Some((mean, var)) = &made.moments {
            let unbiased = each as f64 / (each as f64 - 1.0);
            update(running_mean, mean, 1.0, options.momentum)?;
            update(running_var, var, unbiased, options.momentum)?;
        }
        return scaled(made.result, weight.as_ref(), bias.as_ref(), input.dtype());
    }
    let (Some(mean), Some(var)) = (running_mean, running_var) else {
        let reason = "running_mean and running_var must be given unless in training";
        return Err(Error::invalid(op, reason));
    };
    if let Some(out) = fused_batch_norm::with_statistics(input, [mean, var], options)? {
        return Ok(out);
    }
    let x = input.widened()?;
    let [weight, bias] = of_channels(options, input)?;
    let mean = per_channel(mean, input.dim())?;
    let var = per_channel(var, input.dim())?;
    let centred = x.sub(&mean)?;
    let scale = var.widened()?.add(options.eps)?.rsqrt()?;
    // Combines scale and weight into one factor per channel, which saves a pass over the input.
    let factor = match &weight {
        Some(weight) => scale.mul(weight)?,
        None => scale,
    };
    scaled(centred, Some(&factor), bias.as_ref(), input.dtype())
}

/// Returns weight and bias in a shape that broadcasts over the input.
#[track_caller]
fn of_channels(options: &BatchNormOptions<'_>, input: &Tensor) -> Result<[Option<Tensor>; 2]> {
    let shaped = |t: &Tensor| per_channel(t, input.dim());
    Ok([options.weight.map(shaped).transpose()?, options.bias.map(shaped).transpose()?])
}

/// Sets `running` to `(1 - momentum) * running + momentum * factor * batch`, in place.
#[track_caller]
fn update(running: Option<&Tensor>, batch: &Tensor, factor: f64, momentum: f64) -> Result<()> {
    let Some(running) = running else { return Ok(()) };
    let batch = batch.reshape(running.size())?;
    running.mul_(1.0 - momentum)?;
    running.add_(&batch.mul(factor * momentum)?.to(running.dtype())?)?;
    Ok(())
}

/// Returns the number of channels. Fails if a tensor in `others` does not have one element per channel.
#[track_caller]
fn check(op: &'static str, input: &Tensor, others: [Option<&Tensor>; 4]) -> Result<usize> {
    let &[_, channels, ..] = input.size() else {
        return Err(Error::shape(
            op,
            format!("needs at least 2 dimensions, but the input has {}", input.dim()),
        ));
    };
    let names = ["running_mean", "running_var", "weight", "bias"];
    for (name, other) in names.iter().zip(others) {
        if let Some(other) = other
            && other.size() != [channels]
        {
            return Err(Error::shape(
                op,
                format!(
                    "{name} must have one element per channel, shape [{channels}], but has shape {:?}",
                    other.size()
                ),
            ));
        }
    }
    Ok(channels)
}

options! {
    /// Options of [`instance_norm`].
    #[derive(Clone, Copy, Debug)]
    InstanceNormOptions ['a] ['a] {
        /// Sets the factor of each channel, `[channels]`. Default: none.
        weight: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets the summand of each channel, `[channels]`. Default: none.
        bias: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets whether to use mean and variance of the input, and to update the running statistics in place. Default:
        /// `true`.
        use_input_stats: bool = true, bool;
        /// Sets the weight of the input's statistics in the running statistics, from 0 to 1. Default: 0.1.
        momentum: f64 = 0.1, f64;
        /// Sets the number that is added to the variance. Default: 1e-5.
        eps: f64 = 1e-5, f64;
    }
}

/// Normalizes each channel of each batch element to mean 0 and variance 1, then multiplies by the channel's `weight`
/// and adds its `bias` (`torch.nn.functional.instance_norm`). By default, mean and variance are computed from the
/// input, and their averages over the batch update `running_mean` and `running_var`, if given, in place. Without
/// `use_input_stats`, mean and variance are `running_mean` and `running_var`. Half-width floats are computed in `f32`.
///
/// # Errors
/// With `use_input_stats`: [`ErrorKind::InvalidArgument`] if there is only one value per channel of a batch element, or
/// if there are no channels, and [`ErrorKind::UnsupportedDType`] if the input is not floating point. Without it,
/// [`ErrorKind::InvalidArgument`] if a running statistic is missing. Otherwise the same as [`batch_norm`].
#[track_caller]
pub fn instance_norm<'a>(
    input: &Tensor,
    running_mean: impl IntoOptionalTensor<'a>,
    running_var: impl IntoOptionalTensor<'a>,
    options: impl IntoOptions<InstanceNormOptions<'a>>,
) -> Result<Tensor> {
    let _call = CallScope::enter("instance_norm");
    by_instance(
        input,
        running_mean.into_optional(),
        running_var.into_optional(),
        &options.into_options(),
    )
}

#[track_caller]
fn by_instance(
    input: &Tensor,
    running_mean: Option<&Tensor>,
    running_var: Option<&Tensor>,
    options: &InstanceNormOptions<'_>,
) -> Result<Tensor> {
    let op = "instance_norm";
    let _region = keep_operands();
    let InstanceNormOptions { weight, bias, use_input_stats, momentum, eps } = *options;
    if !use_input_stats {
        let options = BatchNormOptions { weight, bias, training: false, momentum, eps };
        return by_batch(input, running_mean, running_var, &options);
    }
    let channels = check(op, input, [running_mean, running_var, weight, bias])?;
    let each = input.size()[2..].iter().product::<usize>();
    if each == 1 {
        let reason = format!(
            "there must be more than one value per channel, but the input has shape {:?}",
            input.size()
        );
        return Err(Error::invalid(op, reason));
    }
    let out = by_group(input, channels, weight, bias, eps)?;
    if running_mean.is_some() || running_var.is_some() {
        let dims: Vec<isize> = (2..input.dim() as isize).collect();
        let x = input.detach().widened()?;
        let (var, mean) = x.var_mean(&dims)?;
        update(running_mean, &mean.mean(0)?, 1.0, momentum)?;
        update(running_var, &var.mean(0)?, 1.0, momentum)?;
    }
    Ok(out)
}
