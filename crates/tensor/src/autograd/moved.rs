//! Parameters that a module has replaced with another tensor.
//!
//! `Module::to`, `share_memory` and `Parameter::set_data` replace a parameter's tensor and mark the old
//! tensor as moved. An optimizer that holds the old tensor then fails, instead of training it without
//! effect. Hooks transfer to the new tensor. Both tensors share one list (`LeafHooks`), so handles can
//! still remove the hooks. If a move changes nothing, the parameter keeps its tensor, which is not
//! marked.
//!
//! PyTorch exchanges the memory of the parameter instead. Here, that would need a lock on each use: a
//! tensor lends its sizes, strides and storage by reference, and graphs, saved tensors and launches
//! rely on these being immutable.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::meta::AutogradMeta;
use crate::tensor::TensorInner;
use crate::{ErrorKind, Result, Tensor};

/// The mark of a moved leaf.
pub(super) struct MovedMark {
    /// Name of the parameter when it was first moved.
    name: Arc<str>,
    /// The tensor that last replaced the leaf, directly or by further moves.
    replacement: Mutex<Weak<TensorInner>>,
}

impl MovedMark {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.into(), replacement: Mutex::default() }
    }

    pub(super) fn set_replacement(&self, tensor: &Tensor) {
        let new = Arc::downgrade(tensor.inner());
        *self.replacement.lock().unwrap_or_else(PoisonError::into_inner) = new;
    }
}

/// Marks the leaf `old` as moved: from now on `new` has its place in a module, under the name `name`. Hooks of
/// `old` also become hooks of `new`, and their handles still remove them.
///
/// From then on, accumulating or setting a gradient of `old`, a new hook on `old`, `requires_grad_(true)` and
/// [`check_not_moved`] fail with [`ErrorKind::Moved`]. So an optimizer that holds `old` fails instead of training it
/// without effect. `old` stays marked under its first name; marking it again only changes its replacement,
/// [`moved_to`].
///
/// `Module::to`, `Module::share_memory` and `Parameter::set_data` of `warpline-nn` call this function. A program needs
/// it only for its own kinds of modules.
///
/// ```
/// use warpline::autograd::{check_not_moved, mark_moved};
/// use warpline::{DType, ones};
///
/// let old = ones([2], ())?.requires_grad_(true)?;
/// let new = old.detach().to(DType::F64)?.requires_grad_(true)?;
/// mark_moved(&old, &new, "weight");
/// let error = old.sum(())?.backward().unwrap_err();
/// assert!(error.to_string().contains("`weight` was moved"));
/// assert!(check_not_moved("step", &old).is_err() && check_not_moved("step", &new).is_ok());
/// # Ok::<(), warpline::Error>(())
/// ```
pub fn mark_moved(old: &Tensor, new: &Tensor, name: &str) {
    if !old.is_same(new) {
        AutogradMeta::of(old).mark_moved(name, new);
    }
}

/// Returns the tensor that replaced `leaf` in its module, after all moves. `None` if `leaf` was not moved, or if its
/// replacement no longer exists.
///
/// `Module::to` and `Module::share_memory` of `warpline-nn` call this function, so that modules which share a parameter
/// still share it after each of them was moved.
#[must_use]
pub fn moved_to(leaf: &Tensor) -> Option<Tensor> {
    let replacement = &leaf.moved()?.replacement;
    let inner = replacement.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
    inner.map(Tensor::from_inner)
}

/// Checks that no module has replaced `leaf` with another tensor.
///
/// # Errors
/// [`ErrorKind::Moved`] of the op `op` if [`mark_moved`] was called with `leaf` as the old tensor.
#[track_caller]
pub fn check_not_moved(op: &'static str, leaf: &Tensor) -> Result<()> {
    let Some(mark) = leaf.moved() else { return Ok(()) };
    Err(ErrorKind::Moved { name: mark.name.clone() }.of(op))
}
