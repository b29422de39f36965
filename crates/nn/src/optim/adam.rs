//! Adam, and with weights that decay on their own.

use warpline::{Result, Tensor};

use super::optimizer::{Optim, counter};
use super::rule::{Rate, Rule, Slot, check_fraction, check_not_negative, descend, settings};

/// Adam (`torch.optim.Adam`).
pub type Adam = Optim<AdamOptions>;

/// Adam whose weights decay by themselves, not by their gradients (`torch.optim.AdamW`).
pub type AdamW = Optim<AdamWOptions>;

/// One settings struct for each, which differ in what they are by default.
macro_rules! options {
    ($(#[$doc:meta])* $name:ident $optimizer:literal $weight_decay:literal $decoupled:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name {
            /// The learning rate.
            pub lr: f64,
            /// How much is kept of the running means of gradients and of their squares.
            pub betas: (f64, f64),
            /// What is added to the divisor.
            pub eps: f64,
            /// How much weights decay.
            pub weight_decay: f64,
            /// Whether to divide by the largest mean of squares that there was.
            pub amsgrad: bool,
            /// Upwards.
            pub maximize: bool,
            /// Whether steps are counted on the device, so that a captured step can be replayed.
            pub capturable: bool,
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    lr: 1e-3,
                    betas: (0.9, 0.999),
                    eps: 1e-8,
                    weight_decay: $weight_decay,
                    amsgrad: false,
                    maximize: false,
                    capturable: false,
                }
            }
        }

        impl Rule for $name {
            const NAME: &'static str = $optimizer;
            const TENSORS: &'static [&'static str] = &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"];

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

            #[track_caller]
            fn step(&self, slots: &mut [Slot<'_>], lr: &Rate) -> Result<()> {
                let Self { betas, eps, weight_decay, amsgrad, maximize, capturable, .. } = *self;
                let decoupled = $decoupled;
                let rule =
                    Both { betas, eps, weight_decay, amsgrad, maximize, capturable, decoupled };
                rule.step(slots, lr)
            }
        }
    };
}

options! {
    /// Settings of [`Adam`].
    AdamOptions "Adam" 0.0 false
}

options! {
    /// Settings of [`AdamW`].
    AdamWOptions "AdamW" 1e-2 true
}

/// What both do.
struct Both {
    betas: (f64, f64),
    eps: f64,
    weight_decay: f64,
    amsgrad: bool,
    maximize: bool,
    capturable: bool,
    decoupled: bool,
}

impl Both {
    #[track_caller]
    fn step(&self, slots: &mut [Slot<'_>], lr: &Rate) -> Result<()> {
        for slot in slots {
            self.step_one(slot, lr)?;
        }
        Ok(())
    }

    /// A step in ops of tensors.
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
        mean.copy_(&mean.lerp(&grad, 1.0 - beta1)?, false)?;
        let squares = slot.state.zeros(1, param)?;
        squares.copy_(&squares.mul(beta2)?.addcmul(&grad, &grad, 1.0 - beta2)?, false)?;
        let squares = if self.amsgrad {
            let largest = slot.state.zeros(2, param)?;
            largest.copy_(&largest.maximum(&squares)?, false)?;
            largest
        } else {
            squares
        };
        if self.capturable {
            return self.descend_by_counter(slot, &mean, &squares, lr);
        }
        slot.state.step += 1;
        let step = slot.state.step as f64;
        let (correction1, correction2) = (1.0 - beta1.powf(step), 1.0 - beta2.powf(step));
        let divisor = squares.sqrt()?.div(correction2.sqrt())?.add(self.eps)?;
        match lr {
            Rate::Number(lr) => {
                let new = param.addcdiv(&mean, &divisor, -(lr / correction1))?;
                param.copy_(&new, false).map(drop)
            }
            Rate::Tensor(lr) => {
                descend(param, &mean.div(&divisor)?, &Rate::Tensor(lr.div(correction1)?))
            }
        }
    }

    /// The same with a number of steps that only the device knows.
    #[track_caller]
    fn descend_by_counter(
        &self,
        slot: &mut Slot<'_>,
        mean: &Tensor,
        squares: &Tensor,
        lr: &Rate,
    ) -> Result<()> {
        let counter = match &slot.state.counter {
            Some(counter) => counter.clone(),
            None => counter(slot.param, slot.state.step as f64)?,
        };
        slot.state.counter = Some(counter.clone());
        counter.add_(1.0)?;
        let step = counter.to(warpline::DType::F64)?;
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
