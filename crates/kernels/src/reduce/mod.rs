//! Reductions over any dimensions: sum, product, mean, extremes and where they are, any, all.
//!
//! There are five folds: `sum`, `prod`, `extreme`, `arg_extreme` and `truth`. The smallest element
//! is computed as the largest of the negated ones. `fold.cuh` defines the folds, `reduce.cuh` the
//! distribution of the elements, and `plan.rs` chooses it.

mod cpu;
#[cfg(test)]
mod cpu_tests;
mod fold;
mod plan;
#[cfg(test)]
mod plan_tests;
#[cfg(test)]
mod tests;

use std::panic::Location;

use warpline_cuda_sys_safe::HostKernel;

use crate::fill;
use crate::programs::{NUMBERS, committed, cuda_type};
use crate::turn::{Scratch, TURN, ticket};
use fold::{Arg, Truths};
use plan::{BLOCK, Kernel, MOST_OUTPUTS, Plan, UNROLL};
use warpline_runtime::dispatch;
use warpline_runtime::launch::{self, Call, Code};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, ErrorKind, Result, Scalar, Target, View};

/// What is made of the elements that go into one result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// `torch.sum`: integers and bool add up to `int64`.
    Sum,
    /// `torch.prod`: as the sum.
    Prod,
    /// `torch.mean`, of floats only.
    Mean,
    /// `torch.amax`; NaN is larger than anything.
    Max,
    /// `torch.amin`; NaN is smaller than anything.
    Min,
    /// `torch.argmax`: the first index of the largest value, `int64`.
    ArgMax,
    /// `torch.argmin`: the first index of the smallest value, `int64`.
    ArgMin,
    /// `torch.any`: whether any element is not zero.
    Any,
    /// `torch.all`: whether no element is zero.
    All,
}

impl ReduceOp {
    /// PyTorch's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Mean => "mean",
            Self::Max => "amax",
            Self::Min => "amin",
            Self::ArgMax => "argmax",
            Self::ArgMin => "argmin",
            Self::Any => "any",
            Self::All => "all",
        }
    }

    /// The result's dtype.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedDType`]: the mean of integers, and an index among bools.
    #[track_caller]
    pub fn result_dtype(self, dtype: DType) -> Result<DType> {
        let unsupported = Err(ErrorKind::UnsupportedDType { dtype }.of(self.name()));
        Ok(match self {
            Self::Sum | Self::Prod if !dtype.is_float() => DType::I64,
            Self::Mean if !dtype.is_float() => return unsupported,
            Self::ArgMax | Self::ArgMin if dtype == DType::Bool => return unsupported,
            Self::ArgMax | Self::ArgMin => DType::I64,
            // As in PyTorch, which kept this for programs older than its bool.
            Self::Any | Self::All if dtype == DType::U8 => DType::U8,
            Self::Any | Self::All => DType::Bool,
            _ => dtype,
        })
    }

    /// Whether it has no result over no elements.
    const fn needs_elements(self) -> bool {
        matches!(self, Self::Max | Self::Min | Self::ArgMax | Self::ArgMin)
    }
}

pub(crate) const PROGRAMS: &[&Program] = &[
    &SUM[0],
    &SUM[1],
    &SUM[2],
    &PROD[0],
    &PROD[1],
    &PROD[2],
    &EXTREME[0],
    &EXTREME[1],
    &EXTREME[2],
    &ARG_EXTREME[0],
    &ARG_EXTREME[1],
    &ARG_EXTREME[2],
    &TRUTH[0],
    &TRUTH[1],
    &TRUTH[2],
];

/// Bytes are not zero in one way.
const TRUTHS: &[&str] = &["u8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"];

/// The programs of `fold`, which is CUDA's name for what is done: one for each [`Kernel`], which is what is
/// unpacked when one of them is used.
macro_rules! reduction {
    ($name:literal, $variants:expr, $fold:literal) => {
        [
            reduction!($name, "rows", $variants, $fold, "ROWS"),
            reduction!($name, "columns", $variants, $fold, "COLUMNS"),
            reduction!($name, "strided", $variants, $fold, "STRIDED"),
        ]
    };
    ($name:literal, $kind:literal, $variants:expr, $fold:literal, $kernel:literal) => {
        Program::new(concat!($name, "_", $kind), $variants, &["", "split"], |program, variant| {
            source(program, $fold, $kernel, variant)
        })
        .with_ptx(committed)
    };
}

static SUM: [Program; 3] = reduction!("sum", &DType::SUFFIXES, "Sum");
static PROD: [Program; 3] = reduction!("prod", &DType::SUFFIXES, "Prod");
static EXTREME: [Program; 3] = reduction!("extreme", &DType::SUFFIXES, "Extreme");
static ARG_EXTREME: [Program; 3] = reduction!("arg_extreme", NUMBERS, "ArgExtreme");
static TRUTH: [Program; 3] = reduction!("truth", TRUTHS, "Truth");

fn source(program: &Program, fold: &str, kernel: &str, variant: &str) -> Source {
    let (name, element) = (program.name(), cuda_type(variant));
    let source = Source::new().with::<Plan>().push(module::ELEMENT).push(include_str!("fold.cuh"));
    source
        .push(&format!("#define BLOCK {BLOCK}\n#define UNROLL {UNROLL}"))
        .push(TURN)
        .push(include_str!("reduce.cuh"))
        .push(&format!("{kernel}({name}_{variant}, {fold}, {element})"))
}

/// The program of an op, and its variant of a kernel for this dtype.
fn program(op: ReduceOp, kernel: Kernel, dtype: DType) -> (&'static Program, usize) {
    use ReduceOp::*;
    let (programs, first) = match op {
        Sum | Mean => (&SUM, DType::Bool),
        Prod => (&PROD, DType::Bool),
        Max | Min => (&EXTREME, DType::Bool),
        ArgMax | ArgMin => (&ARG_EXTREME, DType::U8),
        Any | All => (&TRUTH, DType::I8),
    };
    let element = (dtype as usize).saturating_sub(first as usize);
    (&programs[kernel as usize], element)
}

/// The CPU implementation.
fn host_kernel(op: ReduceOp, dtype: DType) -> HostKernel {
    use ReduceOp::*;
    dispatch!(dtype, all T => {
        match op {
            Sum | Mean => cpu::reduce::<fold::Sum, T>,
            Prod => cpu::reduce::<fold::Prod, T>,
            Max => cpu::reduce::<fold::Max, T>,
            Min => cpu::reduce::<fold::Min, T>,
            ArgMax => cpu::reduce::<Arg<true>, T>,
            ArgMin => cpu::reduce::<Arg<false>, T>,
            Any => cpu::reduce::<Truths<false>, T>,
            All => cpu::reduce::<Truths<true>, T>,
        }
    })
}

/// Elements that change no result: eight bytes of them.
fn neutral(op: ReduceOp, dtype: DType) -> u64 {
    use ReduceOp::*;
    let bits = dtype.size() as u32 * 8;
    let sign = 1 << (bits - 1);
    let of = |value| fill::bits_of(dtype, value);
    let element: u64 = match op {
        Sum | Mean | Any => 0,
        Prod | All => of(Scalar::Int(1)),
        Max | ArgMax if dtype.is_float() => of(Scalar::Float(f64::NEG_INFINITY)),
        Min | ArgMin if dtype.is_float() => of(Scalar::Float(f64::INFINITY)),
        Max | ArgMax if matches!(dtype, DType::Bool | DType::U8) => 0,
        Min | ArgMin if matches!(dtype, DType::Bool | DType::U8) => 0xff,
        Max | ArgMax => sign,
        Min | ArgMin => sign - 1,
    };
    let all = u64::MAX >> (64 - bits);
    // As many times as it fits.
    element * (u64::MAX / all)
}

/// Reduces each half of the results: kernels count them in 31 bits.
#[cold]
#[track_caller]
fn halves(
    target: Target<'_>,
    op: ReduceOp,
    a: View<'_>,
    dims: &[usize],
    out: View<'_>,
) -> Result<()> {
    let ndim = a.sizes().len();
    let kept = (0..ndim).filter(|d| !dims.is_empty() && !dims.contains(d));
    let of_out = |d: usize| {
        let before = dims.iter().filter(|&&r| r < d).count();
        if out.sizes().len() == ndim { d } else { d - before }
    };
    let Some(dim) = kept.max_by_key(|&d| a.sizes()[d]) else { return Ok(()) };
    let size = a.sizes()[dim];
    for (start, len) in [(0, size / 2), (size / 2, size - size / 2)] {
        let from = a.layout.narrow(dim as isize, start as isize, len)?;
        let to = out.layout.narrow(of_out(dim) as isize, start as isize, len)?;
        reduce(target, op, View { layout: &from, ..a }, dims, View { layout: &to, ..out })?;
    }
    Ok(())
}

/// Reduces the dimensions `dims` of `a`, all of them if there are none, into `out`: of `a`'s other
/// sizes, in order, or of all its sizes with 1 for each that is reduced; of
/// [`ReduceOp::result_dtype`]. Indices count within the one reduced dimension, or through all
/// elements in row-major order.
///
/// # Errors
/// [`ErrorKind::UnsupportedDType`], [`ErrorKind::DTypeMismatch`], [`ErrorKind::ShapeMismatch`],
/// [`ErrorKind::DimOutOfRange`], [`ErrorKind::OverlappingWrite`], [`ErrorKind::OverlappingOperands`];
/// [`ErrorKind::InvalidArgument`] for an extreme of no elements, and for indices over several but not
/// all dimensions; otherwise as [`launch::run`].
#[track_caller]
pub fn reduce(
    target: Target<'_>,
    op: ReduceOp,
    a: View<'_>,
    dims: &[usize],
    out: View<'_>,
) -> Result<()> {
    let name = op.name();
    let location = Location::caller();
    let expected = op.result_dtype(a.dtype)?;
    if out.dtype != expected {
        return Err(ErrorKind::DTypeMismatch { expected, actual: out.dtype }.of(name));
    }
    let indices = matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin);
    if indices && dims.len() > 1 && dims.len() < a.sizes().len() {
        return Err(Error::invalid(
            name,
            format!("takes one dimension or all of them, not {dims:?}"),
        ));
    }
    // Another thread may still read what one writes.
    launch::check_in_place(name, &[a.read(), out.write()])?;
    let mut plan = Plan::new(name, a, dims, out, indices)?;
    if plan.extent == 0 && op.needs_elements() {
        return Err(Error::invalid(
            name,
            format!(
                "needs at least one element to reduce, but the input has shape {:?}; name a dimension that is not 0",
                a.sizes()
            ),
        ));
    }
    if plan.outputs == 0 {
        return Ok(());
    }
    if op == ReduceOp::Mean {
        plan.divisor = plan.extent as f64;
        // A GPU multiplies, as in PyTorch.
        plan.scale = 1.0 / plan.divisor;
    }
    if matches!(op, ReduceOp::Min | ReduceOp::ArgMin | ReduceOp::All) {
        plan.flip = !0;
    }
    plan.neutral = neutral(op, a.dtype);
    let mut kernel = Kernel::Rows;
    let (mut grid, mut scratch, mut split) = ([1; 3], None, false);
    if let Target::Cuda(runtime, device, stream) = target {
        if plan.outputs >= MOST_OUTPUTS {
            return halves(target, op, a, dims, out);
        }
        let item = a.dtype.size();
        let first = launch::address(name, &a)?.addr();
        kernel = plan.kernel(first, item);
        let multiprocessors = device.properties().multiprocessor_count.into();
        grid = plan.share_out(name, kernel, item, multiprocessors)?;
        let splits = grid[1] as usize * grid[2] as usize;
        split = splits > 1;
        if split {
            plan.ticket = ticket();
            // A counter for each block of the first split, then eight bytes for each value, and as
            // many for its index.
            let parts = plan.outputs as usize * splits * if indices { 2 } else { 1 };
            let words = grid[0] as usize + parts;
            scratch = Some(Scratch::new(runtime, stream, words)?);
        }
    }
    let (program, variant) = program(op, kernel, a.dtype);
    let call = Call {
        op: name,
        operands: &[a.read(), out.write(), Scratch::operand(scratch.as_ref(), out)],
        params: bytemuck::bytes_of(&plan),
        checks_indices: false,
        host: host_kernel(op, a.dtype),
        code: Code::Kernel {
            kernel: (program, variant, split.into()),
            grid,
            block: [BLOCK, 1, 1],
            shared_bytes: 0,
        },
        location,
    };
    // SAFETY: the plan reaches no more than the elements of `a` and `out`; kernels keep counters and
    // partial results in the scratch, which has a word for each, and of which host code needs none;
    // both take plans.
    unsafe { launch::run(target, &call) }
}
