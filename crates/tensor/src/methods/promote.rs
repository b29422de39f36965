//! Type promotion: the common dtype of operands.

use crate::{DType, Scalar, Tensor};

/// Returns the smallest dtype to which both dtypes can be converted (`torch.promote_types`).
#[must_use]
pub fn promote_types(a: DType, b: DType) -> DType {
    a.promote(b)
}

/// Returns the dtype of an arithmetic op on two tensors (`torch.result_type`). A tensor without dimensions
/// changes the dtype of the other tensor only if its category (bool, integer, float) is higher.
#[must_use]
pub fn result_type(a: &Tensor, b: &Tensor) -> DType {
    match (a.dim() == 0, b.dim() == 0) {
        (true, false) => combine(b.dtype(), a.dtype()),
        (false, true) => combine(a.dtype(), b.dtype()),
        _ => a.dtype().promote(b.dtype()),
    }
}

/// Returns the dtype of an op on a tensor and a number.
pub(crate) fn result_type_scalar(a: &Tensor, b: Scalar) -> DType {
    b.result_type(a.dtype())
}

/// Promotes two dtypes to one. `low` affects the result only if its category is higher than that of `high`.
pub(super) fn combine(high: DType, low: DType) -> DType {
    if high == DType::Bool || low.category() > high.category() { high.promote(low) } else { high }
}
