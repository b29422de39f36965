//! Modules: named parameters and buffers that are moved, trained and saved together.
//!
//! [`Module`] has two required methods, `visit` and `visit_mut`, which show each member (a `Parameter`, a `Buffer`, a
//! `Training` flag or a module) with its name to a visitor. The derive macro writes both methods, with one line per
//! field in declaration order. `visit` shows a module before its own members, `visit_mut` after them. The methods that
//! list, move, train and save members are built on these two. A visit cannot fail: operations that can fail run before
//! or after the visit, on the collected members.
//!
//! Settings (such as `bool`, `usize`, `f64` and `String`) are modules without members, so only fields of other types
//! need an attribute. A plain `Tensor` is not a module, so that no tensor is forgotten.
//!
//! Invariant: a parameter with several names stays one parameter. Two names have the same parameter if they have the
//! same tensor (`Tensor::id`); two tensors that share memory are different parameters. `parameters` lists a parameter
//! with several names once, `state_dict` lists it under each name, and `to` and `share_memory` make one copy of it.
//!
//! Invariant: a state with mismatched names or shapes changes nothing. `load_state_dict` first compares all names and
//! shapes. Then it copies into the module's own tensors, so an optimizer's references to the parameters stay valid.

mod apply;
#[doc(hidden)]
pub mod derived;
mod fields;
mod replace;
mod state;
mod tree;
mod visitor;

use std::any::Any;

use warpline::{CallScope, Error, ErrorKind, Result, Tensor, TensorOptions};

pub use apply::Apply;
use replace::{Replacements, SeenTensors, options_for_tensor, replacement};
pub use state::{IncompatibleKeys, LoadError, Mismatch, StateDict};
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
/// - `Option`, `Box`, `Vec` (`ModuleList`), `BTreeMap<String, _>` (`ModuleDict`), arrays, and tuples of these;
/// - settings (such as `bool`, `usize`, `f64` and `String`), which are not members;
/// - any other type, if the field is marked `#[module(skip)]`.
///
/// A plain `Tensor` must be wrapped in `Parameter` or `Buffer`, or skipped. `#[module(name = "…")]` renames a field.
/// Two members of a struct or a variant cannot have the same name, and a name cannot contain a dot. The members of a
/// field with an empty name have no prefix, as if they were members of the struct.
///
/// An enum has the members of its current variant. If a tuple variant has one field, that field adds no name of its
/// own. The derive macro also implements `Display`, which writes the tree of modules as PyTorch's `print` does.
///
/// Members are in the order of the fields. [`Module::visit`], [`Module::visit_mut`] and [`Module::state_dict`] report a
/// parameter with two names under both names; all other methods treat it as one parameter.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a module",
    label = "a module's field is a module, `Parameter`, `Buffer`, or an `Option`, `Vec` or array of those",
    note = "wrap a `Tensor` in `Parameter::new` or `Buffer::new`; mark a field that is none with `#[module(skip)]`"
)]
pub trait Module: Any + tree::AsDyn {
    /// Shows all members to `visitor`, always in the same order.
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m, '_>);

    /// Shows all members to `visitor`, which may replace them. The order is that of [`Module::visit`], except that a
    /// module comes after its own members.
    fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>);

    /// Returns the module that [`Module::modules`] lists for this field: the module itself, or the module in an
    /// `Option`, a `Box` or a [`Hooked`](crate::Hooked). `None` for parameters, buffers, training flags, settings
    /// and an empty `Option`.
    #[doc(hidden)]
    fn as_module(&self) -> Option<&dyn Module> {
        Some(self.as_dyn())
    }

    /// The same as `as_module`, by mutable reference.
    #[doc(hidden)]
    fn as_module_mut(&mut self) -> Option<&mut dyn Module> {
        Some(self.as_dyn_mut())
    }

    /// Returns `true` if no value of the type has members. A `Vec` of such values is not listed as a `ModuleList`.
    #[doc(hidden)]
    fn is_setting() -> bool
    where
        Self: Sized,
    {
        false
    }

    /// Returns the name of the module in the printed tree (`_get_name`). Default: the name of its type. The name of
    /// an enum is that of its variant.
    fn type_name(&self) -> &'static str {
        tree::short_name(std::any::type_name::<Self>())
    }

    /// Returns the settings of the module in the printed tree (`extra_repr`). Default: none. The derive macro calls the
    /// function of `#[module(extra_repr = …)]`.
    fn extra_repr(&self) -> String {
        String::new()
    }

    /// Returns the modules in this module's fields (`children`).
    fn children(&self) -> Vec<&dyn Module> {
        self.named_children().into_iter().map(|(_, child)| child).collect()
    }

    /// Returns the modules in this module's fields with their names (`named_children`).
    fn named_children(&self) -> Vec<(String, &dyn Module)> {
        let mut all = Vec::new();
        self.visit(&mut Visitor::shallow(&mut |name, member| {
            if let Member::Module(module) = member {
                all.push((name.to_owned(), module));
            }
        }));
        all
    }

    /// Returns this module and all modules in it (`modules`), each before its children.
    fn modules(&self) -> Vec<&dyn Module> {
        self.named_modules().into_iter().map(|(_, module)| module).collect()
    }

    /// Returns this module, whose name is empty, and all modules in it with their names (`named_modules`), each before
    /// its children. `Vec`s, maps, arrays and tuples of modules are modules themselves; a field with an empty name
    /// (`#[module(name = "")]`) is a part of the module that has the field.
    ///
    /// ```
    /// use warpline_nn::{Linear, Module, ReLU, Sequential};
    ///
    /// let net = Sequential::new().with(Linear::new(4, 8, ())?).with(ReLU);
    /// let names: Vec<String> = net.named_modules().into_iter().map(|(name, _)| name).collect();
    /// assert_eq!(names, ["", "0", "1"]);
    /// let sizes: Vec<&[usize]> = net
    ///     .modules()
    ///     .into_iter()
    ///     .filter_map(|module| module.downcast_ref::<Linear>())
    ///     .map(|linear| linear.weight.size())
    ///     .collect();
    /// assert_eq!(sizes, [[8, 4]]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    fn named_modules(&self) -> Vec<(String, &dyn Module)> {
        let mut all: Vec<(String, &dyn Module)> = Vec::new();
        all.extend(self.as_module().map(|module| (String::new(), module)));
        self.visit(&mut Visitor::new(&mut |name, member| {
            if let Member::Module(module) = member {
                all.push((name.to_owned(), module));
            }
        }));
        all
    }

    /// Calls `f` with all modules in this module, each after its children, and finally with this module
    /// (`Module.apply`). Does not call `f` again after an error.
    ///
    /// ```
    /// use warpline_nn::init::{xavier_uniform_, zeros_};
    /// use warpline_nn::{Linear, Module, ReLU, Sequential};
    ///
    /// let mut net = Sequential::new().with(Linear::new(4, 8, ())?).with(ReLU);
    /// net.apply(|module| {
    ///     if let Some(linear) = module.downcast_ref::<Linear>() {
    ///         xavier_uniform_(&linear.weight, 1.0)?;
    ///         linear.bias.as_ref().map(|bias| zeros_(bias)).transpose()?;
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The first error of `f`.
    fn apply(&mut self, mut f: impl FnMut(&mut dyn Module) -> Result<()>) -> Result<()>
    where
        Self: Sized,
    {
        let mut result = Ok(());
        self.visit_mut(&mut VisitorMut::new(&mut |_, member| {
            if let MemberMut::Module(module) = member
                && result.is_ok()
            {
                result = f(module);
            }
        }));
        result?;
        self.as_module_mut().map_or(Ok(()), f)
    }

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
    /// do not require gradients. If the module has several tensors of one name, the name is ambiguous in the state, and
    /// saving or loading the state is an error.
    fn state_dict(&self) -> StateDict {
        let mut all = StateDict::new();
        self.visit(&mut Visitor::new(&mut |name, member| match member {
            Member::Parameter(parameter) => all.push(name.to_owned(), parameter.detach()),
            Member::Buffer(buffer) if buffer.is_persistent() => {
                all.push(name.to_owned(), buffer.detach())
            }
            _ => {}
        }));
        all
    }

    /// Copies the tensors of `state` into the module's tensors of the same names (`load_state_dict`), converted to the
    /// module's dtypes and devices. If `strict`, the module and `state` must have the same names. Otherwise the returned
    /// [`IncompatibleKeys`] has the names that only one of them has. Nothing is copied unless all names and shapes fit.
    ///
    /// ```
    /// use warpline_nn::{Linear, Module};
    ///
    /// let mut net = Linear::new(4, 2, ())?;
    /// let mut state = Linear::new(4, 2, ())?.state_dict();
    /// state.remove("bias");
    /// state.insert("scale", warpline::ones([2], ())?);
    /// let keys = net.load_state_dict(&state, false)?;
    /// assert_eq!(keys.missing_keys, ["bias"]);
    /// assert_eq!(keys.unexpected_keys, ["scale"]);
    /// assert!(net.load_state_dict(&state, true).is_err());
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::LoadState`](warpline::ErrorKind::LoadState) with a [`LoadError`] as its source:
    /// [`LoadError::Differs`] if shapes differ or, with `strict`, names are missing or unexpected;
    /// [`LoadError::Ambiguous`] if the module or `state` has several tensors of one name; [`LoadError::Copy`] if a copy
    /// fails, after which the tensors before it have been loaded.
    #[track_caller]
    fn load_state_dict(&mut self, state: &StateDict, strict: bool) -> Result<IncompatibleKeys> {
        state::load(&self.state_dict(), state, strict)
    }

    /// Removes the gradients of all parameters (`zero_grad`).
    ///
    /// # Errors
    /// Never fails in practice: [`Tensor::set_grad`] fails only if it sets a gradient.
    #[track_caller]
    fn zero_grad(&self) -> Result<()> {
        self.parameters().iter().try_for_each(|parameter| parameter.set_grad(None))
    }

    /// Sets whether the parameters require gradients (`module.requires_grad_`).
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`](warpline::ErrorKind::Gradient) if `requires_grad` is true and a parameter is not
    /// floating-point; [`ErrorKind::Moved`](warpline::ErrorKind::Moved) if a parameter of the module is an old
    /// tensor of a moved module.
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
    /// The other parameters are replaced, unlike in PyTorch: their hooks and gradients pass to the new tensors,
    /// parameters that are tied inside the module stay tied, and the old tensors are marked as moved. An optimizer step
    /// on an old tensor, a new hook on it, and a gradient that arrives there fail with [`ErrorKind::Moved`].
    ///
    /// A clone of the module, and a module that shares some of its parameters, have the old tensors until `to` is
    /// called on them too. Then they share the new tensors, with the dtype and the values that the last module gave
    /// them. If a new tensor no longer exists, because the other module was dropped, `to` gives the parameter a new
    /// tensor with the old values. To train the two modules separately, first give one of them new parameters
    /// (`net.weight = Parameter::new(net.weight.copy()?)?`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the dtype is not floating point. [`ErrorKind::InvalidDeviceString`] if the
    /// device is not a device name. [`ErrorKind::Moved`] if another module has converted a shared parameter to a dtype
    /// that this call would convert again, because the first conversion may have rounded the values. Errors of
    /// [`Tensor::to`].
    #[track_caller]
    fn to(&mut self, options: impl Into<TensorOptions>) -> Result<()>
    where
        Self: Sized,
    {
        let _call = CallScope::enter("Module::to");
        let options = options.into();
        if let Some(dtype) = options.requested_dtype()
            && !dtype.is_float()
        {
            let reason = format!("a module's dtype must be floating-point, not {dtype}");
            return Err(Error::invalid("Module::to", reason));
        }
        let device = options.requested_device().map_err(|e| e.of("Module::to"))?;
        let moved = Replacements::new(self, |_, tensor| {
            replacement(tensor, |t| t.to(options_for_tensor(&options, device, tensor)))
        });
        moved?.apply(self);
        Ok(())
    }

    /// Returns a module with its own parameters and buffers, which have the values, devices and dtypes of this module's
    /// (`copy.deepcopy(module)`). Parameters require gradients as they do here, have no gradient and no hooks, and stay
    /// tied. Other fields are cloned, so hooks of [`Hooked`](crate::Hooked) and tensors in skipped fields are shared.
    ///
    /// ```
    /// use warpline::autograd::no_grad;
    /// use warpline_nn::{Linear, Module};
    ///
    /// let net = Linear::new(4, 2, ())?;
    /// let mut average = net.deep_copy()?; // an exponential moving average of the weights
    /// average.requires_grad_(false)?;
    /// no_grad(|| net.weight.zero_().map(drop))?;
    /// assert!(!average.weight.equal(&net.weight)?);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`] in inference mode, if a parameter requires a gradient. Errors of [`Tensor::copy`].
    #[track_caller]
    fn deep_copy(&self) -> Result<Self>
    where
        Self: Clone + Sized,
    {
        let _call = CallScope::enter("deep_copy");
        let copies = Replacements::new(self, |_, tensor| {
            let copy = tensor.detach().copy()?;
            if tensor.requires_grad() { copy.requires_grad_(true) } else { Ok(copy) }
        })?;
        let mut copy = self.clone();
        copies.give(&mut copy);
        Ok(copy)
    }

    /// Moves all parameters into memory that `warpline::multiprocessing` can share with other processes. Replaces
    /// parameters as [`Module::to`] does. If a parameter cannot be shared, the module stays unchanged.
    ///
    /// # Errors
    /// [`ErrorKind::CannotShare`] if a parameter is on the host, because ops on shared host memory are refused; errors
    /// of [`Tensor::share_memory`].
    #[track_caller]
    fn share_memory(&mut self) -> Result<()> {
        let _call = CallScope::enter("share_memory");
        for (name, parameter) in self.named_parameters() {
            if !parameter.is_cuda() {
                let reason = "a parameter is on the host, where ops on shared memory are refused; \
                              move the module to a GPU first, or share tensors one by one";
                let reason = format!("{name}: {reason}");
                return Err(ErrorKind::CannotShare { reason }.of("share_memory"));
            }
        }
        let shared = Replacements::new(self, |is_parameter, tensor| match is_parameter {
            true => replacement(tensor, Tensor::share_memory),
            false => Ok(tensor.clone()),
        });
        shared?.apply(self);
        Ok(())
    }
}

/// The forward pass of a module, for generic callers such as [`Apply::apply`], `DataParallel` and
/// [`Sequential`](crate::Sequential). `Input` is a tuple if there are several inputs.
///
/// Every module of this crate implements this trait by calling its inherent `forward`, which has the code. The inherent
/// method takes references and several arguments, so that a program calls `self.fc.forward(&x)?` and
/// `loss.forward(&y, &target)?` without an import. The trait alone could not offer these calls: a generic `Input` does
/// not coerce a `&Parameter` to a `&Tensor`, several inputs would be a tuple, and a wrong argument would be reported as
/// a missing implementation instead of a mismatched type. A module of your own needs this trait only for generic
/// callers.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no forward pass that takes `{Input}`",
    label = "expected a module that implements `Forward<{Input}>`, or a function",
    note = "generic callers do not see an inherent method `forward`"
)]
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
