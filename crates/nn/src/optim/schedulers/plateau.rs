//! Learning-rate reduction on a plateau of a metric.

use warpline::__Called as _;
use warpline::{Error, IntoOptions, Result};

use super::{ReduceLROnPlateauOptions, SchedulerState, check_groups};
use crate::optim::Optimizer;

const NAME: &str = "ReduceLROnPlateau";

/// The direction in which a metric improves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlateauMode {
    /// Lower values are better (`"min"`).
    #[default]
    Min,
    /// Higher values are better (`"max"`).
    Max,
}

/// Interpretation of the threshold of [`ReduceLROnPlateau`]. The threshold is the smallest change of the metric that
/// counts as an improvement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThresholdMode {
    /// The threshold is a fraction of the best value (`"rel"`).
    #[default]
    Relative,
    /// The threshold is an absolute difference from the best value (`"abs"`).
    Absolute,
}

/// Reduces the learning rates when a metric, such as the loss, stops improving (`ReduceLROnPlateau`).
#[derive(Clone, Debug)]
pub struct ReduceLROnPlateau {
    options: ReduceLROnPlateauOptions,
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
    pub fn new(
        optimizer: &dyn Optimizer,
        options: impl IntoOptions<ReduceLROnPlateauOptions>,
    ) -> Result<Self> {
        let options = options.into_options();
        if options.factor.is_nan() || options.factor >= 1.0 {
            let reason = format!("the factor must be below 1, but is {}", options.factor);
            return Err(Error::invalid(NAME, reason));
        }
        let last_lr = (0..optimizer.group_count()).map(|group| optimizer.lr(group)).collect();
        let best = match options.mode {
            PlateauMode::Min => f64::INFINITY,
            PlateauMode::Max => f64::NEG_INFINITY,
        };
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
        self.last_epoch = self.last_epoch.saturating_add(1);
        if self.is_better(metric) {
            (self.best, self.bad_epochs) = (metric, 0);
        } else {
            self.bad_epochs = self.bad_epochs.saturating_add(1);
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
        let by = self.options.threshold;
        match (self.options.threshold_mode, self.options.mode) {
            (ThresholdMode::Relative, PlateauMode::Min) => metric < self.best * (1.0 - by),
            (ThresholdMode::Absolute, PlateauMode::Min) => metric < self.best - by,
            (ThresholdMode::Relative, PlateauMode::Max) => metric > self.best * (by + 1.0),
            (ThresholdMode::Absolute, PlateauMode::Max) => metric > self.best + by,
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
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if an entry is missing or is out of range;
    /// the message names the entry.
    #[track_caller]
    pub fn load_state_dict(&mut self, state: &SchedulerState) -> Result<()> {
        let (last_epoch, best) = (state.get_epoch("last_epoch")?, state.get("best")?);
        let (bad, cooldown) = (state.get("num_bad_epochs")?, state.get("cooldown_counter")?);
        self.last_lr = state.get_all("_last_lr", &self.last_lr)?;
        (self.last_epoch, self.best) = (last_epoch, best);
        (self.bad_epochs, self.cooldown) = (bad as u32, cooldown as u32);
        Ok(())
    }
}
