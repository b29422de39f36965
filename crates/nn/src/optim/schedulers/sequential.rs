//! Sequences of schedulers.

use std::fmt;

use warpline::__Called as _;
use warpline::autograd::Reclaimed;
use warpline::{Error, Result};

use super::{Scheduler, SchedulerState, initial_lrs};
use crate::optim::Optimizer;

const NAME: &str = "SequentialLR";

/// Runs several schedulers in sequence: each from its milestone to the next milestone (`SequentialLR`).
pub struct SequentialLR {
    /// [`Reclaimed`], because a sequence may have sequences as elements, to any depth.
    schedulers: Vec<Reclaimed<Box<dyn Scheduler>>>,
    milestones: Vec<i64>,
    last_epoch: i64,
}

impl SequentialLR {
    /// Creates a sequence of schedulers of one optimizer. `milestones` has the first epoch of each scheduler but the
    /// first.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the number of milestones is not the
    /// number of schedulers minus 1; errors of [`Optimizer::set_lr`].
    #[track_caller]
    pub fn new(
        optimizer: &mut dyn Optimizer,
        mut schedulers: Vec<Box<dyn Scheduler>>,
        milestones: &[i64],
    ) -> Result<Self> {
        let (count, milestones) = (schedulers.len(), milestones.to_vec());
        if count != milestones.len() + 1 {
            let reason = format!(
                "{count} schedules need a milestone for each but the first, but there are {}",
                milestones.len()
            );
            return Err(Error::invalid(NAME, reason));
        }
        // Reset the learning rates, which the constructors of the schedulers have changed.
        for (group, lr) in initial_lrs(optimizer)?.into_iter().enumerate() {
            optimizer.set_lr(group, lr).here()?;
        }
        schedulers[0].restart(optimizer).here()?;
        let schedulers = schedulers.into_iter().map(Reclaimed::new).collect();
        Ok(Self { schedulers, milestones, last_epoch: 0 })
    }

    /// Returns the index of the scheduler for the current epoch.
    fn at(&self) -> usize {
        self.milestones.partition_point(|milestone| *milestone <= self.last_epoch)
    }
}

impl Scheduler for SequentialLR {
    #[track_caller]
    fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        self.last_epoch = self.last_epoch.saturating_add(1);
        let at = self.at();
        if at > 0 && self.milestones[at - 1] == self.last_epoch {
            self.schedulers[at].restart(optimizer).here()
        } else {
            self.schedulers[at].step(optimizer).here()
        }
    }

    #[track_caller]
    fn restart(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        self.last_epoch = 0;
        self.schedulers[0].restart(optimizer).here()
    }

    fn last_lr(&self) -> &[f64] {
        self.schedulers[self.at()].last_lr()
    }

    fn state_dict(&self) -> SchedulerState {
        let mut state = SchedulerState::default();
        state.put("last_epoch", self.last_epoch as f64);
        for (i, scheduler) in self.schedulers.iter().enumerate() {
            for (name, value) in scheduler.state_dict().0 {
                state.put(format!("_schedulers.{i}.{name}"), value);
            }
        }
        state
    }

    #[track_caller]
    fn load_state_dict(&mut self, state: &SchedulerState) -> Result<()> {
        let last_epoch = state.get_epoch("last_epoch")?;
        for (i, scheduler) in self.schedulers.iter_mut().enumerate() {
            let prefix = format!("_schedulers.{i}.");
            let own = state.0.iter();
            let own = own.filter_map(|(name, v)| Some((name.strip_prefix(&prefix)?.into(), *v)));
            scheduler.load_state_dict(&SchedulerState(own.collect())).here()?;
        }
        self.last_epoch = last_epoch;
        Ok(())
    }
}

impl fmt::Debug for SequentialLR {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (milestones, epoch) = (&self.milestones, self.last_epoch);
        write!(f, "SequentialLR {{ milestones: {milestones:?}, last_epoch: {epoch} }}")
    }
}
