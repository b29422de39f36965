//! Attention of half-width floats in one launch, and its gradients in two, on tensor cores. Scores
//! and weights are never stored in memory.
//!
//! # Algorithm
//!
//! FlashAttention-2 with `mma.sync`, for devices of compute capability 8.0 and later. A block
//! processes 64 queries. It keeps their scores for 64 keys at a time in registers (32 keys if
//! operands are wider than 64), while it fetches the next keys with `cp.async`. It writes the
//! result and the logarithm of the sum of each query's exponentials.
//!
//! The gradient takes two kernels. A block of the first has 64 queries and loops over the keys. A
//! block of the second has 64 keys and loops over the queries. Both recompute the weights. Neither
//! uses atomics, so sums are the same in each run.
//!
//! Heads of keys may serve several heads of queries. A mask, boolean or added, may have any strides
//! and is not copied. Kernels with a mask are separate programs, so that launches without a mask do
//! not pay for it.
//!
//! Rows of operands and results are contiguous. All other strides may be any multiples of a vector, so
//! heads that lie side by side in the result of one linear layer need no copy. `tiles.cuh` holds the
//! code that all kernels share.
//!
//! # Limits
//!
//! Instructions that `compute_75` lacks stand in blocks that the module loader replaces
//! (`module/newer.rs` of `warpline-runtime`). On an older device the kernels trap instead, so callers
//! ask [`has_attention`] or [`has_few_queries`] first.

mod cpu;
mod few_queries;

use std::f64::consts::LOG2_E;

use bytemuck::Zeroable;

use crate::programs::{HALVES, LANES, TENSOR_CORES, kernels};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::launch::{Grid, Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Operand, Result, Target, View, checked_numel, cuda_struct};

/// Queries or keys per block.
const ROWS: usize = 64;
/// Threads per block.
const THREADS: u32 = 128;

/// Widths for which kernels are compiled. A narrower operand is padded with zeros to the next
/// width.
const WIDTHS: [usize; 2] = [64, 128];

/// Elements per vector load.
const VECTOR: usize = 8;

pub(super) use few_queries::FEW_QUERIES;
pub use few_queries::{few_queries, has_few_queries};

fn forward(program: &Program, ty: &str) -> Source {
    let name = format!("#define FORWARD_NAME(T, D) {}_##T##_wide_##D\n", program.name());
    let of = source(program).push(&name).push(include_str!("forward.cuh"));
    of.push(&each("FORWARD", ty))
}

fn backward(program: &Program, ty: &str) -> Source {
    let name = format!("#define BACKWARD_NAME(T, of, D) {}_##T##_##of##_##D\n", program.name());
    let of = source(program).push(&name).push(include_str!("backward.cuh"));
    of.push(&each("BACKWARD_QUERIES", ty)).push(&each("BACKWARD_KEYS", ty))
}

/// CUDA functions for tiles of operands in shared memory.
const TILES: &str = include_str!("tiles.cuh");

fn source(program: &Program) -> Source {
    let of = Source::new().with::<Attention>().push(module::ELEMENT).push(LANES);
    let has_mask = program.name().contains("masked");
    let of = of.push(&format!("#define ROWS {ROWS}\n#define THREADS {THREADS}"));
    let of = of.push(&format!("#define BOOLEAN {BOOLEAN}\n#define MASKED {has_mask}"));
    of.push(TENSOR_CORES).push(TILES)
}

fn each(name: &str, ty: &str) -> String {
    WIDTHS.map(|width| format!("{name}({ty}, {width})")).join("\n")
}

// SAFETY, for all kernels: only `attention` and `attention_backward` launch them, with parameters from
// `check`. Sizes and strides are those of the launch's operands, whose rows consist of whole vectors.
// Each element of a result is written by one block.
kernels! {
    pub(super) ATTENTION = "attention", HALVES, forward => {
        unsafe FORWARD: ByWidth<6> = F16 | BF16 cpu::attention[wide_64, wide_128];
    }
    pub(super) ATTENTION_MASKED = "attention_masked", HALVES, forward => {
        unsafe FORWARD_MASKED: ByWidth<6> = F16 | BF16 cpu::attention_masked[wide_64, wide_128];
    }
    pub(super) ATTENTION_BACKWARD = "attention_backward", HALVES, backward => {
        unsafe QUERIES: ByWidth<9> = F16 | BF16 cpu::attention_backward_queries[64, 128];
        unsafe KEYS: ByWidth<9> = F16 | BF16 cpu::attention_backward_keys[64, 128];
    }
    pub(super) ATTENTION_MASKED_BACKWARD = "attention_masked_backward", HALVES, backward => {
        unsafe QUERIES_MASKED: ByWidth<9> =
            F16 | BF16 cpu::attention_masked_backward_queries[64, 128];
        unsafe KEYS_MASKED: ByWidth<9> = F16 | BF16 cpu::attention_masked_backward_keys[64, 128];
    }
}

/// The kernels for each of [`WIDTHS`].
type ByWidth<const N: usize> = [Kernel<Attention, N>; WIDTHS.len()];

/// Value of [`Attention::masks`] for a boolean mask.
const BOOLEAN: u64 = 1;
/// Value of [`Attention::masks`] for a mask that is added to the scores.
const ADDED: u64 = 2;

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
    /// Strides of a mask in elements.
    struct MaskSteps {
        outer: i64,
        inner: i64,
        row: i64,
        column: i64,
    }
}

cuda_struct! {
    /// The parameters of a pass. There are `outer` times `inner` batches, each of `queries`
    /// queries. `group` consecutive inner batches attend to the same `keys` keys. A query and a key
    /// have `width` elements. `masks` is 0 if there is no mask. Scores are multiplied by `scale`.
    /// The kernels compute base-2 exponentials of scores times `scale_log2`. In the forward pass
    /// the strides of gradients are zero.
    struct Attention {
        outer: u64,
        inner: u64,
        group: u64,
        queries: u64,
        keys: u64,
        width: u64,
        causal: u64,
        masks: u64,
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
        mask: MaskSteps,
    }
}

impl Attention {
    /// Makes the parameters of a forward pass, without the strides of the result. Returns `None` if
    /// sizes or layouts are not those of an attention.
    fn new(
        [q, k, v]: [View<'_>; 3],
        mask: Option<View<'_>>,
        score_options: ScoreOptions,
    ) -> Option<Self> {
        let [outer, inner, queries, width] = last_four(q.sizes(), 1);
        let [others, heads, keys, own_width] = last_four(k.sizes(), 1);
        let group = if heads == inner { 1 } else { inner.checked_div(heads).filter(|&n| n > 0)? };
        let fits = (outer, inner, width) == (others, group * heads, own_width)
            && k.sizes() == v.sizes()
            && mask.is_none_or(|mask| {
                mask.sizes().len() <= 4
                    && last_four(mask.sizes(), 1) == [outer, inner, queries, keys]
            })
            && [q, k, v].into_iter().all(attention_takes)
            && keys <= i32::MAX as usize
            && queries <= i32::MAX as usize;
        let mask_steps = |mask: View<'_>| {
            let [outer, inner, row, column] =
                last_four(mask.strides(), 0).map(|stride| stride as i64);
            MaskSteps { outer, inner, row, column }
        };
        let masks = |mask: View<'_>| if mask.dtype == DType::Bool { BOOLEAN } else { ADDED };
        fits.then(|| Self {
            outer: outer as u64,
            inner: inner as u64,
            group: group as u64,
            queries: queries as u64,
            keys: keys as u64,
            width: width as u64,
            causal: score_options.is_causal.into(),
            masks: mask.map_or(0, masks),
            scale: score_options.scale as f32,
            scale_log2: (score_options.scale * LOG2_E) as f32,
            q: Steps::of(&q),
            k: Steps::of(&k),
            v: Steps::of(&v),
            mask: mask.map_or_else(MaskSteps::zeroed, mask_steps),
            ..Self::zeroed()
        })
    }
}

/// Returns the last four values of `list`. `none` fills the place of missing dimensions.
fn last_four<T: Copy>(list: &[T], none: T) -> [T; 4] {
    let mut all = [none; 4];
    for (to, from) in all.iter_mut().rev().zip(list.iter().rev()) {
        *to = *from;
    }
    all
}

/// Returns whether [`attention`] supports a dtype and a width on this target. The dtype must be
/// `float16` or `bfloat16`, and the width a multiple of 8 up to 128. A CUDA device needs compute
/// capability 8.0 or later.
#[must_use]
pub fn has_attention(target: Target<'_>, dtype: DType, width: usize) -> bool {
    has_tensor_cores(target)
        && matches!(dtype, DType::F16 | DType::BF16)
        && is_supported_width(width, WIDTHS[1])
}

/// Returns whether the kernels run on the target. CPU implementations run everywhere.
fn has_tensor_cores(target: Target<'_>) -> bool {
    match target {
        Target::Cuda(_, device, _) => device.properties().compute_capability >= (8, 0),
        Target::Cpu(_) => true,
    }
}

fn is_supported_width(width: usize, most: usize) -> bool {
    (1..=most).contains(&width) && width.is_multiple_of(VECTOR)
}

/// Returns whether [`attention`] supports the layout of an operand: two to four dimensions,
/// contiguous rows, and rows that begin at multiples of 8 elements.
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

/// Scale of the scores, and whether attention is causal.
#[derive(Clone, Copy, Debug)]
pub struct ScoreOptions {
    /// Factor of the scores.
    pub scale: f64,
    /// Whether a query attends only to the keys up to its own index.
    pub is_causal: bool,
}

/// Computes `softmax(q @ k.T * scale + mask) @ v`
/// (`torch.nn.functional.scaled_dot_product_attention`).
///
/// `q` and `out` are `[.., queries, width]`, `k` and `v` are `[.., keys, width]`, with at most two
/// leading batch dimensions. There is at least one key. The last batch dimension of `k` and `v` may
/// divide that of `q`; each of their heads then serves several consecutive heads of queries. Dtype
/// and width must satisfy [`has_attention`], and the layouts [`attention_takes`]. `mask` has the
/// sizes `[.., queries, keys]` and any strides. Its dtype is bool, with `true` where a query
/// attends to a key, or the dtype of `q`; a mask of that dtype is added to the scores. A query that
/// attends to no key gets zeros. `lse` receives, for each query, the base-2 logarithm of the sum of
/// its exponentials, for [`attention_backward`]. `lse` is contiguous, of `float32`, with one element
/// per query of each batch.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the dtype of `q` is not a half-width float.
/// - [`ErrorKind::DTypeMismatch`] if `k`, `v` or `out` has a different dtype than `q`, `mask` has
///   neither that dtype nor dtype bool, or `lse` does not have dtype `float32`.
/// - [`ErrorKind::ShapeMismatch`] if the batch, the width, or the number of queries or keys differs between two
///   operands, except that heads of keys may serve several heads of queries; if the width is not a multiple of 8 up to
///   128, if there are no keys, or 2³¹ or more keys or queries; if [`attention_takes`] returns `false` for `q`, `k`,
///   `v` or `out`; or if `lse` is not contiguous or does not have one element per query.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of a result overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if a result shares memory with another operand.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn attention(
    target: Target<'_>,
    operands: [View<'_>; 3],
    mask: Option<View<'_>>,
    score_options: ScoreOptions,
    out: View<'_>,
    lse: View<'_>,
) -> Result<()> {
    const OP: &str = "scaled_dot_product_attention";
    let params = check(OP, operands, mask, score_options, &[(out, true)], &[lse])?;
    let params = Attention { out: Steps::of(&out), ..params };
    let [q, k, v] = operands.map(View::read);
    let operands = [q, k, v, of_mask(mask, out), out.write(), lse.write()];
    run(target, OP, [&FORWARD, &FORWARD_MASKED], &operands, &params, (params.queries, params.inner))
}

/// Computes the gradients of [`attention`] with respect to `q`, `k` and `v` into `dq`, `dk` and
/// `dv`. `out` and `lse` are the results of the forward pass, and `grad` is the gradient of `out`.
/// `delta` is scratch memory with the layout of `lse`.
///
/// # Errors
/// The errors of [`attention`]. The conditions on `out` also hold for `grad` and `dq`, those on `k`
/// for `dk` and `dv`, and those on `lse` for `delta`.
#[track_caller]
pub fn attention_backward(
    target: Target<'_>,
    operands: [View<'_>; 3],
    mask: Option<View<'_>>,
    score_options: ScoreOptions,
    [out, grad]: [View<'_>; 2],
    [lse, delta]: [View<'_>; 2],
    [dq, dk, dv]: [View<'_>; 3],
) -> Result<()> {
    const OP: &str = "scaled_dot_product_attention_backward";
    let others = [(out, true), (grad, true), (dq, true), (dk, false), (dv, false)];
    let params = check(OP, operands, mask, score_options, &others, &[lse, delta])?;
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
    let [q, k, v] = operands.map(View::read);
    let (mask, heads) = (of_mask(mask, out), params.inner);
    let operands = [q, k, v, mask, out.read(), grad.read(), lse.read(), delta.write(), dq.write()];
    run(target, OP, [&QUERIES, &QUERIES_MASKED], &operands, &params, (params.queries, heads))?;
    let operands = [q, k, v, mask, grad.read(), lse.read(), delta.read(), dk.write(), dv.write()];
    let key_heads = heads.checked_div(params.group).unwrap_or(0);
    run(target, OP, [&KEYS, &KEYS_MASKED], &operands, &params, (params.keys, key_heads))
}

/// Returns the mask as an operand. Without a mask, an untouched operand stands in.
fn of_mask<'a>(mask: Option<View<'a>>, out: View<'a>) -> Operand<'a> {
    mask.map_or(out.untouched(), View::read)
}

/// Checks the operands and makes the parameters. Each of `others` has the sizes of the queries if
/// its flag is set, otherwise those of the keys. Each of `sums` has one element per query.
#[track_caller]
fn check(
    op: &'static str,
    [q, k, v]: [View<'_>; 3],
    mask: Option<View<'_>>,
    score_options: ScoreOptions,
    others: &[(View<'_>, bool)],
    sums: &[View<'_>],
) -> Result<Attention> {
    let dtype = q.dtype;
    FORWARD[0].check_dtype(op, dtype)?;
    let halves = [k, v].into_iter().chain(others.iter().map(|(view, _)| *view));
    let added = mask.filter(|mask| mask.dtype != DType::Bool);
    let dtypes = halves.chain(added).map(|view| (view, dtype));
    for (view, expected) in dtypes.chain(sums.iter().map(|&v| (v, DType::F32))) {
        view.check_dtype(op, expected)?;
    }
    let params = Attention::new([q, k, v], mask, score_options).filter(|params| {
        let others = others.iter().all(|&(view, by_query)| {
            let like = if by_query { q } else { k };
            last_four(view.sizes(), 1) == last_four(like.sizes(), 1) && attention_takes(view)
        });
        let [outer, inner, queries, width] = last_four(q.sizes(), 1);
        let queries = checked_numel(&[outer, inner, queries]);
        let sums = sums.iter().all(|view| {
            view.layout.is_contiguous() && queries.as_ref().is_ok_and(|&n| view.numel() == n)
        });
        others && sums && params.keys > 0 && is_supported_width(width, WIDTHS[1])
    });
    params.ok_or_else(|| refused(op, [q, k, v], mask, (WIDTHS[1], 1)))
}

/// Returns the error for operands with unsupported sizes or strides.
#[cold]
#[track_caller]
fn refused(
    op: &'static str,
    [q, k, v]: [View<'_>; 3],
    mask: Option<View<'_>>,
    (widest, fewest_keys): (usize, usize),
) -> Error {
    let mask = mask.map_or(String::new(), |mask| format!(", the mask sizes {:?}", mask.sizes()));
    let reason = format!(
        "the queries have sizes {:?} and strides {:?}, the keys {:?} and {:?}, the values {:?} and \
         {:?}{mask}; all must have the same width, a multiple of {VECTOR} up to {widest}, all \
         other strides must be multiples of {VECTOR}, and there must be {fewest_keys} to 2³¹ − 1 keys",
        q.sizes(),
        q.strides(),
        k.sizes(),
        k.strides(),
        v.sizes(),
        v.strides(),
    );
    Error::shape(op, reason)
}

/// Launches the kernel for the mask and the width, with one block per [`ROWS`] of the `rows` in each
/// batch. There are `inner` batches for each outer batch; beyond 65,535 batches, a block takes several.
#[track_caller]
fn run<const N: usize>(
    target: Target<'_>,
    op: &'static str,
    by_mask: [&ByWidth<N>; 2],
    operands: &[Operand<'_>; N],
    params: &Attention,
    (rows, inner): (u64, u64),
) -> Result<()> {
    check_operands(op, operands)?;
    // `check` limits both queries and keys to fewer than 2³¹, so `blocks` fits 32 bits.
    let blocks = rows.div_ceil(ROWS as u64) as u32;
    let batches = params.outer.saturating_mul(inner);
    if blocks == 0 || batches == 0 {
        return Ok(());
    }
    let by_width = by_mask[usize::from(params.masks != 0)];
    let kernel = &by_width[usize::from(params.width as usize > WIDTHS[0])];
    let grid = Grid::new([blocks, batches.min(65_535) as u32, 1], THREADS);
    kernel.launch(target, op, operands, params, grid)
}
