//! The cross entropy of class indices in few launches: two in the forward pass, and one in the backward pass.

use smallvec::smallvec;
use warpline_kernels::loss::{self as kernel, Nll};

use super::{CrossEntropyLossOptions, Reduction};
use crate::autograd::{Gradients, NodeInputs, OpBackward, record_all, saved, should_record};
use crate::methods::Softmax;
use crate::{DType, Result, Tensor};

/// Maximum number of rows whose losses a single block adds up. With more rows, several launches that use the whole GPU
/// are faster.
const MAX_ROWS: usize = 1 << 16;

/// Computes the loss if the kernels support it: the input is a float matrix with at most [`MAX_ROWS`] rows, the classes
/// are `int64`, the loss is reduced, there is no label smoothing, all operands are on one device, and the weight has
/// the input's dtype and requires no gradient. The caller has checked all sizes.
#[track_caller]
pub(super) fn fused_cross_entropy(
    input: &Tensor,
    classes: &Tensor,
    options: &CrossEntropyLossOptions<'_>,
) -> Result<Option<Tensor>> {
    let beside = |t: &Tensor| {
        t.device() == input.device() && t.storage().runtime().same_as(input.storage().runtime())
    };
    let weight = options.weight;
    let weighs =
        weight.is_none_or(|w| w.dtype() == input.dtype() && beside(w) && !should_record(&[w]));
    let fits = input.dim() == 2
        && input.numel() > 0
        && input.size()[0] <= MAX_ROWS
        && input.dtype().is_float()
        && classes.dtype() == DType::I64
        && beside(classes)
        && matches!(options.reduction, Reduction::Mean | Reduction::Sum)
        && options.label_smoothing == 0.0;
    if !(fits && weighs) {
        return Ok(None);
    }
    let log = input.detach().log_softmax(1)?;
    let exec = log.exec()?;
    let loss = exec.empty(&[], log.dtype())?;
    let total = exec.empty(&[], Nll::total_dtype(log.dtype()))?;
    let saved = ClassLoss {
        log: log.clone(),
        classes: classes.clone(),
        total,
        weight: weight.cloned(),
        ignore_index: options.ignore_index,
        mean: options.reduction == Reduction::Mean,
    };
    let (of_loss, of_total) = (loss.as_view(), saved.total.as_view());
    kernel::nll_loss(exec.target(), "cross_entropy", &saved.nll(), of_loss, of_total)?;
    if should_record(&[input]) {
        // The logarithms are also a result of the node, so that gradients of gradients flow through them.
        record_all("cross_entropy", &[&loss, &log], &[input], saved)?;
    }
    Ok(Some(loss))
}

saved! {
    struct ClassLoss {
        log: Tensor,
        classes: Tensor,
        /// The sum of the weights of all targets that are not ignored.
        total: Tensor,
        weight: Option<Tensor>,
        ignore_index: i64,
        mean: bool,
    }
}

impl ClassLoss {
    fn nll(&self) -> Nll<'_> {
        Nll {
            log: self.log.as_view(),
            classes: self.classes.as_view(),
            weight: self.weight.as_ref().map(Tensor::as_view),
            ignore_index: self.ignore_index,
            mean: self.mean,
        }
    }

    fn fused_gradient(&self, grad: &Tensor) -> Result<Tensor> {
        let exec = self.log.exec()?;
        let out = exec.empty(self.log.size(), self.log.dtype())?;
        let [grad, total] = [grad, &self.total].map(Tensor::as_view);
        kernel::nll_loss_backward(exec.target(), grad, &self.nll(), total, out.as_view())?;
        Ok(out)
    }

    fn differentiable_gradient(&self, grad: &Tensor) -> Result<Tensor> {
        let Self { log, classes, total, weight, .. } = self;
        let ignored = classes.eq(self.ignore_index)?;
        let index = classes.masked_fill(&ignored, 0)?;
        let own = match weight {
            Some(weight) => weight.index_select(0, &index)?.to(total.dtype())?,
            None => total.expand([index.size()[0] as isize])?.ones_like(())?,
        };
        let own = own.masked_fill(&ignored, 0)?;
        let own = if self.mean { own.div(total)? } else { own };
        let every = log.arange_on_device(0, log.size()[1])?;
        let is_own = index.unsqueeze(1)?.eq(&every)?.to(log.dtype())?;
        log.exp()?.sub(&is_own)?.mul(&own.mul(grad)?.unsqueeze(1)?)
    }

    /// Computes the gradient of the input: the sum of the gradients through the loss and through the
    /// logarithms.
    fn gradients(
        &self,
        grads: &[Option<Tensor>],
        of_loss: fn(&Self, &Tensor) -> Result<Tensor>,
        of_log: fn(&Softmax, &Tensor) -> Result<Tensor>,
    ) -> Result<Gradients> {
        let [loss, log] = grads else { return Ok(Gradients::new()) };
        let softmax = Softmax { out: self.log.clone(), dim: 1, log: true };
        let loss = loss.as_ref().map(|grad| of_loss(self, grad)).transpose()?;
        let log = log.as_ref().map(|grad| of_log(&softmax, grad)).transpose()?;
        Ok(smallvec![match (loss, log) {
            (Some(loss), Some(log)) => Some(loss.add(&log)?),
            (loss, log) => loss.or(log),
        }])
    }
}

impl OpBackward<[Option<Tensor>]> for ClassLoss {
    fn backward(&self, grads: &[Option<Tensor>], _: &NodeInputs<'_>) -> Result<Gradients> {
        self.gradients(grads, Self::differentiable_gradient, Softmax::differentiable_gradient)
    }

    fn fused(&self, grads: &[Option<Tensor>], _: &NodeInputs<'_>) -> Result<Option<Gradients>> {
        self.gradients(grads, Self::fused_gradient, Softmax::fused_gradient).map(Some)
    }
}
