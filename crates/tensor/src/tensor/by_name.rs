//! Methods by their names, for tests that take ops from a file.

use super::{TensorOrScalar, ops, unary};
use crate::{Result, Tensor};

/// A method of one tensor.
pub type Unary = fn(&Tensor) -> Result<Tensor>;
/// A method of a tensor and another operand.
pub type Binary = fn(&Tensor, TensorOrScalar<'_>) -> Result<Tensor>;

fn find<F: Copy>(tables: &[&[(&str, F)]], name: &str) -> Option<F> {
    tables.iter().copied().flatten().find(|(known, _)| *known == name).map(|(_, method)| *method)
}

/// The elementwise method of one tensor that has this name.
#[must_use]
pub fn unary(name: &str) -> Option<Unary> {
    find(&[unary::METHODS, unary::QUESTIONS], name)
}

/// The elementwise method of two operands that has this name.
#[must_use]
pub fn binary(name: &str) -> Option<Binary> {
    find(&[ops::METHODS], name)
}
