//! Ops that select elements by indices along a dimension: `index_select`, `gather` and `embedding`.
//!
//! One kernel serves all three ops. It reads source and index through views with the sizes of the result. The view of
//! the source has stride 0 in the dimensions in which the index selects. In `index_select` and `embedding`, the view of
//! the index has stride 0 in all other dimensions.
//!
//! An index out of range, which includes negative indices, causes [`ErrorKind::IndexCheck`] and
//! marks the result as invalid. The kernel writes 0 there.

mod cpu;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::panic::Location;

use crate::dim::{at_least_1d, check_dim};
use crate::programs::{UNITS, by_unit, committed, test_sources};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::iter::{BLOCK, Index, IterPlan, halves};
use warpline_runtime::launch::{Grid, Kernel, Report, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{
    DType, Error, Layout, Result, Site, Sizes, Strides, Target, View, cuda_struct, hosts,
};

pub(crate) const PROGRAMS: &[&Program] = &[&GATHER];

/// Variants by the size of the elements, then by the dtype of the indices.
const VARIANTS: &[&str] = &[
    "u8_i32", "u8_i64", "u16_i32", "u16_i64", "u32_i32", "u32_i64", "u64_i32", "u64_i64",
    "u128_i32", "u128_i64",
];

/// Elements per thread of the kernel, so that several loads are in flight at a time.
const EACH: usize = 4;
/// Bytes of the largest unit that is moved at once, for elements that lie side by side.
const WIDEST: usize = 16;

static GATHER: Program = Program::new("gather", VARIANTS, &[""], |_, variant| {
    let of = Source::new().with::<Pick>().push(module::ELEMENT).push(module::REPORT);
    let of = of.push(module::SPACE).push(&format!("#define EACH {EACH}"));
    let of = of.push(include_str!("gather.cuh"));
    of.push(&format!("GATHER({})", variant.replace('_', ", ")))
})
.with_ptx(committed);

/// Creates the kernel that moves units of type `$unit`. The dtype of the indices selects the variant.
macro_rules! gather {
    ($unit:ty, $variant:literal) => {
        Kernel::new(
            &GATHER,
            "",
            hosts!(I32 | I64, I => cpu::gather::<$unit, I>)
                .with_variant(DType::I32, concat!($variant, "_i32"))
                .with_variant(DType::I64, concat!($variant, "_i64")),
        )
        .selected_by(1)
    };
}

// SAFETY: `launch` makes all `Pick`s, with the sizes and strides, in units, of the launch's
// operands. The kernel checks an index before it selects an element, and `whole` declares all
// elements that an index can select. Each element of the result belongs to one thread.
static GATHERS: [Kernel<Pick, 3>; UNITS.len()] = unsafe { by_unit!(gather) };
test_sources!(GATHERS);

cuda_struct! {
    /// The parameters. `step` is the stride of the source along the indexed dimension.
    struct Pick {
        report: Report,
        step: i64,
        space: Index<3>,
    }
}

/// The indexed dimension of the source.
struct IndexedDim {
    dim: usize,
    size: usize,
    step: isize,
    /// The dimensions of the result that replace the indexed dimension.
    indexed: Range<usize>,
}

impl IndexedDim {
    fn of(input: &Layout, dim: usize, indexed: Range<usize>) -> Self {
        // `dim` may be 0 for a scalar, which has no dimensions.
        let of = |values: &[isize]| values.get(dim).copied();
        let size = input.sizes().get(dim).copied().unwrap_or(1);
        Self { dim, size, step: of(input.strides()).unwrap_or(0), indexed }
    }
}

/// Copies the slices of `input` along dimension `dim` that `index` names into `out`, in order (`torch.index_select`).
/// `index` has dtype `int32` or `int64` and has at most one dimension. `out` has the dtype of `input`, which may be
/// any, and the sizes that [`index_select_sizes`] returns.
///
/// # Errors
/// - [`ErrorKind::DTypeMismatch`] if `index` has a dtype other than `int32` or `int64`, or `out` has a different dtype
///   than `input`.
/// - [`ErrorKind::DimOutOfRange`] if `input` has no dimension `dim`.
/// - [`ErrorKind::ShapeMismatch`] if `index` has more than one dimension, if `input` is a scalar and there is not
///   exactly one index, or if `out` does not have the sizes above.
/// - [`ErrorKind::TooManyDims`] if the views have more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if `out` shares memory with another operand.
/// - [`ErrorKind::IndexCheck`] if an index is out of range; on a GPU, a later wait or read of `out`
///   returns this error.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn index_select(
    target: Target<'_>,
    input: View<'_>,
    dim: usize,
    index: View<'_>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "index_select";
    let (ndim, count) = (input.sizes().len(), index.numel());
    check(OP, input, index, out)?;
    check_dim(OP, dim, ndim)?;
    let sizes = index_select_sizes(input.sizes(), dim, index.sizes())?;
    check_sizes(OP, &sizes, out, input, index)?;
    let mut source = input.strides().to_vec();
    let mut indices = vec![0; ndim];
    if ndim > 0 {
        source[dim] = 0;
        indices[dim] = index.strides().first().copied().unwrap_or(0);
    }
    debug_assert!(ndim > 0 || count == 1);
    let along = IndexedDim::of(input.layout, dim, dim..(dim + 1).min(ndim));
    pick(target, OP, (input, &source), (index, &indices), out, &along)
}

/// Returns the sizes of the result of [`index_select`]: those of the input, with the number of
/// indices in dimension `dim`.
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`] if the index has more than one dimension, or the input is a scalar and the
/// number of indices is not one.
#[track_caller]
pub fn index_select_sizes(input: &[usize], dim: usize, index: &[usize]) -> Result<Sizes> {
    let location = Location::caller();
    let refuse = |reason: String| Err(Error::shape("index_select", reason).at(location));
    if index.len() > 1 {
        return refuse(format!("the index has sizes {index:?}; it may have one dimension at most"));
    }
    let count = index.first().copied().unwrap_or(1);
    let mut sizes = Sizes::from_slice(input);
    match sizes.get_mut(dim) {
        Some(size) => *size = count,
        None if count == 1 => {}
        None => return refuse(format!("a scalar takes one index, not {count}")),
    }
    Ok(sizes)
}

/// Sets each element of `out` to the element of `input` at the same position (`torch.gather`),
/// except that `index` gives the position in dimension `dim`.
///
/// `index` has dtype `int32` or `int64`, has as many dimensions as `input`, and is no larger in any dimension except
/// `dim`. `out` has the dtype of `input` and the sizes of `index`. All dtypes are supported. A scalar counts as a
/// tensor of one dimension.
///
/// # Errors
/// - [`ErrorKind::DTypeMismatch`] if `index` has a dtype other than `int32` or `int64`, or `out` has a different dtype
///   than `input`.
/// - [`ErrorKind::DimOutOfRange`] if `input` has no dimension `dim`.
/// - [`ErrorKind::ShapeMismatch`] if `out` has different sizes than `index`, or if `index` is not empty and has a
///   different number of dimensions than `input`, or is larger than `input` in a dimension other than `dim`.
/// - [`ErrorKind::TooManyDims`] if the views have more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if `out` shares memory with another operand.
/// - [`ErrorKind::IndexCheck`] if an index is out of range; on a GPU, a later wait or read of `out`
///   returns this error.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn gather(
    target: Target<'_>,
    input: View<'_>,
    dim: usize,
    index: View<'_>,
    out: View<'_>,
) -> Result<()> {
    let op = "gather";
    check(op, input, index, out)?;
    let ndim = input.sizes().len();
    check_dim(op, dim, ndim)?;
    check_sizes(op, index.sizes(), out, input, index)?;
    if index.numel() == 0 {
        return Ok(());
    }
    let layouts =
        [at_least_1d(input.layout)?, at_least_1d(index.layout)?, at_least_1d(out.layout)?];
    let (from, to) = (layouts[0].sizes(), layouts[1].sizes());
    let fits = |d: usize| d == dim || to[d] <= from[d];
    if from.len() != to.len() || !(0..to.len()).all(fits) {
        return Err(Error::shape(
            op,
            format!(
                "the index has sizes {:?} and the input {:?}; both must have the same number of \
                 dimensions, and the index must not be larger than the input in any dimension \
                 except {dim}",
                index.sizes(),
                input.sizes()
            ),
        ));
    }
    let mut source = layouts[0].strides().to_vec();
    source[dim] = 0;
    let along = IndexedDim::of(&layouts[0], dim, dim..dim + 1);
    let index = View { layout: &layouts[1], ..index };
    let out = View { layout: &layouts[2], ..out };
    pick(target, op, (input, &source), (index, index.strides()), out, &along)
}

/// Copies the rows of the matrix `weight` that `indices` names into `out` (`torch.nn.functional.embedding`). `indices`
/// has dtype `int32` or `int64` and has any sizes. `out` has the dtype of `weight`, and the sizes of `indices` followed
/// by the size of a row. All dtypes are supported.
///
/// # Errors
/// - [`ErrorKind::DTypeMismatch`] if `indices` has a dtype other than `int32` or `int64`, or `out` has a different dtype
///   than `weight`.
/// - [`ErrorKind::ShapeMismatch`] if `weight` is not a matrix, or `out` does not have the sizes above.
/// - [`ErrorKind::TooManyDims`] if the views have more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if `out` shares memory with another operand.
/// - [`ErrorKind::IndexCheck`] if an index is out of range; on a GPU, a later wait or read of `out`
///   returns this error.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn embedding(
    target: Target<'_>,
    weight: View<'_>,
    indices: View<'_>,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "embedding";
    check(OP, weight, indices, out)?;
    let sizes = embedding_sizes(weight.sizes(), indices.sizes())?;
    check_sizes(OP, &sizes, out, weight, indices)?;
    let count = indices.sizes().len();
    let mut source = vec![0; count];
    source.push(weight.strides()[1]);
    let mut index = indices.strides().to_vec();
    index.push(0);
    let along = IndexedDim::of(weight.layout, 0, 0..count);
    pick(target, OP, (weight, &source), (indices, &index), out, &along)
}

/// Returns the sizes of the result of [`embedding`]: those of the indices, then the size of a row
/// of the weight.
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`] if the weight is not a matrix.
#[track_caller]
pub fn embedding_sizes(weight: &[usize], indices: &[usize]) -> Result<Sizes> {
    let &[_, row] = weight else {
        let reason = format!("the weight has sizes {weight:?}; it must have two dimensions");
        return Err(Error::shape("embedding", reason));
    };
    Ok(indices.iter().copied().chain([row]).collect())
}

#[track_caller]
fn check(op: &'static str, input: View<'_>, index: View<'_>, out: View<'_>) -> Result<()> {
    if index.dtype != DType::I32 {
        index.check_operand_dtype(op, "an index that is not int32", DType::I64)?;
    }
    out.check_dtype(op, input.dtype)?;
    check_operands(op, &[input.read(), index.read(), out.write()])
}

#[track_caller]
fn check_sizes(
    op: &'static str,
    sizes: &[usize],
    out: View<'_>,
    input: View<'_>,
    index: View<'_>,
) -> Result<()> {
    if out.sizes() == sizes {
        return Ok(());
    }
    Err(Error::shape(
        op,
        format!(
            "the result has sizes {:?}, which do not fit an input of sizes {:?} and indices of \
             sizes {:?}",
            out.sizes(),
            input.sizes(),
            index.sizes()
        ),
    ))
}

/// Launches the kernel. `source_strides` and `index_strides` are strides in the dimensions of the
/// result.
#[track_caller]
fn pick(
    target: Target<'_>,
    op: &'static str,
    (source, source_strides): (View<'_>, &[isize]),
    (index, index_strides): (View<'_>, &[isize]),
    out: View<'_>,
    along: &IndexedDim,
) -> Result<()> {
    let seen = |view: View<'_>, strides: &[isize]| {
        Layout::from_parts(out.sizes().into(), strides.into(), view.layout.offset())
    };
    let layouts = [seen(source, source_strides), seen(index, index_strides)];
    let [source, index] =
        [(source, &layouts[0]), (index, &layouts[1])].map(|(v, layout)| View { layout, ..v });
    launch(target, Site::here(op), [source, index, out], along)
}

#[track_caller]
fn launch(target: Target<'_>, site: Site, views: [View<'_>; 3], along: &IndexedDim) -> Result<()> {
    let [source, index, out] = views;
    if out.numel() == 0 {
        return Ok(());
    }
    let wide = match target {
        Target::Cuda(..) => wide(&views, along),
        // Larger units gain nothing on the CPU: its implementation copies adjacent elements with
        // one call.
        Target::Cpu(_) => None,
    };
    let (times, dim) = wide.unwrap_or((1, 0));
    // Returns sizes and strides in units of `times` elements.
    let seen = |view: View<'_>, is_index: bool| {
        let (mut sizes, mut strides) = (Sizes::from(view.sizes()), Strides::from(view.strides()));
        for d in 0..sizes.len() {
            if d == dim {
                sizes[d] /= times;
            } else if !is_index {
                strides[d] /= times as isize;
            }
        }
        (sizes, strides)
    };
    let (sizes, to) = seen(out, false);
    let plan = IterPlan::new(&sizes, [&seen(source, false).1, &seen(index, true).1, &to]);
    if !plan.fits() {
        return halves(&views, |views| launch(target, site, views, along));
    }
    let space = plan.index(site.op)?;
    let report = Report::new(along.dim, along.size);
    let params = Pick { report, step: along.step as i64 / times as i64, space };
    let touched = [whole(source.layout, along), distinct(index.layout)];
    let item = out.dtype.size() * times;
    let blocks = space.numel().div_ceil(BLOCK as usize * EACH);
    let operands = [
        View { layout: &touched[0], ..source }.read(),
        View { layout: &touched[1], ..index }.read(),
        out.write(),
    ];
    let kernel = &GATHERS[item.ilog2() as usize];
    kernel.launch_at(target, site, &operands, &params, Grid::linear(blocks, BLOCK))
}

/// Returns the number of elements per unit, and the dimension along which units lie. Along this
/// dimension, source and result have stride 1, and the stride of the index is 0.
fn wide(views: &[View<'_>; 3], along: &IndexedDim) -> Option<(usize, usize)> {
    let [source, index, out] = views;
    let strides = |d: usize| (source.strides()[d], index.strides()[d], out.strides()[d]);
    let dim = (0..out.sizes().len()).find(|&d| strides(d) == (1, 0, 1))?;
    let fits = |times: usize| {
        let whole = |stride: isize| stride.unsigned_abs().is_multiple_of(times);
        let others = (0..out.sizes().len()).filter(|&d| d != dim);
        out.sizes()[dim].is_multiple_of(times)
            && [source, out].iter().all(|view| {
                view.layout.offset().is_multiple_of(times)
                    && others.clone().all(|d| whole(view.strides()[d]))
            })
            && whole(along.step)
    };
    let mut times = WIDEST / out.dtype.size();
    while !fits(times) {
        times /= 2;
    }
    Some((times, dim))
}

/// Removes the dimensions in which a layout repeats its elements.
fn distinct(layout: &Layout) -> Layout {
    let dims = layout.sizes().iter().copied().zip(layout.strides().iter().copied());
    let (sizes, strides): (Sizes, Strides) = dims.filter(|(_, stride)| *stride != 0).unzip();
    Layout::from_parts(sizes, strides, layout.offset())
}

/// Returns the layout of all elements of the source that an index can select.
fn whole(seen: &Layout, along: &IndexedDim) -> Layout {
    let (mut sizes, mut strides) = (Sizes::new(), Strides::new());
    for d in 0..=seen.ndim() {
        if d == along.indexed.start {
            sizes.push(along.size);
            strides.push(along.step);
        }
        if d < seen.ndim() && !along.indexed.contains(&d) {
            sizes.push(seen.sizes()[d]);
            strides.push(seen.strides()[d]);
        }
    }
    Layout::from_parts(sizes, strides, seen.offset())
}
