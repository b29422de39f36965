//! Reductions over any dimensions: sum, product, mean, extremes and where they are, any, all.

mod cpu;
mod fold;
mod plan;
#[cfg(test)]
mod tests;

use std::panic::Location;

use warpline_cuda_sys_safe::HostKernel;

use crate::programs::committed;
use fold::{Arg, Truths};
use plan::{BLOCK, Plan};
use warpline_runtime::dispatch;
use warpline_runtime::launch::{self, Call, Code};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Layout, Operand, Result, Storage, Target, View};

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
    /// [`Error::UnsupportedDType`]: the mean of integers, and an index among bools.
    pub fn result_dtype(self, dtype: DType) -> Result<DType> {
        let unsupported = Err(Error::UnsupportedDType { op: self.name(), dtype });
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

pub(crate) const PROGRAMS: &[&Program] = &[&SUM, &PROD, &MAX, &MIN, &ARG_MAX, &ARG_MIN, &ANY, &ALL];

/// The kernels of each program.
const REDUCE: usize = 0;
const FINISH: usize = 1;

/// All integers go by one kernel.
const NUMBERS: &[&str] = &["f16", "bf16", "f32", "f64", "int"];

/// A program of `fold`, which is CUDA's name for what is done.
macro_rules! reduction {
    ($name:literal, $variants:expr, $fold:literal) => {
        Program::new($name, $variants, &["reduce", "finish"], |program, variant| {
            source(program, $fold, variant)
        })
        .with_ptx(committed)
    };
}

static SUM: Program = reduction!("sum", NUMBERS, "Sum");
static PROD: Program = reduction!("prod", &["f32", "f64", "int"], "Prod");
static MAX: Program = reduction!("amax", NUMBERS, "Max");
static MIN: Program = reduction!("amin", NUMBERS, "Min");
static ARG_MAX: Program = reduction!("argmax", NUMBERS, "ArgMax");
static ARG_MIN: Program = reduction!("argmin", NUMBERS, "ArgMin");
static ANY: Program = reduction!("any", &[""], "Truths<false>");
static ALL: Program = reduction!("all", &[""], "Truths<true>");

fn source(program: &Program, fold: &str, variant: &str) -> Source {
    // What elements are read as; narrow floats of a product are told apart at run time.
    let (acc, load) = match variant {
        "" => ("", "LoadTruth".to_owned()),
        "int" => ("<i64>", "LoadInt".to_owned()),
        "f64" => ("<f64>", "Load<f64>".to_owned()),
        "f32" if program.name() == "prod" => ("<f32>", "LoadFloat".to_owned()),
        float => ("<f32>", format!("Load<{float}>")),
    };
    let name = if variant.is_empty() { String::new() } else { format!("_{variant}") };
    let of = Source::new()
        .with::<Plan>()
        .push(module::ELEMENT)
        .push(module::WALK)
        .push(include_str!("reduce.cuh"));
    of.push(&format!("REDUCTION({}{name}, {fold}{acc}, {load})", program.name()))
}

/// A program with the number of its variant.
type Variant = (&'static Program, usize);

/// The program, and the CPU implementations of its kernels: what reduces, and what folds its splits.
fn kernels(op: ReduceOp, dtype: DType) -> (Variant, [HostKernel; 2]) {
    use ReduceOp::*;
    let program = match op {
        Sum | Mean => &SUM,
        Prod => &PROD,
        Max => &MAX,
        Min => &MIN,
        ArgMax => &ARG_MAX,
        ArgMin => &ARG_MIN,
        Any => &ANY,
        All => &ALL,
    };
    let suffix = match (op, dtype) {
        (Any | All, _) => "",
        (Prod, DType::F16 | DType::BF16) => "f32",
        (_, dtype) if dtype.is_float() => dtype.suffix(),
        _ => "int",
    };
    let variant = program.variants().iter().position(|&v| v == suffix).unwrap_or_default();
    dispatch!(dtype, all T => {
        type W = <T as fold::Source>::Wide;
        let (reduce, finish): (HostKernel, HostKernel) = match op {
            Sum | Mean => (cpu::reduce::<fold::Sum<W>, T>, cpu::finish::<fold::Sum<W>>),
            Prod => (cpu::reduce::<fold::Prod<W>, T>, cpu::finish::<fold::Prod<W>>),
            Max => (cpu::reduce::<fold::Max<W>, T>, cpu::finish::<fold::Max<W>>),
            Min => (cpu::reduce::<fold::Min<W>, T>, cpu::finish::<fold::Min<W>>),
            ArgMax => (cpu::reduce::<Arg<W, true>, T>, cpu::finish::<Arg<W, true>>),
            ArgMin => (cpu::reduce::<Arg<W, false>, T>, cpu::finish::<Arg<W, false>>),
            Any => (cpu::reduce::<Truths<W, false>, T>, cpu::finish::<Truths<W, false>>),
            All => (cpu::reduce::<Truths<W, true>, T>, cpu::finish::<Truths<W, true>>),
        };
        ((program, variant), [reduce, finish])
    })
}

/// Reduces the dimensions `dims` of `a`, all of them if there are none, into `out`: of `a`'s other
/// sizes, in order, or of all its sizes with 1 for each that is reduced; of
/// [`ReduceOp::result_dtype`]. Indices count within the one reduced dimension, or through all
/// elements in row-major order.
///
/// # Errors
/// [`Error::UnsupportedDType`], [`Error::DTypeMismatch`], [`Error::ShapeMismatch`],
/// [`Error::DimOutOfRange`], [`Error::OverlappingWrite`], [`Error::OverlappingOperands`];
/// [`Error::InvalidArgument`] for an extreme of no elements, and for indices over several but not
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
        return Err(Error::DTypeMismatch { op: name, expected, actual: out.dtype });
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
    if let Target::Cuda(_, device, _) = target {
        let gpu = device.properties();
        let per_sm = (u64::from(gpu.max_threads_per_multiprocessor) / BLOCK).max(1);
        plan.share_out(u64::from(gpu.multiprocessor_count) * per_sm);
    }
    let ((program, variant), host) = kernels(op, a.dtype);
    let run = |operands: &[Operand<'_>], kernel: usize, grid: [u32; 3]| {
        let block = [BLOCK as u32, 1, 1];
        let call = Call {
            op: name,
            operands,
            params: bytemuck::bytes_of(&plan),
            checks_indices: false,
            host: host[kernel],
            code: Code::Kernel { kernel: (program, variant, kernel), grid, block, shared_bytes: 0 },
            location,
        };
        // SAFETY: the plan reaches no more than the elements of `a` and `out`, or of the partial
        // results, and kernels and host code take plans.
        unsafe { launch::run(target, &call) }
    };
    let grid = [plan.blocks() as u32, plan.splits as u32, 1];
    let Target::Cuda(runtime, _, stream) = target else {
        return run(&[a.read(), out.write()], REDUCE, grid);
    };
    if plan.splits == 1 {
        return run(&[a.read(), out.write()], REDUCE, grid);
    }
    // Eight bytes for each value, and as many for its index.
    let partials = (plan.outputs * plan.splits) as usize * if indices { 2 } else { 1 };
    let storage = Storage::device(runtime, partials * 8, stream)?;
    let layout = Layout::contiguous(&[partials])?;
    let partial = View { storage: &storage, layout: &layout, dtype: DType::I64 };
    run(&[a.read(), partial.write()], REDUCE, grid)?;
    run(&[partial.read(), out.write()], FINISH, [plan.outputs as u32, 1, 1])
}
