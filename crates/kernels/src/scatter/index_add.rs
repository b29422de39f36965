//! `index_add`, which adds slices at indices, and the gradient of an embedding.

use super::cpu;
use super::elements::{Reduce, scatter};
use crate::dim::{at_least_1d, check_dim};
use crate::programs::{cuda_type, kernels};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::iter::{BLOCK, Walk};
use warpline_runtime::launch::{Grid, Kernel, Report, blocks, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Layout, Result, Target, View, cuda_struct};

/// Number of result rows per block, if the result has many rows.
const ROWS: usize = 8;
/// Number of indices that a thread compares at a time.
const EACH: usize = 8;

kernels! {
    pub(super) INDEX_ADD = "index_add", &DType::SUFFIXES, |_, suffix| {
        let of = Source::new().with::<IndexAdd>().push(module::ELEMENT).push(module::REPORT);
        let of = of.push(module::WALK);
        let of = of.push(&format!("#define BLOCK {BLOCK}\n#define EACH {EACH}"));
        let ty = cuda_type(suffix);
        let of = of.push(include_str!("index_add.cuh"));
        let of = of.push(&format!("INDEX_ADD(index_add_{suffix}_one, {ty}, 1)"));
        of.push(&format!("INDEX_ADD(index_add_{suffix}_eight, {ty}, {ROWS})"))
    } => {
        // A block of the first kernel computes one row of the result, a block of the second kernel
        // [`ROWS`] rows.
        //
        // SAFETY: only `params` makes `IndexAdd`s, with the sizes and strides of the launch's operands.
        // The kernel reads source and index within their layouts, and changes a row of the result only
        // if an index in range equals the row's number. Each element belongs to one thread. If
        // `from_zero` is set, the kernel writes every element of the result and reads none, and `run`
        // declares the result as only written.
        unsafe ADD: [Kernel<IndexAdd, 3>; 2] = all cpu::index_add[one, eight];
    }
}

/// Maximum number of index comparisons of all blocks together, for floats. Beyond this limit,
/// [`scatter`] adds the slices, which may take atomics.
const MAX_COMPARISONS: usize = 1 << 33;
/// The limit for integers. It is lower, because atomics give integers the same sums in any order.
const MAX_INTEGER_COMPARISONS: usize = 1 << 26;

cuda_struct! {
    /// The steps are strides along the indexed dimension. `walk` covers the other dimensions of
    /// source and result, which have `columns` elements. Indices equal to `skip` are ignored.
    pub(super) struct IndexAdd {
        pub(super) report: Report,
        pub(super) count: u64,
        pub(super) index_step: i64,
        pub(super) source_step: i64,
        pub(super) out_step: i64,
        pub(super) columns: u64,
        pub(super) from_zero: u64,
        pub(super) skip: i64,
        pub(super) walk: Walk<2>,
    }
}

/// Adds slice `i` of `source` along dimension `dim` to slice `index[i]` of `out`, for all `i`
/// (`torch.index_add`).
///
/// `index` must have dtype `int64` and at most one dimension. `source` must have the dtype and the
/// sizes of `out`, except that its size in `dim` is the number of indices. Half-width floats are
/// added in `float32`.
///
/// Each element is summed in the order of the indices, so sums are the same in each run. The
/// exception is a GPU with many indices and rows: it would take too long to search all indices for
/// each row, so atomics add the slices in any order.
///
/// # Errors
/// - [`ErrorKind::DTypeMismatch`] if `index` does not have dtype `int64`, or `source` has a different dtype than `out`.
/// - [`ErrorKind::DimOutOfRange`] if `out` has no dimension `dim`.
/// - [`ErrorKind::ShapeMismatch`] if `index` has more than one dimension, if `source` differs from
///   `out` in the number of dimensions or in a size other than that of `dim`, or if the size of
///   `source` in `dim` is not the number of indices.
/// - [`ErrorKind::TooManyDims`] if the views have more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if `out` shares memory with another operand.
/// - [`ErrorKind::IndexCheck`] if an index is out of range; on a GPU, a later wait or read of `out`
///   returns this error.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn index_add(
    target: Target<'_>,
    out: View<'_>,
    dim: usize,
    index: View<'_>,
    source: View<'_>,
) -> Result<()> {
    index_add_as("index_add", target, out, dim, index, source)
}

/// Runs [`index_add`] for an op named `op`. Errors and reports of indices out of range contain this
/// name.
///
/// # Errors
/// The errors of [`index_add`].
#[track_caller]
pub fn index_add_as(
    op: &'static str,
    target: Target<'_>,
    out: View<'_>,
    dim: usize,
    index: View<'_>,
    source: View<'_>,
) -> Result<()> {
    check_dim(op, dim, out.sizes().len())?;
    let [to, from, at] =
        [at_least_1d(out.layout)?, at_least_1d(source.layout)?, at_least_1d(index.layout)?];
    let (out, source) = (View { layout: &to, ..out }, View { layout: &from, ..source });
    let index = View { layout: &at, ..index };
    let chunks = (out.numel() / to.sizes()[dim].max(1)).div_ceil(BLOCK as usize);
    let groups = rows_of(to.sizes()[dim]).1;
    let looks = groups.saturating_mul(chunks).saturating_mul(index.numel());
    let most = if out.dtype.is_float() { MAX_COMPARISONS } else { MAX_INTEGER_COMPARISONS };
    let of = params(op, out, dim, index, source)?;
    if matches!(target, Target::Cuda(..)) && looks > most {
        let mut sizes = vec![1; to.ndim()];
        sizes[dim] = index.numel();
        let mut strides = vec![0; to.ndim()];
        strides[dim] = at.strides()[0];
        let all =
            Layout::from_parts(sizes.as_slice().into(), strides.as_slice().into(), at.offset());
        let all = all.expand(source.sizes())?;
        return scatter(target, op, out, dim, View { layout: &all, ..index }, source, Reduce::Sum);
    }
    run(target, op, of, out, index, source)
}

/// Computes the gradient of an embedding's weight into `out`. Row `r` of `out` becomes the sum of
/// all rows `source[i]` for which `index[i]` is `r`. The rows are added in the order of the
/// indices, so sums are the same in each run. Row `skip`, the padding, becomes 0.
///
/// `index` must have dtype `int64` and one dimension. `source` must have the dtype and the sizes of
/// `out`, except that its first size is the number of indices.
///
/// # Errors
/// The errors of [`index_add`]. [`ErrorKind::ShapeMismatch`] also if `index` has no dimensions.
#[track_caller]
pub fn embedding_backward(
    target: Target<'_>,
    out: View<'_>,
    index: View<'_>,
    source: View<'_>,
    skip: Option<usize>,
) -> Result<()> {
    const OP: &str = "embedding_backward";
    if out.sizes().is_empty() {
        return Err(Error::shape(
            OP,
            "the result must have at least one dimension, but is a scalar",
        ));
    }
    let mut of = params(OP, out, 0, index, source)?;
    of.from_zero = 1;
    // -1 skips nothing, because no valid index is -1. A `skip` that does not fit `i64` equals no
    // index either.
    of.skip = skip.and_then(|skip| i64::try_from(skip).ok()).unwrap_or(-1);
    run(target, OP, of, out, index, source)
}

/// Returns the number of rows per block, and the number of blocks that all rows need.
fn rows_of(rows: usize) -> (usize, usize) {
    let each = if rows >= 1024 * ROWS { ROWS } else { 1 };
    (each, rows.div_ceil(each))
}

/// Checks the operands and returns the parameters.
#[track_caller]
fn params(
    op: &'static str,
    out: View<'_>,
    dim: usize,
    index: View<'_>,
    source: View<'_>,
) -> Result<IndexAdd> {
    super::check_index_dtype(op, index)?;
    source.check_dtype(op, out.dtype)?;
    let fits =
        |d: usize| source.sizes()[d] == if d == dim { index.numel() } else { out.sizes()[d] };
    let ndim = out.sizes().len();
    if index.sizes().len() != 1 || source.sizes().len() != ndim || !(0..ndim).all(fits) {
        let reason = format!(
            "the index has sizes {:?}, the source {:?} and the result {:?}; the source must have \
             one slice along dimension {dim} for each index, and otherwise the sizes of the result",
            index.sizes(),
            source.sizes(),
            out.sizes()
        );
        return Err(Error::shape(op, reason));
    }
    let dims = (0..ndim).rev().filter(|&d| d != dim);
    let dims = dims.map(|d| (out.sizes()[d], [source.strides()[d], out.strides()[d]]));
    let walk = Walk::new(op, dims)?;
    Ok(IndexAdd {
        report: Report::new(dim, out.sizes()[dim]),
        count: index.numel() as u64,
        index_step: index.strides()[0] as i64,
        source_step: source.strides()[dim] as i64,
        out_step: out.strides()[dim] as i64,
        columns: walk.numel() as u64,
        from_zero: 0,
        skip: -1,
        walk,
    })
}

#[track_caller]
fn run(
    target: Target<'_>,
    op: &'static str,
    params: IndexAdd,
    out: View<'_>,
    index: View<'_>,
    source: View<'_>,
) -> Result<()> {
    let to = if params.from_zero != 0 { out.write() } else { out.read_write() };
    let operands = [source.read(), index.read(), to];
    check_operands(op, &operands)?;
    if params.columns == 0 || (params.count == 0 && params.from_zero == 0) {
        return Ok(());
    }
    let (each, groups) = rows_of(params.report.size());
    let chunks = (params.columns as usize).div_ceil(BLOCK as usize).min(u16::MAX.into());
    // Launch one block even for a result without rows, because the kernel must report indices as
    // out of range.
    let grid = Grid::new([blocks(groups.max(1)), chunks as u32, 1], BLOCK);
    ADD[usize::from(each > 1)].launch(target, op, &operands, &params, grid)
}
