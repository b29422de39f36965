//! Replaced tensors of modules: each tensor once, also if it has several names.

use std::collections::{HashMap, HashSet};

use warpline::autograd::{mark_moved, moved_to};
use warpline::{Device, MemoryFormat, Result, Tensor, TensorOptions};

use super::{Member, MemberMut, Module, Visitor, VisitorMut};

/// The set of tensors that a visit has seen. Tensors that share memory are different, as in PyTorch.
#[derive(Default)]
pub(super) struct SeenTensors(HashSet<usize>);

impl SeenTensors {
    /// Adds a tensor. Returns `true` if it is new.
    pub(super) fn insert(&mut self, tensor: &Tensor) -> bool {
        self.0.insert(tensor.id())
    }
}

/// Replacements for a module's tensors by [`Tensor::id`], all computed before the first tensor is replaced.
pub(super) struct Replacements(HashMap<usize, Tensor>);

impl Replacements {
    /// Computes the replacement of each parameter (`true`) and each buffer (`false`) with `f`. A tensor with several
    /// names is replaced once. If another module has already replaced a shared parameter, `f` gets that replacement.
    pub(super) fn new(
        module: &(impl Module + ?Sized),
        f: impl Fn(bool, &Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        let (mut new, mut failed) = (HashMap::new(), None);
        module.visit(&mut Visitor::new(&mut |_, member| {
            let Some(tensor) = member.tensor() else { return };
            if failed.is_some() || new.contains_key(&tensor.id()) {
                return;
            }
            let present = moved_to(tensor);
            match f(matches!(member, Member::Parameter(_)), present.as_ref().unwrap_or(tensor)) {
                Ok(other) => drop(new.insert(tensor.id(), other)),
                Err(error) => failed = Some(error),
            }
        }));
        failed.map_or(Ok(Self(new)), Err)
    }

    /// Replaces the tensors that changed, and marks the old parameters as moved.
    pub(super) fn apply(self, module: &mut (impl Module + ?Sized)) {
        module.visit_mut(&mut VisitorMut::new(&mut |name, mut member| {
            let Some(old) = member.tensor() else { return };
            let Some(new) = self.0.get(&old.id()) else { return };
            if new.is_same(old) {
                return;
            }
            if matches!(member, MemberMut::Parameter(_)) {
                mark_moved(moved_to(old).as_ref().unwrap_or(old), new, name);
            }
            member.replace(new.clone());
        }));
    }
}

/// Applies `f` to a tensor's data and to its gradient, if there is one. The result requires a gradient if the tensor
/// does. Returns the tensor itself if `f` changes nothing.
pub(super) fn replacement(
    tensor: &Tensor,
    f: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let data = tensor.detach();
    let new = f(&data)?;
    if new.is_same(&data) {
        return Ok(tensor.clone());
    }
    // A frozen parameter keeps the gradient that it had.
    let grad = tensor.grad();
    if !tensor.requires_grad() && grad.is_none() {
        return Ok(new);
    }
    let new = new.requires_grad_(true)?;
    if let Some(grad) = grad {
        new.set_grad(&f(&grad.detach())?)?;
    }
    new.requires_grad_(tensor.requires_grad())
}

/// Returns the part of a module's options that applies to one of its tensors.
pub(super) fn options_for_tensor(
    options: &TensorOptions,
    device: Option<Device>,
    tensor: &Tensor,
) -> TensorOptions {
    let mut own = TensorOptions::new().pin_memory(options.pins_memory());
    if let Some(device) = device {
        own = own.device(device);
    }
    if let Some(dtype) = options.requested_dtype().filter(|_| tensor.dtype().is_float()) {
        own = own.dtype(dtype);
    }
    let dimensions = match options.requested_memory_format() {
        Some(MemoryFormat::ChannelsLast) => tensor.dim() == 4,
        Some(MemoryFormat::ChannelsLast3d) => tensor.dim() == 5,
        _ => true,
    };
    if let Some(format) = options.requested_memory_format().filter(|_| dimensions) {
        own = own.memory_format(format);
    }
    own
}
