//! The one-cycle schedule.

use std::f64::consts::PI;

use warpline::__Called as _;
use warpline::{Error, IntoOptions, Result};

use super::{OneCycleLROptions, Scheduler, SchedulerState, check_groups};
use crate::optim::Optimizer;

const NAME: &str = "OneCycleLR";

/// The curve by which [`OneCycleLR`] goes from one learning rate to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Anneal {
    /// Half a cosine.
    #[default]
    Cos,
    /// A straight line.
    Linear,
}

/// Raises the learning rates to a maximum and then lowers them to almost zero within a number of steps (`OneCycleLR`).
/// Call [`Scheduler::step`] after each batch.
#[derive(Clone, Debug)]
pub struct OneCycleLR {
    max_lrs: Vec<f64>,
    total_steps: i64,
    options: OneCycleLROptions,
    last_lr: Vec<f64>,
    last_epoch: i64,
}

/// A part of the cycle: its last step, and learning rate and momentum at its ends.
struct CyclePhase {
    end_step: f64,
    lr: (f64, f64),
    momentum: (f64, f64),
}

impl OneCycleLR {
    /// Creates a scheduler of `total_steps` steps with the maximum `max_lr` for all groups.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `total_steps` is 0, `pct_start` is not
    /// from 0 to 1, or `cycle_momentum` is set and the optimizer has neither a momentum nor betas; errors of
    /// [`Optimizer::set_setting`].
    #[track_caller]
    pub fn new(
        optimizer: &mut dyn Optimizer,
        max_lr: f64,
        total_steps: u32,
        options: impl IntoOptions<OneCycleLROptions>,
    ) -> Result<Self> {
        let options = options.into_options();
        let max_lrs = vec![max_lr; optimizer.group_count()];
        if total_steps == 0 || !(0.0..=1.0).contains(&options.pct_start) {
            let reason = "total_steps must be at least 1, and pct_start must be from 0 to 1";
            return Err(Error::invalid(NAME, reason));
        }
        if options.cycle_momentum && momentum_of(optimizer).is_none() {
            let reason = "the optimizer has neither momentum nor betas to cycle; set cycle_momentum to false";
            return Err(Error::invalid(NAME, reason));
        }
        let last_lr = max_lrs.clone();
        let mut all =
            Self { max_lrs, total_steps: total_steps.into(), options, last_lr, last_epoch: -1 };
        for (group, max) in all.max_lrs.iter().enumerate() {
            optimizer.set_setting(group, "initial_lr", max / options.div_factor).here()?;
        }
        all.step(optimizer)?;
        Ok(all)
    }

    fn phases(&self, max: f64) -> Vec<CyclePhase> {
        let OneCycleLROptions { pct_start, base_momentum: low, max_momentum: high, .. } =
            self.options;
        let initial = max / self.options.div_factor;
        let min = initial / self.options.final_div_factor;
        let total = self.total_steps as f64;
        let up = pct_start * total - 1.0;
        let phase = |end_step, lr, momentum| CyclePhase { end_step, lr, momentum };
        let first = phase(up, (initial, max), (high, low));
        if self.options.three_phase {
            let down = phase(2.0 * pct_start * total - 2.0, (max, initial), (low, high));
            return vec![first, down, phase(total - 1.0, (initial, min), (high, high))];
        }
        vec![first, phase(total - 1.0, (max, min), (low, high))]
    }

    #[track_caller]
    fn set(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        let (step, total) = (self.last_epoch, self.total_steps);
        if step > total {
            let reason = format!("step {step} is beyond the {total} steps of the schedule");
            return Err(Error::invalid(NAME, reason));
        }
        let momentum = momentum_of(optimizer).filter(|_| self.options.cycle_momentum);
        for (group, &max) in self.max_lrs.iter().enumerate() {
            let phases = self.phases(max);
            let mut start = 0.0;
            for (i, phase) in phases.iter().enumerate() {
                let step = step as f64;
                if step <= phase.end_step || i + 1 == phases.len() {
                    // A phase without steps consists of its end only.
                    let span = phase.end_step - start;
                    let part = if span == 0.0 { 1.0 } else { (step - start) / span };
                    let lr = self.between(phase.lr, part);
                    optimizer.set_lr(group, lr).here()?;
                    self.last_lr[group] = lr;
                    if let Some(name) = momentum {
                        optimizer
                            .set_setting(group, name, self.between(phase.momentum, part))
                            .here()?;
                    }
                    break;
                }
                start = phase.end_step;
            }
        }
        Ok(())
    }

    fn between(&self, (start, end): (f64, f64), part: f64) -> f64 {
        match self.options.anneal_strategy {
            Anneal::Cos => end + (start - end) / 2.0 * ((PI * part).cos() + 1.0),
            Anneal::Linear => (end - start) * part + start,
        }
    }
}

/// Returns the name of the optimizer's momentum setting.
fn momentum_of(optimizer: &dyn Optimizer) -> Option<&'static str> {
    ["betas.0", "momentum"].into_iter().find(|name| optimizer.setting(0, name).is_some())
}

impl Scheduler for OneCycleLR {
    #[track_caller]
    fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        check_groups(NAME, optimizer, self.max_lrs.len())?;
        self.last_epoch = self.last_epoch.saturating_add(1);
        self.set(optimizer)
    }

    #[track_caller]
    fn restart(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        check_groups(NAME, optimizer, self.max_lrs.len())?;
        self.last_epoch = 0;
        self.set(optimizer)
    }

    fn last_lr(&self) -> &[f64] {
        &self.last_lr
    }

    fn state_dict(&self) -> SchedulerState {
        let mut state = SchedulerState::default();
        state.put("last_epoch", self.last_epoch as f64);
        state.put("total_steps", self.total_steps as f64);
        state.put_all("max_lrs", &self.max_lrs);
        state.put_all("_last_lr", &self.last_lr);
        state
    }

    #[track_caller]
    fn load_state_dict(&mut self, state: &SchedulerState) -> Result<()> {
        let (last, total) = (state.get_epoch("last_epoch")?, state.get_epoch("total_steps")?);
        let max_lrs = state.get_all("max_lrs", &self.max_lrs)?;
        self.last_lr = state.get_all("_last_lr", &self.last_lr)?;
        (self.last_epoch, self.total_steps, self.max_lrs) = (last, total, max_lrs);
        Ok(())
    }
}
