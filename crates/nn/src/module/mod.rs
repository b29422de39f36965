//! Modules: parameters and buffers under names, which move, train and are saved together.
//!
//! [`Module`] has two required methods, `visit` and `visit_mut`, which show each member (a
//! `Parameter`, a `Buffer` or a `Training` flag) to a visitor under its name. The derive macro
//! writes both, one line for each field in the order of the fields. Everything else is built on
//! them. A visit cannot fail: operations that can fail run before or after it, on the collected
//! members.
//!
//! Settings (numbers, `bool`, `String`) are modules without members, so only fields of other types
//! have to be marked. A plain `Tensor` is not a module, so that no tensor is forgotten.
//!
//! Invariant: one parameter under several names remains one. Parameters are the same if their
//! elements lie at the same place (`Known`), as in replicas. `parameters` lists it once,
//! `state_dict` under each name, and `to` and `share_memory` make one copy of it.
//!
//! Invariant: a state is loaded entirely or not at all. All names and shapes are compared first.
//! Then tensors are copied into the module's own tensors, so an optimizer keeps the tensors that it
//! has.

mod fields;
mod state;
mod visitor;

use std::collections::HashMap;
use std::panic::Location;

use warpline::autograd::mark_moved;
use warpline::{DType, Device, Error, ErrorKind, MemoryFormat, Result, Tensor, TensorOptions};

pub use state::{LoadError, Mismatch, StateDict};
pub use visitor::{Member, MemberMut, Visitor, VisitorMut};

/// Something with parameters (`torch.nn.Module`): a plain struct, mostly with `#[derive(Module)]`.
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
/// A field is a [`Parameter`](crate::Parameter), a [`Buffer`](crate::Buffer), a
/// [`Training`](crate::Training) flag, another module, `Option`, `Vec` (`ModuleList`),
/// `BTreeMap<String, _>` (`ModuleDict`), an array or a tuple of these, or a setting (a number, a `bool`,
/// a `String`), which is left alone. Fields of other types are marked `#[module(skip)]`; `#[module(name = "…")]`
/// gives a field another name. A plain `Tensor` has to be made one of the former two, or skipped.
///
/// Members come in the order of the fields. One parameter under two names is shown under both, and
/// remains one whatever is done with the module.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no module",
    label = "a module's field is a module, `Parameter`, `Buffer`, or an `Option`, `Vec` or array of those",
    note = "wrap a `Tensor` in `Parameter::new` or `Buffer::new`; mark a field that is none with `#[module(skip)]`"
)]
pub trait Module {
    /// Shows all members to `visitor`, in a fixed order.
    fn visit(&self, visitor: &mut Visitor<'_>);

    /// Shows all members to `visitor`, which may exchange them, in the order of [`Module::visit`].
    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>);

    /// Every parameter with its name (`named_parameters`). One with several names is there once, under the first.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        let mut all = Vec::new();
        let mut known = Known::default();
        self.visit(&mut Visitor::new(&mut |name, member| {
            if let Member::Parameter(parameter) = member
                && known.is_new(parameter)
            {
                all.push((name.to_owned(), Tensor::clone(parameter)));
            }
        }));
        all
    }

    /// Every buffer with its name (`named_buffers`). One with several names is there once, under the first.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        let mut all = Vec::new();
        let mut known = Known::default();
        self.visit(&mut Visitor::new(&mut |name, member| {
            if let Member::Buffer(buffer) = member
                && known.is_new(buffer)
            {
                all.push((name.to_owned(), Tensor::clone(buffer)));
            }
        }));
        all
    }

    /// Every parameter (`parameters`), each once.
    fn parameters(&self) -> Vec<Tensor> {
        self.named_parameters().into_iter().map(|(_, tensor)| tensor).collect()
    }

    /// Every buffer (`buffers`), each once.
    fn buffers(&self) -> Vec<Tensor> {
        self.named_buffers().into_iter().map(|(_, tensor)| tensor).collect()
    }

    /// Sets whether the module and all its members are in training (`module.train(mode)`).
    fn set_training(&mut self, training: bool) {
        self.visit_mut(&mut VisitorMut::new(&mut |_, member| {
            if let MemberMut::Training(flag) = member {
                flag.set(training);
            }
        }));
    }

    /// Into training (`module.train()`).
    fn train(&mut self) {
        self.set_training(true);
    }

    /// Out of training (`module.eval()`): dropout does nothing, batch norm uses what it has seen.
    fn eval(&mut self) {
        self.set_training(false);
    }

    /// All parameters and persistent buffers, under their names (`state_dict`). The tensors have the
    /// module's own memory, and want no gradient.
    fn state_dict(&self) -> StateDict {
        let mut all = StateDict::new();
        self.visit(&mut Visitor::new(&mut |name, member| match member {
            Member::Parameter(parameter) => all.push(name, parameter),
            Member::Buffer(buffer) if buffer.is_persistent() => all.push(name, buffer),
            _ => {}
        }));
        all
    }

    /// Copies tensors into the module's own, by name (`load_state_dict`), converted to their dtype and
    /// device. With `strict`, both must have the same names. Nothing is copied if anything does not fit.
    ///
    /// # Errors
    /// [`ErrorKind::LoadState`](warpline::ErrorKind::LoadState), whose source, a [`LoadError`], names all tensors that are
    /// missing, unexpected, or of another shape.
    #[track_caller]
    fn load_state_dict(&mut self, state: &StateDict, strict: bool) -> Result<()> {
        state::load(&self.state_dict(), state, strict)
    }

    /// Takes every parameter's gradient away (`zero_grad`).
    ///
    /// # Errors
    /// None.
    #[track_caller]
    fn zero_grad(&self) -> Result<()> {
        self.parameters().iter().try_for_each(|parameter| parameter.set_grad(None))
    }

    /// Sets whether every parameter wants a gradient (`module.requires_grad_`).
    ///
    /// # Errors
    /// As [`Tensor::requires_grad_`].
    #[track_caller]
    fn requires_grad_(&self, requires_grad: bool) -> Result<()> {
        for parameter in self.parameters() {
            parameter.requires_grad_(requires_grad)?;
        }
        Ok(())
    }

    /// Moves every parameter and buffer to a device; floats to a dtype, and those of as many dimensions to
    /// a memory format (`Module.to`). When one cannot be moved, none is.
    ///
    /// A parameter that is as asked for stays the same tensor. The others are replaced, unlike in PyTorch: their
    /// hooks and gradients go over to the new tensors, tied parameters stay tied, and the old tensors are marked as
    /// moved. An optimizer that was built before the move, a new hook on an old tensor and a gradient that arrives
    /// there fail with [`ErrorKind::Moved`]. So build the optimizer after the move. A clone of the module has
    /// the old tensors, too: to train both, first assign each parameter of one of them anew
    /// (`net.weight = Parameter::new(net.weight.copy()?)?`).
    ///
    /// # Errors
    /// As [`Tensor::to`].
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
        let moved = Exchange::new(self, |_, tensor| {
            replacement(tensor, |t| t.to(for_tensor(&options, device, tensor)))
        });
        moved.map_err(|e| e.of("Module::to").at(location))?.apply(self);
        Ok(())
    }

    /// Puts every parameter into memory that other processes can have, and which
    /// `warpline::multiprocessing` carries to them. When one cannot be, none is. As [`Module::to`], this
    /// replaces parameters.
    ///
    /// # Errors
    /// As [`Tensor::share_memory`]; [`ErrorKind::CannotShare`] of a module on the host, which could not be
    /// used any more.
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
        let shared = Exchange::new(self, |is_parameter, tensor| match is_parameter {
            true => replacement(tensor, Tensor::share_memory),
            false => Ok(tensor.clone()),
        });
        shared.map_err(|e| e.at(location))?.apply(self);
        Ok(())
    }
}

/// What a module computes, where others are to call it: `DataParallel`, [`Sequential`](crate::Sequential).
/// Several inputs are a tuple.
pub trait Forward<Input> {
    /// What comes out.
    type Output;

    /// Computes the output. It takes `&self`: a buffer is updated in place.
    ///
    /// # Errors
    /// Whatever the module's ops fail with.
    fn forward(&self, input: Input) -> Result<Self::Output>;
}

/// What makes two tensors the same one: elements of one dtype in the same places. A buffer that shares a parameter's memory
/// is not the parameter: it wants no gradient.
type Key = (u64, DType, Vec<usize>, Vec<isize>, bool);

fn key(tensor: &Tensor) -> Key {
    let (size, stride) = (tensor.size().to_vec(), tensor.stride().to_vec());
    // Tensors without elements have no memory, so on a GPU all of them have one address.
    let place = match tensor.numel() {
        0 => tensor.storage().key() as u64,
        _ => tensor.data_ptr(),
    };
    (place, tensor.dtype(), size, stride, tensor.requires_grad())
}

/// Tensors that were seen.
#[derive(Default)]
struct Known(HashMap<Key, usize>);

impl Known {
    fn is_new(&mut self, tensor: &Tensor) -> bool {
        let next = self.0.len();
        self.place(tensor) == next
    }

    /// Its number, in the order in which they were first seen.
    fn place(&mut self, tensor: &Tensor) -> usize {
        let next = self.0.len();
        *self.0.entry(key(tensor)).or_insert(next)
    }
}

/// New tensors for a module's own, made before any is replaced.
struct Exchange(HashMap<Key, Tensor>);

impl Exchange {
    /// Calls `f` with each parameter (`true`) and each buffer (`false`) once, however many names it has.
    fn new(
        module: &(impl Module + ?Sized),
        f: impl Fn(bool, &Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        let (mut new, mut failed) = (HashMap::new(), None);
        module.visit(&mut Visitor::new(&mut |_, member| {
            let Some(tensor) = member.tensor() else { return };
            if failed.is_some() || new.contains_key(&key(tensor)) {
                return;
            }
            match f(matches!(member, Member::Parameter(_)), tensor) {
                Ok(other) => drop(new.insert(key(tensor), other)),
                Err(error) => failed = Some(error),
            }
        }));
        failed.map_or(Ok(Self(new)), Err)
    }

    /// Replaces the tensors that changed, and marks the old parameters as moved.
    fn apply(self, module: &mut (impl Module + ?Sized)) {
        module.visit_mut(&mut VisitorMut::new(&mut |name, mut member| {
            let Some(old) = member.tensor() else { return };
            let old_key = key(old);
            let Some(new) = self.0.get(&old_key) else { return };
            // Where nothing changed, even tensors that merely share memory stay the ones that they are.
            if key(new) == old_key {
                return;
            }
            if matches!(member, MemberMut::Parameter(_)) {
                mark_moved(old, new, name);
            }
            member.replace(new.clone());
        }));
    }
}

/// The tensor that `f` makes of a tensor's memory. It requires a gradient if the tensor does, and has one if the tensor
/// has one. Returns the tensor itself if `f` changes nothing.
fn replacement(tensor: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let data = tensor.detach();
    let new = f(&data)?;
    if key(&new) == key(&data) {
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

/// What a module's options ask of one of its tensors.
fn for_tensor(options: &TensorOptions, device: Option<Device>, tensor: &Tensor) -> TensorOptions {
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
