//! Rows added where indices say: `index_add`, and the gradient of an embedding.

use warpline_cuda_sys_safe::HostLaunch;

use super::elements::{Reduce, scatter};
use crate::programs::{committed, cuda_type};
use warpline_runtime::host::{self, HostElement, Number, Shared};
use warpline_runtime::iter::{BLOCK, Walk};
use warpline_runtime::launch::{Grid, Kernel, Report, blocks, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Layout, Result, Target, View, cuda_struct, hosts};

/// Rows that a block takes where there are many.
const ROWS: usize = 8;
/// Indices that a thread looks at together.
const EACH: usize = 8;

pub(super) static INDEX_ADD: Program =
    Program::new("index_add", &DType::SUFFIXES, &["one", "eight"], |_, suffix| {
        let of = Source::new().with::<IndexAdd>().push(module::ELEMENT).push(module::REPORT);
        let of = of.push(module::WALK);
        let of = of.push(&format!("#define BLOCK {BLOCK}\n#define EACH {EACH}"));
        let ty = cuda_type(suffix);
        let of = of.push(include_str!("index_add.cuh"));
        let of = of.push(&format!("INDEX_ADD(index_add_{suffix}_one, {ty}, 1)"));
        of.push(&format!("INDEX_ADD(index_add_{suffix}_eight, {ty}, {ROWS})"))
    })
    .with_ptx(committed);

// Blocks of the first kernel take one row, blocks of the second `ROWS`.
//
// SAFETY: `part` makes all `IndexAdd`s, of the views that are launched with: their sizes and strides. Source and index are
// read where their layouts say, rows of the result are reached only as indices in range name them, each element by one
// thread. With `from_zero` all are written and none is read, and `run` declares so.
static ADD: [Kernel<IndexAdd, 3>; 2] =
    unsafe { Kernel::array(&INDEX_ADD, ["one", "eight"], hosts!(all T => on_host::<T>)) };

/// Indices that all blocks look at together, up to which they do so: beyond, sums are atomics'.
const MOST: usize = 1 << 33;
/// The same of integers, whose sums have no order.
const MOST_INTEGERS: usize = 1 << 26;

cuda_struct! {
    /// The steps are along the dimension that is indexed. `walk` goes over the others of source and result,
    /// `columns` elements. Indices that are `skip` are left out.
    struct IndexAdd {
        report: Report,
        count: u64,
        index_step: i64,
        source_step: i64,
        out_step: i64,
        columns: u64,
        from_zero: u64,
        skip: i64,
        walk: Walk<2>,
    }
}

/// Adds each part of `source` along dimension `dim` to that of `out` which `index` names, one after the other
/// (`torch.index_add`). `index` is `int64` and has one dimension, `source` the sizes of `out`, but in `dim` as
/// many as there are indices. Halves are added in `f32`.
///
/// Each sum has the order of the indices, so that it is the same each time; on a GPU not where so many
/// indices name so many rows that each row's looking for its own takes too long.
///
/// # Errors
/// As [`scatter`].
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

/// [`index_add`] under the name `op`, which errors and reports of indices out of range have.
///
/// # Errors
/// As [`index_add`].
#[track_caller]
pub fn index_add_as(
    op: &'static str,
    target: Target<'_>,
    out: View<'_>,
    dim: usize,
    index: View<'_>,
    source: View<'_>,
) -> Result<()> {
    crate::dim::check_dim(op, dim, out.sizes().len())?;
    let row = |l: &Layout| if l.ndim() == 0 { l.unsqueeze(0) } else { Ok(l.clone()) };
    let [to, from, at] = [row(out.layout)?, row(source.layout)?, row(index.layout)?];
    let (out, source) = (View { layout: &to, ..out }, View { layout: &from, ..source });
    let index = View { layout: &at, ..index };
    let chunks = (out.numel() / to.sizes()[dim].max(1)).div_ceil(BLOCK as usize);
    let groups = rows_of(to.sizes()[dim]).1;
    let looks = groups.saturating_mul(chunks).saturating_mul(index.numel());
    let most = if out.dtype.is_float() { MOST } else { MOST_INTEGERS };
    let of = part(op, out, dim, index, source)?;
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

/// The gradient of an embedding's weight, `out`: for each of its rows the sum of those rows of `source` at whose
/// places `index` names it, in their order, so that it is the same each time. Of `skip`, the padding, it is 0.
///
/// # Errors
/// As [`scatter`].
#[track_caller]
pub fn embedding_backward(
    target: Target<'_>,
    out: View<'_>,
    index: View<'_>,
    source: View<'_>,
    skip: Option<usize>,
) -> Result<()> {
    const OP: &str = "embedding_backward";
    crate::dim::check_dim(OP, 0, out.sizes().len())?;
    let mut of = part(OP, out, 0, index, source)?;
    of.from_zero = 1;
    // No index is -1, so a row that does not fit names none either.
    of.skip = skip.and_then(|skip| i64::try_from(skip).ok()).unwrap_or(-1);
    run(target, OP, of, out, index, source)
}

/// How many rows a block takes, and how many blocks there are for that.
fn rows_of(rows: usize) -> (usize, usize) {
    let each = if rows >= 1024 * ROWS { ROWS } else { 1 };
    (each, rows.div_ceil(each))
}

/// Checks arguments.
#[track_caller]
fn part(
    op: &'static str,
    out: View<'_>,
    dim: usize,
    index: View<'_>,
    source: View<'_>,
) -> Result<IndexAdd> {
    super::check_index_dtype(op, index)?;
    super::check_same_dtype(op, out, source)?;
    let fits =
        |d: usize| source.sizes()[d] == if d == dim { index.numel() } else { out.sizes()[d] };
    let ndim = out.sizes().len();
    if index.sizes().len() != 1 || source.sizes().len() != ndim || !(0..ndim).all(fits) {
        let reason = format!(
            "an index of sizes {:?} and a source of {:?} for a result of {:?}; there must be one index \
             for each part of the source along dimension {dim}, and its other sizes be the result's",
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
    // One block where there is no row, which says that no index can be right.
    let grid = Grid::new([blocks(groups.max(1)), chunks as u32, 1], BLOCK);
    ADD[usize::from(each > 1)].launch(target, op, &operands, &params, grid)
}

/// # Safety
/// As [`HostKernel`](warpline_cuda_sys_safe::HostKernel): a source of `T`, indices of `i64`, a result of `T`.
unsafe fn on_host<T: HostElement>(launch: &HostLaunch<'_>, p: &IndexAdd) {
    /// Columns that are added together: their sums are kept as they are computed.
    const COLUMNS: usize = 64;
    let (source, out) = (Shared::<T>::operand(launch, 0), Shared::<T>::operand(launch, 2));
    let index = Shared::<i64>::operand(launch, 1);
    let [a, b, c] = [p.source_step, p.index_step, p.out_step].map(|step| step as isize);
    let columns = p.columns as usize;
    let work = p.count as usize + if p.from_zero != 0 { p.report.size() } else { 0 };
    let grain = (host::GRAIN / work.max(1)).max(COLUMNS);
    host::parallel_for(launch.parallel, columns, grain, |range| {
        let offsets: Vec<[isize; 2]> = range.map(|column| p.walk.offsets(column)).collect();
        // SAFETY: declared elements, of which the result's columns are this thread's, and its rows are
        // named by indices in range. The report's mailbox is there for the launch.
        unsafe {
            if p.from_zero != 0 {
                for row in 0..p.report.size() as isize {
                    for [_, to] in &offsets {
                        out.write(to + row * c, T::put(<T::Compute as Number>::from_bits(0)));
                    }
                }
            }
            for n in 0..p.count as isize {
                let k = index.read(n * b);
                if !p.report.check_index(k) || k == p.skip {
                    continue;
                }
                for [from, to] in &offsets {
                    let place = to + k as isize * c;
                    let sum = out.read(place).get().add(source.read(from + n * a).get());
                    out.write(place, T::put(sum));
                }
            }
        }
    });
}
