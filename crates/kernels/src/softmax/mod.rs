//! Softmax and its logarithm over one dimension, and their gradients.
//!
//! A row is read once if a warp (up to 1,024 values, 512 of `f64`) or a block (up to 16,384 values,
//! 8,192 of `f64`) can keep it in registers. A longer row is read twice, the second time from the
//! end. Columns that lie side by side are read twice, and a block shares them. The gradient is one
//! kernel, because a training step of many small launches takes as long as its launches.

mod attention;
#[cfg(test)]
mod attention_tests;
mod backward;
mod cpu;
#[cfg(test)]
mod tests;

use std::panic::Location;

use bytemuck::{Pod, Zeroable};
use warpline_cuda_sys_safe::HostKernel;

use crate::dim::check_dim;
use crate::programs::{FLOATS, LANES, committed};
use warpline_runtime::cuda_struct;
use warpline_runtime::iter::{Walk, vector_width};
use warpline_runtime::launch::{self, Call, Code};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, ErrorKind, Result, Target, View};

pub use attention::{attention_weights, attention_weights_backward};
pub use backward::softmax_backward;

/// The kernels: rows in the registers of a few lanes, of a warp, of a block, and longer ones; those that
/// begin at another place of a vector in the source than in the result; columns side by side, in vectors or
/// one by one; all others.
const KERNELS: &[&str] = &[
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

/// Their numbers.
#[derive(Clone, Copy)]
enum Kernel {
    Short,
    Warp,
    Rows,
    Long,
    ShortShifted,
    RowsShifted,
    LongShifted,
    Columns,
    Odd,
    Any,
}

/// Threads of a block for columns at most, and how many of them lie above each other at most.
const COLUMN_THREADS: u32 = 512;
const COLUMN_HEIGHT: u32 = 32;

pub(crate) const PROGRAMS: &[&Program] = &[
    &SOFTMAX,
    &backward::SOFTMAX_BACKWARD,
    &attention::ATTENTION_WEIGHTS,
    &attention::ATTENTION_WEIGHTS_BACKWARD,
];

const EXPONENTIAL: &str = include_str!("exponential.cuh");

static SOFTMAX: Program = Program::new("softmax", FLOATS, KERNELS, |_, ty| {
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

/// The rows, of a source and a result, and the steps along each. `columns` of them lie side by side in
/// both, in `tiles` that blocks `height` threads high take; `walk` says where the others are. Of short rows
/// `tiles` is the logarithm of how many lanes take one.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
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

cuda_struct!(Rows { rows, size, source_step, result_step, columns, tiles, height, log, walk });

/// `torch.softmax` over dimension `dim` of `a`, or `torch.log_softmax` where `log`, into `out` of
/// the same sizes and float dtype. The halves are computed in `f32`. `out` may be `a` itself.
///
/// # Errors
/// [`ErrorKind::UnsupportedDType`] for what is not a float, [`ErrorKind::DTypeMismatch`],
/// [`ErrorKind::ShapeMismatch`], [`ErrorKind::DimOutOfRange`], [`ErrorKind::TooManyDims`],
/// [`ErrorKind::OverlappingWrite`], [`ErrorKind::OverlappingOperands`]; otherwise as [`launch::run`].
#[track_caller]
pub fn softmax(
    target: Target<'_>,
    a: View<'_>,
    dim: usize,
    out: View<'_>,
    log: bool,
) -> Result<()> {
    let op = if log { "log_softmax" } else { "softmax" };
    let location = Location::caller();
    if out.dtype != a.dtype {
        return Err(ErrorKind::DTypeMismatch { expected: a.dtype, actual: out.dtype }.of(op));
    }
    let unsupported = ErrorKind::UnsupportedDType { dtype: a.dtype }.of(op);
    let (index, host): (usize, HostKernel) = match a.dtype {
        DType::F16 => (0, cpu::softmax::<half::f16>),
        DType::BF16 => (1, cpu::softmax::<half::bf16>),
        DType::F32 => (2, cpu::softmax::<f32>),
        DType::F64 => (3, cpu::softmax::<f64>),
        _ => return Err(unsupported),
    };
    if a.sizes() != out.sizes() {
        return Err(Error::shape(
            op,
            format!("a result of {:?} for an input of {:?}", out.sizes(), a.sizes()),
        ));
    }
    let ndim = a.sizes().len();
    check_dim(op, dim, ndim)?;
    launch::check_in_place(op, &[a.read(), out.write()])?;
    if a.numel() == 0 {
        return Ok(());
    }
    let mut params = rows(op, a, dim, out, log)?;
    let (kernel, blocks, threads) = shape(&mut params, a, dim, out);
    let call = Call {
        op,
        operands: &[a.read(), out.write()],
        params: bytemuck::bytes_of(&params),
        checks_indices: false,
        host,
        code: Code::Kernel {
            kernel: (&SOFTMAX, index, kernel as usize),
            grid: [blocks.min(i32::MAX as usize) as u32, 1, 1],
            block: [threads, 1, 1],
            shared_bytes: 0,
        },
        location,
    };
    // SAFETY: the parameters reach the elements of both views, a row of `out` is written after
    // that row of `a` has been read, and both kernels take `Rows`.
    unsafe { launch::run(target, &call) }
}

/// The kernel, its blocks and their threads.
fn shape(p: &mut Rows, a: View<'_>, dim: usize, out: View<'_>) -> (Kernel, usize, u32) {
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
        let (kernel, vector) = if whole { (Kernel::Columns, vector) } else { (Kernel::Odd, 1) };
        let height = size.div_ceil(8).next_power_of_two().min(COLUMN_HEIGHT as usize) as u32;
        let lanes = (COLUMN_THREADS / 2 / height).max(COLUMN_THREADS / COLUMN_HEIGHT);
        p.height = height.into();
        p.tiles = (p.columns as usize).div_ceil(lanes as usize * vector) as u64;
        let blocks = rows / p.columns as usize * p.tiles as usize;
        return (kernel, blocks, lanes * height);
    }
    let others = || (0..a.sizes().len()).filter(|&d| d != dim);
    // Rows may begin anywhere in a vector: mostly they do so alike in both tensors.
    let alike = offsets[0].abs_diff(offsets[1]).is_multiple_of(vector)
        && others().all(|d| aligned((a.strides()[d] - out.strides()[d]).unsigned_abs()));
    let dense = size == 1 || [p.source_step, p.result_step] == [1, 1];
    if !dense || size > i32::MAX as usize {
        let threads = size.min(256).next_power_of_two().max(32);
        return (Kernel::Any, rows, threads as u32);
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
                _ if !alike => Kernel::ShortShifted,
                n if n > 32 * held => Kernel::Warp,
                _ => Kernel::Short,
            };
            (kernel, (rows * team).div_ceil(SHORT_THREADS as usize), SHORT_THREADS)
        }
        n if n <= 1024 * held => {
            (if alike { Kernel::Rows } else { Kernel::RowsShifted }, rows, warps(n))
        }
        _ if !alike => (Kernel::LongShifted, rows, 1024),
        _ if a.dtype == DType::F64 => (Kernel::Long, rows, 512),
        _ => (Kernel::Long, rows, 1024),
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
