//! RMSprop.

use warpline::Result;
use warpline_kernels::optim::UpdateRule as Kernel;

use super::fused_step::{GradScaling, buckets, rate};
use super::optimizer::Optim;
use super::rule::{ParamState, Rate, Rule, Settings, Slot, check_not_negative, descend, settings};
use super::step_count::count_steps_on_device;

/// RMSprop (`torch.optim.RMSprop`).
pub type RMSprop = Optim<RMSpropOptions>;

warpline::__options! {
    /// Options of [`RMSprop`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    RMSpropOptions [] [] {
        /// Sets the learning rate. Default: 1e-2.
        lr: f64 = 1e-2, f64;
        /// Sets the decay rate of the running average of squared gradients. Default: 0.99.
        alpha: f64 = 0.99, f64;
        /// Sets the number that is added to the denominator. Default: 1e-8.
        eps: f64 = 1e-8, f64;
        /// Sets the weight decay: this factor times each weight is added to its gradient. Default: 0.
        weight_decay: f64 = 0.0, f64;
        /// Sets the momentum factor: the part of the momentum buffer that each step keeps. Default: 0, no momentum.
        momentum: f64 = 0.0, f64;
        /// Sets whether gradients are divided by their standard deviation instead of their root mean square. Default:
        /// `false`.
        centered: bool = false, bool;
        /// Sets whether the objective is maximized instead of minimized. Default: `false`.
        maximize: bool = false, bool;
    }
}

impl Settings for RMSpropOptions {
    const NAME: &'static str = "RMSprop";

    settings! {
        "lr" lr, "alpha" alpha, "eps" eps, "weight_decay" weight_decay, "momentum" momentum,
        "centered" centered, "maximize" maximize,
    }

    fn check(&self) -> Result<(), String> {
        check_not_negative(&[
            ("lr", self.lr),
            ("alpha", self.alpha),
            ("eps", self.eps),
            ("weight_decay", self.weight_decay),
            ("momentum", self.momentum),
        ])
    }
}

impl Rule for RMSpropOptions {
    const TENSORS: &'static [&'static str] = &["square_avg", "momentum_buffer", "grad_avg"];

    fn fuses(&self, _: &ParamState) -> bool {
        true
    }

    #[track_caller]
    fn step(&self, slots: &mut [Slot<'_>], lr: &Rate, scaling: Option<&GradScaling>) -> Result<()> {
        if scaling.is_some() || slots.iter().any(|slot| slot.state.counter.is_some()) {
            count_steps_on_device(slots, scaling)?;
        } else {
            for slot in &mut *slots {
                slot.state.step = slot.state.step.saturating_add(1);
            }
        }
        let momentum = (self.momentum != 0.0).then_some(self.momentum);
        let (buckets, others) = buckets(slots, |_| ());
        for mut bucket in buckets {
            for slot in &mut bucket.slots {
                let used = [true, momentum.is_some(), self.centered];
                for which in (0..3).filter(|which| used[*which]) {
                    slot.state.zeros(which, slot.param)?;
                }
            }
            let (number, rates) = match lr {
                Rate::Number(lr) => (*lr, None),
                Rate::Tensor(lr) => (0.0, Some(rate(lr, bucket.device())?)),
            };
            let rule = Kernel::RMSprop {
                lr: number,
                alpha: self.alpha,
                eps: self.eps,
                weight_decay: self.weight_decay,
                momentum,
                centered: self.centered,
                maximize: self.maximize,
            };
            bucket.run(&rule, rates.as_ref(), scaling)?;
        }
        others.into_iter().try_for_each(|slot| self.step_one(slot, lr))
    }
}

impl RMSpropOptions {
    /// Updates one parameter with tensor ops, for layouts and sizes that the fused kernel does not support.
    #[track_caller]
    fn step_one(&self, slot: &mut Slot<'_>, lr: &Rate) -> Result<()> {
        let param = slot.param;
        let grad = slot.gradient(self.maximize, self.weight_decay)?;
        let squares = slot.state.zeros(0, param)?;
        squares.copy_(&squares.mul(self.alpha)?.addcmul(&grad, &grad, 1.0 - self.alpha)?, ())?;
        let size = if self.centered {
            let mean = slot.state.zeros(2, param)?;
            mean.copy_(&mean.lerp(&grad, 1.0 - self.alpha)?, ())?;
            squares.addcmul(&mean, &mean, -1.0)?.sqrt()?
        } else {
            squares.sqrt()?
        };
        let by = grad.div(&size.add(self.eps)?)?;
        if self.momentum == 0.0 {
            return descend(param, &by, lr);
        }
        let buffer = slot.state.zeros(1, param)?;
        buffer.mul_(self.momentum)?.add_(&by)?;
        descend(param, &buffer, lr)
    }
}
