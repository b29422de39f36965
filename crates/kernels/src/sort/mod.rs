//! Sorting of rows, and the search for positions in sorted rows.
//!
//! Sorting moves pairs of a key and a place, so it is stable. A row of up to `TILE` (2,048)
//! elements is sorted by one block in shared memory. Longer rows are sorted as pairs in scratch
//! memory, in passes. `topk`, `median` and `kthvalue` are a sort and a part of its result.
//! `nonzero`, and with it masks and `unique`, searches numbers (`search.rs`) in a running sum
//! (`scan/`).

mod cpu;
mod search;
#[cfg(test)]
mod tests;

use std::panic::Location;

use crate::dim::check_dim;
use crate::programs::{committed, cuda_type};
use warpline_runtime::iter::Walk;
use warpline_runtime::launch::{Grid, Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{
    DType, Error, ErrorKind, Layout, Result, Storage, Target, View, cuda_struct, hosts,
};

pub use search::searchsorted;

const OP: &str = "sort";

/// Pairs that one block sorts by itself; half as many threads.
const TILE: usize = 2048;
/// Pairs in scratch memory at a time, unless a row has more.
const MOST: usize = if cfg!(test) { 1 << 13 } else { 1 << 26 };

pub(crate) const PROGRAMS: &[&Program] = &[&SORT, &PASSES, &search::SEARCH];

static SORT: Program =
    Program::new("sort", &DType::SUFFIXES, &["row", "keys", "write"], |_, suffix| {
        let of = Source::new().with::<Sort>().with::<Pair>().push(module::ELEMENT);
        let of = of.push(module::WALK).push(&format!("#define TILE {TILE}"));
        let of = of.push(include_str!("pairs.cuh")).push(include_str!("sort.cuh"));
        of.push(&format!("SORT(sort_{suffix}, {})", cuda_type(suffix)))
    })
    .with_ptx(committed);

static PASSES: Program = Program::new("sort_passes", &[""], &["tiles", "step", "merge"], |_, _| {
    let of = Source::new().with::<Pass>().with::<Pair>().push(&format!("#define TILE {TILE}"));
    of.push(include_str!("pairs.cuh")).push(include_str!("passes.cuh"))
})
.with_ptx(committed);

// SAFETY: `sort` makes all `Sort`s, of the views that are launched with: their sizes and strides. Each element of the results
// is one thread's. `KEYS` and `WRITE` reach as many pairs as a part of the rows has, and `long_rows` declares so many. A
// pair's place is one of its row's, as `KEYS` wrote it.
static ROW: Kernel<Sort, 3> = unsafe { Kernel::new(&SORT, "row", hosts!(all T => cpu::rows::<T>)) };
// SAFETY: as `ROW`.
static KEYS: Kernel<Sort, 2> =
    unsafe { Kernel::new(&SORT, "keys", hosts!(all T => cpu::keys::<T>)) };
// SAFETY: as `ROW`.
static WRITE: Kernel<Sort, 4> =
    unsafe { Kernel::new(&SORT, "write", hosts!(all T => cpu::write::<T>)) };
// SAFETY: `long_rows` makes all `Pass`es, and launches with as many pairs as they say. Each pair is one thread's.
static TILES: Kernel<Pass, 1> = unsafe { Kernel::new(&PASSES, "tiles", hosts!(any cpu::tiles)) };
// SAFETY: as `TILES`.
static STEP: Kernel<Pass, 1> = unsafe { Kernel::new(&PASSES, "step", hosts!(any cpu::sorted)) };
// SAFETY: as `TILES`.
static MERGE: Kernel<Pass, 1> = unsafe { Kernel::new(&PASSES, "merge", hosts!(any cpu::sorted)) };

cuda_struct! {
    /// `rows` of `size` elements from the row `first` on, the steps along a row of the source, the values and the
    /// indices, and `padded`, the power of two of elements of a row, whose logarithm is `log`.
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

cuda_struct! {
    struct Pass {
        pairs: u64,
        padded: u64,
        size: u64,
        distance: u64,
    }
}

cuda_struct! {
    /// A key and the place in its row of the element that it is of.
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    struct Pair {
        key: u64,
        index: u64,
    }
}

/// `torch.sort` along dimension `dim` of `a`, stable: the elements into `values`, of its dtype and sizes, and
/// their places into `indices`, of `int64`. A NaN is larger than any number.
///
/// # Errors
/// [`ErrorKind::DTypeMismatch`], [`ErrorKind::ShapeMismatch`], [`ErrorKind::DimOutOfRange`], [`ErrorKind::TooManyDims`],
/// [`ErrorKind::OverlappingWrite`], [`ErrorKind::OverlappingOperands`]; what allocating scratch memory and
/// [`Kernel::launch`] fail with.
#[track_caller]
pub fn sort(
    target: Target<'_>,
    a: View<'_>,
    dim: usize,
    descending: bool,
    values: View<'_>,
    indices: View<'_>,
) -> Result<()> {
    let location = Location::caller();
    for (view, expected) in [(values, a.dtype), (indices, DType::I64)] {
        if view.dtype != expected {
            let actual = view.dtype;
            return Err(ErrorKind::DTypeMismatch { expected, actual }.of(OP).at(location));
        }
        if view.sizes() != a.sizes() {
            let reason = format!("a result of {:?} for an input of {:?}", view.sizes(), a.sizes());
            return Err(Error::shape(OP, reason).at(location));
        }
    }
    let ndim = a.sizes().len();
    check_dim(OP, dim, ndim)?;
    let operands = [a.read(), values.write(), indices.write()];
    check_operands(OP, &operands)?;
    if a.numel() == 0 {
        return Ok(());
    }
    let of = |d: usize| (a.sizes()[d], [a.strides()[d], values.strides()[d], indices.strides()[d]]);
    let (size, steps) = if ndim == 0 { (1, [0; 3]) } else { of(dim) };
    let walk = Walk::new(OP, (0..ndim).rev().filter(|&d| d != dim).map(of))?;
    let padded = size.next_power_of_two();
    let params = Sort {
        rows: walk.numel() as u64,
        first: 0,
        size: size as u64,
        padded: padded as u64,
        log: padded.ilog2().into(),
        descending: descending.into(),
        steps: steps.map(|step| step as i64),
        walk,
    };
    if matches!(target, Target::Cuda(..)) && padded > TILE {
        return long_rows(target, params, a, values, indices);
    }
    let threads = (padded / 2).clamp(32, TILE / 2);
    let grid = Grid::linear(params.rows as usize, threads as u32);
    ROW.launch(target, OP, &operands, &params, grid)
}

/// Sorts rows that are longer than a tile, on a GPU.
#[track_caller]
fn long_rows(
    target: Target<'_>,
    all: Sort,
    a: View<'_>,
    values: View<'_>,
    indices: View<'_>,
) -> Result<()> {
    const THREADS: u32 = 256;
    let Target::Cuda(runtime, _, stream) = target else { return Ok(()) };
    let (rows, padded) = (all.rows as usize, all.padded as usize);
    let at_once = (MOST / padded).clamp(1, rows);
    let storage = Storage::device(runtime, at_once * padded * size_of::<Pair>(), stream)?;
    for first in (0..rows).step_by(at_once) {
        let rows = at_once.min(rows - first);
        let count = rows * padded;
        // The last ones' may be fewer.
        let layout = Layout::contiguous(&[count * 2])?;
        let pairs = View { storage: &storage, layout: &layout, dtype: DType::I64 };
        let part = Sort { rows: rows as u64, first: first as u64, ..all };
        let (each, tiles) =
            (Grid::cover(count, THREADS), Grid::linear(count / TILE, TILE as u32 / 2));
        KEYS.launch(target, OP, &[a.read(), pairs.write()], &part, each)?;
        let both = [pairs.read_write()];
        let mut pass = Pass { pairs: count as u64, padded: padded as u64, size: 0, distance: 0 };
        TILES.launch(target, OP, &both, &pass, tiles)?;
        for size in (TILE.ilog2() + 1..=padded.ilog2()).map(|log| 1usize << log) {
            pass.size = size as u64;
            let mut distance = size / 2;
            while distance >= TILE {
                pass.distance = distance as u64;
                let grid = Grid::linear(count / 2 / THREADS as usize, THREADS);
                STEP.launch(target, OP, &both, &pass, grid)?;
                distance /= 2;
            }
            MERGE.launch(target, OP, &both, &pass, tiles)?;
        }
        // Other rows' elements are not written: what was there stays.
        let operands = [a.read(), pairs.read(), values.read_write(), indices.read_write()];
        WRITE.launch(target, OP, &operands, &part, each)?;
    }
    Ok(())
}
