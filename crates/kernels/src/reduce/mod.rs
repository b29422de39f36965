//! Reductions over any dimensions: sum, product, mean, extremes and where they are, any, all.

mod cpu;
mod fold;
mod plan;
#[cfg(test)]
mod tests;

use std::panic::Location;

use warpline_cuda_sys_safe::HostKernel;

use fold::{Arg, Source, Truths};
use plan::{BLOCK, Plan};
use warpline_runtime::dispatch;
use warpline_runtime::launch::{self, Call, Code};
use warpline_runtime::module;
use warpline_runtime::{DType, Error, KernelSet, Layout, Operand, Result, Storage, Target, View};

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

static SUM: KernelSet = KernelSet::new(module!("reduce_sum"), 8, |i| numbers(i, ["sum"; 2]));
static EXTREME: KernelSet =
    KernelSet::new(module!("reduce_extreme"), 16, |i| numbers(i, ["max", "min"]));
static ARG: KernelSet =
    KernelSet::new(module!("reduce_arg"), 16, |i| numbers(i, ["argmax", "argmin"]));
static OTHER: KernelSet = KernelSet::new(module!("reduce_other"), 10, |i| {
    const NAMES: [&str; 10] = [
        "reduce_prod_f32",
        "reduce_prod_f64",
        "reduce_prod_int",
        "finish_prod_f32",
        "finish_prod_f64",
        "finish_prod_int",
        "reduce_any",
        "reduce_all",
        "finish_any",
        "finish_all",
    ];
    NAMES[i % 10].into()
});

fn numbers(index: usize, ops: [&str; 2]) -> String {
    const KINDS: [&str; 8] = ["f16", "bf16", "f32", "f64", "int", "f32", "f64", "int"];
    let stage = if index % 8 < 5 { "reduce" } else { "finish" };
    format!("{stage}_{}_{}", ops[index / 8 % 2], KINDS[index % 8])
}

/// A kernel's number with its CPU implementation.
type Kernel = (usize, HostKernel);

/// The set, the kernel that reduces, and the one that folds its splits.
fn kernels(op: ReduceOp, dtype: DType) -> (&'static KernelSet, Kernel, Kernel) {
    use ReduceOp::*;
    let (width, wide) = match dtype {
        DType::F16 => (0, 0),
        DType::BF16 => (1, 0),
        DType::F32 => (2, 0),
        DType::F64 => (3, 1),
        _ => (4, 2),
    };
    let (set, first, last) = match op {
        Sum | Mean => (&SUM, width, 5 + wide),
        Max => (&EXTREME, width, 5 + wide),
        Min => (&EXTREME, 8 + width, 13 + wide),
        ArgMax => (&ARG, width, 5 + wide),
        ArgMin => (&ARG, 8 + width, 13 + wide),
        Prod => (&OTHER, wide, 3 + wide),
        Any => (&OTHER, 6, 8),
        All => (&OTHER, 7, 9),
    };
    dispatch!(dtype, all T => {
        type W = <T as Source>::Wide;
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
        (set, (first, reduce), (last, finish))
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
    out.check_writable(name)?;
    for view in [a, out] {
        view.check_inside(name)?;
    }
    // Another thread may still read what one writes.
    a.check_no_partial_overlap(&out, name)?;
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
    }
    if let Target::Cuda(_, device, _) = target {
        let gpu = device.properties();
        let per_sm = (u64::from(gpu.max_threads_per_multiprocessor) / BLOCK).max(1);
        plan.share_out(u64::from(gpu.multiprocessor_count) * per_sm);
    }
    let (set, (first, reduce), (last, finish)) = kernels(op, a.dtype);
    let run = |operands: &[Operand<'_>], (index, host): Kernel, grid: [u32; 3]| {
        let block = [BLOCK as u32, 1, 1];
        let call = Call {
            op: name,
            operands,
            params: bytemuck::bytes_of(&plan),
            host,
            code: Code::Kernel { set, index, grid, block, shared_bytes: 0 },
            location,
        };
        // SAFETY: the plan reaches no more than the elements of `a` and `out`, or of the partial
        // results, and kernels and host code take plans.
        unsafe { launch::run(target, &call) }
    };
    let grid = [plan.blocks() as u32, plan.splits as u32, 1];
    let Target::Cuda(runtime, _, stream) = target else {
        return run(&[a.read(), out.write()], (first, reduce), grid);
    };
    if plan.splits == 1 {
        return run(&[a.read(), out.write()], (first, reduce), grid);
    }
    // Eight bytes for each value, and as many for its index.
    let partials = (plan.outputs * plan.splits) as usize * if indices { 2 } else { 1 };
    let storage = Storage::device(runtime, partials * 8, stream)?;
    let layout = Layout::contiguous(&[partials])?;
    let partial = View { storage: &storage, layout: &layout, dtype: DType::I64 };
    run(&[a.read(), partial.write()], (first, reduce), grid)?;
    run(&[partial.read(), out.write()], (last, finish), [plan.outputs as u32, 1, 1])
}
