//! Sums of squares over many tensors, for their total norm. One launch computes the partial sums of
//! `TENSORS` tensors; the caller adds up the partial sums of all launches.

use std::fmt::Write as _;

#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::iter::BLOCK;
use warpline_runtime::launch::{Grid, Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Result, Target, View};

use super::{CHUNK, Part, TENSORS, Update, cpu, takes};
use crate::programs::{FLOATS, kernels};

const OP: &str = "sum_squares";

// SAFETY: only `sum_squares` makes the parameters. The tensors are contiguous, of one dtype, and
// have `numel` elements. Each block reads its own elements of one tensor and writes one element of
// the result, which has one element per block.
kernels! {
    pub(super) SUM_SQUARES = "sum_squares", FLOATS, |_, ty| source(ty) => {
        unsafe SUMS: Kernel<Update, { TENSORS + 1 }> = float cpu::sum_squares;
    }
}

fn source(ty: &str) -> Source {
    let mut code = format!("extern \"C\" __global__ void sum_squares_{ty}(\n");
    for tensor in 0..TENSORS {
        let _ = write!(code, "const {ty}* t{tensor}, ");
    }
    let _ = write!(
        code,
        "compute_t<{ty}>* out, const __grid_constant__ Update u) {{\nu32 which = 0;\nconst {ty}* x = t0;\n"
    );
    for tensor in 1..TENSORS {
        let _ = writeln!(
            code,
            "if (blockIdx.x >= u.tensors[{tensor}].first) {{ which = {tensor}; x = t{tensor}; }}"
        );
    }
    let _ = write!(code, "sum_squares<{ty}>(x, out, u, which);\n}}\n");
    let of = Source::new().with::<Update>().push(module::ELEMENT);
    let of = of.push(&format!("#define BLOCK {BLOCK}\n#define CHUNK {CHUNK}"));
    of.push(include_str!("sum_squares.cuh")).push(&code)
}

/// Returns the number of partial sums that [`sum_squares`] computes for `tensors`.
#[must_use]
pub fn partial_sums(tensors: &[View<'_>]) -> usize {
    tensors.iter().map(|view| view.numel().div_ceil(CHUNK as usize)).sum()
}

/// Returns the dtype of the partial sums for tensors of `dtype`: `float64` for `float64`, otherwise
/// `float32`.
#[must_use]
pub fn sum_dtype(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Computes sums of squares over chunks of the tensors, which must all have the same dtype. `out`
/// must be contiguous, with one dimension of [`partial_sums`] elements and dtype [`sum_dtype`]. The
/// sum of `out` is the square of the norm of all tensors. Does nothing if there are no tensors.
///
/// # Errors
/// - [`ErrorKind::InvalidArgument`] if [`takes`] returns `false` for a tensor.
/// - [`ErrorKind::DTypeMismatch`] if the tensors have different dtypes, or `out` does not have
///   dtype [`sum_dtype`].
/// - [`ErrorKind::ShapeMismatch`] if `out` is not contiguous or does not have one dimension of [`partial_sums`]
///   elements.
/// - [`ErrorKind::OverlappingOperands`] if `out` shares memory with a tensor.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn sum_squares(target: Target<'_>, tensors: &[View<'_>], out: View<'_>) -> Result<()> {
    let Some(dtype) = tensors.first().map(|view| view.dtype) else { return Ok(()) };
    for view in tensors {
        view.check_dtype(OP, dtype)?;
        if !takes(*view) {
            let reason =
                "operands must be contiguous and floating-point, with fewer than 2³¹ elements each";
            return Err(Error::invalid(OP, reason));
        }
    }
    out.check_dtype(OP, sum_dtype(dtype))?;
    let count = partial_sums(tensors);
    if out.sizes() != [count] || !out.layout.is_contiguous() {
        let reason = format!(
            "the result has sizes {:?}; it must be contiguous and have one dimension of {count} \
             elements",
            out.sizes()
        );
        return Err(Error::shape(OP, reason));
    }
    let mut begun = 0;
    for tensors in tensors.chunks(TENSORS) {
        let parts = [Part { first: u32::MAX, numel: 0 }; TENSORS];
        let mut params =
            Update { numbers: [0.0; 8], flags: 0, reads: 1, writes: 0, blocks: 0, tensors: parts };
        for (part, view) in params.tensors.iter_mut().zip(tensors) {
            *part = Part { first: params.blocks, numel: view.numel() as u32 };
            params.blocks += part.numel.div_ceil(CHUNK);
        }
        let blocks = params.blocks as usize;
        if blocks == 0 {
            continue;
        }
        let layout = out.layout.narrow(0, begun as isize, blocks)?;
        begun += blocks;
        let mut operands = [View { layout: &layout, ..out }.write(); TENSORS + 1];
        operands[..TENSORS].fill(out.untouched());
        operands.iter_mut().zip(tensors).for_each(|(operand, view)| *operand = view.read());
        check_operands(OP, &operands)?;
        SUMS.launch(target, OP, &operands, &params, Grid::linear(blocks, BLOCK))?;
    }
    Ok(())
}
