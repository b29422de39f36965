//! Classification losses.

use smallvec::smallvec;

use super::fused_cross_entropy::fused_cross_entropy;
use super::{CrossEntropyLossOptions, NLLLossOptions, Reduction};
#[cfg(doc)]
use crate::ErrorKind;
use crate::amp::autocast_operands;
use crate::autograd::{Gradients, NodeInputs, OpBackward, record_all, saved, should_record};
use crate::{CallScope, DType, Error, IntoOptions, Result, Tensor};

/// The cross entropy of logits and a target (`torch.nn.functional.cross_entropy`). Classes are the second dimension of
/// `input`, or its only dimension. The target has the sizes of `input` without the classes, and its elements are
/// class indices. A floating-point target has the sizes of `input`, with a probability for each class.
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`] if the target has neither the sizes of `input` without the classes nor, for
/// probabilities, the sizes of `input`, if there is not one weight per class, or if `input` has no dimensions.
/// [`ErrorKind::DTypeMismatch`] if class indices are not `int64` (or `uint8`, for a target of at most one dimension).
/// [`ErrorKind::InvalidArgument`] if `label_smoothing` is not from 0 to 1, or if the reduction is
/// [`Reduction::BatchMean`]. [`ErrorKind::IndexCheck`] if a class index is out of range, as described at
/// [`Tensor::index_select`]. Otherwise the same as [`Tensor::log_softmax`].
#[track_caller]
pub fn cross_entropy<'a>(
    input: &Tensor,
    target: &Tensor,
    options: impl IntoOptions<CrossEntropyLossOptions<'a>>,
) -> Result<Tensor> {
    let _call = CallScope::enter("cross_entropy");
    of_classes(input, target, &options.into_options())
}

#[track_caller]
fn of_classes(
    input: &Tensor,
    target: &Tensor,
    options: &CrossEntropyLossOptions<'_>,
) -> Result<Tensor> {
    let op = "cross_entropy";
    let weight = options.weight;
    autocast_operands!(F32, F32, [input, target; weight] =>
        of_classes(input, target, &CrossEntropyLossOptions { weight, ..*options }));
    let smoothing = options.label_smoothing;
    if !(0.0..=1.0).contains(&smoothing) {
        let reason = format!("label_smoothing must be from 0 to 1, but is {smoothing}");
        return Err(Error::invalid(op, reason));
    }
    let dim = class_dim(op, input)?;
    check_weight(op, input.size()[dim as usize], weight)?;
    if target.dtype().is_float() && target.size() == input.size() {
        let log = input.log_softmax(dim)?;
        return of_probabilities(&log, target, dim, options)?.to(input.dtype());
    }
    check_target(op, input, target, dim)?;
    if let Some(loss) = fused_cross_entropy(input, target, options)? {
        return Ok(loss);
    }
    let targets = ClassTargets::new(target, dim, options.ignore_index)?;
    let (log, picked) = picked_log_softmax(input, dim, &targets.index)?;
    let losses = WeightedLosses::of(picked, targets, target.size(), weight)?;
    if smoothing == 0.0 {
        return losses.reduced(op, options.reduction)?.to(input.dtype());
    }
    let classes = input.size()[dim as usize] as f64;
    // Label smoothing adds the loss of a target with the same probability for all classes.
    let log = log.widened()?;
    let spread = match weight {
        None => log.sum(dim)?,
        Some(weight) => log.mul(&broadcast_along(weight, dim, log.dim())?)?.sum(dim)?,
    };
    let spread = spread.neg()?.masked_fill(&losses.ignored, 0)?;
    let smooth = losses.losses.mul(1.0 - smoothing)?;
    let losses =
        WeightedLosses { losses: smooth.add(&spread.mul(smoothing / classes)?)?, ..losses };
    losses.reduced(op, options.reduction)?.to(input.dtype())
}

/// The negative log likelihood of class indices, for an `input` of log-probabilities (`torch.nn.functional.nll_loss`).
/// Input and target have the sizes that [`cross_entropy`] describes. The target cannot hold probabilities.
///
/// # Errors
/// The same as [`cross_entropy`] of class indices without label smoothing.
#[track_caller]
pub fn nll_loss<'a>(
    input: &Tensor,
    target: &Tensor,
    options: impl IntoOptions<NLLLossOptions<'a>>,
) -> Result<Tensor> {
    let _call = CallScope::enter("nll_loss");
    of_log_probabilities(input, target, &options.into_options())
}

#[track_caller]
fn of_log_probabilities(
    input: &Tensor,
    target: &Tensor,
    options: &NLLLossOptions<'_>,
) -> Result<Tensor> {
    let op = "nll_loss";
    let weight = options.weight;
    autocast_operands!(F32, F32, [input, target; weight] =>
        of_log_probabilities(input, target, &NLLLossOptions { weight, ..*options }));
    let dim = class_dim(op, input)?;
    check_weight(op, input.size()[dim as usize], options.weight)?;
    check_target(op, input, target, dim)?;
    let targets = ClassTargets::new(target, dim, options.ignore_index)?;
    let picked = input.gather(dim, &targets.index)?;
    let losses = WeightedLosses::of(picked, targets, target.size(), options.weight)?;
    losses.reduced(op, options.reduction)?.to(input.dtype())
}

/// Class indices, and a mask of the ignored targets.
struct ClassTargets {
    ignored: Tensor,
    /// The indices, with a dimension of size 1 for the classes. Ignored elements have index 0, which is
    /// valid.
    index: Tensor,
}

impl ClassTargets {
    #[track_caller]
    fn new(target: &Tensor, dim: isize, ignore_index: i64) -> Result<Self> {
        let target = target.to(DType::I64)?;
        let ignored = target.eq(ignore_index)?;
        let index = target.masked_fill(&ignored, 0)?.unsqueeze(dim)?;
        Ok(Self { ignored, index })
    }
}

/// Returns [`Tensor::log_softmax`] of the input, and its elements at `index`. Both are results of one node,
/// because their joint gradient costs little more than the gradient of the softmax alone.
#[track_caller]
fn picked_log_softmax(input: &Tensor, dim: isize, index: &Tensor) -> Result<(Tensor, Tensor)> {
    let log = input.detach().log_softmax(dim)?;
    let picked = log.gather(dim, index)?;
    if should_record(&[input]) {
        let saved = PickedLogSoftmax { log: log.clone(), index: index.clone(), dim };
        record_all("cross_entropy", &[&log, &picked], &[input], saved)?;
    }
    Ok((log, picked))
}

saved! {
    struct PickedLogSoftmax { log: Tensor, index: Tensor, dim: isize }
}

impl OpBackward<[Option<Tensor>]> for PickedLogSoftmax {
    fn backward(&self, grads: &[Option<Tensor>], _: &NodeInputs<'_>) -> Result<Gradients> {
        let Self { log, index, dim } = self;
        let [of_log, of_picked] = grads else { return Ok(Gradients::new()) };
        // The gradient of the normalizer is the sum of all gradients, distributed by the softmax.
        let sum = of_log.as_ref().map(|grad| grad.sum_keepdim(*dim)).transpose()?;
        let sum = match (sum, of_picked) {
            (Some(sum), Some(grad)) => sum.add(grad)?,
            (Some(sum), None) => sum,
            (None, Some(grad)) => grad.clone(),
            (None, None) => return Ok(Gradients::new()),
        };
        let mut of_input = log.exp()?.mul(&sum.neg()?)?;
        if let Some(grad) = of_picked {
            of_input.scatter_add_(*dim, index, grad)?;
        }
        if let Some(grad) = of_log {
            of_input = of_input.add(grad)?;
        }
        Ok(smallvec![Some(of_input)])
    }
}

/// The losses of class indices, multiplied by their weights. Ignored targets have weight 0. For half-width
/// inputs, the losses are `f32`, because sums may exceed the range of the input's dtype.
struct WeightedLosses {
    losses: Tensor,
    ignored: Tensor,
    /// Weight of each loss. `None` if all targets that are not ignored have weight 1.
    weights: Option<Tensor>,
}

impl WeightedLosses {
    #[track_caller]
    fn of(
        picked: Tensor,
        targets: ClassTargets,
        sizes: &[usize],
        weight: Option<&Tensor>,
    ) -> Result<Self> {
        let ClassTargets { ignored, index } = targets;
        let losses = picked.reshape(sizes)?.widened()?.neg()?;
        let (losses, weights) = match weight {
            None => (losses, None),
            Some(weight) => {
                let own = weight.index_select(0, &index.reshape([-1])?)?.reshape(sizes)?;
                let own = own.widened()?.masked_fill(&ignored, 0)?;
                (losses.mul(&own)?, Some(own))
            }
        };
        Ok(Self { losses: losses.masked_fill(&ignored, 0)?, ignored, weights })
    }

    #[track_caller]
    fn reduced(&self, op: &'static str, reduction: Reduction) -> Result<Tensor> {
        if reduction != Reduction::Mean {
            return reduction.of(op, &self.losses);
        }
        let count = match &self.weights {
            Some(weights) => weights.sum(())?,
            None => self.ignored.logical_not()?.sum(())?,
        };
        self.losses.sum(())?.div(&count)
    }
}

/// Computes the cross entropy of targets that are class probabilities.
#[track_caller]
fn of_probabilities(
    log: &Tensor,
    target: &Tensor,
    dim: isize,
    options: &CrossEntropyLossOptions<'_>,
) -> Result<Tensor> {
    let classes = log.size()[dim as usize] as f64;
    let smoothing = options.label_smoothing;
    let (log, mut target) = (log.widened()?, target.widened()?);
    if smoothing > 0.0 {
        target = target.mul(1.0 - smoothing)?.add(smoothing / classes)?;
    }
    let mut products = log.mul(&target)?;
    if let Some(weight) = options.weight {
        products = products.mul(&broadcast_along(weight, dim, log.dim())?)?;
    }
    let losses = products.sum(dim)?.neg()?;
    options.reduction.of("cross_entropy", &losses)
}

/// Returns the dimension of the classes.
#[track_caller]
fn class_dim(op: &'static str, input: &Tensor) -> Result<isize> {
    match input.dim() {
        0 => {
            Err(Error::shape(op, "the input must have at least one dimension, that of the classes"))
        }
        1 => Ok(0),
        _ => Ok(1),
    }
}

#[track_caller]
fn check_target(op: &'static str, input: &Tensor, target: &Tensor, dim: isize) -> Result<()> {
    let mut sizes = input.size().to_vec();
    sizes.remove(dim as usize);
    if target.size() == &sizes[..] {
        // PyTorch also accepts `uint8`, but only for targets of at most one dimension.
        let bytes = target.dtype() == DType::U8 && target.dim() <= 1;
        if bytes {
            return Ok(());
        }
        return target.as_view().check_operand_dtype(op, "a target of class indices", DType::I64);
    }
    Err(Error::shape(
        op,
        format!(
            "for an input of sizes {:?}, the target of class indices must have sizes {sizes:?}, \
             but has {:?}",
            input.size(),
            target.size()
        ),
    ))
}

#[track_caller]
fn check_weight(op: &'static str, classes: usize, weight: Option<&Tensor>) -> Result<()> {
    match weight {
        Some(weight) if weight.size() != [classes] => Err(Error::shape(
            op,
            format!(
                "there must be one weight for each of {classes} classes, but the weights have \
                 sizes {:?}",
                weight.size()
            ),
        )),
        _ => Ok(()),
    }
}

/// Reshapes a vector to `dims` dimensions. Dimension `dim` has the vector's size, all others have size 1.
#[track_caller]
fn broadcast_along(vector: &Tensor, dim: isize, dims: usize) -> Result<Tensor> {
    let mut sizes = vec![1; dims];
    sizes[dim as usize] = -1;
    vector.reshape(&sizes)
}
