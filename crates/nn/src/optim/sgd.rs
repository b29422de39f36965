//! Stochastic gradient descent.

use warpline::Result;
use warpline_kernels::optim::UpdateRule as Kernel;

use super::fused_step::{GradScaling, buckets, rate};
use super::optimizer::{Optim, check_not_capturing};
use super::rule::{ParamState, Rate, Rule, Settings, Slot, check_not_negative, descend, settings};

/// Stochastic gradient descent, optionally with momentum (`torch.optim.SGD`).
pub type SGD = Optim<SGDOptions>;

warpline::__options! {
    /// Options of [`SGD`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    SGDOptions [] [] {
        /// Sets the learning rate. Default: 1e-3.
        lr: f64 = 1e-3, f64;
        /// Sets the momentum factor: the part of the momentum buffer that each step keeps. Default: 0, no momentum.
        momentum: f64 = 0.0, f64;
        /// Sets the dampening: the gradient enters the momentum buffer with the factor `1 - dampening`. Default: 0.
        dampening: f64 = 0.0, f64;
        /// Sets the weight decay: this factor times each weight is added to its gradient. Default: 0.
        weight_decay: f64 = 0.0, f64;
        /// Sets whether the momentum is Nesterov's, which requires a momentum and no dampening. Default: `false`.
        nesterov: bool = false, bool;
        /// Sets whether the objective is maximized instead of minimized. Default: `false`.
        maximize: bool = false, bool;
    }
}

impl Settings for SGDOptions {
    const NAME: &'static str = "SGD";

    settings! {
        "lr" lr, "momentum" momentum, "dampening" dampening, "weight_decay" weight_decay,
        "nesterov" nesterov, "maximize" maximize,
    }

    fn check(&self) -> Result<(), String> {
        let numbers =
            [("lr", self.lr), ("momentum", self.momentum), ("weight_decay", self.weight_decay)];
        check_not_negative(&numbers)?;
        if self.nesterov && (self.momentum == 0.0 || self.dampening != 0.0) {
            return Err("Nesterov's momentum needs a momentum and no dampening".into());
        }
        Ok(())
    }
}

impl Rule for SGDOptions {
    const TENSORS: &'static [&'static str] = &["momentum_buffer"];

    /// Returns `false` for the first step with dampening, which has a formula of its own. The kernel cannot tell
    /// whether all earlier steps were skipped, so the host must decide.
    fn fuses(&self, state: &ParamState) -> bool {
        self.momentum == 0.0 || self.dampening == 0.0 || state.tensors[0].is_some()
    }

    #[track_caller]
    fn step(&self, slots: &mut [Slot<'_>], lr: &Rate, scaling: Option<&GradScaling>) -> Result<()> {
        let (buckets, others) = buckets(slots, |slot| slot.state.tensors[0].is_none());
        for mut bucket in buckets {
            let is_new = *bucket.key();
            // A skipped step does not write the buffer, so the buffer begins with zeros. Without dampening, a step from
            // zeros equals a first step.
            let first = is_new && scaling.is_none();
            if self.momentum != 0.0 && is_new {
                for slot in &mut bucket.slots {
                    if first {
                        check_not_capturing(slot.param)?;
                        slot.state.tensors[0] = Some(slot.param.empty_like(())?);
                    } else {
                        slot.state.zeros(0, slot.param)?;
                    }
                }
            }
            let (number, rates) = match lr {
                Rate::Number(lr) => (*lr, None),
                Rate::Tensor(lr) => (0.0, Some(rate(lr, bucket.device())?)),
            };
            let rule = Kernel::SGD {
                lr: number,
                momentum: (self.momentum != 0.0).then_some((self.momentum, self.dampening)),
                nesterov: self.nesterov,
                first,
                weight_decay: self.weight_decay,
                maximize: self.maximize,
            };
            bucket.run(&rule, rates.as_ref(), scaling)?;
        }
        others.into_iter().try_for_each(|slot| self.step_one(slot, lr))
    }
}

impl SGDOptions {
    /// Updates one parameter with tensor ops, for layouts and sizes that the fused kernel does not support.
    #[track_caller]
    fn step_one(&self, slot: &mut Slot<'_>, lr: &Rate) -> Result<()> {
        let grad = slot.gradient(self.maximize, self.weight_decay)?;
        if self.momentum == 0.0 {
            return descend(slot.param, &grad, lr);
        }
        let buffer = match &slot.state.tensors[0] {
            Some(buffer) => {
                buffer.mul_(self.momentum)?.add_scaled_(&grad, 1.0 - self.dampening)?;
                buffer.clone()
            }
            None => {
                // The first value is the gradient, without dampening.
                check_not_capturing(slot.param)?;
                let buffer = slot.param.empty_like(())?;
                buffer.copy_(&grad, ())?;
                slot.state.tensors[0] = Some(buffer.clone());
                buffer
            }
        };
        let by = if self.nesterov { grad.add_scaled(&buffer, self.momentum)? } else { buffer };
        descend(slot.param, &by, lr)
    }
}
