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

use bytemuck::{Pod, Zeroable};
use warpline_cuda_sys_safe::HostKernel;

use crate::dim::check_dim;
use crate::programs::{committed, cuda_type};
use warpline_runtime::iter::Walk;
use warpline_runtime::launch::{self, Call, Code, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{
    DType, Error, ErrorKind, Layout, Operand, Result, Storage, Target, View, cuda_struct, dispatch,
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

/// `rows` of `size` elements from the row `first` on, the steps along a row of the source, the values and the
/// indices, and `padded`, the power of two of elements of a row, whose logarithm is `log`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
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

cuda_struct!(Sort { rows, first, size, padded, log, descending, steps, walk });

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Pass {
    pairs: u64,
    padded: u64,
    size: u64,
    distance: u64,
}

cuda_struct!(Pass { pairs, padded, size, distance });

/// A key and the place in its row of the element that it is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
#[repr(C)]
struct Pair {
    key: u64,
    index: u64,
}

cuda_struct!(Pair { key, index });

/// `torch.sort` along dimension `dim` of `a`, stable: the elements into `values`, of its dtype and sizes, and
/// their places into `indices`, of `int64`. A NaN is larger than any number.
///
/// # Errors
/// [`ErrorKind::DTypeMismatch`], [`ErrorKind::ShapeMismatch`], [`ErrorKind::DimOutOfRange`], [`ErrorKind::TooManyDims`],
/// [`ErrorKind::OverlappingWrite`], [`ErrorKind::OverlappingOperands`]; what allocating scratch memory and
/// [`launch::run`] fail with.
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
    check_operands(OP, &[a.read(), values.write(), indices.write()])?;
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
    let passes = Passes { target, location, dtype: a.dtype };
    match target {
        Target::Cuda(..) if padded > TILE => passes.long_rows(params, a, values, indices),
        _ => {
            let host: HostKernel = dispatch!(a.dtype, all T => cpu::rows::<T>);
            let threads = (padded / 2).clamp(32, TILE / 2);
            let operands = [a.read(), values.write(), indices.write()];
            let kernel = (&SORT, a.dtype as usize, 0);
            let rows = params.rows as usize;
            passes.run(kernel, &operands, bytemuck::bytes_of(&params), host, rows, threads)
        }
    }
}

/// What all launches of a sort have in common.
struct Passes<'a> {
    target: Target<'a>,
    location: &'static Location<'static>,
    dtype: DType,
}

impl Passes<'_> {
    #[track_caller]
    fn long_rows(&self, all: Sort, a: View<'_>, values: View<'_>, indices: View<'_>) -> Result<()> {
        const THREADS: usize = 256;
        let Target::Cuda(runtime, _, stream) = self.target else { return Ok(()) };
        let (rows, padded) = (all.rows as usize, all.padded as usize);
        let at_once = (MOST / padded).clamp(1, rows);
        let storage = Storage::device(runtime, at_once * padded * size_of::<Pair>(), stream)?;
        let [keys, write] =
            dispatch!(self.dtype, all T => [cpu::keys::<T> as HostKernel, cpu::write::<T>]);
        for first in (0..rows).step_by(at_once) {
            let rows = at_once.min(rows - first);
            let count = rows * padded;
            // The last ones' may be fewer.
            let layout = Layout::contiguous(&[count * 2])?;
            let pairs = View { storage: &storage, layout: &layout, dtype: DType::I64 };
            let part = Sort { rows: rows as u64, first: first as u64, ..all };
            let part = bytemuck::bytes_of(&part);
            let dtype = self.dtype as usize;
            let blocks = count.div_ceil(THREADS);
            let operands = [a.read(), pairs.write()];
            self.run((&SORT, dtype, 1), &operands, part, keys, blocks, THREADS)?;
            let both = [pairs.read_write()];
            let mut pass =
                Pass { pairs: count as u64, padded: padded as u64, size: 0, distance: 0 };
            let bytes = bytemuck::bytes_of(&pass);
            self.run((&PASSES, 0, 0), &both, bytes, cpu::tiles, count / TILE, TILE / 2)?;
            for size in (TILE.ilog2() + 1..=padded.ilog2()).map(|log| 1usize << log) {
                pass.size = size as u64;
                let mut distance = size / 2;
                while distance >= TILE {
                    pass.distance = distance as u64;
                    let blocks = count / 2 / THREADS;
                    let bytes = bytemuck::bytes_of(&pass);
                    self.run((&PASSES, 0, 1), &both, bytes, cpu::sorted, blocks, THREADS)?;
                    distance /= 2;
                }
                let bytes = bytemuck::bytes_of(&pass);
                self.run((&PASSES, 0, 2), &both, bytes, cpu::sorted, count / TILE, TILE / 2)?;
            }
            // Other rows' elements are not written: what was there stays.
            let operands = [a.read(), pairs.read(), values.read_write(), indices.read_write()];
            self.run((&SORT, dtype, 2), &operands, part, write, blocks, THREADS)?;
        }
        Ok(())
    }

    #[track_caller]
    fn run(
        &self,
        kernel: (&'static Program, usize, usize),
        operands: &[Operand<'_>],
        params: &[u8],
        host: HostKernel,
        blocks: usize,
        threads: usize,
    ) -> Result<()> {
        let call = Call {
            op: OP,
            operands,
            params,
            checks_indices: false,
            host,
            code: Code::Kernel {
                kernel,
                grid: [launch::blocks(blocks), 1, 1],
                block: [threads as u32, 1, 1],
                shared_bytes: 0,
            },
            location: self.location,
        };
        // SAFETY: the parameters reach the elements of the views, and as many pairs as there are; each
        // element of the results, and each pair in a pass, is one thread's. A pair's place is one of its
        // row's, as the keys' kernel wrote it. The kernels take `Sort`, those of the passes `Pass`.
        unsafe { launch::run(self.target, &call) }
    }
}
