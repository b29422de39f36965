//! Learning-rate reduction on a plateau of a metric.

use warpline::{Error, Result};

use super::{SchedulerState, check_groups};
use crate::called::Called;
use crate::optim::Optimizer;

const NAME: &str = "ReduceLROnPlateau";

/// The smallest change of the metric that counts as an improvement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// More than this fraction of the best value (`threshold_mode="rel"`).
    Relative(f64),
    /// More than this amount (`threshold_mode="abs"`).
    Absolute(f64),
}

/// Options of [`ReduceLROnPlateau`]. The defaults are PyTorch's.
#[derive(Clone, Copy, Debug)]
pub struct PlateauOptions {
    /// Higher values of the metric are better (`mode="max"`). Default: false.
    pub maximize: bool,
    /// Factor of a reduction, below 1. Default: 0.1.
    pub factor: f64,
    /// Number of epochs without improvement that are tolerated before a reduction. Default: 10.
    pub patience: u32,
    /// Smallest change that counts as an improvement. Default: `Relative(1e-4)`.
    pub threshold: Threshold,
    /// Number of epochs after a reduction that do not count as epochs without improvement. Default: 0.
    pub cooldown: u32,
    /// Lowest learning rate. Default: 0.
    pub min_lr: f64,
    /// A reduction is skipped unless it changes the learning rate by more than this number. Default: 1e-8.
    pub eps: f64,
}

impl Default for PlateauOptions {
    fn default() -> Self {
        Self {
            maximize: false,
            factor: 0.1,
            patience: 10,
            threshold: Threshold::Relative(1e-4),
            cooldown: 0,
            min_lr: 0.0,
            eps: 1e-8,
        }
    }
}

/// Reduces the learning rates when a metric, such as the loss, stops improving (`ReduceLROnPlateau`).
#[derive(Clone, Debug)]
pub struct ReduceLROnPlateau {
    options: PlateauOptions,
    last_lr: Vec<f64>,
    last_epoch: i64,
    best: f64,
    bad_epochs: u32,
    cooldown: u32,
}

impl ReduceLROnPlateau {
    /// Creates a scheduler.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the factor is NaN or not below 1.
    #[track_caller]
    pub fn new(optimizer: &dyn Optimizer, options: PlateauOptions) -> Result<Self> {
        if options.factor.is_nan() || options.factor >= 1.0 {
            let reason = format!("the factor must be below 1, but is {}", options.factor);
            return Err(Error::invalid(NAME, reason));
        }
        let last_lr = (0..optimizer.group_count()).map(|group| optimizer.lr(group)).collect();
        let best = if options.maximize { f64::NEG_INFINITY } else { f64::INFINITY };
        Ok(Self { options, last_lr, last_epoch: 0, best, bad_epochs: 0, cooldown: 0 })
    }

    /// Advances to the next epoch. `metric` is the value of the metric in the epoch that has ended.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `optimizer` has a different number of
    /// groups than at the scheduler's creation; errors of [`Optimizer::set_lr`].
    #[track_caller]
    pub fn step(&mut self, optimizer: &mut dyn Optimizer, metric: f64) -> Result<()> {
        check_groups(NAME, optimizer, self.last_lr.len())?;
        self.last_epoch += 1;
        if self.is_better(metric) {
            (self.best, self.bad_epochs) = (metric, 0);
        } else {
            self.bad_epochs += 1;
        }
        if self.cooldown > 0 {
            self.cooldown -= 1;
            self.bad_epochs = 0;
        }
        if self.bad_epochs > self.options.patience {
            for group in 0..self.last_lr.len() {
                let old = optimizer.lr(group);
                let new = (old * self.options.factor).max(self.options.min_lr);
                if old - new > self.options.eps {
                    optimizer.set_lr(group, new).here()?;
                }
            }
            (self.cooldown, self.bad_epochs) = (self.options.cooldown, 0);
        }
        for (group, lr) in self.last_lr.iter_mut().enumerate() {
            *lr = optimizer.lr(group);
        }
        Ok(())
    }

    fn is_better(&self, metric: f64) -> bool {
        match (self.options.threshold, self.options.maximize) {
            (Threshold::Relative(by), false) => metric < self.best * (1.0 - by),
            (Threshold::Absolute(by), false) => metric < self.best - by,
            (Threshold::Relative(by), true) => metric > self.best * (by + 1.0),
            (Threshold::Absolute(by), true) => metric > self.best + by,
        }
    }

    /// Returns the learning rate of each group after the last step (`get_last_lr`).
    #[must_use]
    pub fn last_lr(&self) -> &[f64] {
        &self.last_lr
    }

    /// Returns the state of the scheduler, by PyTorch's names (`state_dict`).
    #[must_use]
    pub fn state_dict(&self) -> SchedulerState {
        let mut state = SchedulerState::default();
        state.put("last_epoch", self.last_epoch as f64);
        state.put("best", self.best);
        state.put("num_bad_epochs", self.bad_epochs.into());
        state.put("cooldown_counter", self.cooldown.into());
        state.put_all("_last_lr", &self.last_lr);
        state
    }

    /// Restores a state (`load_state_dict`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if an entry is missing; the message names
    /// the entry.
    #[track_caller]
    pub fn load_state_dict(&mut self, state: &SchedulerState) -> Result<()> {
        let (last_epoch, best) = (state.get("last_epoch")? as i64, state.get("best")?);
        let (bad, cooldown) = (state.get("num_bad_epochs")?, state.get("cooldown_counter")?);
        self.last_lr = state.get_all("_last_lr", &self.last_lr)?;
        (self.last_epoch, self.best) = (last_epoch, best);
        (self.bad_epochs, self.cooldown) = (bad as u32, cooldown as u32);
        Ok(())
    }
}
