//! Attention of half-width floats in one launch, and its gradients in two, on tensor cores. Neither scores nor
//! weights are in memory.
//!
//! # Algorithm
//!
//! FlashAttention-2 with `mma.sync`, for devices of compute capability 8.0 and later. A block has
//! 64 queries. It keeps their scores for 64 keys at a time (32 where operands are wider than 64) in
//! registers, while the next keys are fetched with `cp.async`. It writes the result and the
//! logarithm of each query's sum.
//!
//! The gradient takes two kernels: one has 64 queries for each block and goes over the keys, the
//! other has 64 keys and goes over the queries. Both recompute the weights. No atomics are used, so
//! sums are the same in each run.
//!
//! Operands may have any strides of whole vectors, and results have the layout of their operands,
//! so heads that lie side by side in the result of one linear layer need no copy. `tiles.cuh` holds
//! the common parts of the three kernels.
//!
//! # Limits
//!
//! Instructions that `compute_75` lacks stand in blocks that the module loader replaces
//! (`module/newer.rs` of `warpline-runtime`). The code that stands there in the PTX traps, and is
//! never launched.

mod cpu;
#[cfg(test)]
mod tests;

use std::f64::consts::LOG2_E;

use bytemuck::Zeroable;

use crate::programs::{HALVES, LANES, committed};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::launch::{Grid, Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{
    DType, Error, Operand, Result, Target, View, checked_numel, cuda_struct, hosts,
};

/// Queries or keys of a block.
const ROWS: usize = 64;
const THREADS: u32 = 128;

/// The widths that there are kernels for: a narrower operand is as one with zeros.
const WIDTHS: [usize; 2] = [64, 128];

/// Elements that are loaded at once.
const VECTOR: usize = 8;

pub(super) static ATTENTION: Program =
    Program::new("attention", HALVES, &["wide_64", "wide_128"], |_, ty| {
        source().push(include_str!("forward.cuh")).push(&each("FORWARD", ty))
    })
    .with_ptx(committed);

pub(super) static ATTENTION_BACKWARD: Program = Program::new(
    "attention_backward",
    HALVES,
    &["queries_64", "queries_128", "keys_64", "keys_128"],
    |_, ty| {
        let of = source().push(include_str!("backward.cuh"));
        of.push(&each("BACKWARD_QUERIES", ty)).push(&each("BACKWARD_KEYS", ty))
    },
)
.with_ptx(committed);

fn source() -> Source {
    let of = Source::new().with::<Attention>().push(module::ELEMENT).push(LANES);
    let of = of.push(&format!("#define ROWS {ROWS}\n#define THREADS {THREADS}"));
    of.push(include_str!("tiles.cuh"))
}

fn each(name: &str, ty: &str) -> String {
    WIDTHS.map(|width| format!("{name}({ty}, {width})")).join("\n")
}

// SAFETY: `attention` and `attention_backward` make all `Attention`s with `check`: sizes and steps are those of the views that
// they launch with, whose rows are whole vectors. Each element that is written is one block's.
static FORWARD: [Kernel<Attention, 5>; WIDTHS.len()] = unsafe {
    Kernel::array(&ATTENTION, ["wide_64", "wide_128"], hosts!(F16 | BF16, T => cpu::forward::<T>))
};
// SAFETY: as `FORWARD`.
static BACKWARD_QUERIES: [Kernel<Attention, 8>; WIDTHS.len()] = unsafe {
    let hosts = hosts!(F16 | BF16, T => cpu::backward_queries::<T>);
    Kernel::array(&ATTENTION_BACKWARD, ["queries_64", "queries_128"], hosts)
};
// SAFETY: as `FORWARD`.
static BACKWARD_KEYS: [Kernel<Attention, 8>; WIDTHS.len()] = unsafe {
    let hosts = hosts!(F16 | BF16, T => cpu::backward_keys::<T>);
    Kernel::array(&ATTENTION_BACKWARD, ["keys_64", "keys_128"], hosts)
};

cuda_struct! {
    /// Strides in elements: between outer batches, between inner batches, between rows.
    struct Steps {
        outer: i64,
        inner: i64,
        row: i64,
    }
}

impl Steps {
    fn of(view: &View<'_>) -> Self {
        let [outer, inner, row, _] = last_four(view.strides(), 0).map(|stride| stride as i64);
        Self { outer, inner, row }
    }
}

cuda_struct! {
    /// `outer` times `inner` batches of `queries` and `keys`, all of `width`. Scores are multiplied by `scale`. Exponentials
    /// are of base two, and of scores times `scale_log2`. The forward pass has neither gradients nor their steps.
    struct Attention {
        outer: u64,
        inner: u64,
        queries: u64,
        keys: u64,
        width: u64,
        causal: u64,
        scale: f32,
        scale_log2: f32,
        q: Steps,
        k: Steps,
        v: Steps,
        out: Steps,
        grad: Steps,
        dq: Steps,
        dk: Steps,
        dv: Steps,
    }
}

/// What a list says of the last four dimensions, of which there may be fewer.
fn last_four<T: Copy>(list: &[T], none: T) -> [T; 4] {
    let mut all = [none; 4];
    for (to, from) in all.iter_mut().rev().zip(list.iter().rev()) {
        *to = *from;
    }
    all
}

/// Whether [`attention`] is made for operands of a dtype and a width on this target: the half-width floats, of a multiple
/// of 8 up to 128, where there are tensor cores that take both (compute capability 8.0).
#[must_use]
pub fn has_attention(target: Target<'_>, dtype: DType, width: usize) -> bool {
    let newer = match target {
        Target::Cuda(_, device, _) => device.properties().compute_capability >= (8, 0),
        Target::Cpu(_) => true,
    };
    newer
        && matches!(dtype, DType::F16 | DType::BF16)
        && (1..=WIDTHS[1]).contains(&width)
        && width.is_multiple_of(VECTOR)
}

/// Whether [`attention`] takes an operand as it lies: rows of whole vectors, in two to four dimensions.
#[must_use]
pub fn attention_takes(view: View<'_>) -> bool {
    let &[.., step] = view.strides() else { return false };
    let mut rows = view.sizes().iter().zip(view.strides()).rev().skip(1);
    let aligned = |(&size, &stride): (&usize, &isize)| size <= 1 || stride % VECTOR as isize == 0;
    (2..=4).contains(&view.sizes().len())
        && step == 1
        && view.layout.offset().is_multiple_of(VECTOR)
        && rows.all(aligned)
}

/// How [`attention`] weighs.
#[derive(Clone, Copy, Debug)]
pub struct Weighing {
    /// What scores are multiplied by.
    pub scale: f64,
    /// Whether queries see keys up to their own place only.
    pub is_causal: bool,
}

/// `softmax(q @ k.T * scale) @ v` (`torch.nn.functional.scaled_dot_product_attention`), of `[.., queries, width]` by
/// `[.., keys, width]` with at most two dimensions of batches, and the logarithms to base two of what each query's
/// exponentials add up to: of `f32`, contiguous, for [`attention_backward`]. There is at least one key. Which operands it
/// takes [`has_attention`] and [`attention_takes`] say.
///
/// # Errors
/// [`ErrorKind::UnsupportedDType`], [`ErrorKind::DTypeMismatch`]; [`ErrorKind::ShapeMismatch`], also for what it does not take as it
/// lies; [`ErrorKind::OverlappingOperands`], [`ErrorKind::OverlappingWrite`]; otherwise as [`Kernel::launch`].
#[track_caller]
pub fn attention(
    target: Target<'_>,
    [q, k, v]: [View<'_>; 3],
    weighing: Weighing,
    out: View<'_>,
    lse: View<'_>,
) -> Result<()> {
    const OP: &str = "scaled_dot_product_attention";
    let params = check(OP, [q, k, v], weighing, &[(out, true)], &[lse])?;
    let operands = [q.read(), k.read(), v.read(), out.write(), lse.write()];
    let params = Attention { out: Steps::of(&out), ..params };
    run(target, OP, &FORWARD, &operands, &params, params.queries)
}

/// The gradients of [`attention`] with respect to its three operands for `grad`, that of its result `out`. `delta` is
/// memory for it, and lies as `lse` does.
///
/// # Errors
/// As there.
#[track_caller]
pub fn attention_backward(
    target: Target<'_>,
    [q, k, v]: [View<'_>; 3],
    weighing: Weighing,
    [out, grad]: [View<'_>; 2],
    [lse, delta]: [View<'_>; 2],
    [dq, dk, dv]: [View<'_>; 3],
) -> Result<()> {
    const OP: &str = "scaled_dot_product_attention_backward";
    let others = [(out, true), (grad, true), (dq, true), (dk, false), (dv, false)];
    let params = check(OP, [q, k, v], weighing, &others, &[lse, delta])?;
    let [out_steps, grad_steps, dq_steps, dk_steps, dv_steps] =
        others.map(|(view, _)| Steps::of(&view));
    let params = Attention {
        out: out_steps,
        grad: grad_steps,
        dq: dq_steps,
        dk: dk_steps,
        dv: dv_steps,
        ..params
    };
    let [q, k, v] = [q.read(), k.read(), v.read()];
    let operands = [q, k, v, out.read(), grad.read(), lse.read(), delta.write(), dq.write()];
    run(target, OP, &BACKWARD_QUERIES, &operands, &params, params.queries)?;
    let operands = [q, k, v, grad.read(), lse.read(), delta.read(), dk.write(), dv.write()];
    run(target, OP, &BACKWARD_KEYS, &operands, &params, params.keys)
}

/// Checks the operands: `others` lie as queries do or as keys, `sums` have a number for each query.
#[track_caller]
fn check(
    op: &'static str,
    [q, k, v]: [View<'_>; 3],
    weighing: Weighing,
    others: &[(View<'_>, bool)],
    sums: &[View<'_>],
) -> Result<Attention> {
    let dtype = q.dtype;
    FORWARD[0].check_dtype(op, dtype)?;
    let halves = [k, v].into_iter().chain(others.iter().map(|(view, _)| *view));
    let dtypes = halves.map(|view| (view, dtype)).chain(sums.iter().map(|&v| (v, DType::F32)));
    for (view, expected) in dtypes {
        view.check_dtype(op, expected)?;
    }
    let [outer, inner, queries, width] = last_four(q.sizes(), 1);
    let keys = last_four(k.sizes(), 1)[2];
    let as_queries = [(q, true), (k, false), (v, false)];
    let fits = as_queries.iter().chain(others).all(|&(view, by_query)| {
        let rows = if by_query { queries } else { keys };
        last_four(view.sizes(), 1) == [outer, inner, rows, width] && attention_takes(view)
    });
    let summed = sums.iter().all(|view| {
        view.layout.is_contiguous()
            && checked_numel(&[outer, inner, queries]).is_ok_and(|n| view.numel() == n)
    });
    let sized = (1..=i32::MAX as usize).contains(&keys)
        && queries <= i32::MAX as usize
        && (1..=WIDTHS[1]).contains(&width)
        && width.is_multiple_of(VECTOR);
    if !fits || !summed || !sized {
        let reason = format!(
            "queries of {:?} with strides {:?}, keys of {:?} with {:?}, values of {:?} with {:?}; a width must be the \
             same multiple of {VECTOR} up to {}, other strides multiples of {VECTOR}, and keys from 1 to 2³¹",
            q.sizes(),
            q.strides(),
            k.sizes(),
            k.strides(),
            v.sizes(),
            v.strides(),
            WIDTHS[1],
        );
        return Err(Error::shape(op, reason));
    }
    Ok(Attention {
        outer: outer as u64,
        inner: inner as u64,
        queries: queries as u64,
        keys: keys as u64,
        width: width as u64,
        causal: weighing.is_causal.into(),
        scale: weighing.scale as f32,
        scale_log2: (weighing.scale * LOG2_E) as f32,
        q: Steps::of(&q),
        k: Steps::of(&k),
        v: Steps::of(&v),
        ..Attention::zeroed()
    })
}

/// Launches the kernel for the width, with blocks for this number of `rows`.
#[track_caller]
fn run<const N: usize>(
    target: Target<'_>,
    op: &'static str,
    [narrow, wide]: &[Kernel<Attention, N>; WIDTHS.len()],
    operands: &[Operand<'_>; N],
    params: &Attention,
    rows: u64,
) -> Result<()> {
    check_operands(op, operands)?;
    // `rows` are queries or keys, fewer than 2³¹ of each.
    let blocks = rows.div_ceil(ROWS as u64) as u32;
    let batches = params.outer.saturating_mul(params.inner);
    if blocks == 0 || batches == 0 {
        return Ok(());
    }
    let kernel = if params.width as usize > WIDTHS[0] { wide } else { narrow };
    let grid = Grid::new([blocks, batches.min(65_535) as u32, 1], THREADS);
    kernel.launch(target, op, operands, params, grid)
}
