//! The gradients of softmax and log-softmax.

use super::cpu;
use crate::dim::{check_dim, check_result, rows_along};
use crate::programs::{FLOATS, LANES, kernels};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::iter::Walk;
use warpline_runtime::launch::{Grid, Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{Result, Target, View, cuda_struct};

/// Maximum size of a row that the lanes of one warp share.
const MAX_WARP_ROW: usize = 1024;
/// Maximum number of threads per block for rows that lie side by side.
const COLUMN_THREADS: u32 = 512;

kernels! {
    pub(super) SOFTMAX_BACKWARD = "softmax_backward", FLOATS, |_, ty| {
        let of = Source::new().with::<Gradient>().push(module::ELEMENT).push(module::WALK);
        let of = of.push(LANES).push(&format!("#define COLUMN_THREADS {COLUMN_THREADS}"));
        of.push(include_str!("backward.cuh")).push(&format!("SOFTMAX_BACKWARD({ty})"))
    } => {
        // With the lanes of a warp per row, with a block per row, and for rows that lie side by side in
        // memory, as columns.
        //
        // SAFETY: only `softmax_backward` makes `Gradient`s, with the sizes and strides of the launch's
        // operands. Each element of the result is written by one thread.
        unsafe ROWS: [Kernel<Gradient, 3>; 3] = float cpu::softmax_backward[warp, block, columns];
    }
}

cuda_struct! {
    /// The gradient of `rows` rows of `size` elements. `steps` are the strides of the incoming
    /// gradient, the forward result and the result along a row. `team` is the binary logarithm of
    /// the number of lanes per row.
    pub(super) struct Gradient {
        pub(super) rows: u64,
        pub(super) size: u64,
        pub(super) team: u64,
        pub(super) log: u64,
        pub(super) steps: [i64; 3],
        pub(super) walk: Walk<3>,
    }
}

/// Computes the gradient of [`softmax`](super::softmax()) over dimension `dim` into `result`.
/// `grad` is the gradient of the forward result `out`. `log` must be `true` if `out` is a
/// log-softmax. All three must have the same floating-point dtype and the same sizes. Half-width
/// floats are computed in `float32`.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the dtype is not floating-point.
/// - [`ErrorKind::DTypeMismatch`] if `grad` or `result` has a different dtype than `out`.
/// - [`ErrorKind::ShapeMismatch`] if `grad` or `result` has different sizes than `out`.
/// - [`ErrorKind::DimOutOfRange`] if `out` has no dimension `dim`.
/// - [`ErrorKind::TooManyDims`] if the views have more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `result` overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if `result` shares memory with another operand.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn softmax_backward(
    target: Target<'_>,
    grad: View<'_>,
    out: View<'_>,
    dim: usize,
    result: View<'_>,
    log: bool,
) -> Result<()> {
    let op = if log { "log_softmax_backward" } else { "softmax_backward" };
    let [warp, block, columns] = &ROWS;
    warp.check_dtype(op, out.dtype)?;
    for view in [grad, result] {
        check_result(op, view, out.dtype, out)?;
    }
    check_dim(op, dim, out.sizes().len())?;
    let operands = [grad.read(), out.read(), result.write()];
    check_operands(op, &operands)?;
    if out.numel() == 0 {
        return Ok(());
    }
    let (size, steps, walk) = rows_along(op, dim, [grad, out, result])?;
    let rows = walk.numel();
    let team = size.next_power_of_two().min(32);
    let (kernel, grid) = if size > 1 && steps[1] != 1 && rows > 1 {
        let height = size.next_power_of_two().min(COLUMN_THREADS as usize / 32) as u32;
        (columns, Grid::linear(rows.div_ceil(32), 32 * height))
    } else if size <= MAX_WARP_ROW {
        (warp, Grid::cover(rows * team, 128))
    } else {
        (block, Grid::linear(rows, 512))
    };
    let params = Gradient {
        rows: rows as u64,
        size: size as u64,
        team: team.ilog2().into(),
        log: log.into(),
        steps,
        walk,
    };
    kernel.launch(target, op, &operands, &params, grid)
}
