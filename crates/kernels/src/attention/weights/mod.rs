//! The weights of attention (the softmax of scaled scores) and the gradient of the scores, for
//! attention that is computed as two matrix products with a softmax between them.
//!
//! The kernels apply the causal mask. If the weights are half-width floats, the scores and the gradient
//! of the weights are `f32`; otherwise all have the same dtype.

mod cpu;

use crate::programs::{FLOATS, LANES, kernels};
use crate::softmax::EXPONENTIAL;
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::iter::vector_width;
use warpline_runtime::launch::{Grid, Kernel, blocks, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Operand, Result, Target, View, cuda_struct};

/// Maximum number of bytes of a row that a lane keeps in registers.
const HELD_BYTES: usize = 128;
/// Threads of a block of the `short` kernels.
const SHORT_THREADS: u32 = 128;
/// Threads of a block of the `long` kernels.
const LONG_THREADS: u32 = 256;

fn source() -> Source {
    let of = Source::new().with::<Attention>().push(module::ELEMENT).push(module::SPACE);
    let of = of.push(LANES).push(EXPONENTIAL);
    of.push(&format!("#define HELD_BYTES {HELD_BYTES}")).push(include_str!("weights.cuh"))
}

// `short` kernels keep a row in the registers of a few lanes, `long` kernels use one block per row.
// The `odd` kernels are for rows that do not consist of whole vectors. The dtype of the scores cannot
// select the variant, because it is `f32` for three of the four dtypes.
//
// SAFETY, for all kernels: `params` makes all `Attention`s, with the sizes of the launch's operands,
// which are contiguous. Each element of the last operand is written by one thread. `run` launches
// kernels for whole vectors only if all rows consist of whole vectors.
kernels! {
    pub(super) ATTENTION_WEIGHTS = "attention_weights", FLOATS, |_, ty| {
        source().push(&format!("ATTENTION_WEIGHTS({ty})"))
    } => {
        unsafe FORWARD: [Kernel<Attention, 2>; 4] =
            float cpu::attention_weights[short, long, short_odd, long_odd], selected_by 1;
    }
    pub(super) ATTENTION_WEIGHTS_BACKWARD = "attention_weights_backward", FLOATS, |_, ty| {
        source().push(&format!("ATTENTION_WEIGHTS_BACKWARD({ty})"))
    } => {
        unsafe BACKWARD: [Kernel<Attention, 3>; 4] =
            float cpu::attention_weights_backward[short, long, short_odd, long_odd], selected_by 1;
    }
}

cuda_struct! {
    /// `batch` matrices of `queries` rows of `keys` elements. `team` is the binary logarithm of the
    /// number of lanes per row, `scale` the bits of an `f64`.
    struct Attention {
        batch: u64,
        queries: u64,
        keys: u64,
        team: u64,
        causal: u64,
        scale: u64,
    }
}

impl Attention {
    /// Returns the number of keys that the query of a row attends to.
    fn visible_keys(&self, row: usize) -> usize {
        let query = row % self.queries as usize;
        if self.causal != 0 { self.keys.min(query as u64 + 1) as usize } else { self.keys as usize }
    }
}

/// Returns the dtype of scores for weights of a dtype: `float32` for the half-width floats.
fn scores_dtype(weights: DType) -> DType {
    if weights == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Computes the attention weights of `torch.nn.functional.scaled_dot_product_attention`: the
/// softmax of `scale` times the scores, over the keys.
///
/// `scores` and `weights` are `[batch, queries, keys]` and contiguous. With `is_causal`, query `i`
/// attends to the keys up to `i`, and all other weights are 0. The dtype of `scores` is `float32`
/// if the weights are half-width floats, otherwise the dtype of the weights.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the dtype of the weights is not floating-point.
/// - [`ErrorKind::DTypeMismatch`] if the scores do not have the dtype that belongs to the weights.
/// - [`ErrorKind::ShapeMismatch`] if the views have different sizes, or not three dimensions, if
///   there are 2³¹ keys or more, or if a view is not contiguous.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingOperands`] if the views share memory.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn attention_weights(
    target: Target<'_>,
    scores: View<'_>,
    scale: f64,
    is_causal: bool,
    weights: View<'_>,
) -> Result<()> {
    const OP: &str = "attention_weights";
    FORWARD[0].check_dtype(OP, weights.dtype)?;
    let views = [(scores, scores_dtype(weights.dtype)), (weights, weights.dtype)];
    let params = params(OP, &views, scale, is_causal)?;
    run(target, OP, &FORWARD, &[scores.read(), weights.write()], params)
}

/// Computes the gradient of [`attention_weights`] with respect to the scores into `result`, which
/// has the dtype of the weights. `grad` is the gradient of the weights and has the dtype of the
/// scores. All views are contiguous and `[batch, queries, keys]`.
///
/// # Errors
/// The errors of [`attention_weights`], with `grad` in the place of the scores.
#[track_caller]
pub fn attention_weights_backward(
    target: Target<'_>,
    grad: View<'_>,
    weights: View<'_>,
    scale: f64,
    is_causal: bool,
    result: View<'_>,
) -> Result<()> {
    const OP: &str = "attention_weights_backward";
    let dtype = weights.dtype;
    BACKWARD[0].check_dtype(OP, dtype)?;
    let views = [(weights, dtype), (grad, scores_dtype(dtype)), (result, dtype)];
    let params = params(OP, &views, scale, is_causal)?;
    run(target, OP, &BACKWARD, &[grad.read(), weights.read(), result.write()], params)
}

/// Checks the views and returns the parameters. Each view comes with the dtype that it must have.
#[track_caller]
fn params(
    op: &'static str,
    views: &[(View<'_>, DType)],
    scale: f64,
    is_causal: bool,
) -> Result<Attention> {
    let sizes = views[0].0.sizes();
    for &(view, expected) in views {
        view.check_dtype(op, expected)?;
        let fits = view.sizes() == sizes && view.layout.is_contiguous();
        if sizes.len() != 3 || sizes[2] > i32::MAX as usize || !fits {
            let reason = format!(
                "an operand has sizes {:?} and strides {:?}, and another has sizes {sizes:?}; all \
                 must be contiguous and have the same three sizes, with fewer than 2³¹ keys",
                view.sizes(),
                view.strides()
            );
            return Err(Error::shape(op, reason));
        }
    }
    Ok(Attention {
        batch: sizes[0] as u64,
        queries: sizes[1] as u64,
        keys: sizes[2] as u64,
        team: 0,
        causal: is_causal.into(),
        scale: scale.to_bits(),
    })
}

#[track_caller]
fn run<const N: usize>(
    target: Target<'_>,
    op: &'static str,
    [short, long, short_odd, long_odd]: &[Kernel<Attention, N>; 4],
    operands: &[Operand<'_>; N],
    mut params: Attention,
) -> Result<()> {
    check_operands(op, operands)?;
    let last = operands[N - 1].view;
    if last.numel() == 0 {
        return Ok(());
    }
    let wide = scores_dtype(last.dtype).size();
    let vector = vector_width(wide);
    let aligned = |n: usize| n.is_multiple_of(vector);
    let (keys, queries) = (params.keys as usize, params.queries as usize);
    let whole = aligned(keys) && operands.iter().all(|o| aligned(o.view.layout.offset()));
    let is_short = keys <= 32 * HELD_BYTES / wide;
    let lanes = keys.div_ceil(if whole { vector } else { 1 }).next_power_of_two().min(32);
    params.team = lanes.ilog2().into();
    let kernel = match (is_short, whole) {
        (true, true) => short,
        (true, false) => short_odd,
        (false, true) => long,
        (false, false) => long_odd,
    };
    let batches = params.batch.min(65_535) as u32;
    let grid = if is_short {
        Grid::new(
            [blocks((queries * lanes).div_ceil(SHORT_THREADS as usize)), batches, 1],
            SHORT_THREADS,
        )
    } else {
        Grid::new([blocks(queries), batches, 1], LONG_THREADS)
    };
    kernel.launch(target, op, operands, &params, grid)
}
