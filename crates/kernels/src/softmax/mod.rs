//! Softmax and its logarithm over one dimension, and their gradients.
//!
//! A row is read once if its values fit the registers of a warp (up to 1,024 values, 512 of `f64`)
//! or of a block (up to 16,384 values, 8,192 of `f64`). A longer row is read twice, the second time
//! from the end. Rows that lie side by side in memory, as columns, are read twice by a block that
//! processes several of them. The gradient takes one launch: composed of other ops, it would take
//! several, and small tensors would wait for the launches.

mod backward;
mod cpu;
pub(crate) mod row;

use crate::dim::{check_dim, check_result};
use crate::programs::{FLOATS, LANES, kernels};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::iter::{Walk, vector_width};
use warpline_runtime::launch::{Grid, Kernel, check_in_place};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Result, Target, View, cuda_struct};

pub use backward::softmax_backward;

/// Distribution of rows over threads. A row is shifted if source and result begin at different
/// positions within a vector.
#[derive(Clone, Copy)]
enum Schedule {
    /// A few lanes keep a row in registers.
    Short,
    /// A warp keeps a row in registers.
    Warp,
    /// A block keeps a row in registers.
    Rows,
    /// A block reads a row twice.
    Long,
    ShortShifted,
    RowsShifted,
    LongShifted,
    /// Columns that lie side by side, loaded as vectors.
    Columns,
    /// Columns that lie side by side, loaded as single elements.
    Odd,
    /// Rows with any strides.
    Any,
}

/// Maximum number of threads of a block for columns.
const COLUMN_THREADS: u32 = 512;
/// Maximum number of threads per column.
const COLUMN_HEIGHT: u32 = 32;

pub(crate) const PROGRAMS: &[&Program] = &[&SOFTMAX, &backward::SOFTMAX_BACKWARD];

pub(crate) const EXPONENTIAL: &str = include_str!("exponential.cuh");

kernels! {
    SOFTMAX = "softmax", FLOATS, |_, ty| {
        let of = Source::new().with::<Rows>().push(module::ELEMENT).push(module::SPACE);
        let of = of.push(module::WALK).push(LANES).push(EXPONENTIAL);
        let of = of.push(include_str!("softmax.cuh"));
        let of = of.push(&format!("#define COLUMN_THREADS {COLUMN_THREADS}"));
        of.push(include_str!("columns.cuh"))
            .push(&format!("SOFTMAX({ty}, {})", values_per_thread(ty == "f64")))
    } => {
        // In the order of `Schedule`.
        //
        // SAFETY: only `rows` makes `Rows`, with the sizes and strides of the launch's operands, and
        // `schedule` chooses a kernel that stays within them. Source and result may be the same
        // elements, because no element is written before its last read.
        unsafe SCHEDULES: [Kernel<Rows, 2>; 10] = float cpu::softmax[
            short, warp, rows, long, short_shifted, rows_shifted, long_shifted, columns, odd, any
        ];
    }
}

/// Number of values that a thread keeps in registers. In [`Schedule::Warp`], a thread keeps twice
/// as many.
const fn values_per_thread(double: bool) -> usize {
    if double { 8 } else { 16 }
}

cuda_struct! {
    /// `rows` rows of `size` elements. `source_step` and `result_step` are the strides of source and
    /// result along a row. If `columns` is greater than 1, groups of `columns` rows lie side by side
    /// in memory, like the columns of a matrix. `tiles` blocks process a group, with `height` threads
    /// per row. `walk` covers the dimensions outside the groups. For short rows, `tiles` is instead
    /// the binary logarithm of the number of lanes per row.
    struct Rows {
        rows: u64,
        size: u64,
        source_step: i64,
        result_step: i64,
        columns: u64,
        tiles: u64,
        height: u64,
        log: u64,
        walk: Walk<2>,
    }
}

/// Computes `torch.softmax` over dimension `dim` of `a` into `out`, or `torch.log_softmax` if `log`
/// is set. `out` has the sizes and the floating-point dtype of `a`, and may be `a` itself.
/// Half-width floats are computed in `float32`. A scalar counts as a row of one element.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the dtype is not floating-point.
/// - [`ErrorKind::DTypeMismatch`] if `out` has a different dtype than `a`.
/// - [`ErrorKind::ShapeMismatch`] if `out` has different sizes than `a`.
/// - [`ErrorKind::DimOutOfRange`] if `a` has no dimension `dim`.
/// - [`ErrorKind::TooManyDims`] if the views have more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if `out` shares memory with `a`, unless both are the same
///   elements.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn softmax(
    target: Target<'_>,
    a: View<'_>,
    dim: usize,
    out: View<'_>,
    log: bool,
) -> Result<()> {
    let op = if log { "log_softmax" } else { "softmax" };
    SCHEDULES[0].check_dtype(op, a.dtype)?;
    check_result(op, out, a.dtype, a)?;
    check_dim(op, dim, a.sizes().len())?;
    let operands = [a.read(), out.write()];
    check_in_place(op, &operands)?;
    if a.numel() == 0 {
        return Ok(());
    }
    let mut params = rows(op, a, dim, out, log)?;
    let (schedule, grid) = schedule(&mut params, a, dim, out);
    SCHEDULES[schedule as usize].launch(target, op, &operands, &params, grid)
}

/// Chooses the kernel and its grid.
fn schedule(p: &mut Rows, a: View<'_>, dim: usize, out: View<'_>) -> (Schedule, Grid) {
    const SHORT_THREADS: u32 = 128;
    let (rows, size) = (p.rows as usize, p.size as usize);
    let vector = vector_width(a.dtype.size());
    let aligned = |n: usize| n.is_multiple_of(vector);
    let offsets = [a.layout.offset(), out.layout.offset()];
    let strides = |view: View<'_>, d: usize| view.strides()[d].unsigned_abs();
    let of_columns = p.columns > 1;
    if of_columns {
        // A vector holds elements of neighbouring columns. All vectors are aligned if the number of
        // columns, the offsets, and all strides except 1 are multiples of the vector width.
        let all = |v: View<'_>| {
            (0..v.sizes().len()).all(|d| strides(v, d) == 1 || aligned(strides(v, d)))
        };
        let whole = aligned(p.columns as usize)
            && offsets.iter().all(|&o| aligned(o))
            && all(a)
            && all(out);
        let (kernel, vector) = if whole { (Schedule::Columns, vector) } else { (Schedule::Odd, 1) };
        let height = size.div_ceil(8).next_power_of_two().min(COLUMN_HEIGHT as usize) as u32;
        let lanes = (COLUMN_THREADS / 2 / height).max(COLUMN_THREADS / COLUMN_HEIGHT);
        p.height = height.into();
        p.tiles = (p.columns as usize).div_ceil(lanes as usize * vector) as u64;
        let blocks = rows / p.columns as usize * p.tiles as usize;
        return (kernel, Grid::linear(blocks, lanes * height));
    }
    let others = || (0..a.sizes().len()).filter(|&d| d != dim);
    // A row may begin inside a vector. Usually source and result begin at the same position within
    // a vector; only then are their vectors aligned alike.
    let alike = offsets[0].abs_diff(offsets[1]).is_multiple_of(vector)
        && others().all(|d| aligned((a.strides()[d] - out.strides()[d]).unsigned_abs()));
    let dense = size == 1 || [p.source_step, p.result_step] == [1, 1];
    if !dense || size > i32::MAX as usize {
        let threads = size.min(256).next_power_of_two().max(32);
        return (Schedule::Any, Grid::linear(rows, threads as u32));
    }
    // If a row does not consist of whole vectors, each lane also processes at most one of the
    // elements before and after them, so there must be enough lanes.
    let whole =
        alike && aligned(offsets[0]) && aligned(size) && others().all(|d| aligned(strides(a, d)));
    let least = if whole { 1 } else { 2 * vector };
    let held = values_per_thread(a.dtype == DType::F64);
    let warps = |n: usize| n.div_ceil(held).next_multiple_of(32) as u32;
    match size {
        n if n <= if alike { 64 } else { 32 } * held => {
            let team = n.div_ceil(held).next_power_of_two().max(least).min(32);
            p.tiles = team.ilog2().into();
            let kernel = match n {
                _ if !alike => Schedule::ShortShifted,
                n if n > 32 * held => Schedule::Warp,
                _ => Schedule::Short,
            };
            (kernel, Grid::cover(rows * team, SHORT_THREADS))
        }
        n if n <= 1024 * held => (
            if alike { Schedule::Rows } else { Schedule::RowsShifted },
            Grid::linear(rows, warps(n)),
        ),
        _ if !alike => (Schedule::LongShifted, Grid::linear(rows, 1024)),
        _ if a.dtype == DType::F64 => (Schedule::Long, Grid::linear(rows, 512)),
        _ => (Schedule::Long, Grid::linear(rows, 1024)),
    }
}

#[track_caller]
fn rows(op: &'static str, a: View<'_>, dim: usize, out: View<'_>, log: bool) -> Result<Rows> {
    let of = |d: usize| (a.sizes()[d], [a.strides()[d], out.strides()[d]]);
    let others = || (0..a.sizes().len()).rev().filter(|&d| d != dim).map(of);
    // A scalar is a row of one element.
    let (size, steps) = if a.sizes().is_empty() { (1, [0; 2]) } else { of(dim) };
    let mut walk = Walk::new(op, others())?;
    let mut columns = 1;
    let (side_by_side, inner_steps) = walk.inner();
    // A block counts columns in 32 bits.
    let few = walk.numel() <= 1 << 30;
    if size > 1 && steps != [1; 2] && inner_steps == [1; 2] && side_by_side >= 16 && few {
        let mut left = side_by_side;
        let outer = others().skip_while(|&(n, _)| {
            let is_inner = left > 1;
            left /= if is_inner { n } else { 1 };
            is_inner
        });
        (walk, columns) = (Walk::new(op, outer)?, side_by_side);
    }
    let [source_step, result_step] = steps.map(|step| step as i64);
    let (rows, size) = ((walk.numel() * columns) as u64, size as u64);
    let (columns, log) = (columns as u64, log.into());
    Ok(Rows { rows, size, source_step, result_step, columns, tiles: 1, height: 1, log, walk })
}
