//! Softmax and its logarithm over one dimension, and their gradients.
//!
//! A row is read once if a warp (up to 1,024 values, 512 of `f64`) or a block (up to 16,384 values,
//! 8,192 of `f64`) can keep it in registers. A longer row is read twice, the second time from the
//! end. Columns that lie side by side are read twice, and a block shares them. The gradient is one
//! kernel, because a training step of many small launches takes as long as its launches.

mod backward;
mod cpu;
pub(crate) mod row;
#[cfg(test)]
mod tests;

use crate::dim::check_dim;
use crate::programs::{FLOATS, LANES, committed};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::iter::{Walk, vector_width};
use warpline_runtime::launch::{Grid, Kernel, check_in_place};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Result, Target, View, cuda_struct, hosts};

pub use backward::softmax_backward;

/// The kernels, as [`Schedule`] numbers them.
const KERNELS: [&str; 10] = [
    "short",
    "warp",
    "rows",
    "long",
    "short_shifted",
    "rows_shifted",
    "long_shifted",
    "columns",
    "odd",
    "any",
];

/// How rows are shared out to threads. The source of a shifted row begins at another place of a vector than its result.
#[derive(Clone, Copy)]
enum Schedule {
    /// Each row in the registers of a few lanes.
    Short,
    /// Each row in the registers of a warp.
    Warp,
    /// Each row in the registers of a block.
    Rows,
    /// Each row read twice by a block.
    Long,
    ShortShifted,
    RowsShifted,
    LongShifted,
    /// Columns side by side, in vectors.
    Columns,
    /// Columns side by side, one by one.
    Odd,
    /// Rows with any strides.
    Any,
}

/// Threads of a block for columns at most, and how many of them lie above each other at most.
const COLUMN_THREADS: u32 = 512;
const COLUMN_HEIGHT: u32 = 32;

pub(crate) const PROGRAMS: &[&Program] = &[&SOFTMAX, &backward::SOFTMAX_BACKWARD];

pub(crate) const EXPONENTIAL: &str = include_str!("exponential.cuh");

static SOFTMAX: Program = Program::new("softmax", FLOATS, &KERNELS, |_, ty| {
    let of = Source::new().with::<Rows>().push(module::ELEMENT).push(module::SPACE);
    let of = of.push(module::WALK).push(LANES).push(EXPONENTIAL);
    let of = of.push(include_str!("softmax.cuh"));
    let of = of.push(&format!("#define COLUMN_THREADS {COLUMN_THREADS}"));
    of.push(include_str!("columns.cuh")).push(&format!("SOFTMAX({ty}, {})", held(ty == "f64")))
})
.with_ptx(committed);

/// Values that a thread has in registers; one of a warp that is full has twice as many.
const fn held(double: bool) -> usize {
    if double { 8 } else { 16 }
}

// SAFETY: `rows` makes all `Rows`, with the sizes and strides of the views that are launched with, and `schedule` picks a
// kernel that reaches no further. A thread writes a row of the result after it has read that row of the source, since both may
// be the same elements.
static SCHEDULES: [Kernel<Rows, 2>; KERNELS.len()] =
    unsafe { Kernel::array(&SOFTMAX, KERNELS, hosts!(float T => cpu::softmax::<T>)) };

cuda_struct! {
    /// The rows of a source and a result, and the strides along each. `columns` of them lie side by side in both, in
    /// `tiles` for blocks that are `height` threads high; `walk` leads to the others. For short rows `tiles` is the logarithm
    /// of the number of lanes that share a row.
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

/// `torch.softmax` over dimension `dim` of `a`, or `torch.log_softmax` where `log`, into `out` of
/// the same sizes and float dtype. The halves are computed in `f32`. `out` may be `a` itself.
///
/// # Errors
/// [`ErrorKind::UnsupportedDType`] for what is not a float, [`ErrorKind::DTypeMismatch`],
/// [`ErrorKind::ShapeMismatch`], [`ErrorKind::DimOutOfRange`], [`ErrorKind::TooManyDims`],
/// [`ErrorKind::OverlappingWrite`], [`ErrorKind::OverlappingOperands`]; otherwise as [`Kernel::launch`].
#[track_caller]
pub fn softmax(
    target: Target<'_>,
    a: View<'_>,
    dim: usize,
    out: View<'_>,
    log: bool,
) -> Result<()> {
    let op = if log { "log_softmax" } else { "softmax" };
    out.check_dtype(op, a.dtype)?;
    SCHEDULES[0].check_dtype(op, a.dtype)?;
    if a.sizes() != out.sizes() {
        return Err(Error::shape(
            op,
            format!("a result of {:?} for an input of {:?}", out.sizes(), a.sizes()),
        ));
    }
    let ndim = a.sizes().len();
    check_dim(op, dim, ndim)?;
    let operands = [a.read(), out.write()];
    check_in_place(op, &operands)?;
    if a.numel() == 0 {
        return Ok(());
    }
    let mut params = rows(op, a, dim, out, log)?;
    let (schedule, grid) = schedule(&mut params, a, dim, out);
    SCHEDULES[schedule as usize].launch(target, op, &operands, &params, grid)
}

/// Picks the kernel, its blocks and their threads.
fn schedule(p: &mut Rows, a: View<'_>, dim: usize, out: View<'_>) -> (Schedule, Grid) {
    const SHORT_THREADS: u32 = 128;
    let (rows, size) = (p.rows as usize, p.size as usize);
    let vector = vector_width(a.dtype.size());
    let aligned = |n: usize| n.is_multiple_of(vector);
    let offsets = [a.layout.offset(), out.layout.offset()];
    let strides = |view: View<'_>, d: usize| view.strides()[d].unsigned_abs();
    let of_columns = p.columns > 1;
    if of_columns {
        // Along the columns the stride is 1, and there are whole vectors of them.
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
    // Rows may begin anywhere in a vector: mostly they do so alike in both tensors.
    let alike = offsets[0].abs_diff(offsets[1]).is_multiple_of(vector)
        && others().all(|d| aligned((a.strides()[d] - out.strides()[d]).unsigned_abs()));
    let dense = size == 1 || [p.source_step, p.result_step] == [1, 1];
    if !dense || size > i32::MAX as usize {
        let threads = size.min(256).next_power_of_two().max(32);
        return (Schedule::Any, Grid::linear(rows, threads as u32));
    }
    // What is before and after a row's whole vectors, lanes have one element each of.
    let whole =
        alike && aligned(offsets[0]) && aligned(size) && others().all(|d| aligned(strides(a, d)));
    let least = if whole { 1 } else { 2 * vector };
    let held = held(a.dtype == DType::F64);
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
    // A block counts its columns in 32 bits.
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
