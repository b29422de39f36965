//! The trait of all optimizers, and the common part of all but L-BFGS: groups, state, saving (`Optim<R>`). A rule `R`
//! has the settings of one optimizer and computes its step (`rule.rs`).
//!
//! A captured step reads values that change between replays (the step count, the learning rate) from device memory. A
//! step that would create state cannot be captured, because each replay would create the state anew.

use std::sync::atomic::{AtomicU64, Ordering};

use warpline::__Called as _;
use warpline::autograd::{check_not_moved, no_grad};
use warpline::{CallScope, Error, Exec, IntoOptions, Result, Tensor};

use super::fused_step::{GradScaling, fits};
use super::group::{IntoParamGroups, ParamGroup};
use super::rule::{ParamState, Rate, Rule, Slot};
use super::state::{self, OptimizerState};
use super::step_count::separate_counters;

/// Identifies an optimizer (`id(optimizer)`). A move does not change it.
///
/// ```
/// use warpline_nn::optim::OptimizerId;
///
/// assert_ne!(OptimizerId::unique(), OptimizerId::unique());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OptimizerId(u64);

impl OptimizerId {
    /// Returns an identifier that no other optimizer of this process has.
    #[must_use]
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// An optimizer (`torch.optim.Optimizer`).
pub trait Optimizer {
    /// Returns the identifier that the optimizer took from [`OptimizerId::unique`] when it was created. A
    /// [`GradScaler`](crate::amp::GradScaler) tells optimizers apart by it.
    fn id(&self) -> OptimizerId;

    /// Updates each parameter that has a gradient. Other parameters and their states stay unchanged.
    ///
    /// # Errors
    /// [`ErrorKind::Moved`](warpline::ErrorKind::Moved) if a module's move replaced a parameter;
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if a captured step would create state, if
    /// Adam or AdamW is captured without `capturable`, or if a step needs a closure ([`LBFGS`](super::LBFGS)); errors
    /// of the ops. A captured step of RMSprop or Adadelta is counted once, at the capture; the count does not affect its
    /// updates.
    #[track_caller]
    fn step(&mut self) -> Result<()>;

    /// Returns whether [`step_scaled`](Self::step_scaled) can take the next step (`_step_supports_amp_scaling`).
    /// Default: false.
    fn supports_grad_scaling(&self) -> bool {
        false
    }

    /// Takes a step in which the device divides the gradients by a scale. The device skips the step if a gradient
    /// overflowed. The host does not wait. A [`GradScaler`](crate::amp::GradScaler) calls [`step`](Self::step) instead if
    /// [`supports_grad_scaling`](Self::supports_grad_scaling) returns `false`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if
    /// [`supports_grad_scaling`](Self::supports_grad_scaling) returns `false`; errors of [`step`](Self::step).
    #[track_caller]
    fn step_scaled(&mut self, scaling: &GradScaling) -> Result<()> {
        let _ = scaling;
        Err(cannot_scale())
    }

    /// Returns all parameters, in the order of their indices in [`OptimizerState`].
    fn parameters(&self) -> Vec<Tensor>;

    /// Removes the gradients of all parameters (`zero_grad`). The next step skips parameters without a gradient.
    ///
    /// # Errors
    /// None: removing a gradient does not fail. The result is that of [`Tensor::set_grad`].
    #[track_caller]
    fn zero_grad(&self) -> Result<()> {
        self.parameters().iter().try_for_each(|parameter| parameter.set_grad(None))
    }

    /// Sets existing gradients to zero (`zero_grad(set_to_none=False)`). The gradients keep their memory, which a
    /// captured backward pass needs.
    ///
    /// # Errors
    /// Errors of [`Tensor::zero_`].
    #[track_caller]
    fn zero_grad_in_place(&self) -> Result<()> {
        let grads = self.parameters().into_iter().filter_map(|parameter| parameter.grad());
        let zeroed = no_grad(|| grads.into_iter().try_for_each(|grad| grad.zero_().map(drop)));
        zeroed.of("zero_grad_in_place")
    }

    /// Returns the number of parameter groups.
    fn group_count(&self) -> usize;

    /// Returns a setting of a group by PyTorch's name (`param_groups[group]["lr"]`). A flag is 0 or 1; `betas` are
    /// `betas.0` and `betas.1`. `None` if there is no such group or setting.
    fn setting(&self, group: usize, name: &str) -> Option<f64>;

    /// Changes a setting of a group. The names are those of [`Optimizer::setting`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if there is no such group or setting;
    /// errors of [`Tensor::fill_`] if the learning rate is in a tensor.
    #[track_caller]
    fn set_setting(&mut self, group: usize, name: &str, value: f64) -> Result<()>;

    /// Returns the most recently set learning rate of a group. 0 if there is no such group.
    fn lr(&self, group: usize) -> f64 {
        self.setting(group, "lr").unwrap_or(0.0)
    }

    /// Sets the learning rate of a group, and of its [tensor](ParamGroup::lr_tensor) if there is one.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if there is no such group; errors
    /// of [`Tensor::fill_`] if the learning rate is in a tensor.
    #[track_caller]
    fn set_lr(&mut self, group: usize, lr: f64) -> Result<()> {
        self.set_setting(group, "lr", lr)
    }

    /// Returns the state that a later run needs to continue (`state_dict`). Its tensors share the optimizer's memory.
    ///
    /// # Errors
    /// Errors of [`warpline::full`] if a tensor for a step count cannot be made.
    #[track_caller]
    fn state_dict(&self) -> Result<OptimizerState>;

    /// Restores a state (`load_state_dict`). Copies its tensors. Nothing changes unless all groups, settings and shapes
    /// fit.
    ///
    /// The values are copied into the tensors that the optimizer already has, so replays of a captured step continue
    /// from them. A tensor that the state lacks leaves the optimizer, as in PyTorch. A captured step keeps this tensor
    /// and continues from its former values, so capture the step again.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the state differs from the optimizer in
    /// the number of groups or of parameters in a group, has a setting or a tensor that the optimizer does not have,
    /// has a setting that is out of range, has a tensor with a shape other than the parameter's, has a parameter that
    /// is in none of its groups, or lacks an entry that [`LBFGS`](super::LBFGS) needs; errors of the copies.
    #[track_caller]
    fn load_state_dict(&mut self, state: &OptimizerState) -> Result<()>;
}

/// An optimizer with the update rule `R`. Its aliases are [`SGD`](super::SGD), [`Adam`](super::Adam),
/// [`AdamW`](super::AdamW), [`RMSprop`](super::RMSprop) and [`Adadelta`](super::Adadelta).
#[derive(Debug)]
pub struct Optim<R> {
    id: OptimizerId,
    pub(super) groups: Vec<ParamGroup<R>>,
    /// State of each parameter of each group.
    pub(super) states: Vec<Vec<ParamState>>,
    /// Options of groups that have none of their own.
    defaults: R,
}

impl<R: Rule> Optim<R> {
    /// Creates an optimizer. `params` is the parameters, which form one group, or a `Vec` of [`ParamGroup`]s. `options`
    /// is `()` or the options of the optimizer, such as [`SGDOptions`](super::SGDOptions). Groups without options of
    /// their own take these options.
    ///
    /// ```
    /// use warpline::Tensor;
    /// use warpline_nn::Linear;
    /// use warpline_nn::optim::{AdamW, AdamWOptions, Optimizer, ParamGroup};
    ///
    /// let (net, options) = (Linear::new(4, 2, ())?, AdamWOptions::new().lr(0.01));
    /// let decayed = ParamGroup::new(vec![Tensor::clone(&net.weight)]);
    /// let bias = net.bias.as_ref().expect("a bias");
    /// let others = ParamGroup::new(vec![Tensor::clone(bias)]).options(options.weight_decay(0.0));
    /// let optimizer = AdamW::new(vec![decayed, others], options)?;
    /// assert_eq!((optimizer.lr(0), optimizer.setting(1, "weight_decay")), (0.01, Some(0.0)));
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if there are no parameters, a parameter is
    /// not a leaf or appears twice, a setting is out of range, or the tensor of a learning rate does not have exactly
    /// one element or is not floating point; [`ErrorKind::Moved`](warpline::ErrorKind::Moved) if a module's move
    /// replaced a parameter.
    #[track_caller]
    pub fn new(params: impl IntoParamGroups<R>, options: impl IntoOptions<R>) -> Result<Self> {
        let defaults = options.into_options();
        let mut all =
            Self { id: OptimizerId::unique(), groups: Vec::new(), states: Vec::new(), defaults };
        let groups = params.into_param_groups();
        if groups.is_empty() {
            return Err(Error::invalid(R::NAME, "there are no parameters to optimize"));
        }
        for group in groups {
            all.add_param_group(group)?;
        }
        Ok(all)
    }

    /// Adds a group (`add_param_group`). A group without options of its own takes the options of [`Optim::new`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if the group has no parameters, a
    /// parameter is not a leaf or is already in a group, a setting is out of range, or the tensor of a learning
    /// rate does not have exactly one element or is not floating point;
    /// [`ErrorKind::Moved`](warpline::ErrorKind::Moved) if a module's move replaced a parameter.
    #[track_caller]
    pub fn add_param_group(&mut self, group: ParamGroup<R>) -> Result<()> {
        let group = group.or_options(&self.defaults);
        group.check(&self.groups)?;
        self.states.push(vec![ParamState::default(); group.params().len()]);
        self.groups.push(group);
        Ok(())
    }

    /// Returns the groups (`param_groups`).
    #[must_use]
    pub fn param_groups(&self) -> &[ParamGroup<R>] {
        &self.groups
    }

    /// Returns the groups for changes of their settings between steps.
    #[must_use]
    pub fn param_groups_mut(&mut self) -> &mut [ParamGroup<R>] {
        &mut self.groups
    }
}

impl<R: Rule> Optim<R> {
    #[track_caller]
    fn take_step(&mut self, scaling: Option<&GradScaling>) -> Result<()> {
        let _call = CallScope::enter("step");
        let params = self.groups.iter().flat_map(|group| group.params());
        for param in params {
            check_not_moved("step", param)?;
        }
        no_grad(|| {
            for (group, states) in self.groups.iter().zip(&mut self.states) {
                separate_counters(group.params(), states)?;
                let slots = group.params().iter().zip(states);
                let slots = slots.filter_map(|(param, state)| {
                    param.grad().map(|grad| Slot { param, grad: grad.detach(), state })
                });
                let mut slots: Vec<Slot<'_>> = slots.collect();
                if slots.is_empty() {
                    continue;
                }
                let lr = match &group.lr_tensor {
                    Some(lr) => Rate::Tensor(lr.clone()),
                    None => Rate::Number(group.setting("lr").unwrap_or(0.0)),
                };
                group.options.step(&mut slots, &lr, scaling)?;
            }
            Ok(())
        })
    }
}

#[track_caller]
fn cannot_scale() -> Error {
    Error::invalid("step_scaled", "the optimizer's step cannot read a scale on the device")
}

impl<R: Rule> Optimizer for Optim<R> {
    fn id(&self) -> OptimizerId {
        self.id
    }

    #[track_caller]
    fn step(&mut self) -> Result<()> {
        self.take_step(None)
    }

    fn supports_grad_scaling(&self) -> bool {
        let fuses = |group: &ParamGroup<R>, param: &Tensor, state: &ParamState| {
            let Some(grad) = param.grad() else { return true };
            let states = state.tensors.iter().flatten();
            group.options.fuses(state) && [param, &grad].into_iter().chain(states).all(fits)
        };
        self.groups.iter().zip(&self.states).all(|(group, states)| {
            group.params().iter().zip(states).all(|(param, state)| fuses(group, param, state))
        })
    }

    #[track_caller]
    fn step_scaled(&mut self, scaling: &GradScaling) -> Result<()> {
        if !self.supports_grad_scaling() {
            return Err(cannot_scale());
        }
        self.take_step(Some(scaling))
    }

    fn parameters(&self) -> Vec<Tensor> {
        self.groups.iter().flat_map(|group| group.params().iter().cloned()).collect()
    }

    fn group_count(&self) -> usize {
        self.groups.len()
    }

    fn setting(&self, group: usize, name: &str) -> Option<f64> {
        self.groups.get(group)?.setting(name)
    }

    #[track_caller]
    fn set_setting(&mut self, group: usize, name: &str, value: f64) -> Result<()> {
        let count = self.groups.len();
        let Some(group) = self.groups.get_mut(group) else {
            let reason = format!("there is no group {group}, only {count}");
            return Err(Error::invalid(R::NAME, reason));
        };
        group.set_setting(name, value)
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

/// Returns an error during a capture. Called before state is created, because each replay would create the state anew.
#[track_caller]
pub(super) fn check_not_capturing(param: &Tensor) -> Result<()> {
    if !is_capturing(param)? {
        return Ok(());
    }
    let reason = "the first step of an optimizer creates its state and cannot be captured; take a step before \
                  the capture";
    Err(Error::invalid("step", reason))
}

/// Returns `true` if ops on the tensor are being captured.
#[track_caller]
pub(crate) fn is_capturing(tensor: &Tensor) -> Result<bool> {
    match tensor.exec()? {
        Exec::Cuda(_, _, stream) => Ok(stream.is_capturing()),
        Exec::Cpu(_) => Ok(false),
    }
}
