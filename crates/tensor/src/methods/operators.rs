//! Operators of tensors, and the comparisons of `expr!`. `%` follows Python: the result has the sign of the divisor.
//! `!` inverts the bits of integers, and negates bools.

use half::{bf16, f16};
use warpline_kernels::elementwise as table;

use super::binary::apply;
use super::elementwise::TensorOrScalar;
use crate::expr::{Compare, FormulaNumber};
use crate::{Result, Scalar, Tensor};

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident $($left:ident)*;)*) => {$(
        impl std::ops::$trait<&Tensor> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Result<Tensor> {
                apply(&table::$op, self.into(), other.into())
            }
        }
        impl std::ops::$trait<&Tensor> for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Result<Tensor> {
                apply(&table::$op, (&self).into(), other.into())
            }
        }
        impl std::ops::$trait<Tensor> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, other: Tensor) -> Result<Tensor> {
                apply(&table::$op, self.into(), (&other).into())
            }
        }
        impl std::ops::$trait<Tensor> for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, other: Tensor) -> Result<Tensor> {
                apply(&table::$op, (&self).into(), (&other).into())
            }
        }
        // A generic implementation for all numbers, so that a literal needs no suffix.
        impl<S: Into<Scalar>> std::ops::$trait<S> for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, number: S) -> Result<Tensor> {
                apply(&table::$op, self.into(), number.into().into())
            }
        }
        impl<S: Into<Scalar>> std::ops::$trait<S> for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, number: S) -> Result<Tensor> {
                apply(&table::$op, (&self).into(), number.into().into())
            }
        }
        operators!(@left [S: Into<Scalar>] FormulaNumber<S>, $trait $method $op);
        $(operators!(@left [] $left, $trait $method $op);)*
        impl<L: std::ops::$trait<R>, R> std::ops::$trait<FormulaNumber<R>> for FormulaNumber<L> {
            type Output = Result<FormulaNumber<L::Output>>;
            fn $method(self, other: FormulaNumber<R>) -> Self::Output {
                Ok(FormulaNumber(self.0.$method(other.0)))
            }
        }
    )*};
    (@left [$($generic:tt)*] $ty:ty, $trait:ident $method:ident $op:ident) => {
        impl<$($generic)*> std::ops::$trait<&Tensor> for $ty {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, tensor: &Tensor) -> Result<Tensor> {
                apply(&table::$op, self.into(), tensor.into())
            }
        }
        impl<$($generic)*> std::ops::$trait<Tensor> for $ty {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, tensor: Tensor) -> Result<Tensor> {
                apply(&table::$op, self.into(), (&tensor).into())
            }
        }
    };
}

// Of the types that literals can have, only `f64` and `i64` can be the left operand. With a second floating-point type,
// the compiler could not infer the type of `1.0 / &t`, and `(1.0 / &t)?.exp()` would not compile.

operators! {
    Add add ADD f64 i64 f16 bf16 Scalar;
    Sub sub SUB f64 i64 f16 bf16 Scalar;
    Mul mul MUL f64 i64 f16 bf16 Scalar;
    Div div DIV f64 i64 f16 bf16 Scalar;
    Rem rem REMAINDER f64 i64 f16 bf16 Scalar;
    BitAnd bitand BITWISE_AND i64 Scalar;
    BitOr bitor BITWISE_OR i64 Scalar;
    BitXor bitxor BITWISE_XOR i64 Scalar;
    Shl shl LEFT_SHIFT i64 Scalar;
    Shr shr RIGHT_SHIFT i64 Scalar;
}

macro_rules! prefixes {
    ($($trait:ident $method:ident $name:ident;)*) => {$(
        impl std::ops::$trait for &Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self) -> Result<Tensor> {
                Tensor::$name(self)
            }
        }
        impl std::ops::$trait for Tensor {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self) -> Result<Tensor> {
                Tensor::$name(&self)
            }
        }
        impl<S: std::ops::$trait> std::ops::$trait for FormulaNumber<S> {
            type Output = Result<FormulaNumber<S::Output>>;
            fn $method(self) -> Self::Output {
                Ok(FormulaNumber(self.0.$method()))
            }
        }
    )*};
}

prefixes! {
    Neg neg neg;
    Not not bitwise_not;
}

/// Conversion of a reference to an operand of an op.
trait AsOperand {
    fn as_operand(&self) -> TensorOrScalar<'_>;
}

impl AsOperand for Tensor {
    fn as_operand(&self) -> TensorOrScalar<'_> {
        self.into()
    }
}

impl AsOperand for &Tensor {
    fn as_operand(&self) -> TensorOrScalar<'_> {
        (*self).into()
    }
}

impl<S: Into<Scalar> + Copy> AsOperand for FormulaNumber<S> {
    fn as_operand(&self) -> TensorOrScalar<'_> {
        self.0.into().into()
    }
}

macro_rules! comparisons {
    ($([$($generic:tt)*] $left:ty, $right:ty;)*) => {$(
        impl<$($generic)*> Compare<$right> for $left {
            type Output = Tensor;
            comparisons! { @methods $left, $right;
                eq EQ; ne NE; lt LT; le LE; gt GT; ge GE;
            }
        }
    )*};
    (@methods $left:ty, $right:ty; $($method:ident $op:ident;)*) => {$(
        #[track_caller]
        fn $method(self, other: $right) -> Result<Tensor> {
            apply(&table::$op, self.as_operand(), other.as_operand())
        }
    )*};
}

comparisons! {
    [] Tensor, Tensor;
    [] Tensor, &Tensor;
    [] &Tensor, Tensor;
    [] &Tensor, &Tensor;
    [S: Into<Scalar> + Copy] Tensor, FormulaNumber<S>;
    [S: Into<Scalar> + Copy] &Tensor, FormulaNumber<S>;
    [S: Into<Scalar> + Copy] FormulaNumber<S>, Tensor;
    [S: Into<Scalar> + Copy] FormulaNumber<S>, &Tensor;
}

impl<L: PartialOrd<R>, R> Compare<FormulaNumber<R>> for FormulaNumber<L> {
    type Output = FormulaNumber<bool>;
    fn eq(self, other: FormulaNumber<R>) -> Result<FormulaNumber<bool>> {
        Ok(FormulaNumber(self.0 == other.0))
    }
    fn ne(self, other: FormulaNumber<R>) -> Result<FormulaNumber<bool>> {
        Ok(FormulaNumber(self.0 != other.0))
    }
    fn lt(self, other: FormulaNumber<R>) -> Result<FormulaNumber<bool>> {
        Ok(FormulaNumber(self.0 < other.0))
    }
    fn le(self, other: FormulaNumber<R>) -> Result<FormulaNumber<bool>> {
        Ok(FormulaNumber(self.0 <= other.0))
    }
    fn gt(self, other: FormulaNumber<R>) -> Result<FormulaNumber<bool>> {
        Ok(FormulaNumber(self.0 > other.0))
    }
    fn ge(self, other: FormulaNumber<R>) -> Result<FormulaNumber<bool>> {
        Ok(FormulaNumber(self.0 >= other.0))
    }
}
