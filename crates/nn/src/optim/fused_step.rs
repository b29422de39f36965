//! Updates of several parameters in one launch.
//!
//! Contiguous parameters of the same device and dtype, each with fewer than 2³¹ elements, are updated in launches of
//! sixteen. Some rules separate them further: Adam does so by step count. The kernels of `warpline_kernels::optim` take
//! each tensor as a separate operand, so ordering and race detection work as for any op. Other parameters are updated
//! with tensor ops, which compute the same formula.

use warpline::{DType, Device, Result, Tensor};
use warpline_kernels::optim::{self as kernels, Tensors};

use super::rule::Slot;

/// Tensors of a [`GradScaler`](crate::amp::GradScaler) that a step reads in device memory.
#[derive(Clone, Debug)]
pub struct GradScaling {
    /// 1 if a gradient is infinite or NaN: the step then changes nothing. Otherwise 0. `[]`, `float32`.
    pub found_inf: Tensor,
    /// Divides the gradients in place before the step. `[]`, `float32`. `None`: the gradients are not scaled.
    pub grad_scale: Option<Tensor>,
}

/// Parameters with the same device, dtype and `K`, which the kernels update in launches of sixteen.
pub(super) struct Bucket<'a, 'p, K> {
    key: (Device, DType, K),
    pub(super) slots: Vec<&'a mut Slot<'p>>,
}

impl<K> Bucket<'_, '_, K> {
    pub(super) fn key(&self) -> &K {
        &self.key.2
    }

    pub(super) fn device(&self) -> Device {
        self.key.0
    }

    /// Runs the step. `rates` are the values that the kernel reads from device memory.
    #[track_caller]
    pub(super) fn run(
        &self,
        rule: &kernels::UpdateRule,
        rates: Option<&Tensor>,
        scaling: Option<&GradScaling>,
    ) -> Result<()> {
        let Some(first) = self.slots.first() else { return Ok(()) };
        let tensors = self.slots.iter().map(|slot| {
            let [a, b, c] = &slot.state.tensors;
            Tensors {
                param: slot.param.as_view(),
                grad: Some(slot.grad.as_view()),
                state: [a, b, c].map(|tensor| tensor.as_ref().map(Tensor::as_view)),
            }
        });
        let tensors: Vec<Tensors<'_>> = tensors.collect();
        let exec = first.param.exec()?;
        let on_device = |tensor: &Tensor| tensor.to(self.device());
        let found_inf = scaling.map(|scaling| on_device(&scaling.found_inf)).transpose()?;
        let grad_scale = scaling.and_then(|scaling| scaling.grad_scale.as_ref());
        let grad_scale = grad_scale.map(on_device).transpose()?;
        let scaling = found_inf.as_ref().map(|found_inf| kernels::GradScaling {
            found_inf: found_inf.as_view(),
            grad_scale: grad_scale.as_ref().map(Tensor::as_view),
        });
        kernels::step(exec.target(), rule, &tensors, rates.map(Tensor::as_view), scaling)
    }
}

/// Returns whether the kernels take the tensor.
pub(super) fn fits(tensor: &Tensor) -> bool {
    kernels::takes(tensor.as_view())
}

/// Groups parameters by device, dtype and `key`. Returns the groups and the parameters that need tensor ops.
pub(super) fn buckets<'a, 'p, K: PartialEq>(
    slots: &'a mut [Slot<'p>],
    key: impl Fn(&Slot<'p>) -> K,
) -> (Vec<Bucket<'a, 'p, K>>, Vec<&'a mut Slot<'p>>) {
    let (mut buckets, mut others): (Vec<Bucket<'a, 'p, K>>, Vec<_>) = (Vec::new(), Vec::new());
    for slot in slots {
        if !(fits(slot.param) && fits(&slot.grad) && slot.state.tensors.iter().flatten().all(fits))
        {
            others.push(slot);
            continue;
        }
        let key = (slot.param.device(), slot.param.dtype(), key(slot));
        match buckets.iter_mut().find(|bucket| bucket.key == key) {
            Some(bucket) => bucket.slots.push(slot),
            None => buckets.push(Bucket { key, slots: vec![slot] }),
        }
    }
    (buckets, others)
}

/// Converts a learning rate to the form that the kernels read: `float64`, `[1]`, on `device`.
#[track_caller]
pub(super) fn rate(lr: &Tensor, device: Device) -> Result<Tensor> {
    lr.to((DType::F64, device))?.reshape([1])
}
