//! Sorting of rows, and binary search in sorted rows.
//!
//! The problem: rows of any length, dtype and stride must be sorted stably, and the indices of the
//! elements are a second result. The approach is a bitonic sort, whose comparisons do not depend on
//! the data, so all threads do the same work. A bitonic sort is not stable. Therefore it sorts
//! pairs of a key and an index, and orders equal keys by index. The key of an element is an
//! unsigned integer with the same order, so the passes are the same for all dtypes (`sort.cuh`).
//!
//! The size of a row is rounded up to a power of two. One block sorts a row of up to `TILE` (2,048)
//! elements in shared memory. Longer rows are written as pairs to scratch memory and sorted in
//! several passes (`passes.cuh`). The first pass sorts each tile. Then sorted runs are merged to
//! runs of twice the size, until a run is a row. In a merge, each step that compares pairs at a
//! distance of at least a tile takes one launch, and all remaining steps together take one launch.
//!
//! Limits: a row of n elements takes O(n log² n) comparisons. Long rows need 16 bytes of scratch
//! memory per pair, for at most `MAX_PAIRS` pairs at a time, or for one row if it has more. `topk`,
//! `median` and `kthvalue` sort the whole row and select a part of it. `nonzero`, which masks and
//! `unique` use, does not sort: it is a binary search (`search.rs`) in a running sum (`scan/`).

mod cpu;
mod pairs;
mod search;

use crate::dim::{check_dim, check_result, rows_along};
use crate::programs::{cuda_type, kernels};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::iter::Walk;
use warpline_runtime::launch::{Grid, Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Layout, Result, Storage, Target, View, cuda_struct};

pub(crate) use pairs::{SortPair, TILE, sort_pairs};
pub use search::searchsorted;

const OP: &str = "sort";

/// Maximum number of pairs in scratch memory at a time. A single row may have more.
const MAX_PAIRS: usize = 1 << 26;

pub(crate) const PROGRAMS: &[&Program] = &[&SORT, &pairs::PASSES, &search::SEARCH];

kernels! {
    SORT = "sort", &DType::SUFFIXES, |_, suffix| {
        let of = Source::new().with::<Sort>().with::<SortPair>().push(module::ELEMENT);
        let of = of.push(module::WALK).push(&format!("#define TILE {TILE}"));
        let of = of.push(include_str!("pairs.cuh")).push(include_str!("sort.cuh"));
        of.push(&format!("SORT(sort_{suffix}, {})", cuda_type(suffix)))
    } => {
        // SAFETY: only `sort` makes `Sort`s, with the sizes and strides of the launch's operands.
        // Each element of the results belongs to one thread. After the sort, the first `size` pairs
        // of a row have indices below `size`.
        unsafe ROW: Kernel<Sort, 3> = all cpu::sort_row;
        // SAFETY: only `sort` makes `Sort`s, and `long_rows` declares the pairs of all rows of the
        // launch. Each pair is written by one thread.
        unsafe KEYS: Kernel<Sort, 2> = all cpu::sort_keys;
        // SAFETY: only `sort` makes `Sort`s, and `long_rows` declares the pairs of all rows of the
        // launch. Each element of the results is written by one thread. After the sort, the first
        // `size` pairs of a row have indices below `size`.
        unsafe WRITE: Kernel<Sort, 4> = all cpu::sort_write;
    }
}

cuda_struct! {
    /// A part of a sort: `rows` rows of `size` elements, beginning with row `first`. `steps` are
    /// the strides of source, values and indices along a row. `padded` is `size` rounded up to a
    /// power of two, and `log` is the binary logarithm of `padded`.
    struct Sort {
        rows: u64,
        first: u64,
        size: u64,
        padded: u64,
        log: u64,
        descending: u64,
        steps: [i64; 3],
        walk: Walk<3>,
    }
}

/// Sorts `a` along dimension `dim`, stably (`torch.sort`). `values` receives the sorted elements;
/// it must have the dtype and the sizes of `a`. `indices` receives the index of each of them in
/// `a`; it must have dtype `int64` and the sizes of `a`. Supports every dtype. A NaN is larger than
/// any number.
///
/// # Errors
/// - [`ErrorKind::DTypeMismatch`] if `values` has a different dtype than `a`, or `indices` does not
///   have dtype `int64`.
/// - [`ErrorKind::ShapeMismatch`] if `values` or `indices` has different sizes than `a`.
/// - [`ErrorKind::DimOutOfRange`] if `a` has no dimension `dim`.
/// - [`ErrorKind::TooManyDims`] if the views have more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of a result overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if a result shares memory with another operand.
/// - The errors of allocating scratch memory and of [`Kernel::launch`].
#[track_caller]
pub fn sort(
    target: Target<'_>,
    a: View<'_>,
    dim: usize,
    descending: bool,
    values: View<'_>,
    indices: View<'_>,
) -> Result<()> {
    sort_in_parts(target, a, dim, descending, [values, indices], MAX_PAIRS)
}

/// [`sort`] with at most `max_pairs` pairs in scratch memory, or one row if a row has more. For tests.
#[doc(hidden)]
#[track_caller]
pub fn sort_in_parts(
    target: Target<'_>,
    a: View<'_>,
    dim: usize,
    descending: bool,
    [values, indices]: [View<'_>; 2],
    max_pairs: usize,
) -> Result<()> {
    for (view, dtype) in [(values, a.dtype), (indices, DType::I64)] {
        check_result(OP, view, dtype, a)?;
    }
    check_dim(OP, dim, a.sizes().len())?;
    let operands = [a.read(), values.write(), indices.write()];
    check_operands(OP, &operands)?;
    if a.numel() == 0 {
        return Ok(());
    }
    let (size, steps, walk) = rows_along(OP, dim, [a, values, indices])?;
    let padded = size.next_power_of_two();
    let params = Sort {
        rows: walk.numel() as u64,
        first: 0,
        size: size as u64,
        padded: padded as u64,
        log: padded.ilog2().into(),
        descending: descending.into(),
        steps,
        walk,
    };
    if matches!(target, Target::Cuda(..)) && padded > TILE {
        return long_rows(target, params, a, [values, indices], max_pairs);
    }
    let threads = (padded / 2).clamp(32, TILE / 2);
    let grid = Grid::linear(params.rows as usize, threads as u32);
    ROW.launch(target, OP, &operands, &params, grid)
}

/// Sorts rows that are longer than a tile on a GPU.
#[track_caller]
fn long_rows(
    target: Target<'_>,
    all: Sort,
    a: View<'_>,
    [values, indices]: [View<'_>; 2],
    max_pairs: usize,
) -> Result<()> {
    const THREADS: u32 = 256;
    let Target::Cuda(runtime, _, stream) = target else { return Ok(()) };
    let (rows, padded) = (all.rows as usize, all.padded as usize);
    let at_once = (max_pairs / padded).clamp(1, rows);
    let storage = Storage::device(runtime, at_once * padded * size_of::<SortPair>(), stream)?;
    for first in (0..rows).step_by(at_once) {
        let rows = at_once.min(rows - first);
        let count = rows * padded;
        // The last chunk may have fewer rows.
        let layout = Layout::contiguous(&[count * 2])?;
        let pairs = View { storage: &storage, layout: &layout, dtype: DType::I64 };
        let part = Sort { rows: rows as u64, first: first as u64, ..all };
        let each = Grid::cover(count, THREADS);
        KEYS.launch(target, OP, &[a.read(), pairs.write()], &part, each)?;
        sort_pairs(target, OP, pairs, padded)?;
        // The launch writes only some rows of the results. Declare the results as read and written,
        // because the other rows keep their values.
        let operands = [a.read(), pairs.read(), values.read_write(), indices.read_write()];
        WRITE.launch(target, OP, &operands, &part, each)?;
    }
    Ok(())
}
