//! Modules: named parameters and buffers that are moved, trained and saved together.
//!
//! [`Module`] has two required methods, `visit` and `visit_mut`, which show each member (a `Parameter`, a `Buffer` or a
//! `Training` flag) with its name to a visitor. The derive macro writes both methods, with one line per field in
//! declaration order. All other methods are built on these two. A visit cannot fail: operations that can fail run
//! before or after the visit, on the collected members.
//!
//! Settings (numbers, `bool`, `String`) are modules without members, so only fields of other types need an attribute. A
//! plain `Tensor` is not a module, so that no tensor is forgotten.
//!
//! Invariant: a parameter with several names stays one parameter. Two parameters are the same if their elements have
//! the same addresses (`TensorIdentity`), as in replicas. `parameters` lists such a parameter once, `state_dict` lists
//! it under each name, and `to` and `share_memory` make one copy of it.
//!
//! Invariant: a state with mismatched names or shapes changes nothing. `load_state_dict` first compares all names and
//! shapes. Then it copies into the module's own tensors, so an optimizer's references to the parameters stay valid.

mod apply;
mod fields;
mod state;
mod visitor;

use std::collections::{HashMap, HashSet};
use std::panic::Location;

use warpline::autograd::mark_moved;
use warpline::{DType, Device, Error, ErrorKind, MemoryFormat, Result, Tensor, TensorOptions};

pub use apply::Apply;
pub use state::{LoadError, Mismatch, StateDict};
pub use visitor::{Member, MemberMut, Visitor, VisitorMut};

/// A neural network or a layer (`torch.nn.Module`): usually a plain struct with `#[derive(Module)]`.
///
/// ```
/// use warpline::{Result, Tensor};
/// use warpline_nn::{Linear, Module};
///
/// #[derive(Clone, Debug, Module)]
/// struct Mlp {
///     fc1: Linear,
///     fc2: Linear,
/// }
///
/// impl Mlp {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         self.fc2.forward(&self.fc1.forward(x)?.relu()?)
///     }
/// }
///
/// let net = Mlp { fc1: Linear::new(4, 8, ())?, fc2: Linear::new(8, 2, ())? };
/// let names: Vec<String> = net.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// The derive macro accepts these types of fields:
///
/// - [`Parameter`](crate::Parameter), [`Buffer`](crate::Buffer), [`Training`](crate::Training), and other modules;
/// - `Option`, `Vec` (`ModuleList`), `BTreeMap<String, _>` (`ModuleDict`), arrays, and tuples of these;
/// - settings (numbers, `bool`, `String`), which are not members;
/// - any other type, if the field is marked `#[module(skip)]`.
///
/// A plain `Tensor` must be wrapped in `Parameter` or `Buffer`, or skipped. `#[module(name = "…")]` renames a field.
///
/// Members are in the order of the fields. A visit shows a parameter with two names under both names. The methods below
/// treat it as one parameter.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no module",
    label = "a module's field is a module, `Parameter`, `Buffer`, or an `Option`, `Vec` or array of those",
    note = "wrap a `Tensor` in `Parameter::new` or `Buffer::new`; mark a field that is none with `#[module(skip)]`"
)]
pub trait Module {
    /// Shows all members to `visitor`, always in the same order.
    fn visit(&self, visitor: &mut Visitor<'_>);

    /// Shows all members to `visitor`, which may replace them. The order is that of [`Module::visit`].
    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>);

    /// Returns all parameters with their names (`named_parameters`). A parameter with several names appears once, under
    /// the first name.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        let mut all = Vec::new();
        let mut seen = SeenTensors::default();
        self.visit(&mut Visitor::new(&mut |name, member| {
            if let Member::Parameter(parameter) = member
                && seen.insert(parameter)
            {
                all.push((name.to_owned(), Tensor::clone(parameter)));
            }
        }));
        all
    }

    /// Returns all buffers with their names (`named_buffers`). A buffer with several names appears once, under the
    /// first name.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        let mut all = Vec::new();
        let mut seen = SeenTensors::default();
        self.visit(&mut Visitor::new(&mut |name, member| {
            if let Member::Buffer(buffer) = member
                && seen.insert(buffer)
            {
                all.push((name.to_owned(), Tensor::clone(buffer)));
            }
        }));
        all
    }

    /// Returns all parameters (`parameters`), each once.
    fn parameters(&self) -> Vec<Tensor> {
        self.named_parameters().into_iter().map(|(_, tensor)| tensor).collect()
    }

    /// Returns all buffers (`buffers`), each once.
    fn buffers(&self) -> Vec<Tensor> {
        self.named_buffers().into_iter().map(|(_, tensor)| tensor).collect()
    }

    /// Sets the training flags of the module and all its members (`module.train(mode)`).
    fn set_training(&mut self, training: bool) {
        self.visit_mut(&mut VisitorMut::new(&mut |_, member| {
            if let MemberMut::Training(flag) = member {
                flag.set(training);
            }
        }));
    }

    /// Switches to training mode (`module.train()`).
    fn train(&mut self) {
        self.set_training(true);
    }

    /// Switches to evaluation mode (`module.eval()`): dropout does nothing, and batch norm uses its running statistics.
    fn eval(&mut self) {
        self.set_training(false);
    }

    /// Returns all parameters and persistent buffers by name (`state_dict`). The tensors share the module's memory and
    /// do not require gradients.
    fn state_dict(&self) -> StateDict {
        let mut all = StateDict::new();
        self.visit(&mut Visitor::new(&mut |name, member| match member {
            Member::Parameter(parameter) => all.push(name, parameter),
            Member::Buffer(buffer) if buffer.is_persistent() => all.push(name, buffer),
            _ => {}
        }));
        all
    }

    /// Copies the tensors of `state` into the module's tensors of the same names (`load_state_dict`), converted to the
    /// module's dtypes and devices. If `strict`, the module and `state` must have the same names. Nothing is copied
    /// unless all names and shapes fit.
    ///
    /// # Errors
    /// [`ErrorKind::LoadState`](warpline::ErrorKind::LoadState) with a [`LoadError`] as its source:
    /// [`LoadError::Differs`] if shapes differ or, with `strict`, names are missing or unexpected; [`LoadError::Copy`]
    /// if a copy fails.
    #[track_caller]
    fn load_state_dict(&mut self, state: &StateDict, strict: bool) -> Result<()> {
        state::load(&self.state_dict(), state, strict)
    }

    /// Removes the gradients of all parameters (`zero_grad`).
    ///
    /// # Errors
    /// Errors of [`Parameter::set_grad`](crate::Parameter), which accepts `None` for every parameter.
    #[track_caller]
    fn zero_grad(&self) -> Result<()> {
        self.parameters().iter().try_for_each(|parameter| parameter.set_grad(None))
    }

    /// Sets whether the parameters require gradients (`module.requires_grad_`).
    ///
    /// # Errors
    /// The same as [`Tensor::requires_grad_`].
    #[track_caller]
    fn requires_grad_(&self, requires_grad: bool) -> Result<()> {
        for parameter in self.parameters() {
            parameter.requires_grad_(requires_grad)?;
        }
        Ok(())
    }

    /// Moves all parameters and buffers to a device, a dtype or a memory format (`Module.to`). The dtype applies to
    /// floating-point tensors; a memory format applies to tensors with its number of dimensions (4 or 5). If a tensor
    /// cannot be converted, the module stays unchanged.
    ///
    /// Build the optimizer after the move. A parameter that already has the requested properties stays the same tensor.
    /// The other parameters are replaced, unlike in PyTorch: their hooks and gradients pass to the new tensors, tied
    /// parameters stay tied, and the old tensors are marked as moved. An optimizer step on an old tensor, a new hook on
    /// it, and a gradient that arrives there fail with [`ErrorKind::Moved`]. A clone of the module also has the old
    /// tensors. To train both, first give one of them new parameters
    /// (`net.weight = Parameter::new(net.weight.copy()?)?`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the dtype is not floating point; errors of [`Tensor::to`].
    #[track_caller]
    fn to(&mut self, options: impl Into<TensorOptions>) -> Result<()>
    where
        Self: Sized,
    {
        let options = options.into();
        if let Some(dtype) = options.requested_dtype()
            && !dtype.is_float()
        {
            let reason = format!("a module's dtype is that of a float, not {dtype}");
            return Err(Error::invalid("Module::to", reason));
        }
        let location = Location::caller();
        let device = options.requested_device().map_err(|e| e.of("Module::to"))?;
        let moved = Replacements::new(self, |_, tensor| {
            replacement(tensor, |t| t.to(options_for_tensor(&options, device, tensor)))
        });
        moved.map_err(|e| e.of("Module::to").at(location))?.apply(self);
        Ok(())
    }

    /// Moves all parameters into memory that `warpline::multiprocessing` can share with other processes. Replaces
    /// parameters in the same way as [`Module::to`]. If a parameter cannot be shared, the module stays unchanged.
    ///
    /// # Errors
    /// [`ErrorKind::CannotShare`] if a parameter is on the host, because ops on shared host memory are refused; errors
    /// of [`Tensor::share_memory`].
    #[track_caller]
    fn share_memory(&mut self) -> Result<()> {
        let location = Location::caller();
        for (name, parameter) in self.named_parameters() {
            if !parameter.is_cuda() {
                let reason = "a parameter is on the host, where ops on shared memory are refused; \
                              move the module to a GPU first, or share tensors one by one";
                let reason = format!("{name}: {reason}");
                return Err(ErrorKind::CannotShare { reason }.of("share_memory").at(location));
            }
        }
        let shared = Replacements::new(self, |is_parameter, tensor| match is_parameter {
            true => replacement(tensor, Tensor::share_memory),
            false => Ok(tensor.clone()),
        });
        shared.map_err(|e| e.at(location))?.apply(self);
        Ok(())
    }
}

/// The forward pass of a module, for generic callers such as `DataParallel` and [`Sequential`](crate::Sequential).
/// `Input` is a tuple if there are several inputs.
pub trait Forward<Input> {
    /// The result of the forward pass.
    type Output;

    /// Computes the output. Buffers, such as running statistics, are updated in place.
    ///
    /// # Errors
    /// The errors of the ops in the module ([errors of every op](Tensor#errors-of-every-op)), such as
    /// [`ErrorKind::ShapeMismatch`] if the input does not fit the parameters. Each module's own `forward` lists its
    /// errors.
    fn forward(&self, input: Input) -> Result<Self::Output>;
}

/// The identity of a tensor: address, dtype, sizes, strides, and whether the tensor requires a gradient. The last part
/// distinguishes a parameter from a buffer in the same memory.
type TensorIdentity = (u64, DType, Vec<usize>, Vec<isize>, bool);

fn identity(tensor: &Tensor) -> TensorIdentity {
    let (size, stride) = (tensor.size().to_vec(), tensor.stride().to_vec());
    // On a GPU, all tensors without elements have the same address.
    let address = match tensor.numel() {
        0 => tensor.storage().key() as u64,
        _ => tensor.data_ptr(),
    };
    (address, tensor.dtype(), size, stride, tensor.requires_grad())
}

/// The set of tensors that a visit has seen.
#[derive(Default)]
struct SeenTensors(HashSet<TensorIdentity>);

impl SeenTensors {
    /// Adds a tensor. Returns `true` if it is new.
    fn insert(&mut self, tensor: &Tensor) -> bool {
        self.0.insert(identity(tensor))
    }
}

/// Replacements for a module's tensors, all computed before the first tensor is replaced.
struct Replacements(HashMap<TensorIdentity, Tensor>);

impl Replacements {
    /// Calls `f` once for each parameter (`true`) and each buffer (`false`), even if it has several names.
    fn new(
        module: &(impl Module + ?Sized),
        f: impl Fn(bool, &Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        let (mut new, mut failed) = (HashMap::new(), None);
        module.visit(&mut Visitor::new(&mut |_, member| {
            let Some(tensor) = member.tensor() else { return };
            if failed.is_some() || new.contains_key(&identity(tensor)) {
                return;
            }
            match f(matches!(member, Member::Parameter(_)), tensor) {
                Ok(other) => drop(new.insert(identity(tensor), other)),
                Err(error) => failed = Some(error),
            }
        }));
        failed.map_or(Ok(Self(new)), Err)
    }

    /// Replaces the tensors that changed, and marks the old parameters as moved.
    fn apply(self, module: &mut (impl Module + ?Sized)) {
        module.visit_mut(&mut VisitorMut::new(&mut |name, mut member| {
            let Some(old) = member.tensor() else { return };
            let old_identity = identity(old);
            let Some(new) = self.0.get(&old_identity) else { return };
            // An unchanged tensor keeps its identity, even if other tensors share its memory.
            if identity(new) == old_identity {
                return;
            }
            if matches!(member, MemberMut::Parameter(_)) {
                mark_moved(old, new, name);
            }
            member.replace(new.clone());
        }));
    }
}

/// Applies `f` to a tensor's data and to its gradient, if there is one. The result requires a gradient if the tensor
/// does. Returns the tensor itself if `f` changes nothing.
fn replacement(tensor: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let data = tensor.detach();
    let new = f(&data)?;
    if identity(&new) == identity(&data) {
        return Ok(tensor.clone());
    }
    if !tensor.requires_grad() {
        return Ok(new);
    }
    let new = new.requires_grad_(true)?;
    if let Some(grad) = tensor.grad() {
        new.set_grad(Some(f(&grad.detach())?))?;
    }
    Ok(new)
}

/// Returns the part of a module's options that applies to one of its tensors.
fn options_for_tensor(
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
