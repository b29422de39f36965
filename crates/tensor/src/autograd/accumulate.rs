//! Accumulation of a leaf's gradient.

use super::meta::AutogradMeta;
use super::mode;
use crate::{Result, Tensor};

/// Adds `grad` to a leaf's gradient. The first gradient is stored without a copy if it has no other owner and
/// the expected strides. Later gradients are added in place, unless the sum is recorded (`create_graph`). The
/// caller checks that the leaf was not moved, and sets the op of errors.
pub(super) fn accumulate(leaf: &Tensor, grad: Tensor, create_graph: bool) -> Result<()> {
    let meta = AutogradMeta::of(leaf);
    let grad = if create_graph { grad } else { without_base(grad) };
    // Declared before the lock, so that an early return drops the gradient after the lock.
    let former;
    // Backward passes of other threads may accumulate into the same leaf.
    let lock = meta.accumulating();
    former = meta.grad();
    let sum = match &former {
        None if has_leaf_strides(leaf, &grad) && grad.is_unique() => grad.clone(),
        None => {
            let own = leaf.empty_like(())?;
            own.copy_(&grad, ())?;
            own
        }
        Some(former) if create_graph => former.add(&grad)?,
        Some(former) => {
            mode::no_grad(|| former.add_(&grad).map(drop))?;
            former.clone()
        }
    };
    let replaced = meta.replace_grad(Some(sum));
    // Dropping gradients may run user code, which must not run under the lock.
    drop(lock);
    drop((former, replaced, grad));
    Ok(())
}

/// Returns `grad`, or for a view, a tensor on the same memory without a handle to the view's base. Only a gradient
/// without a base can be the only owner of its memory.
fn without_base(grad: Tensor) -> Tensor {
    if grad.base().is_some() { grad.with_layout(grad.layout().clone()) } else { grad }
}

/// Returns whether a gradient has the strides that PyTorch gives a leaf's gradient: the strides of the leaf if the leaf
/// is dense, otherwise row-major strides.
fn has_leaf_strides(leaf: &Tensor, grad: &Tensor) -> bool {
    if leaf.layout().is_dense() {
        grad.stride() == leaf.layout().preserved().strides()
    } else {
        grad.is_contiguous()
    }
}
