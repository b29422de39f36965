//! Accumulation of a leaf's gradient.

use super::meta::Meta;
use super::mode;
use super::moved::check_not_moved;
use crate::{Result, Tensor};

/// Adds to a leaf's gradient. The first gradient is stored itself if it has no other owner and the leaf's
/// strides. Later gradients are added in place, unless the sum is recorded. The caller adds its name to errors.
pub(super) fn accumulate(leaf: &Tensor, grad: Tensor, create_graph: bool) -> Result<()> {
    check_not_moved("", leaf)?;
    let meta = Meta::of(leaf);
    let grad = if create_graph { grad } else { without_base(grad) };
    // Declared before the lock, so that an error drops it after the lock.
    let former;
    // Passes of other threads may add a gradient to the same leaf.
    let lock = meta.accumulating();
    former = meta.grad();
    let sum = match &former {
        None if lies_alike(leaf, &grad) && grad.is_unique() => grad.clone(),
        None => {
            let own = leaf.empty_like(())?;
            own.copy_(&grad, false)?;
            own
        }
        Some(former) if create_graph => former.add(&grad)?,
        Some(former) => {
            mode::no_grad(|| former.add_(&grad).map(drop))?;
            former.clone()
        }
    };
    let replaced = meta.replace_grad(Some(sum));
    // Dropping gradients may run code of the program.
    drop(lock);
    drop((former, replaced, grad));
    Ok(())
}

/// Drops the base of a view, so that the view may be the only owner of the memory.
fn without_base(grad: Tensor) -> Tensor {
    if grad.base().is_some() { grad.with_layout(grad.layout().clone()) } else { grad }
}

fn lies_alike(leaf: &Tensor, grad: &Tensor) -> bool {
    if leaf.layout().is_dense() {
        grad.stride() == leaf.layout().preserved().strides()
    } else {
        grad.is_contiguous()
    }
}
