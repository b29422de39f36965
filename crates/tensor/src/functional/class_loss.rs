//! The cross entropy of class indices in few launches: two forward and one backward.

use smallvec::smallvec;
use warpline_kernels::loss::{self as kernel, Nll};

use super::{CrossEntropyOptions, Reduction};
use crate::autograd::{is_grad_enabled, record_all, wanted};
use crate::tensor::softmax_backward;
use crate::{DType, Result, Tensor};

/// Rows up to which one block adds their losses: with more, several launches that use all of a GPU are faster.
const MOST_ROWS: usize = 1 << 16;

/// The loss, if it is one that the kernels are for: reduced, of a matrix, and with a weight that is of its dtype and has
/// no gradient. All sizes were checked.
#[track_caller]
pub(super) fn fused(
    input: &Tensor,
    classes: &Tensor,
    options: &CrossEntropyOptions<'_>,
) -> Result<Option<Tensor>> {
    let beside = |t: &Tensor| {
        t.device() == input.device() && t.storage().runtime().same_as(input.storage().runtime())
    };
    let weight = options.weight;
    let weighs = weight.is_none_or(|w| w.dtype() == input.dtype() && beside(w) && !wanted(&[w]));
    let fits = input.dim() == 2
        && input.numel() > 0
        && input.size()[0] <= MOST_ROWS
        && input.dtype().is_float()
        && classes.dtype() == DType::I64
        && beside(classes)
        && matches!(options.reduction, Reduction::Mean | Reduction::Sum)
        && options.label_smoothing == 0.0;
    if !(fits && weighs) {
        return Ok(None);
    }
    let log = input.detach().log_softmax(1)?;
    let of =
        Loss { ignore_index: options.ignore_index, mean: options.reduction == Reduction::Mean };
    let nll = of.nll(&log, classes, weight);
    let exec = log.exec()?;
    let loss = exec.empty(&[], log.dtype())?;
    let total = exec.empty(&[], nll.total_dtype())?;
    kernel::nll_loss(exec.target(), "cross_entropy", &nll, loss.as_view(), total.as_view())?;
    if wanted(&[input]) {
        // The logarithms are a result too, so that gradients of gradients know what they depend on.
        let mut saved = vec![&log, classes, &total];
        saved.extend(weight);
        let weighted = weight.is_some();
        record_all("cross_entropy", &[&loss, &log], &[input], &saved, move |context, grads| {
            let saved = [context.saved(0)?, context.saved(1)?, context.saved(2)?];
            let weight = weighted.then(|| context.saved(3)).transpose()?;
            let of_loss = |grad: &Tensor| of.backward(grad, &saved, weight.as_ref());
            let of_log = |grad: &Tensor| softmax_backward(grad, &saved[0], 1, true);
            Ok(smallvec![match (&grads[0], &grads[1]) {
                (Some(loss), Some(log)) => Some(of_loss(loss)?.add(&of_log(log)?)?),
                (Some(loss), None) => Some(of_loss(loss)?),
                (None, Some(log)) => Some(of_log(log)?),
                (None, None) => None,
            }])
        })?;
    }
    Ok(Some(loss))
}

/// What the gradient needs to know of the options.
#[derive(Clone, Copy)]
struct Loss {
    ignore_index: i64,
    mean: bool,
}

impl Loss {
    fn nll<'a>(self, log: &'a Tensor, classes: &'a Tensor, weight: Option<&'a Tensor>) -> Nll<'a> {
        Nll {
            log: log.as_view(),
            classes: classes.as_view(),
            weight: weight.map(Tensor::as_view),
            ignore_index: self.ignore_index,
            mean: self.mean,
        }
    }

    /// The input's gradient, for the loss's.
    fn backward(
        self,
        grad: &Tensor,
        [log, classes, total]: &[Tensor; 3],
        weight: Option<&Tensor>,
    ) -> Result<Tensor> {
        if !is_grad_enabled() {
            let exec = log.exec()?;
            let out = exec.empty(log.size(), log.dtype())?;
            let nll = self.nll(log, classes, weight);
            let [grad, total] = [grad, total].map(Tensor::as_view);
            kernel::nll_loss_backward(exec.target(), grad, &nll, total, out.as_view())?;
            return Ok(out);
        }
        // The same in ops that have gradients themselves.
        let ignored = classes.eq(self.ignore_index)?;
        let index = classes.masked_fill(&ignored, 0)?;
        let own = match weight {
            Some(weight) => weight.index_select(0, &index)?.to(total.dtype())?,
            None => total.expand([index.size()[0] as isize])?.ones_like(())?,
        };
        let own = own.masked_fill(&ignored, 0)?;
        let own = if self.mean { own.div(total)? } else { own };
        let every = log.arange_beside(0, log.size()[1])?;
        let is_own = index.unsqueeze(1)?.eq(&every)?.to(log.dtype())?;
        log.exp()?.sub(&is_own)?.mul(&own.mul(grad)?.unsqueeze(1)?)
    }
}
