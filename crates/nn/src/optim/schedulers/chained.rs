//! Schedules that compute each learning rate from the previous one, so that several can be combined.

use std::f64::consts::PI;
use std::fmt;
use std::sync::Arc;

use warpline::__Called as _;
use warpline::autograd::Reclaimed;
use warpline::{Error, IntoOptions, Result};

use super::{
    ConstantLROptions, CosineAnnealingLROptions, LinearLROptions, MultiStepLROptions, Scheduler,
    SchedulerState, StepLROptions, check_groups, initial_lrs,
};
use crate::optim::Optimizer;

/// A scheduler that computes each learning rate from the previous one: [`StepLR`], [`MultiStepLR`], [`ExponentialLR`],
/// [`ConstantLR`], [`LinearLR`], [`CosineAnnealingLR`]. [`LambdaLR`] computes it from the initial rate.
///
/// Several schedulers can change the rates of one optimizer: their factors multiply. [`LambdaLR`] overwrites the rate.
#[derive(Clone, Debug)]
pub struct Chained<S> {
    schedule: S,
    base_lrs: Vec<f64>,
    last_lr: Vec<f64>,
    last_epoch: i64,
}

/// A learning rate as a function of the epoch and the previous rate.
pub trait LRSchedule {
    /// Name of the scheduler.
    const NAME: &'static str;

    /// Checks the parameters of the schedule.
    ///
    /// # Errors
    /// A message that names the invalid parameter. The scheduler returns the message as
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument).
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Returns the learning rate of `epoch`. `lr` is the rate of the previous epoch, `base` the initial rate.
    fn next(&self, group: usize, epoch: i64, lr: f64, base: f64) -> f64;

    /// Returns the learning rate of epoch 0.
    fn first(&self, group: usize, base: f64) -> f64 {
        self.next(group, 0, base, base)
    }
}

impl<S: LRSchedule> Chained<S> {
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

    /// Returns the current epoch: the number of steps since the creation or the last restart.
    #[must_use]
    pub fn last_epoch(&self) -> i64 {
        self.last_epoch
    }
}

impl<S: LRSchedule> Scheduler for Chained<S> {
    #[track_caller]
    fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        check_groups(S::NAME, optimizer, self.base_lrs.len())?;
        self.last_epoch = self.last_epoch.saturating_add(1);
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
        let last_epoch = state.get_epoch("last_epoch")?;
        let base_lrs = state.get_all("base_lrs", &self.base_lrs)?;
        let last_lr = state.get_all("_last_lr", &self.last_lr)?;
        (self.last_epoch, self.base_lrs, self.last_lr) = (last_epoch, base_lrs, last_lr);
        Ok(())
    }
}

/// Multiplies the learning rates by `gamma` every `step_size` epochs (`StepLR`).
pub type StepLR = Chained<Steps>;
/// Multiplies the learning rates by `gamma` at given epochs (`MultiStepLR`).
pub type MultiStepLR = Chained<Milestones>;
/// Multiplies the learning rates by `gamma` at each epoch (`ExponentialLR`).
pub type ExponentialLR = Chained<Powers>;
/// Multiplies the learning rates by a factor until a given epoch (`ConstantLR`).
pub type ConstantLR = Chained<Constant>;
/// Multiplies the learning rates by a factor that changes linearly between two values (`LinearLR`).
pub type LinearLR = Chained<Line>;
/// Lowers the learning rates along half a cosine to a minimum, then raises them again (`CosineAnnealingLR`).
pub type CosineAnnealingLR = Chained<Cosine>;
/// Multiplies the initial learning rates by a function of the epoch (`LambdaLR`).
pub type LambdaLR = Chained<Lambdas>;

/// Schedule of [`StepLR`].
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    step_size: i64,
    gamma: f64,
}

/// Schedule of [`MultiStepLR`].
#[derive(Clone, Debug)]
pub struct Milestones {
    milestones: Vec<i64>,
    gamma: f64,
}

/// Schedule of [`ExponentialLR`].
#[derive(Clone, Copy, Debug)]
pub struct Powers {
    gamma: f64,
}

/// Schedule of [`ConstantLR`].
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    factor: f64,
    total_iters: i64,
}

/// Schedule of [`LinearLR`].
#[derive(Clone, Copy, Debug)]
pub struct Line {
    start: f64,
    end: f64,
    total_iters: i64,
}

/// Schedule of [`CosineAnnealingLR`].
#[derive(Clone, Copy, Debug)]
pub struct Cosine {
    t_max: i64,
    eta_min: f64,
}

/// A function of the epoch.
type Lambda = Arc<dyn Fn(i64) -> f64 + Send + Sync>;

/// Wraps a function in a [`Reclaimed`], so that drops do not recurse: the function may own a scheduler with further
/// functions, to any depth.
#[expect(clippy::redundant_closure, reason = "the closure owns the function that it calls")]
fn shared(lambda: impl Fn(i64) -> f64 + Send + Sync + 'static) -> Lambda {
    let lambda = Reclaimed::new(lambda);
    Arc::new(move |epoch| lambda(epoch))
}

/// Schedule of [`LambdaLR`].
#[derive(Clone)]
pub struct Lambdas(Vec<Lambda>);

impl fmt::Debug for Lambdas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} functions", self.0.len())
    }
}

impl StepLR {
    /// Creates a scheduler.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `step_size` is 0; errors of
    /// [`Optimizer::set_lr`].
    #[track_caller]
    pub fn new(
        optimizer: &mut dyn Optimizer,
        step_size: u32,
        options: impl IntoOptions<StepLROptions>,
    ) -> Result<Self> {
        let StepLROptions { gamma } = options.into_options();
        Self::of(optimizer, Steps { step_size: step_size.into(), gamma })
    }
}

impl MultiStepLR {
    /// Creates a scheduler. A milestone that is listed twice multiplies by `gamma` twice.
    ///
    /// # Errors
    /// Errors of [`Tensor::fill_`](warpline::Tensor::fill_), if a learning rate is in a tensor.
    #[track_caller]
    pub fn new(
        optimizer: &mut dyn Optimizer,
        milestones: &[i64],
        options: impl IntoOptions<MultiStepLROptions>,
    ) -> Result<Self> {
        let MultiStepLROptions { gamma } = options.into_options();
        Self::of(optimizer, Milestones { milestones: milestones.to_vec(), gamma })
    }
}

impl ExponentialLR {
    /// Creates a scheduler.
    ///
    /// # Errors
    /// Errors of [`Tensor::fill_`](warpline::Tensor::fill_), if a learning rate is in a tensor.
    #[track_caller]
    pub fn new(optimizer: &mut dyn Optimizer, gamma: f64) -> Result<Self> {
        Self::of(optimizer, Powers { gamma })
    }
}

impl ConstantLR {
    /// Creates a scheduler.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `factor` is not from 0 to 1; errors of
    /// [`Optimizer::set_lr`].
    #[track_caller]
    pub fn new(
        optimizer: &mut dyn Optimizer,
        options: impl IntoOptions<ConstantLROptions>,
    ) -> Result<Self> {
        let ConstantLROptions { factor, total_iters } = options.into_options();
        Self::of(optimizer, Constant { factor, total_iters: total_iters.into() })
    }
}

impl LinearLR {
    /// Creates a scheduler.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `start_factor` is not in `(0, 1]` or
    /// `end_factor` not in `[0, 1]`; errors of [`Optimizer::set_lr`].
    #[track_caller]
    pub fn new(
        optimizer: &mut dyn Optimizer,
        options: impl IntoOptions<LinearLROptions>,
    ) -> Result<Self> {
        let LinearLROptions { start_factor, end_factor, total_iters } = options.into_options();
        let line = Line { start: start_factor, end: end_factor, total_iters: total_iters.into() };
        Self::of(optimizer, line)
    }
}

impl CosineAnnealingLR {
    /// Creates a scheduler that reaches the minimum after `t_max` epochs.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if `t_max` is 0; errors of
    /// [`Optimizer::set_lr`].
    #[track_caller]
    pub fn new(
        optimizer: &mut dyn Optimizer,
        t_max: u32,
        options: impl IntoOptions<CosineAnnealingLROptions>,
    ) -> Result<Self> {
        let CosineAnnealingLROptions { eta_min } = options.into_options();
        Self::of(optimizer, Cosine { t_max: t_max.into(), eta_min })
    }
}

impl LambdaLR {
    /// Creates a scheduler. `lambda` maps an epoch to a factor of the initial rate. The options give groups functions
    /// of their own.
    ///
    /// ```
    /// use warpline::zeros;
    /// use warpline_nn::optim::{LambdaLR, LambdaLROptions, Optimizer, ParamGroup, SGD};
    ///
    /// let [weight, bias] = [zeros([2, 2], ())?, zeros([2], ())?];
    /// let groups = vec![ParamGroup::new(vec![weight]), ParamGroup::new(vec![bias])];
    /// let mut sgd = SGD::new(groups, ())?;
    /// let constant = LambdaLROptions::new().group(1, |_| 1.0);
    /// LambdaLR::new(&mut sgd, |epoch| 0.5 / (epoch + 1) as f64, constant)?;
    /// assert_eq!((sgd.lr(0), sgd.lr(1)), (0.0005, 0.001));
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the options name a group that the
    /// optimizer does not have; errors of [`Tensor::fill_`](warpline::Tensor::fill_), if a learning rate is in a
    /// tensor.
    #[track_caller]
    pub fn new(
        optimizer: &mut dyn Optimizer,
        lambda: impl Fn(i64) -> f64 + Send + Sync + 'static,
        options: impl IntoOptions<LambdaLROptions>,
    ) -> Result<Self> {
        let mut lambdas = vec![shared(lambda); optimizer.group_count()];
        for (group, lambda) in options.into_options().groups {
            let count = lambdas.len();
            let Some(own) = lambdas.get_mut(group) else {
                let reason = format!("there is no group {group}, only {count}");
                return Err(Error::invalid(Lambdas::NAME, reason));
            };
            *own = lambda;
        }
        Self::of(optimizer, Lambdas(lambdas))
    }
}

/// Options of [`LambdaLR`]: functions of single groups.
#[derive(Clone, Default)]
pub struct LambdaLROptions {
    groups: Vec<(usize, Lambda)>,
}

impl LambdaLROptions {
    /// Creates options in which all groups have the argument `lambda` of `LambdaLR::new`.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the function of a group. Default: the argument `lambda` of `LambdaLR::new`.
    #[must_use]
    pub fn group(
        mut self,
        group: usize,
        lambda: impl Fn(i64) -> f64 + Send + Sync + 'static,
    ) -> Self {
        self.groups.push((group, shared(lambda)));
        self
    }
}

impl From<()> for LambdaLROptions {
    fn from((): ()) -> Self {
        Self::new()
    }
}

impl fmt::Debug for LambdaLROptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = self.groups.iter().map(|(group, _)| group);
        f.debug_list().entries(groups).finish()
    }
}

impl LRSchedule for Steps {
    const NAME: &'static str = "StepLR";

    fn check(&self) -> Result<(), String> {
        if self.step_size > 0 { Ok(()) } else { Err("step_size must be 1 or more".into()) }
    }

    fn next(&self, _: usize, epoch: i64, lr: f64, _: f64) -> f64 {
        if epoch == 0 || epoch % self.step_size != 0 { lr } else { lr * self.gamma }
    }
}

impl LRSchedule for Milestones {
    const NAME: &'static str = "MultiStepLR";

    fn next(&self, _: usize, epoch: i64, lr: f64, _: f64) -> f64 {
        match self.milestones.iter().filter(|milestone| **milestone == epoch).count() {
            0 => lr,
            times => lr * self.gamma.powf(times as f64),
        }
    }
}

impl LRSchedule for Powers {
    const NAME: &'static str = "ExponentialLR";

    fn next(&self, _: usize, epoch: i64, lr: f64, _: f64) -> f64 {
        if epoch == 0 { lr } else { lr * self.gamma }
    }
}

impl LRSchedule for Constant {
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

impl LRSchedule for Line {
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

impl LRSchedule for Cosine {
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
            // The previous rate was the minimum, so a ratio of cosines would divide by zero.
            return lr + (base - eta_min) * (1.0 - (PI / t_max as f64).cos()) / 2.0;
        }
        cosine(epoch) / cosine(epoch - 1) * (lr - eta_min) + eta_min
    }
}

impl LRSchedule for Lambdas {
    const NAME: &'static str = "LambdaLR";

    fn next(&self, group: usize, epoch: i64, _: f64, base: f64) -> f64 {
        base * (self.0[group])(epoch)
    }
}
