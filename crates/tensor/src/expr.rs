//! Operands, comparisons and values in the formulas of [`expr!`](crate::expr!).
//!
//! A program that only writes formulas needs nothing from this module. A program's own type becomes an operand if it
//! implements [`FormulaOperand`].

use crate::{Result, Scalar, Tensor};

/// A type besides numbers that can be an operand in [`expr!`](crate::expr!), such as a [`Tensor`], a module's parameter,
/// or a reference to one of them.
///
/// ```
/// use warpline::expr::FormulaOperand;
/// use warpline::{Tensor, expr, tensor};
///
/// struct Scale(Tensor);
///
/// impl<'a> FormulaOperand for &'a Scale {
///     type Operand = &'a Tensor;
///     fn operand(self) -> &'a Tensor {
///         &self.0
///     }
/// }
///
/// let scale = Scale(tensor![2.0, 3.0]?);
/// assert_eq!(expr!(scale * 2)?.to_vec::<f32>()?, [4.0, 6.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an operand of a formula",
    label = "expected a tensor, a parameter or a number",
    note = "a variable that holds a `Result` needs a `?`"
)]
pub trait FormulaOperand {
    /// The type that the operators take: `Tensor` or `&Tensor`.
    type Operand;

    /// Returns the operand.
    fn operand(self) -> Self::Operand;
}

impl FormulaOperand for Tensor {
    type Operand = Self;
    fn operand(self) -> Self {
        self
    }
}

impl FormulaOperand for &Tensor {
    type Operand = Self;
    fn operand(self) -> Self {
        self
    }
}

#[diagnostic::do_not_recommend]
impl<'a, T: ?Sized> FormulaOperand for &&'a T
where
    &'a T: FormulaOperand,
{
    type Operand = <&'a T as FormulaOperand>::Operand;
    fn operand(self) -> Self::Operand {
        (*self).operand()
    }
}

#[diagnostic::do_not_recommend]
impl<'a, T: ?Sized> FormulaOperand for &'a &mut T
where
    &'a T: FormulaOperand,
{
    type Operand = <&'a T as FormulaOperand>::Operand;
    fn operand(self) -> Self::Operand {
        (&**self).operand()
    }
}

/// A number as an operand. If both operands are numbers, the operator is Rust's own.
#[derive(Clone, Copy, Debug)]
pub struct FormulaNumber<S>(pub S);

/// The types of numbers.
pub trait Numeric: Copy + Into<Scalar> {}

macro_rules! numbers {
    ($($ty:ty),*) => {$(
        impl Numeric for $ty {}
    )*};
}

numbers!(bool, u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64);
numbers!(half::f16, half::bf16, Scalar);

/// A term of a formula, before it becomes an operand. The compiler takes the first of three methods that the type
/// allows. The method of [`TensorTerm`] takes the term by value, the method of [`NumberTerm`] by reference, and the
/// method of [`OtherTerm`] by mutable reference. The bound of [`OtherTerm`] fails with the message of
/// [`FormulaOperand`]. Method lookup, unlike a single trait, also works for a variable of which the compiler
/// knows only that it is a float, such as a variable that was set to `2.0`.
#[derive(Debug)]
pub struct Term<T>(pub T);

/// Terms that are tensors.
pub trait TensorTerm {
    /// The tensor, or a reference to it.
    type Operand;

    /// Returns the operand.
    fn operand(self) -> Self::Operand;
}

impl<T: FormulaOperand> TensorTerm for Term<T> {
    type Operand = T::Operand;
    fn operand(self) -> T::Operand {
        self.0.operand()
    }
}

/// Terms that are numbers, or references to numbers. `References` is a marker of their kind; it keeps the
/// implementations apart.
pub trait NumberTerm<References> {
    /// The type of the number.
    type Number;

    /// Returns the operand.
    fn operand(&self) -> FormulaNumber<Self::Number>;
}

macro_rules! number_terms {
    ($($marker:ty: $ty:ty, $self:ident => $value:expr;)*) => {$(
        impl<S: Numeric> NumberTerm<$marker> for Term<$ty> {
            type Number = S;
            fn operand(&$self) -> FormulaNumber<S> {
                FormulaNumber($value)
            }
        }
    )*};
}

number_terms! {
    (): S, self => self.0;
    &(): &S, self => *self.0;
    &&(): &&S, self => **self.0;
    &mut (): &mut S, self => *self.0;
    &&mut (): &&mut S, self => **self.0;
}

/// Terms that cannot be operands.
pub trait OtherTerm<T> {
    /// A call never compiles: the bound fails with the message of [`FormulaOperand`].
    fn operand(&mut self) -> T::Operand
    where
        T: FormulaOperand;
}

impl<T> OtherTerm<T> for Term<T> {
    fn operand(&mut self) -> T::Operand
    where
        T: FormulaOperand,
    {
        unreachable!("an operand is a `TensorTerm`")
    }
}

/// The traits whose methods the code of [`expr!`](crate::expr!) calls by method syntax.
pub mod traits {
    pub use super::{NumberTerm as _, OtherTerm as _, TensorTerm as _, UnwrapValue as _};
}

impl<S: Into<Scalar>> From<FormulaNumber<S>> for Scalar {
    fn from(number: FormulaNumber<S>) -> Self {
        number.0.into()
    }
}

/// The result of an operator in a formula. Converts into the tensor or number that the caller receives.
pub trait Value {
    /// The type of the value: [`Tensor`] or a number.
    type Value;

    /// Returns the value.
    fn into_value(self) -> Self::Value;
}

impl Value for Tensor {
    type Value = Self;
    fn into_value(self) -> Self {
        self
    }
}

impl<S> Value for FormulaNumber<S> {
    type Value = S;
    fn into_value(self) -> S {
        self.0
    }
}

/// The value of a call in a formula. For a [`Result`], `unwrap_value` is an inherent method, which method lookup
/// prefers. For all other values, it is the method of [`UnwrapValue`].
#[derive(Clone, Copy, Debug)]
pub struct FormulaCall<T>(pub T);

impl<T> FormulaCall<Result<T>> {
    /// Returns the call's result.
    ///
    /// # Errors
    /// The error of the call, if the call failed.
    pub fn unwrap_value(self) -> Result<T> {
        self.0
    }
}

/// Values of calls that cannot fail.
pub trait UnwrapValue {
    /// The type of the value.
    type Value;

    /// Returns the value.
    ///
    /// # Errors
    /// Never fails.
    fn unwrap_value(self) -> Result<Self::Value>;
}

impl<T> UnwrapValue for FormulaCall<T> {
    type Value = T;
    fn unwrap_value(self) -> Result<T> {
        Ok(self.0)
    }
}

/// Comparisons of operands, which give a boolean tensor, or a `bool` for two numbers.
pub trait Compare<Other> {
    /// The result of a comparison: [`Tensor`] or [`FormulaNumber`].
    type Output;

    /// Computes `self == other`.
    ///
    /// # Errors
    /// The same as [`Tensor::eq`].
    fn eq(self, other: Other) -> Result<Self::Output>;

    /// Computes `self != other`.
    ///
    /// # Errors
    /// The same as [`Tensor::ne`].
    fn ne(self, other: Other) -> Result<Self::Output>;

    /// Computes `self < other`.
    ///
    /// # Errors
    /// The same as [`Tensor::lt`].
    fn lt(self, other: Other) -> Result<Self::Output>;

    /// Computes `self <= other`.
    ///
    /// # Errors
    /// The same as [`Tensor::le`].
    fn le(self, other: Other) -> Result<Self::Output>;

    /// Computes `self > other`.
    ///
    /// # Errors
    /// The same as [`Tensor::gt`].
    fn gt(self, other: Other) -> Result<Self::Output>;

    /// Computes `self >= other`.
    ///
    /// # Errors
    /// The same as [`Tensor::ge`].
    fn ge(self, other: Other) -> Result<Self::Output>;
}
