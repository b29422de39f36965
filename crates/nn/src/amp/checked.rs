//! The gradients of an optimizer, checked for overflows and divided by the scale.

use warpline::autograd::check_not_moved;
use warpline::{DType, Device, Error, Result, Tensor, zeros};
use warpline_kernels::optim as kernels;

use crate::optim::{Optimizer, OptimizerId, is_capturing};

/// Elements per piece of a gradient that the kernels do not take whole.
const PIECE: usize = 1 << 30;

/// An optimizer whose gradients were checked.
#[derive(Debug)]
pub(super) struct CheckedOptimizer {
    optimizer: OptimizerId,
    /// Number of parameters.
    parameters: usize,
    pub(super) stage: Stage,
    /// Whether a capture contains the check, so that each replay repeats it.
    captured: bool,
    /// One mark per device, not zero if a gradient on that device is infinite or NaN.
    pub(super) found_inf: Vec<Tensor>,
}

/// The progress of an optimizer since the last update (`OptState`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Ready,
    Unscaled,
    Stepped,
    /// A call failed when it had begun to divide the gradients by the scale.
    Failed,
}

impl Stage {
    /// Fails if the gradients of an optimizer in this stage must not be divided by the scale.
    #[track_caller]
    pub(super) fn check_undivided(self, op: &'static str) -> Result<()> {
        let reason = match self {
            Self::Ready => return Ok(()),
            Self::Unscaled => {
                "the gradients of this optimizer were already unscaled since the last `update`"
            }
            Self::Stepped => "this optimizer already took its step since the last `update`",
            Self::Failed => {
                "an earlier call failed, and some gradients of this optimizer may be unscaled: call `update`, and \
                 compute the gradients again"
            }
        };
        Err(Error::invalid(op, reason))
    }
}

/// Removes the marks of captures that never ran and never will, such as failed captures. These captures neither checked
/// nor divided a gradient.
pub(super) fn forget_lost(optimizers: &mut Vec<CheckedOptimizer>) {
    optimizers.retain_mut(|of| {
        let marks = of.found_inf.len();
        of.found_inf.retain(|mark| !mark.storage().is_lost());
        of.found_inf.len() == marks || !of.found_inf.is_empty()
    });
}

/// Returns the record of an optimizer, and creates it in the first call since the last update.
#[track_caller]
pub(super) fn record_of<'a>(
    optimizers: &'a mut Vec<CheckedOptimizer>,
    op: &'static str,
    optimizer: &dyn Optimizer,
) -> Result<&'a mut CheckedOptimizer> {
    let (id, parameters) = (optimizer.id(), optimizer.parameters().len());
    if parameters == 0 {
        return Err(Error::invalid(op, "the optimizer has no parameters"));
    }
    forget_lost(optimizers);
    let at = optimizers.iter().position(|of| of.optimizer == id).unwrap_or_else(|| {
        let (stage, captured, found_inf) = (Stage::Ready, false, Vec::new());
        optimizers.push(CheckedOptimizer { optimizer: id, parameters, stage, captured, found_inf });
        optimizers.len() - 1
    });
    let of = &mut optimizers[at];
    if of.stage == Stage::Unscaled && of.parameters < parameters {
        let reason = "a group was added to this optimizer after its gradients were unscaled: add groups before \
                      `unscale_` or after `update`";
        return Err(Error::invalid(op, reason));
    }
    of.parameters = parameters;
    Ok(of)
}

impl CheckedOptimizer {
    /// Fails in a capture if the gradients were checked outside of captures.
    #[track_caller]
    pub(super) fn check_repeatable(&self, op: &'static str, scale: &Tensor) -> Result<()> {
        if self.captured || self.found_inf.is_empty() || !is_capturing(scale)? {
            return Ok(());
        }
        let reason = "the gradients were unscaled before the capture, so each replay would use their first check: \
                      call `unscale_` in the capture, too";
        Err(Error::invalid(op, reason))
    }
}

/// Checks the gradients of an optimizer's parameters, and divides them by `scale` if there is one.
#[track_caller]
pub(super) fn check_grads(
    of: &mut CheckedOptimizer,
    optimizer: &dyn Optimizer,
    scale: Option<&Tensor>,
) -> Result<()> {
    let mut buckets: Vec<(Device, DType, Vec<Tensor>)> = Vec::new();
    let (mut copies, mut ranges) = (Vec::new(), Vec::new());
    for parameter in optimizer.parameters() {
        check_not_moved("unscale_", &parameter)?;
        let Some(grad) = parameter.grad().map(|grad| grad.detach()) else { continue };
        if scale.is_some() && grad.dtype() == DType::F16 {
            let reason = "a gradient is of f16, where unscaled gradients underflow: keep the parameters in f32 and \
                          compute in a region of autocast";
            return Err(Error::invalid("unscale_", reason));
        }
        if grad.numel() > 0 {
            let elements = if grad.is_contiguous() { grad.numel() } else { 1 };
            let start = grad.data_ptr();
            ranges.push((grad.device(), start, start + (elements * grad.dtype().size()) as u64));
        }
        let key = (grad.device(), grad.dtype());
        let at = buckets.iter().position(|bucket| (bucket.0, bucket.1) == key);
        let at = at.unwrap_or_else(|| {
            buckets.push((key.0, key.1, Vec::new()));
            buckets.len() - 1
        });
        if kernels::takes(grad.as_view()) {
            buckets[at].2.push(grad);
            continue;
        }
        let flat = grad.contiguous()?.view([-1])?;
        for start in (0..flat.numel()).step_by(PIECE) {
            let length = PIECE.min(flat.numel() - start);
            buckets[at].2.push(flat.narrow(0, start, length)?);
        }
        if scale.is_some() && !grad.is_contiguous() {
            copies.push((grad, flat));
        }
    }
    ranges.sort_unstable_by_key(|&(_, start, _)| start);
    if ranges.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[1].1 < pair[0].2) {
        let reason = "two parameters share the memory of a gradient, which would be divided by the scale twice: give \
                      each parameter a gradient of its own";
        return Err(Error::invalid("unscale_", reason));
    }
    let (mut marks, mut launches): (Vec<Tensor>, Vec<_>) = Default::default();
    for (device, _, grads) in &buckets {
        let known = marks.iter().find(|mark| mark.device() == *device).cloned();
        let mark = match known {
            Some(mark) => mark,
            None => {
                let mark = zeros([], (DType::F32, *device))?;
                marks.push(mark.clone());
                mark
            }
        };
        launches.push((grads, mark, scale.map(|scale| scale.to(*device)).transpose()?));
    }
    // A failure of a later launch leaves the gradients of earlier launches divided.
    if scale.is_some() {
        of.stage = Stage::Failed;
    }
    for (grads, mark, scale) in launches {
        let views: Vec<_> = grads.iter().map(Tensor::as_view).collect();
        let (exec, scale) = (mark.exec()?, scale.as_ref().map(Tensor::as_view));
        kernels::check_and_unscale(exec.target(), &views, scale, mark.as_view())?;
    }
    for (grad, flat) in copies {
        grad.copy_(&flat.view_as(&grad)?, ())?;
    }
    if scale.is_some() {
        of.stage = Stage::Unscaled;
    }
    of.captured = marks.first().is_some_and(|mark| is_capturing(mark).unwrap_or(false));
    of.found_inf = marks;
    Ok(())
}

/// Returns 1 on `device` if a mark is set, and 0 otherwise.
#[track_caller]
pub(super) fn any(marks: &[Tensor], device: Device) -> Result<Tensor> {
    let mut all = marks[0].to(device)?;
    for mark in &marks[1..] {
        all = all.maximum(&mark.to(device)?)?;
    }
    Ok(all)
}
