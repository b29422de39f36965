//! Adadelta.

use warpline::Result;

use super::fused_step::GradScaling;
use super::optimizer::Optim;
use super::rule::{Rate, Rule, Settings, Slot, check_not_negative, descend, settings};

/// Adadelta (`torch.optim.Adadelta`). A step takes several launches per parameter.
///
/// ```
/// use warpline_nn::optim::{Adadelta, AdadeltaOptions, Optimizer};
///
/// let weight = warpline::ones([2], ())?.requires_grad_(true)?;
/// let mut optimizer = Adadelta::new(vec![weight.clone()], AdadeltaOptions::new().rho(0.95))?;
/// weight.square()?.sum(())?.backward()?;
/// optimizer.step()?;
/// assert!(weight.detach().to_vec::<f32>()?.iter().all(|weight| *weight < 1.0));
/// # Ok::<(), warpline::Error>(())
/// ```
pub type Adadelta = Optim<AdadeltaOptions>;

warpline::__options! {
    /// Options of [`Adadelta`].
    #[derive(Clone, Copy, Debug, PartialEq)]
    AdadeltaOptions [] [] {
        /// Sets the factor of each step. Default: 1.
        lr: f64 = 1.0, f64;
        /// Sets the decay rate of the running averages of squared gradients and squared steps, from 0 to 1. Default:
        /// 0.9.
        rho: f64 = 0.9, f64;
        /// Sets the number that is added to both averages. Default: 1e-6.
        eps: f64 = 1e-6, f64;
        /// Sets the weight decay: this factor times each weight is added to its gradient. Default: 0.
        weight_decay: f64 = 0.0, f64;
        /// Sets whether the objective is maximized instead of minimized. Default: `false`.
        maximize: bool = false, bool;
    }
}

impl Settings for AdadeltaOptions {
    const NAME: &'static str = "Adadelta";

    settings! {
        "lr" lr, "rho" rho, "eps" eps, "weight_decay" weight_decay, "maximize" maximize,
    }

    fn check(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.rho) {
            return Err(format!("rho must be from 0 to 1, but is {}", self.rho));
        }
        check_not_negative(&[
            ("lr", self.lr),
            ("eps", self.eps),
            ("weight_decay", self.weight_decay),
        ])
    }
}

impl Rule for AdadeltaOptions {
    const TENSORS: &'static [&'static str] = &["square_avg", "acc_delta"];

    #[track_caller]
    fn step(&self, slots: &mut [Slot<'_>], lr: &Rate, _: Option<&GradScaling>) -> Result<()> {
        let Self { rho, eps, .. } = *self;
        for slot in slots {
            slot.state.step = slot.state.step.saturating_add(1);
            let grad = slot.gradient(self.maximize, self.weight_decay)?;
            let squares = slot.state.zeros(0, slot.param)?;
            let deltas = slot.state.zeros(1, slot.param)?;
            squares.mul_(rho)?.addcmul_(&grad, &grad, 1.0 - rho)?;
            let delta = deltas.add(eps)?.sqrt()?.div(&squares.add(eps)?.sqrt()?)?.mul(&grad)?;
            deltas.mul_(rho)?.addcmul_(&delta, &delta, 1.0 - rho)?;
            descend(slot.param, &delta, lr)?;
        }
        Ok(())
    }
}
