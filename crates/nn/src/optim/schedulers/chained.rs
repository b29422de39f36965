//! Schedules of which each rate follows from the one before, so that several go together.

use std::f64::consts::PI;
use std::fmt;
use std::sync::Arc;

use warpline::{Error, Result};

use super::{Scheduler, SchedulerState, check_groups, initial_lrs};
use crate::called::Called;
use crate::optim::Optimizer;

/// One of the schedules that PyTorch computes from the rate before: [`StepLR`], [`MultiStepLR`], [`ExponentialLR`],
/// [`ConstantLR`], [`LinearLR`], [`CosineAnnealingLR`], [`LambdaLR`].
///
/// Several may change the rates of one optimizer, step by step: their factors then come together.
#[derive(Clone, Debug)]
pub struct Chained<S> {
    schedule: S,
    base_lrs: Vec<f64>,
    last_lr: Vec<f64>,
    last_epoch: i64,
}

/// A schedule.
pub trait Schedule {
    /// Its name.
    const NAME: &'static str;

    /// Says what is wrong with its numbers.
    ///
    /// # Errors
    /// A sentence.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// The rate of an epoch after the one before had `lr`; `base` is that of the beginning.
    fn next(&self, group: usize, epoch: i64, lr: f64, base: f64) -> f64;

    /// The rate of epoch 0, whatever there was before.
    fn first(&self, group: usize, base: f64) -> f64 {
        self.next(group, 0, base, base)
    }
}

impl<S: Schedule> Chained<S> {
    #[track_caller]
    fn of(optimizer: &mut dyn Optimizer, schedule: S) -> Result<Self> {
        if let Err(reason) = schedule.check() {
            return Err(Error::invalid(S::NAME, reason));
        }
        let base_lrs = initial_lrs(optimizer)?;
        let last_lr = base_lrs.clone();
        let mut all = Self { schedule, base_lrs, last_lr, last_epoch: -1 };
        all.step(optimizer)?;
        Ok(all)
    }

    /// How often it has gone on to another epoch.
    #[must_use]
    pub fn last_epoch(&self) -> i64 {
        self.last_epoch
    }
}

impl<S: Schedule> Scheduler for Chained<S> {
    #[track_caller]
    fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        check_groups(S::NAME, optimizer, self.base_lrs.len())?;
        self.last_epoch += 1;
        for (group, &base) in self.base_lrs.iter().enumerate() {
            let lr = self.schedule.next(group, self.last_epoch, optimizer.lr(group), base);
            optimizer.set_lr(group, lr).here()?;
            self.last_lr[group] = lr;
        }
        Ok(())
    }

    #[track_caller]
    fn restart(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        check_groups(S::NAME, optimizer, self.base_lrs.len())?;
        self.last_epoch = 0;
        for (group, &base) in self.base_lrs.iter().enumerate() {
            let lr = self.schedule.first(group, base);
            optimizer.set_lr(group, lr).here()?;
            self.last_lr[group] = lr;
        }
        Ok(())
    }

    fn last_lr(&self) -> &[f64] {
        &self.last_lr
    }

    fn state_dict(&self) -> SchedulerState {
        let mut state = SchedulerState::default();
        state.put("last_epoch", self.last_epoch as f64);
        state.put_all("base_lrs", &self.base_lrs);
        state.put_all("_last_lr", &self.last_lr);
        state
    }

    #[track_caller]
    fn load_state_dict(&mut self, state: &SchedulerState) -> Result<()> {
        let last_epoch = state.get("last_epoch")? as i64;
        let base_lrs = state.get_all("base_lrs", &self.base_lrs)?;
        let last_lr = state.get_all("_last_lr", &self.last_lr)?;
        (self.last_epoch, self.base_lrs, self.last_lr) = (last_epoch, base_lrs, last_lr);
        Ok(())
    }
}

/// Rates times `gamma` every `step_size` epochs (`StepLR`).
pub type StepLR = Chained<Steps>;
/// Rates times `gamma` at each of some epochs (`MultiStepLR`).
pub type MultiStepLR = Chained<Milestones>;
/// Rates times `gamma` at each epoch (`ExponentialLR`).
pub type ExponentialLR = Chained<Powers>;
/// Rates times a factor until an epoch (`ConstantLR`).
pub type ConstantLR = Chained<Constant>;
/// Rates times a factor that goes in a line from one value to another (`LinearLR`).
pub type LinearLR = Chained<Line>;
/// Rates that go along half a cosine to a least one, and back (`CosineAnnealingLR`).
pub type CosineAnnealingLR = Chained<Cosine>;
/// Rates times a function of the epoch (`LambdaLR`).
pub type LambdaLR = Chained<Lambdas>;

/// See [`StepLR`].
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    step_size: i64,
    gamma: f64,
}

/// See [`MultiStepLR`].
#[derive(Clone, Debug)]
pub struct Milestones {
    milestones: Vec<i64>,
    gamma: f64,
}

/// See [`ExponentialLR`].
#[derive(Clone, Copy, Debug)]
pub struct Powers {
    gamma: f64,
}

/// See [`ConstantLR`].
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    factor: f64,
    total_iters: i64,
}

/// See [`LinearLR`].
#[derive(Clone, Copy, Debug)]
pub struct Line {
    start: f64,
    end: f64,
    total_iters: i64,
}

/// See [`CosineAnnealingLR`].
#[derive(Clone, Copy, Debug)]
pub struct Cosine {
    t_max: i64,
    eta_min: f64,
}

/// A function of the epoch.
type Lambda = Arc<dyn Fn(i64) -> f64 + Send + Sync>;

/// See [`LambdaLR`].
#[derive(Clone)]
pub struct Lambdas(Vec<Lambda>);

impl fmt::Debug for Lambdas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} functions", self.0.len())
    }
}

impl StepLR {
    /// A schedule; PyTorch's `gamma` is 0.1 where nothing is said.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) for a `step_size` of 0.
    #[track_caller]
    pub fn new(optimizer: &mut dyn Optimizer, step_size: u32, gamma: f64) -> Result<Self> {
        Self::of(optimizer, Steps { step_size: step_size.into(), gamma })
    }
}

impl MultiStepLR {
    /// A schedule; an epoch that is there twice counts twice. PyTorch's `gamma` is 0.1 where nothing is said.
    ///
    /// # Errors
    /// None today.
    #[track_caller]
    pub fn new(optimizer: &mut dyn Optimizer, milestones: &[i64], gamma: f64) -> Result<Self> {
        Self::of(optimizer, Milestones { milestones: milestones.to_vec(), gamma })
    }
}

impl ExponentialLR {
    /// A schedule.
    ///
    /// # Errors
    /// None today.
    #[track_caller]
    pub fn new(optimizer: &mut dyn Optimizer, gamma: f64) -> Result<Self> {
        Self::of(optimizer, Powers { gamma })
    }
}

impl ConstantLR {
    /// A schedule; PyTorch has a third for 5 epochs where nothing is said.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) for a factor that is not from 0 to 1.
    #[track_caller]
    pub fn new(optimizer: &mut dyn Optimizer, factor: f64, total_iters: u32) -> Result<Self> {
        Self::of(optimizer, Constant { factor, total_iters: total_iters.into() })
    }
}

impl LinearLR {
    /// A schedule; PyTorch goes from a third to 1 within 5 epochs where nothing is said.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) for factors that are not from 0 to 1, or a first one of 0.
    #[track_caller]
    pub fn new(
        optimizer: &mut dyn Optimizer,
        start_factor: f64,
        end_factor: f64,
        total_iters: u32,
    ) -> Result<Self> {
        let line = Line { start: start_factor, end: end_factor, total_iters: total_iters.into() };
        Self::of(optimizer, line)
    }
}

impl CosineAnnealingLR {
    /// A schedule whose rates are least, at `eta_min`, after `t_max` epochs.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) for a `t_max` of 0.
    #[track_caller]
    pub fn new(optimizer: &mut dyn Optimizer, t_max: u32, eta_min: f64) -> Result<Self> {
        Self::of(optimizer, Cosine { t_max: t_max.into(), eta_min })
    }
}

impl LambdaLR {
    /// A schedule with the same function for all groups.
    ///
    /// # Errors
    /// None today.
    #[track_caller]
    pub fn new(
        optimizer: &mut dyn Optimizer,
        lambda: impl Fn(i64) -> f64 + Send + Sync + 'static,
    ) -> Result<Self> {
        let lambdas = vec![Arc::new(lambda) as Lambda; optimizer.group_count()];
        Self::of(optimizer, Lambdas(lambdas))
    }

    /// A schedule with a function for each group.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) unless there is one for each.
    #[track_caller]
    pub fn with_lambdas(optimizer: &mut dyn Optimizer, lambdas: Vec<Lambda>) -> Result<Self> {
        check_groups(Lambdas::NAME, optimizer, lambdas.len())?;
        Self::of(optimizer, Lambdas(lambdas))
    }
}

impl Schedule for Steps {
    const NAME: &'static str = "StepLR";

    fn check(&self) -> Result<(), String> {
        if self.step_size > 0 { Ok(()) } else { Err("step_size must be 1 or more".into()) }
    }

    fn next(&self, _: usize, epoch: i64, lr: f64, _: f64) -> f64 {
        if epoch == 0 || epoch % self.step_size != 0 { lr } else { lr * self.gamma }
    }
}

impl Schedule for Milestones {
    const NAME: &'static str = "MultiStepLR";

    fn next(&self, _: usize, epoch: i64, lr: f64, _: f64) -> f64 {
        match self.milestones.iter().filter(|milestone| **milestone == epoch).count() {
            0 => lr,
            times => lr * self.gamma.powf(times as f64),
        }
    }
}

impl Schedule for Powers {
    const NAME: &'static str = "ExponentialLR";

    fn next(&self, _: usize, epoch: i64, lr: f64, _: f64) -> f64 {
        if epoch == 0 { lr } else { lr * self.gamma }
    }
}

impl Schedule for Constant {
    const NAME: &'static str = "ConstantLR";

    fn check(&self) -> Result<(), String> {
        let factor = self.factor;
        if (0.0..=1.0).contains(&factor) {
            return Ok(());
        }
        Err(format!("the factor must be from 0 to 1, but is {factor}"))
    }

    fn next(&self, _: usize, epoch: i64, lr: f64, _: f64) -> f64 {
        if epoch == 0 {
            lr * self.factor
        } else if epoch == self.total_iters {
            lr * (1.0 / self.factor)
        } else {
            lr
        }
    }
}

impl Schedule for Line {
    const NAME: &'static str = "LinearLR";

    fn check(&self) -> Result<(), String> {
        let (start, end) = (self.start, self.end);
        if start > 0.0 && start <= 1.0 && (0.0..=1.0).contains(&end) {
            return Ok(());
        }
        Err(format!(
            "the factors must be from 0 to 1, the first one above 0, but are {start} and {end}"
        ))
    }

    fn next(&self, _: usize, epoch: i64, lr: f64, _: f64) -> f64 {
        let &Self { start, end, total_iters } = self;
        if epoch == 0 {
            return lr * start;
        }
        if epoch > total_iters {
            return lr;
        }
        let before = total_iters as f64 * start + (epoch - 1) as f64 * (end - start);
        lr * (1.0 + (end - start) / before)
    }
}

impl Schedule for Cosine {
    const NAME: &'static str = "CosineAnnealingLR";

    fn check(&self) -> Result<(), String> {
        if self.t_max > 0 { Ok(()) } else { Err("t_max must be 1 or more".into()) }
    }

    fn next(&self, _: usize, epoch: i64, lr: f64, base: f64) -> f64 {
        let &Self { t_max, eta_min } = self;
        if epoch == 0 {
            return lr;
        }
        let cosine = |epoch: i64| 1.0 + (PI * epoch as f64 / t_max as f64).cos();
        if (epoch - 1 - t_max) % (2 * t_max) == 0 {
            // The rate before was the least one: nothing times anything would stay there.
            return lr + (base - eta_min) * (1.0 - (PI / t_max as f64).cos()) / 2.0;
        }
        cosine(epoch) / cosine(epoch - 1) * (lr - eta_min) + eta_min
    }
}

impl Schedule for Lambdas {
    const NAME: &'static str = "LambdaLR";

    fn next(&self, group: usize, epoch: i64, _: f64, base: f64) -> f64 {
        base * (self.0[group])(epoch)
    }
}
