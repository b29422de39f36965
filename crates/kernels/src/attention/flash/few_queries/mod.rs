//! Attention of few queries to many keys in one launch, as in decoding.
//!
//! # Algorithm
//!
//! Reading the keys and values takes most of the kernel's time. The queries of all heads that share a
//! head of keys are the rows of one product on tensor cores, so keys and values are not read again for
//! each head of queries. If there are too few heads to occupy the device, blocks split
//! the keys. Each block writes its sums and its largest score to scratch memory, and the last block
//! of a result combines them in the order of the keys, so sums are the same in each run.
//!
//! The mask, boolean or added, may have any strides and is not copied. The number of valid keys may be in device
//! memory, so that a graph can attend to a cache that grows between replays. Blocks whose keys lie beyond this number
//! read no keys and no values.
//!
//! # Limits
//!
//! The kernel supports half-width floats on devices of compute capability 8.0 and later, and widths that are multiples
//! of 8, up to 256. It reads keys and values once per sixteen rows.

mod cpu;

#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::launch::{Grid, Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Result, Target, View, cuda_struct};

use super::{
    Attention, BOOLEAN, ScoreOptions, Steps, TILES, attention_takes, has_tensor_cores,
    is_supported_width, of_mask, refused,
};
use crate::programs::{HALVES, LANES, TENSOR_CORES, kernels};
use crate::scratch::ScratchTensor;
use crate::turn::{TURN, scratch_operand, ticket};

const OP: &str = "scaled_dot_product_attention";

/// Rows of a block: queries of the heads that share a head of keys.
const ROWS: u64 = 16;
/// Maximum number of rows for which this kernel is faster than a kernel for many queries, although
/// it reads the keys once per [`ROWS`] rows.
const MAX_ROWS: u64 = 64;
/// Widths for which kernels are compiled, each with the number of warps per block. Each warp has 16
/// keys of a tile, and the tiles must fit the shared memory.
const KERNELS: [(u64, u64); 3] = [(64, 4), (128, 4), (256, 2)];
/// Desired number of blocks per multiprocessor. If there are fewer results, blocks split the keys.
const BLOCKS: u64 = 2;
/// Maximum number of parts into which the keys are split. The last block keeps one rescaling factor per row and part in
/// shared memory.
const MOST_SPLITS: u64 = 256;

kernels! {
    pub(in super::super) FEW_QUERIES = "few_queries", HALVES, |_, ty| {
        let of = Source::new().with::<FewQueries>().push(module::ELEMENT).push(LANES);
        let of = of.push(&format!("#define BOOLEAN {BOOLEAN}\n#define MOST_SPLITS {MOST_SPLITS}"));
        let of = of.push("#define ROWS 16\n#define THREADS 128");
        let of = of.push(TENSOR_CORES).push(TILES).push(TURN).push(include_str!("few_queries.cuh"));
        let kernels = KERNELS.map(|(width, warps)| format!("FEW_QUERIES({ty}, {width}, {warps})"));
        of.push(&kernels.join("\n"))
    } => {
        // SAFETY: `few_queries` makes all `FewQueries`, from the launch's operands, whose rows consist
        // of whole vectors. Each element of the result is written by one block, and scratch memory has
        // the words that `FewQueries::scratch_words` counts.
        unsafe FORWARD: [Kernel<FewQueries, 7>; KERNELS.len()] =
            F16 | BF16 cpu::few_queries[wide_64, wide_128, wide_256];
    }
}

cuda_struct! {
    /// A split has `split_keys` keys. `length` is the stride between the lengths of the outer batches.
    struct FewQueries {
        common: Attention,
        has_lengths: u64,
        length: i64,
        splits: u64,
        split_keys: u64,
        ticket: u64,
    }
}

impl FewQueries {
    fn rows(&self) -> u64 {
        self.common.group * self.common.queries
    }

    /// Returns the number of results. A result is a tile of [`ROWS`] rows; one block per split works
    /// on it.
    fn results(&self) -> u64 {
        (self.common.outer * self.common.inner / self.common.group)
            .saturating_mul(self.rows().div_ceil(ROWS))
    }

    /// Returns the words of scratch memory: a counter per result, and for each split of a result the
    /// sums, the largest score and the total of each row.
    fn scratch_words(&self, width: u64) -> usize {
        (self.results() + self.results() * self.splits * ROWS * (width + 2) / 2) as usize
    }
}

/// Returns whether [`few_queries`] supports a dtype and a width on this target, and whether there
/// are few enough rows for it to be faster than a kernel for many queries. `queries` counts the
/// queries of one head, and `group` the heads of queries per head of keys.
#[must_use]
pub fn has_few_queries(
    target: Target<'_>,
    dtype: DType,
    [group, queries, width]: [usize; 3],
) -> bool {
    has_tensor_cores(target)
        && matches!(dtype, DType::F16 | DType::BF16)
        && (group as u64).saturating_mul(queries as u64) <= MAX_ROWS
        && is_supported_width(width, KERNELS[2].0 as usize)
}

/// Computes `softmax(q @ k.T * scale + mask) @ v` for few queries
/// (`torch.nn.functional.scaled_dot_product_attention`).
///
/// The operands are those of [`attention`](super::attention), but dtype and sizes must satisfy [`has_few_queries`], and
/// the number of keys may be 0. `lengths` has one `int64` for each batch of the first of two batch dimensions: the
/// number of valid keys. Later keys are ignored. With lengths and `is_causal`, the last query attends to all valid
/// keys; without lengths, the first query attends only to the first key. A query that attends to no key gets zeros.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if `q` is not of a half-width float dtype.
/// - [`ErrorKind::DTypeMismatch`] if `k`, `v` or `out` has a different dtype than `q`, `lengths` does not have dtype
///   `int64`, or `mask` has neither the dtype of `q` nor dtype bool.
/// - [`ErrorKind::ShapeMismatch`] if the operands do not have the sizes and layouts of [`attention`](super::attention),
///   if the width is not a multiple of 8 up to 256, if [`has_few_queries`] does not permit the number of rows, if
///   `lengths` does not have one element for each batch of the first batch dimension, or if there are too many heads
///   for one launch.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if `out` shares memory with another operand.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn few_queries(
    target: Target<'_>,
    [q, k, v]: [View<'_>; 3],
    score_options: ScoreOptions,
    mask: Option<View<'_>>,
    lengths: Option<View<'_>>,
    out: View<'_>,
) -> Result<()> {
    let mut params = check([q, k, v], score_options, mask, lengths, out)?;
    let at = KERNELS.iter().position(|&(width, _)| params.common.width <= width);
    let (at, (width, warps)) = at.map_or((2, KERNELS[2]), |at| (at, KERNELS[at]));
    let operands = [
        q.read(),
        k.read(),
        v.read(),
        of_mask(mask, q),
        lengths.map_or(View { dtype: DType::I64, ..q }.untouched(), |lengths| lengths.read()),
        out.write(),
    ];
    check_operands(OP, &operands)?;
    let results = params.results();
    if results == 0 || out.numel() == 0 {
        return Ok(());
    }
    let mut scratch = None;
    if let Target::Cuda(_, device, _) = target {
        let tiles = params.common.keys.div_ceil(16 * warps).max(1);
        let blocks = BLOCKS * u64::from(device.properties().multiprocessor_count.max(1));
        let splits = (blocks / results).clamp(1, tiles.min(MOST_SPLITS));
        params.split_keys = tiles.div_ceil(splits) * 16 * warps;
        params.splits = params.common.keys.div_ceil(params.split_keys).max(1);
        if params.splits > 1 {
            params.ticket = ticket();
            scratch = Some(ScratchTensor::new(target, &[params.scratch_words(width)], DType::I64)?);
        }
    }
    let scratch = scratch_operand(scratch.as_ref(), out);
    let [q, k, v, mask, lengths, out] = operands;
    let blocks =
        u32::try_from(results).map_err(|_| Error::shape(OP, "there are too many heads"))?;
    let grid = Grid::new([blocks, params.splits as u32, 1], 32 * warps as u32);
    FORWARD[at].launch(target, OP, &[q, k, v, mask, lengths, out, scratch], &params, grid)
}

#[track_caller]
fn check(
    [q, k, v]: [View<'_>; 3],
    score_options: ScoreOptions,
    mask: Option<View<'_>>,
    lengths: Option<View<'_>>,
    out: View<'_>,
) -> Result<FewQueries> {
    FORWARD[0].check_dtype(OP, q.dtype)?;
    let added = mask.filter(|mask| mask.dtype != DType::Bool);
    for view in [k, v, out].into_iter().chain(added) {
        view.check_dtype(OP, q.dtype)?;
    }
    if let Some(lengths) = lengths {
        lengths.check_dtype(OP, DType::I64)?;
    }
    let widest = KERNELS[2].0 as usize;
    let common = Attention::new([q, k, v], mask, score_options).filter(|common| {
        out.sizes() == q.sizes()
            && attention_takes(out)
            && is_supported_width(common.width as usize, widest)
            && common.group.saturating_mul(common.queries) <= MAX_ROWS
            && lengths.is_none_or(|lengths| lengths.sizes() == [common.outer as usize])
    });
    let common = common.ok_or_else(|| refused(OP, [q, k, v], mask, (widest, 0)))?;
    Ok(FewQueries {
        common: Attention { out: Steps::of(&out), ..common },
        has_lengths: lengths.is_some().into(),
        length: lengths.map_or(0, |lengths| lengths.strides()[0] as i64),
        splits: 1,
        split_keys: common.keys,
        ticket: 0,
    })
}
