//! Losses that compare elements.

use std::panic::Location;

use smallvec::smallvec;

use crate::autograd::{Backward, Gradients, Inputs, record, saved, wanted};
use crate::called::Called;
use crate::{Error, Result, Tensor, where_cond};

/// What becomes of the losses of single elements (`reduction`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// They are the result (`"none"`).
    None,
    /// Their mean (`"mean"`).
    #[default]
    Mean,
    /// Their sum (`"sum"`).
    Sum,
    /// Their sum divided by the size of the first dimension (`"batchmean"`); for [`kl_div`] alone.
    BatchMean,
}

impl Reduction {
    /// The reduced losses.
    #[track_caller]
    pub(super) fn of(self, op: &'static str, losses: &Tensor) -> Result<Tensor> {
        match self {
            Self::None => Ok(losses.clone()),
            Self::Mean => losses.mean(()),
            Self::Sum => losses.sum(()),
            Self::BatchMean => Err(Error::invalid(op, "batchmean is for kl_div alone")),
        }
    }

    /// Of losses in a dtype that is perhaps wider than the result's.
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

/// Warns of operands that are broadcast, as PyTorch does: mostly it is a mistake, such as `[n]` beside `[n, 1]`.
#[track_caller]
fn warn_of_sizes(op: &'static str, input: &Tensor, target: &Tensor) {
    if input.size() != target.size() {
        tracing::warn!(
            "{op}: the target's sizes {:?} are not the input's, {:?}; they are broadcast, which likely leads to incorrect \
             results (called at {})",
            target.size(),
            input.size(),
            Location::caller()
        );
    }
}

/// The squares of the differences (`torch.nn.functional.mse_loss`). Sizes that differ are broadcast, with a warning.
///
/// ```
/// # use warpline::functional::{Reduction, mse_loss};
/// # use warpline::tensor;
/// let (a, b) = (tensor([1f32, 2.0], ())?, tensor([1f32, 4.0], ())?);
/// assert_eq!(mse_loss(&a, &b, Reduction::Mean)?.item::<f32>()?, 2.0);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// As [`Tensor::sub`], [`Tensor::mean`].
#[track_caller]
pub fn mse_loss(input: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    let op = "mse_loss";
    warn_of_sizes(op, input, target);
    let losses = input.sub(target).of(op)?.square().of(op)?;
    reduction.of(op, &losses).of(op)
}

/// The sizes of the differences (`torch.nn.functional.l1_loss`).
///
/// # Errors
/// As [`mse_loss`].
#[track_caller]
pub fn l1_loss(input: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    let op = "l1_loss";
    warn_of_sizes(op, input, target);
    let losses = input.sub(target).of(op)?.abs().of(op)?;
    reduction.of(op, &losses).of(op)
}

/// Half the square of each difference over `beta`, or where its size is not below `beta`, the size less half of `beta`
/// (`torch.nn.functional.smooth_l1_loss`, which has 1 for `beta` where nothing is said).
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a negative `beta`; as [`mse_loss`].
#[track_caller]
pub fn smooth_l1_loss(
    input: &Tensor,
    target: &Tensor,
    reduction: Reduction,
    beta: f64,
) -> Result<Tensor> {
    let op = "smooth_l1_loss";
    if beta.is_nan() || beta < 0.0 {
        return Err(Error::invalid(op, format!("beta must not be negative, but is {beta}")));
    }
    if beta == 0.0 {
        return l1_loss(input, target, reduction).of(op);
    }
    warn_of_sizes(op, input, target);
    let apart = input.sub(target).of(op)?.abs().of(op)?;
    let near = apart.square().of(op)?.mul(0.5 / beta).of(op)?;
    let far = apart.sub(0.5 * beta).of(op)?;
    let losses = where_cond(&apart.lt(beta).of(op)?, &near, &far).of(op)?;
    reduction.of(op, &losses).of(op)
}

/// Half the square of each difference, or where its size is above `delta`, `delta` times the size less half of `delta`
/// (`torch.nn.functional.huber_loss`, which has 1 for `delta` where nothing is said).
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] unless `delta` is above zero; as [`mse_loss`].
#[track_caller]
pub fn huber_loss(
    input: &Tensor,
    target: &Tensor,
    reduction: Reduction,
    delta: f64,
) -> Result<Tensor> {
    let op = "huber_loss";
    if delta.is_nan() || delta <= 0.0 {
        return Err(Error::invalid(op, format!("delta must be above zero, but is {delta}")));
    }
    warn_of_sizes(op, input, target);
    let apart = input.sub(target).of(op)?.abs().of(op)?;
    let near = apart.square().of(op)?.mul(0.5).of(op)?;
    let far = apart.sub(0.5 * delta).of(op)?.mul(delta).of(op)?;
    let losses = where_cond(&apart.le(delta).of(op)?, &near, &far).of(op)?;
    reduction.of(op, &losses).of(op)
}

/// The cross entropy of probabilities, `-(target * log(input) + (1 - target) * log(1 - input))`, where logarithms are
/// at least -100; each times its `weight` (`torch.nn.functional.binary_cross_entropy`).
///
/// On a GPU the elements are not looked at, since the host would have to wait for them: where `input` is outside 0 to 1,
/// the loss is NaN.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for other sizes, and on the CPU for an element of `input` or `target` that is not
/// from 0 to 1; as [`Tensor::mul`], [`Tensor::mean`].
#[track_caller]
pub fn binary_cross_entropy<'a>(
    input: &Tensor,
    target: &Tensor,
    weight: impl Into<Option<&'a Tensor>>,
    reduction: Reduction,
) -> Result<Tensor> {
    let op = "binary_cross_entropy";
    check_sizes(op, input, target)?;
    check_fractions(op, "input", input)?;
    check_fractions(op, "target", target)?;
    let (x, t) = (input.widened().of(op)?, target.widened().of(op)?);
    let losses = entropy_of_two(&x, &t).of(op)?;
    let loss = reduction.of_weighted(op, losses, weight.into()).of(op)?;
    loss.to(input.dtype()).of(op)
}

/// `-(t * log(x) + (1 - t) * log(1 - x))`. The gradient is PyTorch's: finite also where `x` is 0 or 1.
#[track_caller]
fn entropy_of_two(x: &Tensor, t: &Tensor) -> Result<Tensor> {
    let [of_one, of_zero] = logs_above(&x.detach())?;
    let target = t.detach();
    let losses = target.mul(&of_one)?.add(&target.neg()?.add(1)?.mul(&of_zero)?)?.neg()?;
    if !wanted(&[x, t]) {
        return Ok(losses);
    }
    let saved = EntropyOfTwo { x: x.clone(), t: x.requires_grad().then(|| t.clone()) };
    record("binary_cross_entropy", losses, &[x, t], saved)
}

saved! {
    struct EntropyOfTwo {
        x: Tensor,
        /// There if `x` has a gradient.
        t: Option<Tensor>,
    }
}

impl Backward for EntropyOfTwo {
    fn backward(&self, grad: &Tensor, inputs: &Inputs<'_>) -> Result<Gradients> {
        let x = &self.x;
        let of_x = |t: &Tensor| {
            let slope = x.neg()?.add(1)?.mul(x)?.clamp_min(1e-12)?;
            grad.mul(&x.sub(t)?)?.div(&slope)
        };
        let of_t = || {
            let [of_one, of_zero] = logs_above(x)?;
            grad.mul(&of_zero.sub(&of_one)?)
        };
        let of_x = self.t.as_ref().map(of_x).transpose()?;
        Ok(smallvec![of_x, inputs.gradient(1, of_t)?])
    }
}

/// The logarithms of `x` and of `1 - x`, but at least -100.
#[track_caller]
fn logs_above(x: &Tensor) -> Result<[Tensor; 2]> {
    Ok([x.log()?.clamp_min(-100)?, x.neg()?.log1p()?.clamp_min(-100)?])
}

/// [`binary_cross_entropy`] of `sigmoid(input)`, without its loss of exactness; `pos_weight` is what the loss of 1 weighs
/// more (`torch.nn.functional.binary_cross_entropy_with_logits`).
///
/// # Errors
/// As [`mse_loss`].
#[track_caller]
pub fn binary_cross_entropy_with_logits<'a>(
    input: &Tensor,
    target: &Tensor,
    weight: impl Into<Option<&'a Tensor>>,
    reduction: Reduction,
    pos_weight: impl Into<Option<&'a Tensor>>,
) -> Result<Tensor> {
    let op = "binary_cross_entropy_with_logits";
    check_sizes(op, input, target)?;
    let (x, t) = (input.widened().of(op)?, target.widened().of(op)?);
    let log = x.logsigmoid().of(op)?;
    let log = match pos_weight.into() {
        None => log,
        Some(weight) => weight.sub(1).of(op)?.mul(&t).of(op)?.add(1)?.mul(&log).of(op)?,
    };
    let losses = t.neg()?.add(1)?.mul(&x).of(op)?.sub(&log).of(op)?;
    let loss = reduction.of_weighted(op, losses, weight.into()).of(op)?;
    loss.to(input.dtype()).of(op)
}

/// Refuses elements outside 0 to 1, and NaN, on the CPU.
#[track_caller]
fn check_fractions(op: &'static str, name: &str, tensor: &Tensor) -> Result<()> {
    if tensor.is_cuda() {
        return Ok(());
    }
    let own = tensor.detach();
    let within = own.ge(0).of(op)?.logical_and(&own.le(1).of(op)?).of(op)?;
    if within.all(()).of(op)?.item::<bool>().of(op)? {
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

/// The Kullback-Leibler divergence, `target * (log(target) - input)` of an `input` of logarithms; with `log_target` the
/// target is of logarithms too (`torch.nn.functional.kl_div`).
///
/// # Errors
/// As [`mse_loss`].
#[track_caller]
pub fn kl_div(
    input: &Tensor,
    target: &Tensor,
    reduction: Reduction,
    log_target: bool,
) -> Result<Tensor> {
    let op = "kl_div";
    let losses = if log_target {
        target.exp().of(op)?.mul(&target.sub(input).of(op)?).of(op)?
    } else {
        target.xlogy(target).of(op)?.sub(&target.mul(input).of(op)?).of(op)?
    };
    if reduction != Reduction::BatchMean {
        return reduction.of(op, &losses).of(op);
    }
    let batch = input.size().first().copied().unwrap_or(1);
    losses.sum(()).of(op)?.div(batch as f64).of(op)
}
