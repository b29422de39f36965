//! Parameters, buffers and training flags of modules.

use std::borrow::Borrow;
use std::fmt;
use std::ops::{self, Deref};

use warpline::autograd::mark_moved;
use warpline::expr::FormulaOperand;
use warpline::{
    Error, IntoOptionalTensor, Result, Scalar, Tensor, TensorIndex, TensorOptions, TensorOrScalar,
};
use warpline_runtime::{bf16, f16};

use crate::module_trait::{Apply, Forward, Member, MemberMut, Module, Visitor, VisitorMut};

/// A tensor that is learned (`torch.nn.Parameter`). Dereferences to [`Tensor`].
///
/// A parameter is an operand in formulas:
///
/// ```
/// use warpline::{expr, tensor};
/// use warpline_nn::Parameter;
///
/// let scale = Parameter::new(tensor![2.0, 3.0]?)?;
/// let y = expr!(scale * 2 + scale.sum(()))?;
/// assert_eq!(y.to_vec::<f32>()?, [9.0, 11.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// A function that takes a tensor takes a parameter, too: `x.matmul(&self.weight)`, `(&x * &self.scale)?`,
/// `linear(&x, &self.weight, &self.bias)`, `cat(&[&x, &self.token], 0)?`. An optional tensor may be an
/// `&Option<Parameter>`. In a list with other tensors, a tensor comes first.
///
/// A clone is the same parameter. A parameter with several names in a module is *tied*; [`Module::to`] keeps it tied.
#[derive(Clone)]
pub struct Parameter(Tensor);

/// A tensor that belongs to a module but is not learned, such as a running mean (`register_buffer`).
#[derive(Clone)]
pub struct Buffer {
    tensor: Tensor,
    persistent: bool,
}

/// The training flag of a module (`module.training`). [`Module::train`] and [`Module::eval`] set the flags of a module
/// and all its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Training(bool);

impl Parameter {
    /// Creates a parameter that shares the tensor's memory. A floating-point parameter requires a gradient.
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`](warpline::ErrorKind::Gradient) if the tensor is floating-point and was made in
    /// inference mode.
    #[track_caller]
    pub fn new(tensor: Tensor) -> Result<Self> {
        let data = tensor.detach();
        Ok(Self(if data.dtype().is_float() { data.requires_grad_(true)? } else { data }))
    }

    /// Replaces the parameter's tensor (`parameter.data = …`). Clones and optimizers keep the old tensor, which is
    /// marked as moved: later uses fail with [`ErrorKind::Moved`](warpline::ErrorKind::Moved), as after [`Module::to`].
    /// To keep clones usable, assign a new [`Parameter`] instead.
    ///
    /// # Errors
    /// [`ErrorKind::Gradient`](warpline::ErrorKind::Gradient) if the tensor is floating-point and was made in
    /// inference mode.
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
    /// Creates a persistent buffer, which is part of [`Module::state_dict`] (`register_buffer`).
    #[must_use]
    pub fn new(tensor: Tensor) -> Self {
        Self { tensor, persistent: true }
    }

    /// Sets whether the buffer is part of [`Module::state_dict`] (`persistent=`). `false` is for values that can be
    /// recomputed. Default: `true`.
    #[must_use]
    pub fn persistent(mut self, persistent: bool) -> Self {
        self.persistent = persistent;
        self
    }

    /// Returns `true` if the buffer is part of [`Module::state_dict`].
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// Replaces the buffer's tensor.
    pub fn set(&mut self, tensor: Tensor) {
        self.tensor = tensor;
    }
}

impl Training {
    /// Creates a flag.
    #[must_use]
    pub fn new(training: bool) -> Self {
        Self(training)
    }

    /// Returns `true` in training mode.
    #[must_use]
    pub fn get(self) -> bool {
        self.0
    }

    /// Sets the flag.
    pub fn set(&mut self, training: bool) {
        self.0 = training;
    }
}

/// A new module is in training mode.
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

/// Makes a parameter or buffer usable as the operand of an op or a formula, as an index, in a list of tensors, and as
/// an optional tensor argument.
macro_rules! as_tensor {
    ($($name:ident $other:ident),*) => {$(
        impl FormulaOperand for $name {
            type Operand = Tensor;

            fn operand(self) -> Tensor {
                (*self).clone()
            }
        }

        impl<'a> FormulaOperand for &'a $name {
            type Operand = &'a Tensor;

            fn operand(self) -> &'a Tensor {
                self
            }
        }

        impl<'a> IntoOptionalTensor<'a> for &'a $name {
            fn into_optional(self) -> Option<&'a Tensor> {
                Some(self)
            }
        }

        impl<'a> From<&'a $name> for TensorOrScalar<'a> {
            fn from(tensor: &'a $name) -> Self {
                Self::Tensor(tensor)
            }
        }

        impl From<&$name> for TensorIndex {
            fn from(tensor: &$name) -> Self {
                Self::from(&**tensor)
            }
        }

        impl Borrow<Tensor> for $name {
            fn borrow(&self) -> &Tensor {
                self
            }
        }

        impl Borrow<Tensor> for &$name {
            fn borrow(&self) -> &Tensor {
                self
            }
        }

        impl Apply for $name {
            #[track_caller]
            fn apply<M: Forward<Tensor>>(&self, module: &M) -> Result<M::Output> {
                (**self).apply(module)
            }
        }

        impl $name {
            /// Returns the tensor converted to a dtype, a device or a memory format ([`Tensor::to`]), and does not
            /// change the module. [`Module::to`] converts the tensors of a module.
            ///
            /// # Errors
            /// The same as [`Tensor::to`].
            #[track_caller]
            pub fn to(&self, options: impl Into<TensorOptions>) -> Result<Tensor> {
                (**self).to(options)
            }
        }

        operators!($name $other: Add add, Sub sub, Mul mul, Div div, Rem rem);
        operators!(@prefix $name: Neg neg, Not not);

        conversions!($name: bool, u8, i8, i16, i32, i64, f16, bf16, f32, f64);
        conversions!(@each $name: u32, u64, usize);
    )*};
}

/// The types of numbers. The implementation of an operator for all of them does not overlap with the implementations
/// for tensors, because the trait belongs to this crate.
trait Number: Into<Scalar> {}

macro_rules! numbers {
    ($($ty:ty),*) => {$(
        impl Number for $ty {}
    )*};
}

numbers!(bool, u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);
numbers!(f16, bf16, f32, f64, Scalar);

/// Implements the operators of a reference to a parameter or buffer. The other operand of an arithmetic operator is a
/// parameter, buffer, tensor or number, on either side. The types of numbers are those of [`Tensor`]'s operators.
macro_rules! operators {
    (@prefix $name:ident: $($trait:ident $method:ident),*) => {$(
        impl ops::$trait for &$name {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $method(self) -> Result<Tensor> {
                ops::$trait::$method(&**self)
            }
        }
    )*};
    ($name:ident $other:ident: $($trait:ident $method:ident),*) => {$(
        impl<S: Number> ops::$trait<S> for &$name {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $method(self, number: S) -> Result<Tensor> {
                ops::$trait::$method(&**self, number)
            }
        }
        operators!(@one $trait $method &$name, &$other, |a, b| (&**a, &**b));
        operators!(@one $trait $method &$name, &$name, |a, b| (&**a, &**b));
        operators!(@one $trait $method &$name, &Tensor, |a, b| (&**a, b));
        operators!(@one $trait $method &$name, Tensor, |a, b| (&**a, b));
        operators!(@one $trait $method &Tensor, &$name, |a, b| (a, &**b));
        operators!(@one $trait $method Tensor, &$name, |a, b| (a, &**b));
        operators!(@one $trait $method f64, &$name, |a, b| (a, &**b));
        operators!(@one $trait $method i64, &$name, |a, b| (a, &**b));
        operators!(@one $trait $method f16, &$name, |a, b| (a, &**b));
        operators!(@one $trait $method bf16, &$name, |a, b| (a, &**b));
        operators!(@one $trait $method Scalar, &$name, |a, b| (a, &**b));
    )*};
    (@one $trait:ident $method:ident $left:ty, $right:ty, |$a:ident, $b:ident| $operands:expr) => {
        impl ops::$trait<$right> for $left {
            type Output = Result<Tensor>;

            #[track_caller]
            fn $method(self, other: $right) -> Result<Tensor> {
                let ($a, $b) = (self, other);
                let (left, right) = $operands;
                ops::$trait::$method(left, right)
            }
        }
    };
}

/// Implements the conversions of [`Tensor`] into numbers and vectors.
macro_rules! conversions {
    ($name:ident: $($ty:ty),*) => {$(
        conversions!(@each $name: $ty, Vec<$ty>, Vec<Vec<$ty>>, Vec<Vec<Vec<$ty>>>);
    )*};
    (@each $name:ident: $($ty:ty),*) => {$(
        /// The same as the conversion of a [`Tensor`].
        impl TryFrom<&$name> for $ty {
            type Error = Error;

            #[track_caller]
            fn try_from(tensor: &$name) -> Result<Self> {
                Self::try_from(&**tensor)
            }
        }
    )*};
}

as_tensor!(Parameter Buffer, Buffer Parameter);

/// Writes shape, dtype and device, but no values, because reading values would wait for the device.
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
            fn visit<'m>(&'m self, visitor: &mut Visitor<'m, '_>) {
                visitor.see(Member::$name(self));
            }

            fn visit_mut(&mut self, visitor: &mut VisitorMut<'_>) {
                visitor.see(MemberMut::$name(self));
            }

            fn as_module(&self) -> Option<&dyn Module> {
                None
            }

            fn as_module_mut(&mut self) -> Option<&mut dyn Module> {
                None
            }
        }
    )*};
}

members!(Parameter, Buffer, Training);
