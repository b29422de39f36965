//! Finds elementwise methods by name. The registry makes an entry of each, so its completeness test
//! fails if a method is missing here and has no other entry.

use warpline::{Result, Tensor, TensorOrScalar};

/// A method without operands besides the tensor.
pub(crate) type Unary = fn(&Tensor) -> Result<Tensor>;
/// A method of a tensor and another operand.
pub(crate) type Binary = fn(&Tensor, TensorOrScalar<'_>) -> Result<Tensor>;

macro_rules! unary {
    ($($name:ident)*) => { &[$((stringify!($name), Tensor::$name)),*] };
}

macro_rules! binary {
    ($($name:ident)*) => { &[$((stringify!($name), |a, b| a.$name(b))),*] };
}

/// The methods of one tensor.
pub(crate) const UNARY: &[(&str, Unary)] = unary! {
    neg abs sign square relu floor ceil round exp expm1 log log1p sqrt rsqrt reciprocal sin
    cos tanh erf sigmoid silu gelu gelu_tanh sgn trunc frac exp2 log2 log10 tan asin acos
    atan sinh cosh asinh acosh atanh deg2rad rad2deg erfc erfinv lgamma digamma sinc
    logical_not bitwise_not selu hardsigmoid hardswish mish logsigmoid softsign tanhshrink
    isnan isinf isfinite isposinf isneginf
};

/// The methods of two operands.
pub(crate) const BINARY: &[(&str, Binary)] = binary! {
    add sub mul div maximum minimum eq ne lt le gt ge remainder fmod floor_divide atan2
    hypot copysign nextafter xlogy logaddexp logaddexp2 heaviside logical_and logical_or
    logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift
    gcd lcm
};

pub(crate) fn unary(name: &str) -> Option<Unary> {
    UNARY.iter().find(|(known, _)| *known == name).map(|(_, method)| *method)
}

pub(crate) fn binary(name: &str) -> Option<Binary> {
    BINARY.iter().find(|(known, _)| *known == name).map(|(_, method)| *method)
}
