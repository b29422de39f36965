//! Parameters that a module has replaced with another tensor.
//!
//! `Module::to`, `share_memory` and `Parameter::set_data` put a new tensor in a parameter's place
//! and mark the old one as moved, so that an optimizer that holds the old tensor fails instead of
//! training it without effect. Hooks go over to the new tensor: both share one list (`LeafHooks`),
//! so handles still remove them. A parameter that a move leaves as it is stays the same tensor and
//! is not marked.
//!
//! PyTorch exchanges the memory of the parameter instead. Here that would need a lock on each use:
//! a tensor lends out its sizes, strides and storage by reference, and graphs, saved tensors and
//! launches rely on all three staying as they are.

use super::meta::Meta;
use crate::{ErrorKind, Result, Tensor};

/// Marks the leaf `old` as moved: from now on `new` has its place in a module, under the name `name`. Hooks of
/// `old` go to `new`, where their handles remove them.
///
/// From then on, a gradient that arrives at `old`, a new hook on it, and [`check_not_moved`] fail with
/// [`ErrorKind::Moved`]. So an optimizer that holds `old` fails instead of training it without effect. `old`
/// stays marked; marking it again has no effect.
///
/// `Module::to` of `warpline-nn` calls this function. A program needs it only for its own kinds of modules.
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
        Meta::of(old).mark_moved(name.into(), Meta::of(new));
    }
}

/// Checks that no module has replaced `leaf` with another tensor.
///
/// # Errors
/// [`ErrorKind::Moved`] of the op `op` if [`mark_moved`] was called with `leaf` as the old tensor.
#[track_caller]
pub fn check_not_moved(op: &'static str, leaf: &Tensor) -> Result<()> {
    let Some(name) = leaf.moved() else { return Ok(()) };
    Err(ErrorKind::Moved { name: name.clone() }.of(op))
}
