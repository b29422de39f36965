//! Cosine annealing with restarts.

use std::f64::consts::PI;

use warpline::__Called as _;
use warpline::{Error, IntoOptions, Result};

use super::{
    CosineAnnealingWarmRestartsOptions, Scheduler, SchedulerState, check_groups, initial_lrs,
};
use crate::optim::Optimizer;

const NAME: &str = "CosineAnnealingWarmRestarts";

/// Lowers the learning rates along half a cosine to a minimum, then restarts at the initial rates
/// (`CosineAnnealingWarmRestarts`). The first cycle has `t_0` epochs; each later cycle has `t_mult` times as many as
/// the cycle before.
#[derive(Clone, Debug)]
pub struct CosineAnnealingWarmRestarts {
    t_0: i64,
    t_mult: i64,
    eta_min: f64,
    base_lrs: Vec<f64>,
    last_lr: Vec<f64>,
    last_epoch: i64,
    /// Epochs since the last restart. `t_i` is the length of the current cycle, in epochs.
    t_cur: f64,
    t_i: i64,
}

impl CosineAnnealingWarmRestarts {
    /// Creates a scheduler whose first cycle has `t_0` epochs.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `t_0` or `t_mult` is 0; errors of
    /// [`Optimizer::set_lr`].
    #[track_caller]
    pub fn new(
        optimizer: &mut dyn Optimizer,
        t_0: u32,
        options: impl IntoOptions<CosineAnnealingWarmRestartsOptions>,
    ) -> Result<Self> {
        let CosineAnnealingWarmRestartsOptions { t_mult, eta_min } = options.into_options();
        if t_0 == 0 || t_mult == 0 {
            return Err(Error::invalid(NAME, "t_0 and t_mult must be 1 or more"));
        }
        let base_lrs = initial_lrs(optimizer)?;
        let last_lr = base_lrs.clone();
        let (t_0, t_mult) = (t_0.into(), t_mult.into());
        let mut all =
            Self { t_0, t_mult, eta_min, base_lrs, last_lr, last_epoch: 0, t_cur: 0.0, t_i: t_0 };
        all.set(optimizer)?;
        Ok(all)
    }

    /// Moves to any epoch, which may be fractional (`step(epoch)`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `epoch` is negative or not finite, or
    /// `optimizer` has a different number of groups than at the scheduler's creation; errors of [`Optimizer::set_lr`].
    #[track_caller]
    pub fn step_to(&mut self, optimizer: &mut dyn Optimizer, epoch: f64) -> Result<()> {
        if !(epoch >= 0.0 && epoch.is_finite()) {
            return Err(Error::invalid(NAME, format!("there is no epoch {epoch}")));
        }
        check_groups(NAME, optimizer, self.base_lrs.len())?;
        let (t_0, t_mult) = (self.t_0 as f64, self.t_mult as f64);
        (self.t_cur, self.t_i) = if epoch < t_0 {
            (epoch, self.t_0)
        } else if self.t_mult == 1 {
            (epoch % t_0, self.t_0)
        } else {
            let n = (epoch / t_0 * (t_mult - 1.0) + 1.0).log(t_mult) as i32;
            let power = t_mult.powi(n);
            (epoch - t_0 * (power - 1.0) / (t_mult - 1.0), (t_0 * power) as i64)
        };
        self.last_epoch = epoch as i64;
        self.set(optimizer)
    }

    #[track_caller]
    fn set(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        let half = (1.0 + (PI * self.t_cur / self.t_i as f64).cos()) / 2.0;
        for (group, &base) in self.base_lrs.iter().enumerate() {
            let lr = self.eta_min + (base - self.eta_min) * half;
            optimizer.set_lr(group, lr).here()?;
            self.last_lr[group] = lr;
        }
        Ok(())
    }
}

impl Scheduler for CosineAnnealingWarmRestarts {
    #[track_caller]
    fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        check_groups(NAME, optimizer, self.base_lrs.len())?;
        // Saturate, because `step_to` may have set the largest epoch.
        self.last_epoch = self.last_epoch.saturating_add(1);
        self.t_cur += 1.0;
        if self.t_cur >= self.t_i as f64 {
            self.t_cur -= self.t_i as f64;
            self.t_i = self.t_i.saturating_mul(self.t_mult);
        }
        self.set(optimizer)
    }

    #[track_caller]
    fn restart(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        self.step_to(optimizer, 0.0)
    }

    fn last_lr(&self) -> &[f64] {
        &self.last_lr
    }

    fn state_dict(&self) -> SchedulerState {
        let mut state = SchedulerState::default();
        state.put("last_epoch", self.last_epoch as f64);
        state.put("T_cur", self.t_cur);
        state.put("T_i", self.t_i as f64);
        state.put_all("base_lrs", &self.base_lrs);
        state.put_all("_last_lr", &self.last_lr);
        state
    }

    #[track_caller]
    fn load_state_dict(&mut self, state: &SchedulerState) -> Result<()> {
        let (last_epoch, t_cur) = (state.get_epoch("last_epoch")?, state.get("T_cur")?);
        let t_i = (state.get("T_i")? as i64).max(1);
        let base_lrs = state.get_all("base_lrs", &self.base_lrs)?;
        self.last_lr = state.get_all("_last_lr", &self.last_lr)?;
        (self.last_epoch, self.t_cur, self.t_i, self.base_lrs) = (last_epoch, t_cur, t_i, base_lrs);
        Ok(())
    }
}
