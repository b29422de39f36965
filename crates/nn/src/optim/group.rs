//! Parameter groups.

use std::collections::BTreeMap;
use std::panic::Location;

use warpline::__Called as _;
use warpline::autograd::{check_not_moved, no_grad};
use warpline::{Error, IntoOptions, Result, Tensor};

use super::rule::Settings;
use super::state::GroupState;
use crate::Parameter;

/// Parameters that share settings (an entry of `param_groups`).
#[derive(Clone, Debug)]
pub struct ParamGroup<R> {
    params: Vec<Tensor>,
    /// The settings. May be changed between steps.
    pub options: R,
    /// Whether the settings are the group's own, and not those of the optimizer.
    has_options: bool,
    /// Learning rate in device memory, so that it can change between replays of a captured step. Takes precedence over
    /// the learning rate in `options`.
    pub(super) lr_tensor: Option<Tensor>,
    /// Initial learning rate, which a scheduler stores at its creation.
    pub(super) initial_lr: Option<f64>,
}

/// The parameters of a new optimizer: a `Vec` of tensors or [`Parameter`]s, which form one group, or a `Vec` of
/// [`ParamGroup`]s.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of parameters",
    label = "expected a `Vec<Tensor>`, such as `net.parameters()`, a `Vec<Parameter>`, or a `Vec<ParamGroup<{R}>>`"
)]
pub trait IntoParamGroups<R> {
    /// Returns the groups.
    fn into_param_groups(self) -> Vec<ParamGroup<R>>;
}

impl<R: Settings> IntoParamGroups<R> for Vec<Tensor> {
    fn into_param_groups(self) -> Vec<ParamGroup<R>> {
        vec![ParamGroup::new(self)]
    }
}

impl<R: Settings> IntoParamGroups<R> for Vec<Parameter> {
    fn into_param_groups(self) -> Vec<ParamGroup<R>> {
        vec![ParamGroup::new(self.iter().map(|parameter| (**parameter).clone()).collect())]
    }
}

impl<R> IntoParamGroups<R> for Vec<ParamGroup<R>> {
    fn into_param_groups(self) -> Self {
        self
    }
}

impl<R: Settings> ParamGroup<R> {
    /// Creates a group that takes its options from the optimizer.
    #[must_use]
    pub fn new(params: Vec<Tensor>) -> Self {
        let options = R::default();
        Self { params, options, has_options: false, lr_tensor: None, initial_lr: None }
    }

    /// Sets the options of the group. Default: the options of the optimizer.
    #[must_use]
    pub fn options(mut self, options: impl IntoOptions<R>) -> Self {
        self.options = options.into_options();
        self.has_options = true;
        self
    }

    /// Takes the learning rate from a tensor with one floating-point element (`lr=torch.tensor(…)`). A captured step
    /// reads the tensor at each replay. [`set_lr`](super::Optimizer::set_lr) writes to it. Default: the learning rate
    /// in the options.
    #[must_use]
    pub fn lr_tensor(mut self, lr: &Tensor) -> Self {
        self.lr_tensor = Some(lr.clone());
        self
    }

    /// Returns the group with `defaults` as its options if it has none of its own.
    pub(super) fn or_options(mut self, defaults: &R) -> Self {
        if !self.has_options {
            self.options = defaults.clone();
        }
        self
    }

    /// Returns the parameters.
    #[must_use]
    pub fn params(&self) -> &[Tensor] {
        &self.params
    }

    /// Returns a setting by its name, or `initial_lr` after the creation of a scheduler.
    pub(super) fn setting(&self, name: &str) -> Option<f64> {
        if name == "initial_lr" {
            return self.initial_lr;
        }
        self.options.settings().into_iter().find(|(own, _)| *own == name).map(|(_, value)| value)
    }

    /// Changes a setting. Changing `lr` also updates the tensor of the learning rate, if the group has such a tensor.
    #[track_caller]
    pub(super) fn set_setting(&mut self, name: &str, value: f64) -> Result<()> {
        if name == "initial_lr" {
            self.initial_lr = Some(value);
        } else if !self.options.set(name, value) {
            return Err(Error::invalid(R::NAME, format!("there is no setting {name}")));
        }
        if let Some(lr) = self.lr_tensor.as_ref().filter(|_| name == "lr") {
            no_grad(|| lr.fill_(value).map(drop)).of(R::NAME)?;
        }
        Ok(())
    }

    /// Returns the settings for a saved state. `first` is the index of the group's first parameter.
    pub(super) fn save(&self, first: usize) -> GroupState {
        let settings = self.options.settings().into_iter();
        let mut settings: BTreeMap<String, f64> =
            settings.map(|(name, value)| (name.to_owned(), value)).collect();
        settings.extend(self.initial_lr.map(|lr| ("initial_lr".to_owned(), lr)));
        GroupState { settings, params: (first..first + self.params.len()).collect() }
    }

    /// Returns the group with the settings of a saved state. `index` is the group's number in messages.
    #[track_caller]
    pub(super) fn load(&self, index: usize, saved: &GroupState) -> Result<Self> {
        let location = Location::caller();
        let invalid = |reason: String| Error::invalid("load_state_dict", reason).at(location);
        let (own, given) = (self.params.len(), saved.params.len());
        if own != given {
            let reason =
                format!("group {index} has {own} parameters, but the state's group has {given}");
            return Err(invalid(reason));
        }
        let mut new = self.clone();
        for (name, &value) in &saved.settings {
            if name == "initial_lr" {
                new.initial_lr = Some(value);
            } else if !new.options.set(name, value) {
                return Err(invalid(format!("{} has no setting {name}", R::NAME)));
            }
        }
        new.options.check().map_err(invalid)?;
        Ok(new)
    }

    /// Checks the settings, and that each parameter is a leaf that appears once and was not replaced by a move.
    #[track_caller]
    pub(super) fn check(&self, earlier: &[Self]) -> Result<()> {
        let location = Location::caller();
        let invalid = |reason: String| Error::invalid(R::NAME, reason).at(location);
        self.options.check().map_err(invalid)?;
        if let Some(lr) = &self.lr_tensor
            && (lr.numel() != 1 || !lr.dtype().is_float())
        {
            let (sizes, dtype) = (lr.size(), lr.dtype());
            let reason = format!(
                "a learning rate is one float, but the tensor is of shape {sizes:?} and {dtype}"
            );
            return Err(invalid(reason));
        }
        if self.params.is_empty() {
            return Err(invalid("a group of parameters is empty".into()));
        }
        let known = || earlier.iter().flat_map(|group| &group.params);
        for (i, param) in self.params.iter().enumerate() {
            check_not_moved(R::NAME, param)?;
            if !param.is_leaf() {
                let reason =
                    format!("parameter {i} was computed from others: only leaves can be optimized");
                return Err(invalid(reason));
            }
            if known().chain(&self.params[..i]).any(|other| other.is_same(param)) {
                return Err(invalid(format!("parameter {i} of the group is already in a group")));
            }
        }
        Ok(())
    }
}
