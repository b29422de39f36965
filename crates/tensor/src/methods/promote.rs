//! The dtype that operands meet in.

use crate::{DType, Scalar, Tensor};

/// The dtype to which both can be converted (`torch.promote_types`).
#[must_use]
pub fn promote_types(a: DType, b: DType) -> DType {
    a.promote(b)
}

/// The dtype of an arithmetic op on two tensors (`torch.result_type`): a tensor without
/// dimensions changes the other's dtype only if its category is higher.
#[must_use]
pub fn result_type(a: &Tensor, b: &Tensor) -> DType {
    match (a.dim() == 0, b.dim() == 0) {
        (true, false) => combine(b.dtype(), a.dtype()),
        (false, true) => combine(a.dtype(), b.dtype()),
        _ => a.dtype().promote(b.dtype()),
    }
}

/// The dtype of an op on a tensor and a number.
pub(crate) fn result_type_scalar(a: &Tensor, b: Scalar) -> DType {
    b.result_type(a.dtype())
}

/// `low` counts only if it lifts `high` into another category.
pub(super) fn combine(high: DType, low: DType) -> DType {
    if high == DType::Bool || low.category() > high.category() { high.promote(low) } else { high }
}
