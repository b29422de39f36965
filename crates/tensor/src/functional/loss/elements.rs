//! Losses that compare elements.

use std::panic::Location;

use smallvec::smallvec;

use super::{
    BCELossOptions, BCEWithLogitsLossOptions, HuberLossOptions, KLDivLossOptions,
    SmoothL1LossOptions,
};
#[cfg(doc)]
use crate::ErrorKind;
use crate::amp::autocast_operands;
use crate::autograd::{Gradients, NodeInputs, OpBackward, record, saved, should_record};
use crate::{CallScope, Error, IntoOptions, Result, Tensor, where_cond};

/// The reduction of the losses of single elements (`reduction`). `()` stands for the mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// No reduction: one loss per element (`"none"`).
    None,
    /// The mean of the losses (`"mean"`).
    #[default]
    Mean,
    /// The sum of the losses (`"sum"`).
    Sum,
    /// The sum of the losses, divided by the size of the first dimension (`"batchmean"`). For [`kl_div`] only.
    BatchMean,
}

impl From<()> for Reduction {
    fn from((): ()) -> Self {
        Self::Mean
    }
}

impl Reduction {
    /// Applies this reduction to the losses.
    #[track_caller]
    pub(super) fn of(self, op: &'static str, losses: &Tensor) -> Result<Tensor> {
        match self {
            Self::None => Ok(losses.clone()),
            Self::Mean => losses.mean(()),
            Self::Sum => losses.sum(()),
            Self::BatchMean => {
                Err(Error::invalid(op, "only kl_div supports the reduction batchmean"))
            }
        }
    }

    /// Multiplies the losses by `weight`, if there is one, and applies this reduction.
    #[track_caller]
    fn of_weighted(
        self,
        op: &'static str,
        losses: Tensor,
        weight: Option<&Tensor>,
    ) -> Result<Tensor> {
        match weight {
            None => self.of(op, &losses),
            Some(weight) => self.of(op, &losses.mul(weight)?),
        }
    }
}

/// Warns if the operands are broadcast, as PyTorch does. Different sizes, such as `[n]` and `[n, 1]`, are often a
/// mistake.
#[track_caller]
fn warn_of_broadcast(op: &'static str, input: &Tensor, target: &Tensor) {
    if input.size() != target.size() {
        crate::__warn(&format!(
            "{op}: the target's sizes {:?} are not the input's, {:?}; they are broadcast, which likely leads to incorrect \
             results (called at {})",
            target.size(),
            input.size(),
            Location::caller()
        ));
    }
}

/// The squares of the differences (`torch.nn.functional.mse_loss`). Different sizes broadcast, with a warning. Default
/// of `reduction`: the mean.
///
/// ```
/// # use warpline::functional::{Reduction, mse_loss};
/// # use warpline::tensor;
/// let (a, b) = (tensor([1f32, 2.0], ())?, tensor([1f32, 4.0], ())?);
/// assert_eq!(mse_loss(&a, &b, ())?.item::<f32>()?, 2.0);
/// assert_eq!(mse_loss(&a, &b, Reduction::Sum)?.item::<f32>()?, 4.0);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if the reduction is [`Reduction::BatchMean`]. Otherwise the same as
/// [`Tensor::sub`] and [`Tensor::mean`].
#[track_caller]
pub fn mse_loss(
    input: &Tensor,
    target: &Tensor,
    reduction: impl IntoOptions<Reduction>,
) -> Result<Tensor> {
    let _call = CallScope::enter("mse_loss");
    let (op, reduction) = ("mse_loss", reduction.into_options());
    autocast_operands!(F32, F32, [input, target] => mse_loss(input, target, reduction));
    warn_of_broadcast(op, input, target);
    let losses = input.sub(target)?.square()?;
    reduction.of(op, &losses)
}

/// The absolute values of the differences (`torch.nn.functional.l1_loss`). Different sizes broadcast, with a
/// warning. Default of `reduction`: the mean.
///
/// # Errors
/// The same as [`mse_loss`].
#[track_caller]
pub fn l1_loss(
    input: &Tensor,
    target: &Tensor,
    reduction: impl IntoOptions<Reduction>,
) -> Result<Tensor> {
    let _call = CallScope::enter("l1_loss");
    let (op, reduction) = ("l1_loss", reduction.into_options());
    autocast_operands!(F32, F32, [input, target] => l1_loss(input, target, reduction));
    warn_of_broadcast(op, input, target);
    let losses = input.sub(target)?.abs()?;
    reduction.of(op, &losses)
}

/// `0.5 * d² / beta` for an absolute difference `d` below `beta`, otherwise `d - 0.5 * beta`
/// (`torch.nn.functional.smooth_l1_loss`). Different sizes broadcast, with a warning.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `beta` is negative or NaN. Otherwise the same as [`mse_loss`].
#[track_caller]
pub fn smooth_l1_loss(
    input: &Tensor,
    target: &Tensor,
    options: impl IntoOptions<SmoothL1LossOptions>,
) -> Result<Tensor> {
    let _call = CallScope::enter("smooth_l1_loss");
    let SmoothL1LossOptions { reduction, beta } = options.into_options();
    let op = "smooth_l1_loss";
    autocast_operands!(F32, F32, [input, target] => smooth_l1_loss(input, target, SmoothL1LossOptions { reduction, beta }));
    if beta.is_nan() || beta < 0.0 {
        return Err(Error::invalid(op, format!("beta must not be negative, but is {beta}")));
    }
    if beta == 0.0 {
        return l1_loss(input, target, reduction);
    }
    warn_of_broadcast(op, input, target);
    let apart = input.sub(target)?.abs()?;
    let near = apart.square()?.mul(0.5 / beta)?;
    let far = apart.sub(0.5 * beta)?;
    let losses = where_cond(&apart.lt(beta)?, &near, &far)?;
    reduction.of(op, &losses)
}

/// `0.5 * d²` for an absolute difference `d` of at most `delta`, otherwise `delta * (d - 0.5 * delta)`
/// (`torch.nn.functional.huber_loss`). Different sizes broadcast, with a warning.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `delta` is not above zero. Otherwise the same as [`mse_loss`].
#[track_caller]
pub fn huber_loss(
    input: &Tensor,
    target: &Tensor,
    options: impl IntoOptions<HuberLossOptions>,
) -> Result<Tensor> {
    let _call = CallScope::enter("huber_loss");
    let HuberLossOptions { reduction, delta } = options.into_options();
    let op = "huber_loss";
    autocast_operands!(F32, F32, [input, target] => huber_loss(input, target, HuberLossOptions { reduction, delta }));
    if delta.is_nan() || delta <= 0.0 {
        return Err(Error::invalid(op, format!("delta must be above zero, but is {delta}")));
    }
    warn_of_broadcast(op, input, target);
    let apart = input.sub(target)?.abs()?;
    let near = apart.square()?.mul(0.5)?;
    let far = apart.sub(0.5 * delta)?.mul(delta)?;
    let losses = where_cond(&apart.le(delta)?, &near, &far)?;
    reduction.of(op, &losses)
}

/// The cross entropy of probabilities, `-(target * log(input) + (1 - target) * log(1 - input))`
/// (`torch.nn.functional.binary_cross_entropy`). Logarithms are clamped to at least -100.
///
/// On a GPU, elements are not checked, because the host would have to wait for them: an element of `input` that
/// is not from 0 to 1 gives NaN.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if the sizes of `input` and `target` differ, if the reduction is
/// [`Reduction::BatchMean`], and on the CPU if an element of `input` or `target` is not from 0 to 1. Otherwise
/// the same as [`Tensor::mul`] and [`Tensor::mean`].
#[track_caller]
pub fn binary_cross_entropy<'a>(
    input: &Tensor,
    target: &Tensor,
    options: impl IntoOptions<BCELossOptions<'a>>,
) -> Result<Tensor> {
    let _call = CallScope::enter("binary_cross_entropy");
    let BCELossOptions { weight, reduction } = options.into_options();
    let op = "binary_cross_entropy";
    autocast_operands!(Refuse, F32, [input, target; weight] =>
        binary_cross_entropy(input, target, BCELossOptions { weight, reduction }));
    check_sizes(op, input, target)?;
    check_fractions(op, "input", input)?;
    check_fractions(op, "target", target)?;
    let (x, t) = (input.widened()?, target.widened()?);
    let losses = binary_entropy(&x, &t)?;
    let loss = reduction.of_weighted(op, losses, weight)?;
    loss.to(input.dtype())
}

/// Returns `-(t * log(x) + (1 - t) * log(1 - x))`. The gradient is finite where `x` is 0 or 1, as in PyTorch.
#[track_caller]
fn binary_entropy(x: &Tensor, t: &Tensor) -> Result<Tensor> {
    let [of_one, of_zero] = clamped_logs(&x.detach())?;
    let target = t.detach();
    let losses = target.mul(&of_one)?.add(&target.neg()?.add(1)?.mul(&of_zero)?)?.neg()?;
    if !should_record(&[x, t]) {
        return Ok(losses);
    }
    let saved = BinaryEntropy { x: x.clone(), t: x.requires_grad().then(|| t.clone()) };
    record("binary_cross_entropy", losses, &[x, t], saved)
}

saved! {
    struct BinaryEntropy {
        x: Tensor,
        /// Present if `x` requires a gradient.
        t: Option<Tensor>,
    }
}

impl OpBackward for BinaryEntropy {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let x = &self.x;
        let of_x = |t: &Tensor| {
            let slope = x.neg()?.add(1)?.mul(x)?.clamp_min(1e-12)?;
            grad.mul(&x.sub(t)?)?.div(&slope)
        };
        let of_t = || {
            let [of_one, of_zero] = clamped_logs(x)?;
            grad.mul(&of_zero.sub(&of_one)?)
        };
        let of_x = self.t.as_ref().map(of_x).transpose()?;
        Ok(smallvec![of_x, inputs.gradient(1, of_t)?])
    }
}

/// Returns the logarithms of `x` and of `1 - x`, clamped to at least -100.
#[track_caller]
fn clamped_logs(x: &Tensor) -> Result<[Tensor; 2]> {
    Ok([x.log()?.clamp_min(-100)?, x.neg()?.log1p()?.clamp_min(-100)?])
}

/// [`binary_cross_entropy`] of `sigmoid(input)`, without the loss of precision of a separate sigmoid
/// (`torch.nn.functional.binary_cross_entropy_with_logits`).
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if the sizes of `input` and `target` differ, or if the reduction is
/// [`Reduction::BatchMean`]. Otherwise the same as [`Tensor::mul`] and [`Tensor::mean`].
#[track_caller]
pub fn binary_cross_entropy_with_logits<'a>(
    input: &Tensor,
    target: &Tensor,
    options: impl IntoOptions<BCEWithLogitsLossOptions<'a>>,
) -> Result<Tensor> {
    let _call = CallScope::enter("binary_cross_entropy_with_logits");
    let BCEWithLogitsLossOptions { weight, reduction, pos_weight } = options.into_options();
    let op = "binary_cross_entropy_with_logits";
    autocast_operands!(F32, F32, [input, target; weight, pos_weight] => binary_cross_entropy_with_logits(
        input, target, BCEWithLogitsLossOptions { weight, reduction, pos_weight }
    ));
    check_sizes(op, input, target)?;
    let (x, t) = (input.widened()?, target.widened()?);
    let log = x.logsigmoid()?;
    let log = match pos_weight {
        None => log,
        Some(weight) => weight.sub(1)?.mul(&t)?.add(1)?.mul(&log)?,
    };
    let losses = t.neg()?.add(1)?.mul(&x)?.sub(&log)?;
    let loss = reduction.of_weighted(op, losses, weight)?;
    loss.to(input.dtype())
}

/// Fails if a CPU tensor has elements outside the range from 0 to 1, or NaN. Does not check GPU tensors.
#[track_caller]
fn check_fractions(op: &'static str, name: &str, tensor: &Tensor) -> Result<()> {
    if tensor.is_cuda() {
        return Ok(());
    }
    let own = tensor.detach();
    let within = own.ge(0)?.logical_and(&own.le(1)?)?;
    if within.all(())?.item::<bool>()? {
        return Ok(());
    }
    Err(Error::invalid(op, format!("all elements of the {name} must be from 0 to 1")))
}

#[track_caller]
fn check_sizes(op: &'static str, input: &Tensor, target: &Tensor) -> Result<()> {
    if input.size() == target.size() {
        return Ok(());
    }
    let reason =
        format!("the target's sizes {:?} must be the input's, {:?}", target.size(), input.size());
    Err(Error::invalid(op, reason))
}

/// The Kullback-Leibler divergence `target * (log(target) - input)`, or with `log_target`
/// `exp(target) * (target - input)`, for an `input` of logarithms (`torch.nn.functional.kl_div`).
///
/// # Errors
/// The same as [`Tensor::sub`] and [`Tensor::mean`].
#[track_caller]
pub fn kl_div(
    input: &Tensor,
    target: &Tensor,
    options: impl IntoOptions<KLDivLossOptions>,
) -> Result<Tensor> {
    let _call = CallScope::enter("kl_div");
    let KLDivLossOptions { reduction, log_target } = options.into_options();
    let op = "kl_div";
    autocast_operands!(F32, F32, [input, target] => kl_div(input, target, KLDivLossOptions { reduction, log_target }));
    let losses = if log_target {
        target.exp()?.mul(&target.sub(input)?)?
    } else {
        target.xlogy(target)?.sub(&target.mul(input)?)?
    };
    if reduction != Reduction::BatchMean {
        return reduction.of(op, &losses);
    }
    let batch = input.size().first().copied().unwrap_or(1);
    losses.sum(())?.div(batch as f64)
}
