//! Adam and AdamW.

use warpline::{DType, Device, Result, Tensor, cat, full};
use warpline_kernels::optim::UpdateRule as Kernel;

use super::fused_step::{GradScaling, buckets, rate};
use super::optimizer::Optim;
use super::rule::{
    ParamState, Rate, Rule, Settings, Slot, check_fraction, check_not_negative, descend, settings,
};
use super::step_count::{check_no_capture, count_steps_on_device, move_counts_to_host};

/// Adam (`torch.optim.Adam`).
pub type Adam = Optim<AdamOptions>;

/// Adam with decoupled weight decay, which shrinks the weights instead of changing their gradients
/// (`torch.optim.AdamW`).
pub type AdamW = Optim<AdamWOptions>;

/// Defines the options of an optimizer. Adam and AdamW differ in their defaults and in the decay.
macro_rules! options {
    ($(#[$doc:meta])* $name:ident $optimizer:literal $weight_decay:literal $decoupled:literal) => {
        warpline::__options! {
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq)]
            $name [] [] {
                /// Sets the learning rate. Default: 1e-3.
                lr: f64 = 1e-3, f64;
                /// Sets the decay rates of the running averages of gradients and of squared gradients. Default: 0.9 and
                /// 0.999.
                betas: (f64, f64) = (0.9, 0.999), (f64, f64);
                /// Sets the number that is added to the denominator. Default: 1e-8.
                eps: f64 = 1e-8, f64;
                /// Sets the weight decay. Default: 0 for [`Adam`], 0.01 for [`AdamW`].
                weight_decay: f64 = $weight_decay, f64;
                /// Sets whether the divisor is the largest average of squared gradients so far (AMSGrad). Default:
                /// `false`.
                amsgrad: bool = false, bool;
                /// Sets whether the objective is maximized instead of minimized. Default: `false`.
                maximize: bool = false, bool;
                /// Sets whether steps are counted on the device, so that a captured step can be replayed. Default:
                /// `false`.
                capturable: bool = false, bool;
            }
        }

        impl Settings for $name {
            const NAME: &'static str = $optimizer;

            settings! {
                "lr" lr, "betas.0" betas.0, "betas.1" betas.1, "eps" eps,
                "weight_decay" weight_decay, "amsgrad" amsgrad, "maximize" maximize,
                "capturable" capturable,
            }

            fn check(&self) -> Result<(), String> {
                let numbers =
                    [("lr", self.lr), ("eps", self.eps), ("weight_decay", self.weight_decay)];
                check_not_negative(&numbers)?;
                check_fraction(&[("betas.0", self.betas.0), ("betas.1", self.betas.1)])
            }
        }

        impl Rule for $name {
            const TENSORS: &'static [&'static str] = &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"];

            fn fuses(&self, _: &ParamState) -> bool {
                true
            }

            #[track_caller]
            fn step(
                &self,
                slots: &mut [Slot<'_>],
                lr: &Rate,
                scaling: Option<&GradScaling>,
            ) -> Result<()> {
                let Self { betas, eps, weight_decay, amsgrad, maximize, capturable, .. } = *self;
                let decoupled = $decoupled;
                let rule =
                    AdamStep { betas, eps, weight_decay, amsgrad, maximize, capturable, decoupled };
                rule.step(slots, lr, scaling)
            }
        }
    };
}

options! {
    /// Options of [`Adam`].
    AdamOptions "Adam" 0.0 false
}

options! {
    /// Options of [`AdamW`].
    AdamWOptions "AdamW" 1e-2 true
}

/// The common step of Adam and AdamW.
struct AdamStep {
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    amsgrad: bool,
    maximize: bool,
    capturable: bool,
    decoupled: bool,
}

impl AdamStep {
    #[track_caller]
    fn step(&self, slots: &mut [Slot<'_>], lr: &Rate, scaling: Option<&GradScaling>) -> Result<()> {
        if !self.capturable {
            check_no_capture(slots)?;
        }
        // Only the device knows whether a scaled step is skipped. The next step without a scaler moves the count to the
        // host.
        if self.capturable || scaling.is_some() {
            count_steps_on_device(slots, scaling)?;
        } else {
            move_counts_to_host(slots)?;
        }
        // Group by step count. If the device counts, the counter's address stands for the count, because parameters
        // that have always stepped together share a counter.
        let (buckets, others) = buckets(slots, |slot| {
            (slot.state.step, slot.state.counter.as_ref().map(Tensor::data_ptr))
        });
        for mut bucket in buckets {
            for slot in &mut bucket.slots {
                for which in 0..if self.amsgrad { 3 } else { 2 } {
                    slot.state.zeros(which, slot.param)?;
                }
                if slot.state.counter.is_none() {
                    slot.state.step = slot.state.step.saturating_add(1);
                }
            }
            let Some(first) = bucket.slots.first() else { continue };
            let step = first.state.step as f64;
            let root = (1.0 - self.betas.1.powf(step)).sqrt();
            let correction = 1.0 - self.betas.0.powf(step);
            let decay = if self.decoupled { self.weight_decay } else { 0.0 };
            let number = |lr: f64| [lr / correction, root, 1.0 - lr * decay];
            let (rates, in_memory) = match (lr, first.state.counter.as_ref()) {
                (Rate::Number(lr), None) => (number(*lr), None),
                (lr, counter) => {
                    (number(0.0), Some(self.rates(lr, counter, bucket.device(), step)?))
                }
            };
            let [rate, root, kept] = rates;
            let rule = Kernel::Adam {
                rate,
                root,
                kept,
                betas: self.betas,
                eps: self.eps,
                weight_decay: if self.decoupled { 0.0 } else { self.weight_decay },
                amsgrad: self.amsgrad,
                maximize: self.maximize,
            };
            bucket.run(&rule, in_memory.as_ref(), scaling)?;
        }
        others.into_iter().try_for_each(|slot| self.step_one(slot, lr))
    }

    /// Computes on the device the values that change between replays of a captured step: the learning rate divided by
    /// the bias correction of the mean, the square root of the bias correction of the mean square, and the factor by
    /// which weight decay scales the parameters.
    #[track_caller]
    fn rates(
        &self,
        lr: &Rate,
        counter: Option<&Tensor>,
        device: Device,
        step: f64,
    ) -> Result<Tensor> {
        let step = match counter {
            Some(counter) => counter.to(DType::F64)?.reshape([1])?,
            None => full([1], step, (DType::F64, device))?,
        };
        let correction = |beta: f64| step.mul(beta.ln())?.exp()?.neg()?.add(1.0);
        let (correction1, root) = (correction(self.betas.0)?, correction(self.betas.1)?.sqrt()?);
        let lr = match lr {
            Rate::Number(lr) => full([1], *lr, (DType::F64, device))?,
            Rate::Tensor(lr) => rate(lr, device)?,
        };
        let decay = if self.decoupled { self.weight_decay } else { 0.0 };
        let kept = lr.mul(-decay)?.add(1.0)?;
        cat(&[lr.div(&correction1)?, root, kept], 0)
    }

    /// Updates one parameter with tensor ops, for layouts and sizes that the fused kernel does not support.
    #[track_caller]
    fn step_one(&self, slot: &mut Slot<'_>, lr: &Rate) -> Result<()> {
        let (param, (beta1, beta2)) = (slot.param, self.betas);
        let decay = if self.decoupled { 0.0 } else { self.weight_decay };
        let grad = slot.gradient(self.maximize, decay)?;
        if self.decoupled && self.weight_decay != 0.0 {
            match lr {
                Rate::Number(lr) => param.mul_(1.0 - lr * self.weight_decay)?,
                Rate::Tensor(lr) => param.mul_(&lr.mul(-self.weight_decay)?.add(1.0)?)?,
            };
        }
        let mean = slot.state.zeros(0, param)?;
        mean.copy_(&mean.lerp(&grad, 1.0 - beta1)?, ())?;
        let squares = slot.state.zeros(1, param)?;
        squares.copy_(&squares.mul(beta2)?.addcmul(&grad, &grad, 1.0 - beta2)?, ())?;
        let squares = if self.amsgrad {
            let largest = slot.state.zeros(2, param)?;
            largest.copy_(&largest.maximum(&squares)?, ())?;
            largest
        } else {
            squares
        };
        if self.capturable {
            return self.descend_by_counter(slot, &mean, &squares, lr);
        }
        slot.state.step = slot.state.step.saturating_add(1);
        let step = slot.state.step as f64;
        let (correction1, correction2) = (1.0 - beta1.powf(step), 1.0 - beta2.powf(step));
        let divisor = squares.sqrt()?.div(correction2.sqrt())?.add(self.eps)?;
        match lr {
            Rate::Number(lr) => {
                let new = param.addcdiv(&mean, &divisor, -(lr / correction1))?;
                param.copy_(&new, ()).map(drop)
            }
            Rate::Tensor(lr) => {
                descend(param, &mean.div(&divisor)?, &Rate::Tensor(lr.div(correction1)?))
            }
        }
    }

    /// Updates one parameter with a step count that is in device memory.
    #[track_caller]
    fn descend_by_counter(
        &self,
        slot: &mut Slot<'_>,
        mean: &Tensor,
        squares: &Tensor,
        lr: &Rate,
    ) -> Result<()> {
        let Some(counter) = &slot.state.counter else { return Ok(()) };
        let step = counter.to(DType::F64)?;
        let correction = |beta: f64| step.mul(beta.ln())?.exp()?.neg()?.add(1.0);
        let divisor = squares.sqrt()?.div(&correction(self.betas.1)?.sqrt()?)?.add(self.eps)?;
        let rate = correction(self.betas.0)?.reciprocal()?;
        let rate = match lr {
            Rate::Number(lr) => rate.mul(*lr)?,
            Rate::Tensor(lr) => rate.mul(lr)?,
        };
        descend(slot.param, &mean.div(&divisor)?, &Rate::Tensor(rate))
    }
}
