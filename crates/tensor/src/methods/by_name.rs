//! Elementwise ops by name, and by the entry of an op of another crate.

use warpline_kernels::elementwise::Op;

use super::{TensorOrScalar, binary, elementwise, unary};
use crate::{Result, Tensor};

/// A method of one tensor.
pub type Unary = fn(&Tensor) -> Result<Tensor>;
/// A method of a tensor and another operand.
pub type Binary = fn(&Tensor, TensorOrScalar<'_>) -> Result<Tensor>;

/// Returns the elementwise methods of one tensor, each with its name.
pub fn unary_methods() -> impl Iterator<Item = (&'static str, Unary)> {
    unary::METHODS.iter().chain(unary::QUESTIONS).copied()
}

/// Returns the elementwise methods of two operands, each with its name.
pub fn binary_methods() -> impl Iterator<Item = (&'static str, Binary)> {
    binary::METHODS.iter().copied()
}

/// Returns the elementwise method of one tensor with this name.
#[must_use]
pub fn unary(name: &str) -> Option<Unary> {
    unary_methods().find(|(known, _)| *known == name).map(|(_, method)| method)
}

/// Returns the elementwise method of two operands with this name.
#[must_use]
pub fn binary(name: &str) -> Option<Binary> {
    binary_methods().find(|(known, _)| *known == name).map(|(_, method)| method)
}

/// Applies an elementwise op: an entry of [`table`](warpline_kernels::elementwise::table), or of another crate's
/// [`elementwise_ops!`](warpline_kernels::elementwise_ops). Records its gradient. A condition comes first.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if the number of operands is wrong or no operand is a
/// tensor, [`ErrorKind::UnsupportedDType`](crate::ErrorKind::UnsupportedDType) if the entry lacks the operands' dtype.
#[track_caller]
pub fn elementwise(op: &'static Op, operands: &[TensorOrScalar<'_>]) -> Result<Tensor> {
    elementwise::apply(op, operands, elementwise::common_dtype_of(op, operands))
}
