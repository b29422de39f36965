//! Equations of `einsum`.

use warpline::{DType, Tensor, arange, einsum as contract};

/// Largest number of operands, of dimensions of an operand, and of elements along a dimension.
const MOST: usize = 3;

/// Computes an equation. The first line of the input has the sizes of an operand for each byte: four numbers in base 4,
/// from the last dimension to the first, where a 0 of the upper dimensions is no dimension. The rest is the equation.
pub(crate) fn einsum(input: &[u8]) {
    let mut lines = input.splitn(2, |byte| *byte == b'\n');
    let (Some(shapes), Some(equation)) = (lines.next(), lines.next()) else { return };
    let Ok(equation) = std::str::from_utf8(equation) else { return };
    let operands: Vec<Tensor> =
        shapes.iter().take(MOST).filter_map(|shape| operand(*shape)).collect();
    match contract(equation, &operands) {
        Ok(result) => assert!(result.size().iter().all(|size| *size <= MOST), "{equation}"),
        Err(error) => drop(error.to_string()),
    }
}

fn operand(shape: u8) -> Option<Tensor> {
    let dims = usize::from(shape >> 6).min(MOST);
    let sizes: Vec<usize> = (0..dims).map(|d| usize::from(shape >> (2 * d) & 3)).collect();
    let numel: usize = sizes.iter().product();
    arange(numel as i64, DType::F32).and_then(|all| all.reshape(&sizes)).ok()
}
