//! RMSprop.

use warpline::Result;

use super::optimizer::Optim;
use super::rule::{Rate, Rule, Slot, check_not_negative, descend, settings};

/// RMSprop (`torch.optim.RMSprop`).
pub type RmsProp = Optim<RmsPropOptions>;

/// Settings of [`RmsProp`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsPropOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much is kept of the running mean of squares.
    pub alpha: f64,
    /// What is added to the divisor.
    pub eps: f64,
    /// How much of each weight is added to its gradient.
    pub weight_decay: f64,
    /// How much of the former step is taken again.
    pub momentum: f64,
    /// Whether to divide by the gradients' deviation instead of their size.
    pub centered: bool,
    /// Upwards.
    pub maximize: bool,
}

impl Default for RmsPropOptions {
    fn default() -> Self {
        Self {
            lr: 1e-2,
            alpha: 0.99,
            eps: 1e-8,
            weight_decay: 0.0,
            momentum: 0.0,
            centered: false,
            maximize: false,
        }
    }
}

impl Rule for RmsPropOptions {
    const NAME: &'static str = "RmsProp";
    const TENSORS: &'static [&'static str] = &["square_avg", "momentum_buffer", "grad_avg"];

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

    #[track_caller]
    fn step(&self, slots: &mut [Slot<'_>], lr: &Rate) -> Result<()> {
        for slot in slots {
            self.step_one(slot, lr)?;
        }
        Ok(())
    }
}

impl RmsPropOptions {
    /// A step in ops of tensors.
    #[track_caller]
    fn step_one(&self, slot: &mut Slot<'_>, lr: &Rate) -> Result<()> {
        let param = slot.param;
        slot.state.step += 1;
        let grad = slot.gradient(self.maximize, self.weight_decay)?;
        let squares = slot.state.zeros(0, param)?;
        squares.copy_(&squares.mul(self.alpha)?.addcmul(&grad, &grad, 1.0 - self.alpha)?, false)?;
        let size = if self.centered {
            let mean = slot.state.zeros(2, param)?;
            mean.copy_(&mean.lerp(&grad, 1.0 - self.alpha)?, false)?;
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
