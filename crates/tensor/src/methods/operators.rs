//! Operators. `%` follows Python: the result has the sign of the divisor. `!` inverts the bits of integers, and
//! negates bools.

use warpline_kernels::elementwise as table;

use super::binary::apply;
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
        $(operators!(@left $left $trait $method $op);)*
    )*};
    // On the left, only `f64` and `i64` are implemented, so that the type of a literal can be inferred.
    (@left $ty:ident $trait:ident $method:ident $op:ident) => {
        impl std::ops::$trait<&Tensor> for $ty {
            type Output = Result<Tensor>;
            #[track_caller]
            fn $method(self, tensor: &Tensor) -> Result<Tensor> {
                apply(&table::$op, self.into(), tensor.into())
            }
        }
    };
}

operators! {
    Add add ADD f64 i64;
    Sub sub SUB f64 i64;
    Mul mul MUL f64 i64;
    Div div DIV f64 i64;
    Rem rem REMAINDER f64 i64;
    BitAnd bitand BITWISE_AND i64;
    BitOr bitor BITWISE_OR i64;
    BitXor bitxor BITWISE_XOR i64;
    Shl shl LEFT_SHIFT i64;
    Shr shr RIGHT_SHIFT i64;
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
    )*};
}

prefixes! {
    Neg neg neg;
    Not not bitwise_not;
}
