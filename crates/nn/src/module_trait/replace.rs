//! Replaces the tensors of modules. A tensor with several names is replaced by one new tensor.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

#[cfg(doc)]
use warpline::ErrorKind;
use warpline::autograd::{check_not_moved, mark_moved, moved_to};
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

/// Replacements for a module's tensors, all computed before the first tensor is replaced. The key is [`Tensor::id`] of
/// the module's tensor.
pub(super) struct Replacements(HashMap<usize, Replacement>);

#[derive(Clone)]
struct Replacement {
    /// The module's tensor, or if a move of another module has replaced it, its replacement.
    present: Tensor,
    new: Tensor,
}

impl Replacements {
    /// Calls `f` once for each present parameter (`true`) and buffer (`false`), even if it has several names.
    ///
    /// # Errors
    /// Errors of `f`. [`ErrorKind::Moved`] if another module has converted a shared parameter to a dtype that `f` would
    /// convert again. The module still has the parameter's own values, and the conversion may have rounded them.
    pub(super) fn new(
        module: &(impl Module + ?Sized),
        f: impl Fn(bool, &Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        let mut members = Vec::new();
        module.visit(&mut Visitor::new(&mut |_, member| {
            let is_parameter = matches!(member, Member::Parameter(_));
            members.extend(member.tensor().map(|tensor| (is_parameter, tensor.clone())));
        }));
        let own: HashSet<usize> = members.iter().map(|(_, tensor)| tensor.id()).collect();
        let (mut of_present, mut replacements) = (HashMap::new(), HashMap::new());
        for (is_parameter, tensor) in &members {
            let present = moved_to(tensor).unwrap_or_else(|| tensor.clone());
            let replacement = match of_present.entry(present.id()) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => {
                    let mut new = f(*is_parameter, &present)?;
                    let is_converted = |from: &Tensor| from.dtype() != present.dtype();
                    if !own.contains(&present.id()) && is_converted(tensor) && is_converted(&new) {
                        check_not_moved("", tensor)?;
                    }
                    // If the parameter was moved, its replacement was dropped, and the module's own tensor already
                    // has the requested properties, create a new tensor: a moved tensor cannot be used.
                    if new.is_same(&present) && check_not_moved("", &present).is_err() {
                        new = like(&present, present.detach(), present.grad())?;
                    }
                    entry.insert(Replacement { present, new })
                }
            };
            replacements.insert(tensor.id(), replacement.clone());
        }
        Ok(Self(replacements))
    }

    /// Replaces the tensors that changed, and marks the old parameters as moved.
    pub(super) fn apply(self, module: &mut (impl Module + ?Sized)) {
        let mut marked = SeenTensors::default();
        module.visit_mut(&mut VisitorMut::new(&mut |name, mut member| {
            let Some(old) = member.tensor() else { return };
            let Some(Replacement { present, new }) = self.0.get(&old.id()) else { return };
            if new.is_same(old) {
                return;
            }
            if matches!(member, MemberMut::Parameter(_)) && marked.insert(present) {
                mark_moved(present, new, name);
            }
            member.replace(new.clone());
        }));
    }

    /// Puts the new tensors into a clone of the module. The module keeps its tensors.
    pub(super) fn give(self, clone: &mut (impl Module + ?Sized)) {
        clone.visit_mut(&mut VisitorMut::new(&mut |_, mut member| {
            let replacement = member.tensor().and_then(|tensor| self.0.get(&tensor.id()));
            if let Some(Replacement { new, .. }) = replacement {
                member.replace(new.clone());
            }
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
    let grad = tensor.grad().map(|grad| f(&grad.detach())).transpose()?;
    like(tensor, new, grad)
}

/// Returns a leaf with the given data and gradient. The leaf requires a gradient if `tensor` does.
fn like(tensor: &Tensor, data: Tensor, grad: Option<Tensor>) -> Result<Tensor> {
    // A frozen parameter keeps the gradient that it had.
    if !tensor.requires_grad() && grad.is_none() {
        return Ok(data);
    }
    let new = data.requires_grad_(true)?;
    if let Some(grad) = grad {
        new.set_grad(&grad)?;
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
