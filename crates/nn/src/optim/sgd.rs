//! Stochastic gradient descent.

use warpline::Result;

use super::optimizer::Optim;
use super::rule::{Rate, Rule, Slot, check_not_negative, descend, settings};

/// Stochastic gradient descent, with momentum if it is asked for (`torch.optim.SGD`).
pub type Sgd = Optim<SgdOptions>;

/// Settings of [`Sgd`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdOptions {
    /// The learning rate.
    pub lr: f64,
    /// How much of the former step is taken again.
    pub momentum: f64,
    /// How much less of the gradient is added to the momentum.
    pub dampening: f64,
    /// How much of each weight is added to its gradient.
    pub weight_decay: f64,
    /// Nesterov's momentum, which needs a momentum and no dampening.
    pub nesterov: bool,
    /// Upwards.
    pub maximize: bool,
}

impl Default for SgdOptions {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            momentum: 0.0,
            dampening: 0.0,
            weight_decay: 0.0,
            nesterov: false,
            maximize: false,
        }
    }
}

impl Rule for SgdOptions {
    const NAME: &'static str = "Sgd";
    const TENSORS: &'static [&'static str] = &["momentum_buffer"];

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

    #[track_caller]
    fn step(&self, slots: &mut [Slot<'_>], lr: &Rate) -> Result<()> {
        for slot in slots {
            self.step_one(slot, lr)?;
        }
        Ok(())
    }
}

impl SgdOptions {
    /// A step in ops of tensors.
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
                // It begins as the gradient, whatever the dampening.
                let buffer = slot.param.zeros_like(())?;
                buffer.copy_(&grad, false)?;
                slot.state.tensors[0] = Some(buffer.clone());
                buffer
            }
        };
        let by = if self.nesterov { grad.add_scaled(&buffer, self.momentum)? } else { buffer };
        descend(slot.param, &by, lr)
    }
}
