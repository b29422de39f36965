//! Learning rates that change with time (`torch.optim.lr_scheduler`). A schedule holds no
//! optimizer: each call receives it.

mod chained;
mod one_cycle;
mod plateau;
mod restarts;
mod sequential;

use std::collections::BTreeMap;

use warpline::{DType, Error, Result, full};

pub use chained::{
    Chained, ConstantLR, CosineAnnealingLR, ExponentialLR, LambdaLR, LinearLR, MultiStepLR, StepLR,
};
pub use one_cycle::{Anneal, OneCycleLR, OneCycleOptions};
pub use plateau::{PlateauOptions, ReduceLROnPlateau, Threshold};
pub use restarts::CosineAnnealingWarmRestarts;
pub use sequential::SequentialLR;

use super::Optimizer;
use crate::StateDict;
use crate::called::Called;

/// Sets an optimizer's learning rates by the number of epochs, or of whatever it is that [`Scheduler::step`] is called after
/// (`torch.optim.lr_scheduler.LRScheduler`). It is made for one optimizer, whose rates it sets to those of the beginning.
///
/// ```
/// use warpline_nn::optim::{ExponentialLR, Optimizer, Scheduler, Sgd, SgdOptions};
///
/// let weight = warpline::zeros([2], ())?.requires_grad_(true)?;
/// let mut sgd = Sgd::new(vec![weight], SgdOptions { lr: 1.0, ..Default::default() })?;
/// let mut scheduler = ExponentialLR::new(&mut sgd, 0.5)?;
/// for lr in [1.0, 0.5, 0.25] {
///     assert_eq!(sgd.lr(0), lr);
///     sgd.step()?;
///     scheduler.step(&mut sgd)?;
/// }
/// # Ok::<(), warpline::Error>(())
/// ```
pub trait Scheduler {
    /// Goes on to the next epoch.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) beyond the last one, where there is a last one, and for an optimizer with other groups.
    #[track_caller]
    fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<()>;

    /// Begins anew, from the rates that the optimizer had when its first scheduler was made (`step(0)`).
    ///
    /// # Errors
    /// As [`Scheduler::step`].
    #[track_caller]
    fn restart(&mut self, optimizer: &mut dyn Optimizer) -> Result<()>;

    /// The rates that were set last, of each group (`get_last_lr`).
    fn last_lr(&self) -> &[f64];

    /// What it goes on from, by PyTorch's names (`state_dict`).
    fn state_dict(&self) -> SchedulerState;

    /// Goes on from a state (`load_state_dict`). The optimizer's rates are part of its own state.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument), which names what is missing.
    #[track_caller]
    fn load_state_dict(&mut self, state: &SchedulerState) -> Result<()>;
}

/// Numbers by name: what a scheduler goes on from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SchedulerState(pub BTreeMap<String, f64>);

impl SchedulerState {
    /// As tensors by name, to be saved in a file.
    ///
    /// # Errors
    /// When the memory cannot be had.
    #[track_caller]
    pub fn to_tensors(&self) -> Result<StateDict> {
        let mut all = StateDict::new();
        for (name, &value) in &self.0 {
            all.insert(name.clone(), full([], value, (DType::F64, "cpu"))?);
        }
        Ok(all)
    }

    /// What [`SchedulerState::to_tensors`] has made tensors of.
    ///
    /// # Errors
    /// What reading a tensor fails with.
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

    fn put(&mut self, name: impl Into<String>, value: f64) {
        self.0.insert(name.into(), value);
    }

    fn put_all(&mut self, name: &str, values: &[f64]) {
        for (i, &value) in values.iter().enumerate() {
            self.put(format!("{name}.{i}"), value);
        }
    }

    /// As many as there are in `values`.
    #[track_caller]
    fn get_all(&self, name: &str, values: &[f64]) -> Result<Vec<f64>> {
        let mut all = Vec::with_capacity(values.len());
        for i in 0..values.len() {
            all.push(self.get(&format!("{name}.{i}"))?);
        }
        Ok(all)
    }
}

/// The rates that an optimizer's first scheduler has found; what finds them keeps them there.
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

/// Refuses an optimizer with other groups than the one that a scheduler was made for.
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
