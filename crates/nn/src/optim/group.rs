//! Parameters that have their settings in common.

use std::panic::Location;

use warpline::autograd::check_not_moved;
use warpline::{Error, Result, Tensor};

use super::rule::Rule;

/// Parameters with the settings of their own (an entry of `param_groups`).
#[derive(Clone, Debug)]
pub struct ParamGroup<R> {
    params: Vec<Tensor>,
    /// Their settings, which may be changed between steps.
    pub options: R,
    /// The learning rate in memory of the parameters' device, if it is to be changed between replays of a step that
    /// was captured. It goes before the one among the options.
    pub(super) lr_tensor: Option<Tensor>,
    /// The learning rate that schedulers began with.
    pub(super) initial_lr: Option<f64>,
}

impl<R: Rule> ParamGroup<R> {
    /// A group.
    #[must_use]
    pub fn new(params: Vec<Tensor>, options: R) -> Self {
        Self { params, options, lr_tensor: None, initial_lr: None }
    }

    /// A group whose learning rate is in the one element of a tensor (`lr=torch.tensor(…)`): a step that was captured into a
    /// graph reads it at each replay. [`set_lr`](super::Optimizer::set_lr) writes it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) for a tensor of several elements or of integers.
    #[track_caller]
    pub fn with_lr_tensor(mut self, lr: Tensor) -> Result<Self> {
        if lr.numel() != 1 || !lr.dtype().is_float() {
            let reason = format!(
                "a learning rate is one float, but the tensor is of shape {:?} and {}",
                lr.size(),
                lr.dtype()
            );
            return Err(Error::invalid(R::NAME, reason));
        }
        self.lr_tensor = Some(lr);
        Ok(self)
    }

    /// The parameters.
    #[must_use]
    pub fn params(&self) -> &[Tensor] {
        &self.params
    }

    /// The learning rate's tensor, if it has one.
    #[must_use]
    pub fn lr_tensor(&self) -> Option<&Tensor> {
        self.lr_tensor.as_ref()
    }

    /// Refuses what cannot be optimized.
    #[track_caller]
    pub(super) fn check(&self, earlier: &[Self]) -> Result<()> {
        let location = Location::caller();
        let invalid = |reason: String| Error::invalid(R::NAME, reason).at(location);
        self.options.check().map_err(invalid)?;
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
                return Err(invalid(format!("parameter {i} of a group was given before")));
            }
        }
        Ok(())
    }
}
