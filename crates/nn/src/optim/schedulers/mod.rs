//! Learning-rate schedulers (`torch.optim.lr_scheduler`). A scheduler does not own its optimizer: each call receives
//! the optimizer as an argument.

mod chained;
mod one_cycle;
mod options;
mod plateau;
mod restarts;
mod sequential;

use std::collections::BTreeMap;

use warpline::__Called as _;
use warpline::{DType, Error, Result, full};

pub use chained::{
    Chained, ConstantLR, CosineAnnealingLR, ExponentialLR, LambdaLR, LambdaLROptions, LinearLR,
    MultiStepLR, StepLR,
};
pub use one_cycle::{Anneal, OneCycleLR};
pub use options::{
    ConstantLROptions, CosineAnnealingLROptions, CosineAnnealingWarmRestartsOptions,
    LinearLROptions, MultiStepLROptions, OneCycleLROptions, ReduceLROnPlateauOptions,
    StepLROptions,
};
pub use plateau::{PlateauMode, ReduceLROnPlateau, ThresholdMode};
pub use restarts::CosineAnnealingWarmRestarts;
pub use sequential::SequentialLR;

use super::Optimizer;
use crate::StateDict;

/// A learning-rate scheduler (`torch.optim.lr_scheduler.LRScheduler`): sets an optimizer's learning rates as a function
/// of the epoch. An epoch is the time between two calls of [`Scheduler::step`]; it may also be a batch. A scheduler
/// belongs to one optimizer. Its constructor sets the rates of epoch 0.
///
/// ```
/// use warpline_nn::optim::{ExponentialLR, Optimizer, Scheduler, SGD, SGDOptions};
///
/// let weight = warpline::zeros([2], ())?.requires_grad_(true)?;
/// let mut sgd = SGD::new(vec![weight], SGDOptions::new().lr(1.0))?;
/// let mut scheduler = ExponentialLR::new(&mut sgd, 0.5)?;
/// for lr in [1.0, 0.5, 0.25] {
///     assert_eq!(sgd.lr(0), lr);
///     sgd.step()?;
///     scheduler.step(&mut sgd)?;
/// }
/// # Ok::<(), warpline::Error>(())
/// ```
pub trait Scheduler {
    /// Advances to the next epoch and sets its learning rates.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the schedule has ended ([`OneCycleLR`]),
    /// or `optimizer` has a different number of groups than at the scheduler's creation; errors of
    /// [`Optimizer::set_lr`].
    #[track_caller]
    fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<()>;

    /// Restarts at epoch 0 (`step(0)`), from the learning rates that the optimizer had when its first scheduler was
    /// created, or for [`OneCycleLR`] from the first rates of the cycle.
    ///
    /// # Errors
    /// The same as [`Scheduler::step`].
    #[track_caller]
    fn restart(&mut self, optimizer: &mut dyn Optimizer) -> Result<()>;

    /// Returns the most recent learning rate of each group (`get_last_lr`).
    fn last_lr(&self) -> &[f64];

    /// Returns the state of the scheduler, by PyTorch's names (`state_dict`).
    fn state_dict(&self) -> SchedulerState;

    /// Restores a state (`load_state_dict`). Does not set the optimizer's learning rates, which are part of the
    /// optimizer's state.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if an entry is missing or is out of range;
    /// the message names the entry.
    #[track_caller]
    fn load_state_dict(&mut self, state: &SchedulerState) -> Result<()>;
}

/// The state of a scheduler: numbers by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SchedulerState(pub BTreeMap<String, f64>);

impl SchedulerState {
    /// Converts the state to tensors with the same names, for a file.
    ///
    /// # Errors
    /// Errors of [`full`] if a tensor cannot be made.
    #[track_caller]
    pub fn to_tensors(&self) -> Result<StateDict> {
        let mut all = StateDict::new();
        for (name, &value) in &self.0 {
            all.insert(name.clone(), full([], value, (DType::F64, "cpu"))?);
        }
        Ok(all)
    }

    /// Converts back from the tensors of [`SchedulerState::to_tensors`].
    ///
    /// # Errors
    /// The same as [`Tensor::to_scalar`](warpline::Tensor::to_scalar).
    #[track_caller]
    pub fn from_tensors(tensors: &StateDict) -> Result<Self> {
        let mut all = BTreeMap::new();
        for (name, tensor) in tensors.iter() {
            all.insert(name.to_owned(), tensor.to_scalar()?.to_f64());
        }
        Ok(Self(all))
    }

    #[track_caller]
    fn get(&self, name: &str) -> Result<f64> {
        match self.0.get(name) {
            Some(&number) => Ok(number),
            None => Err(Error::invalid("load_state_dict", format!("the state has no {name}"))),
        }
    }

    /// Returns a number of epochs. Refuses numbers with which arithmetic could overflow.
    #[track_caller]
    fn get_epoch(&self, name: &str) -> Result<i64> {
        const MAX: f64 = (1u64 << 53) as f64; // up to here, a float is exact
        let number = self.get(name)?;
        if number.abs() <= MAX {
            return Ok(number as i64);
        }
        let reason = format!("{name} must be from -2^53 to 2^53, but is {number}");
        Err(Error::invalid("load_state_dict", reason))
    }

    fn put(&mut self, name: impl Into<String>, value: f64) {
        self.0.insert(name.into(), value);
    }

    fn put_all(&mut self, name: &str, values: &[f64]) {
        for (i, &value) in values.iter().enumerate() {
            self.put(format!("{name}.{i}"), value);
        }
    }

    /// Returns the numbers that `put_all` stored for a list as long as `values`.
    #[track_caller]
    fn get_all(&self, name: &str, values: &[f64]) -> Result<Vec<f64>> {
        let mut all = Vec::with_capacity(values.len());
        for i in 0..values.len() {
            all.push(self.get(&format!("{name}.{i}"))?);
        }
        Ok(all)
    }
}

/// Returns the initial learning rate of each group, `initial_lr`. If no scheduler has set it yet, sets it to the
/// current rate.
#[track_caller]
fn initial_lrs(optimizer: &mut dyn Optimizer) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    for group in 0..optimizer.group_count() {
        let lr = match optimizer.setting(group, "initial_lr") {
            Some(lr) => lr,
            None => {
                let lr = optimizer.lr(group);
                optimizer.set_setting(group, "initial_lr", lr).here()?;
                lr
            }
        };
        all.push(lr);
    }
    Ok(all)
}

/// Returns an error unless `optimizer` has `of` groups.
#[track_caller]
fn check_groups(name: &'static str, optimizer: &dyn Optimizer, of: usize) -> Result<()> {
    let count = optimizer.group_count();
    if count == of {
        return Ok(());
    }
    let reason =
        format!("it was made for {of} groups of parameters, but the optimizer has {count}");
    Err(Error::invalid(name, reason))
}
