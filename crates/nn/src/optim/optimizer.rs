//! The common part of all optimizers: groups, states, saving (`Optim<R>`). A rule `R` has the
//! settings of one optimizer and its step (`rule.rs`).
//!
//! Values that change from replay to replay of a captured step (the number of the step, the rate)
//! are read from device memory. State that a first step would create is refused within a capture.

use warpline::autograd::{check_not_moved, no_grad};
use warpline::{DType, Error, Exec, Result, Tensor};

use super::group::ParamGroup;
use super::rule::{ParamState, Rate, Rule, Slot};
use super::state::{self, OptimizerState};
use crate::called::Called;

/// An optimizer (`torch.optim.Optimizer`), of whatever rule.
pub trait Optimizer {
    /// Changes each parameter that has a gradient; others stay, and so does what is kept of them.
    ///
    /// # Errors
    /// What its ops fail with.
    #[track_caller]
    fn step(&mut self) -> Result<()>;

    /// All parameters, in the order in which a state numbers them.
    fn parameters(&self) -> Vec<Tensor>;

    /// Takes all gradients away (`zero_grad`), so that a parameter without one is left alone by the next step.
    ///
    /// # Errors
    /// None today.
    #[track_caller]
    fn zero_grad(&self) -> Result<()> {
        self.parameters().iter().try_for_each(|parameter| parameter.set_grad(None))
    }

    /// Sets the gradients that there are to zero (`zero_grad(set_to_none=False)`): they stay where they are, as a captured
    /// backward pass needs it.
    ///
    /// # Errors
    /// What the launches fail with.
    #[track_caller]
    fn zero_grad_in_place(&self) -> Result<()> {
        let grads = self.parameters().into_iter().filter_map(|parameter| parameter.grad());
        let zeroed = no_grad(|| grads.into_iter().try_for_each(|grad| grad.zero_().map(drop)));
        zeroed.of("zero_grad_in_place")
    }

    /// How many groups of parameters there are.
    fn group_count(&self) -> usize;

    /// A group's setting by PyTorch's name (`param_groups[group]["lr"]`); a flag is 0 or 1, the two `betas` are `betas.0` and
    /// `betas.1`. `None` if there is none.
    fn setting(&self, group: usize, name: &str) -> Option<f64>;

    /// Changes a group's setting.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if there is none of that name.
    #[track_caller]
    fn set_setting(&mut self, group: usize, name: &str, value: f64) -> Result<()>;

    /// A group's learning rate, as it was set last.
    fn lr(&self, group: usize) -> f64 {
        self.setting(group, "lr").unwrap_or(0.0)
    }

    /// Changes a group's learning rate; if that is in a tensor, there too.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if there is no such group.
    #[track_caller]
    fn set_lr(&mut self, group: usize, lr: f64) -> Result<()> {
        self.set_setting(group, "lr", lr)
    }

    /// What a program needs to go on from here (`state_dict`). Its tensors are the optimizer's own.
    ///
    /// # Errors
    /// None today.
    #[track_caller]
    fn state_dict(&self) -> Result<OptimizerState>;

    /// Goes on from a state (`load_state_dict`), whose tensors are copied. Nothing is changed if anything does not fit.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument), which names what does not fit.
    #[track_caller]
    fn load_state_dict(&mut self, state: &OptimizerState) -> Result<()>;
}

/// An optimizer of a rule: [`Sgd`](super::Sgd), [`Adam`](super::Adam), [`AdamW`](super::AdamW), [`RmsProp`](super::RmsProp).
#[derive(Debug)]
pub struct Optim<R> {
    pub(super) groups: Vec<ParamGroup<R>>,
    /// Of each group's parameters.
    pub(super) states: Vec<Vec<ParamState>>,
}

impl<R: Rule> Optim<R> {
    /// An optimizer of parameters that have all settings in common.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) without parameters, for one that is given twice or is no leaf, and for settings that make
    /// no sense.
    #[track_caller]
    pub fn new(params: Vec<Tensor>, options: R) -> Result<Self> {
        Self::with_groups(vec![ParamGroup::new(params, options)])
    }

    /// An optimizer of groups with settings of their own.
    ///
    /// # Errors
    /// As [`Optim::new`].
    #[track_caller]
    pub fn with_groups(groups: Vec<ParamGroup<R>>) -> Result<Self> {
        let mut all = Self { groups: Vec::new(), states: Vec::new() };
        if groups.is_empty() {
            return Err(Error::invalid(R::NAME, "there are no parameters to optimize"));
        }
        for group in groups {
            all.add_param_group(group)?;
        }
        Ok(all)
    }

    /// Adds a group (`add_param_group`).
    ///
    /// # Errors
    /// As [`Optim::new`].
    #[track_caller]
    pub fn add_param_group(&mut self, group: ParamGroup<R>) -> Result<()> {
        group.check(&self.groups)?;
        self.states.push(vec![ParamState::default(); group.params().len()]);
        self.groups.push(group);
        Ok(())
    }

    /// The groups (`param_groups`).
    #[must_use]
    pub fn param_groups(&self) -> &[ParamGroup<R>] {
        &self.groups
    }

    /// The groups, whose settings may be changed between steps.
    #[must_use]
    pub fn param_groups_mut(&mut self) -> &mut [ParamGroup<R>] {
        &mut self.groups
    }
}

impl<R: Rule> Optimizer for Optim<R> {
    #[track_caller]
    fn step(&mut self) -> Result<()> {
        let location = std::panic::Location::caller();
        let params = self.groups.iter().flat_map(|group| group.params());
        for param in params {
            check_not_moved("step", param)?;
        }
        let run = || {
            for (group, states) in self.groups.iter().zip(&mut self.states) {
                part_counters(group.params(), states)?;
                let slots = group.params().iter().zip(states);
                let slots = slots.filter_map(|(param, state)| {
                    param.grad().map(|grad| Slot { param, grad: grad.detach(), state })
                });
                let mut slots: Vec<Slot<'_>> = slots.collect();
                if slots.is_empty() {
                    continue;
                }
                let number = || group.options.settings().iter().find(|s| s.0 == "lr").map(|s| s.1);
                let lr = match &group.lr_tensor {
                    Some(lr) => Rate::Tensor(lr.clone()),
                    None => Rate::Number(number().unwrap_or(0.0)),
                };
                group.options.step(&mut slots, &lr)?;
            }
            Ok(())
        };
        no_grad(run).map_err(|e: Error| e.at(location))
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.groups.iter().flat_map(|group| group.params().iter().cloned()).collect()
    }

    fn group_count(&self) -> usize {
        self.groups.len()
    }

    fn setting(&self, group: usize, name: &str) -> Option<f64> {
        let group = self.groups.get(group)?;
        if name == "initial_lr" {
            return group.initial_lr;
        }
        group.options.settings().into_iter().find(|(own, _)| *own == name).map(|(_, value)| value)
    }

    #[track_caller]
    fn set_setting(&mut self, group: usize, name: &str, value: f64) -> Result<()> {
        let count = self.groups.len();
        let Some(group) = self.groups.get_mut(group) else {
            let reason = format!("there is no group {group}, only {count}");
            return Err(Error::invalid(R::NAME, reason));
        };
        if name == "initial_lr" {
            group.initial_lr = Some(value);
        } else if !group.options.set(name, value) {
            return Err(Error::invalid(R::NAME, format!("there is no setting {name}")));
        }
        if let Some(lr) = group.lr_tensor.as_ref().filter(|_| name == "lr") {
            no_grad(|| lr.fill_(value).map(drop)).of(R::NAME)?;
        }
        Ok(())
    }

    #[track_caller]
    fn state_dict(&self) -> Result<OptimizerState> {
        state::save(self)
    }

    #[track_caller]
    fn load_state_dict(&mut self, state: &OptimizerState) -> Result<()> {
        state::load(self, state)
    }
}

/// A counter of steps where a parameter is.
#[track_caller]
pub(super) fn counter(param: &Tensor, value: f64) -> Result<Tensor> {
    refuse_capture(param)?;
    warpline::full([], value, (DType::F32, param.device()))
}

/// Refuses to make within a capture what an optimizer keeps: each replay would begin with it anew.
#[track_caller]
pub(super) fn refuse_capture(param: &Tensor) -> Result<()> {
    if !is_capturing(param)? {
        return Ok(());
    }
    let reason = "what an optimizer keeps of a parameter is made by its first step, which cannot be captured; \
                  take a step before";
    Err(Error::invalid("step", reason))
}

/// Whether ops on a tensor go into a graph.
#[track_caller]
pub(super) fn is_capturing(tensor: &Tensor) -> Result<bool> {
    match tensor.exec()? {
        Exec::Cuda(_, _, stream) => Ok(stream.is_capturing()),
        Exec::Cpu(_) => Ok(false),
    }
}

/// Parameters that have always stepped together have one counter. Those that now stay behind get one of their own.
#[track_caller]
fn part_counters(params: &[Tensor], states: &mut [ParamState]) -> Result<()> {
    if states.iter().all(|state| state.counter.is_none()) {
        return Ok(());
    }
    let steps: Vec<bool> = params.iter().map(|param| param.grad().is_some()).collect();
    let stepping = states.iter().zip(&steps).filter(|(_, steps)| **steps);
    let stepping: Vec<u64> =
        stepping.filter_map(|(state, _)| state.counter.as_ref().map(Tensor::data_ptr)).collect();
    let mut parted: Vec<(u64, Tensor)> = Vec::new();
    for (state, steps) in states.iter_mut().zip(steps) {
        let Some(counter) = state.counter.as_mut().filter(|_| !steps) else { continue };
        let at = counter.data_ptr();
        if !stepping.contains(&at) {
            continue;
        }
        let known = parted.iter().find(|of| of.0 == at).map(|of| of.1.clone());
        let own = match known {
            Some(own) => own,
            None => {
                refuse_capture(counter)?;
                let own = counter.copy()?;
                parted.push((at, own.clone()));
                own
            }
        };
        *counter = own;
    }
    Ok(())
}
