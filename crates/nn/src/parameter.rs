//! What a module's fields are made of.

use std::fmt;
use std::ops::Deref;

use warpline::autograd::mark_moved;
use warpline::{Result, Tensor};

use crate::module::{Member, MemberMut, Module, Visitor, VisitorMut};

/// A tensor that is learned (`torch.nn.Parameter`). It is used as a tensor.
///
/// A clone is the same parameter: under two names it is *tied*, and stays so when the module is moved.
#[derive(Clone)]
pub struct Parameter(Tensor);

/// A tensor that belongs to a module but is not learned, such as a running mean (`register_buffer`).
#[derive(Clone)]
pub struct Buffer {
    tensor: Tensor,
    persistent: bool,
}

/// Whether a module is in training, as `module.training` in PyTorch. [`Module::train`] and
/// [`Module::eval`] set it in all of a module's members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Training(bool);

impl Parameter {
    /// A parameter with this tensor's memory, which wants a gradient if it is of floats.
    ///
    /// # Errors
    /// As [`Tensor::requires_grad_`].
    #[track_caller]
    pub fn new(tensor: Tensor) -> Result<Self> {
        let data = tensor.detach();
        Ok(Self(if data.dtype().is_float() { data.requires_grad_(true)? } else { data }))
    }

    /// Puts another tensor in its place (`parameter.data = …`). The old tensor, which clones and optimizers keep, is
    /// marked as moved, as by [`Module::to`]. To leave clones alone, assign a new [`Parameter`] instead.
    ///
    /// # Errors
    /// As [`Parameter::new`].
    #[track_caller]
    pub fn set_data(&mut self, tensor: Tensor) -> Result<()> {
        let new = Self::new(tensor)?;
        mark_moved(self, &new, &format!("{self:?}"));
        *self = new;
        Ok(())
    }

    pub(crate) fn replace(&mut self, tensor: Tensor) {
        self.0 = tensor;
    }
}

impl Buffer {
    /// A buffer that is part of the module's state.
    #[must_use]
    pub fn new(tensor: Tensor) -> Self {
        Self { tensor, persistent: true }
    }

    /// A buffer that is no part of [`Module::state_dict`], as it can be computed again (`persistent=False`).
    #[must_use]
    pub fn not_persistent(tensor: Tensor) -> Self {
        Self { tensor, persistent: false }
    }

    /// Whether it is part of the module's state.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// Puts another tensor in its place.
    pub fn set(&mut self, tensor: Tensor) {
        self.tensor = tensor;
    }
}

impl Training {
    /// In training or not.
    #[must_use]
    pub fn new(training: bool) -> Self {
        Self(training)
    }

    /// Whether it is in training.
    #[must_use]
    pub fn get(self) -> bool {
        self.0
    }

    /// Sets it.
    pub fn set(&mut self, training: bool) {
        self.0 = training;
    }
}

/// A module begins in training.
impl Default for Training {
    fn default() -> Self {
        Self(true)
    }
}

impl Deref for Parameter {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.0
    }
}

impl Deref for Buffer {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

/// Its values would have to be waited for.
fn describe(tensor: &Tensor, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{name}({:?}, {}, {})", tensor.size(), tensor.dtype(), tensor.device())
}

impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(self, "Parameter", f)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        describe(self, "Buffer", f)
    }
}

macro_rules! members {
    ($($name:ident),*) => {$(
        impl Module for $name {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                visitor.see(Member::$name(self));
            }

            fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
                visitor.see(MemberMut::$name(self));
            }
        }
    )*};
}

members!(Parameter, Buffer, Training);
