//! Elements put where indices say: `scatter` and its like.

use std::panic::Location;

use smallvec::SmallVec;
use warpline_cuda_sys_safe::HostLaunch;

use crate::programs::{BITS, committed, cuda_type};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::host::{self, GRAIN, HostElement, Number, Shared};
use warpline_runtime::iter::{BLOCK, Dim, Walk};
use warpline_runtime::launch::{Grid, Kernel, Report, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Layout, Result, Target, View, cuda_struct, hosts};

/// What becomes of an element and of what is scattered there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// The sum; of bools whether either is true.
    Sum,
    /// The product; of bools whether both are true.
    Prod,
    /// The larger, or a NaN.
    Max,
    /// The smaller, or a NaN.
    Min,
    /// What is scattered: of several the last, or on a GPU any.
    Assign,
}

pub(super) static SCATTER: Program = Program::new("scatter", BITS, &[""], |_, ty| {
    source().push(&format!("SCATTER(scatter_{ty}, {ty}, ASSIGN)"))
})
.with_ptx(committed);

/// Kernels of each [`Reduce`] but the last.
const REDUCTIONS: &[&str] = &[
    "sum",
    "sum_ordered",
    "sum_lines",
    "prod",
    "prod_ordered",
    "prod_lines",
    "max",
    "max_ordered",
    "max_lines",
    "min",
    "min_ordered",
    "min_lines",
];

pub(super) static SCATTER_REDUCE: Program =
    Program::new("scatter_reduce", &DType::SUFFIXES, REDUCTIONS, |_, suffix| {
        let ty = cuda_type(suffix);
        ["sum", "prod", "max", "min"].iter().fold(source(), |of, name| {
            let kind = name.to_uppercase();
            of.push(&format!("SCATTER_REDUCE(scatter_reduce_{suffix}_{name}, {ty}, {kind})"))
        })
    })
    .with_ptx(committed);

// SAFETY: `scatter` makes all `Scatter`s, of the views that are launched with: their sizes and strides. Source and index
// are read where their layouts say, the result is reached only where an index is in range, by whole writes of which any
// may be the last.
static ASSIGN: Kernel<Scatter, 3> = unsafe {
    Kernel::new(&SCATTER, "", hosts!(bits T => on_host::<T, { Reduce::Assign as usize }>))
};
// Indexed by `Share`.
//
// SAFETY: as `ASSIGN`, but the result is changed by atomics, or by one thread for each element.
static SUM: [Kernel<Scatter, 3>; 3] = unsafe {
    let names = ["sum", "sum_ordered", "sum_lines"];
    Kernel::array(&SCATTER_REDUCE, names, hosts!(all T => on_host::<T, 0>))
};
// SAFETY: as `SUM`.
static PROD: [Kernel<Scatter, 3>; 3] = unsafe {
    let names = ["prod", "prod_ordered", "prod_lines"];
    Kernel::array(&SCATTER_REDUCE, names, hosts!(all T => on_host::<T, 1>))
};
// SAFETY: as `SUM`.
static MAX: [Kernel<Scatter, 3>; 3] = unsafe {
    let names = ["max", "max_ordered", "max_lines"];
    Kernel::array(&SCATTER_REDUCE, names, hosts!(all T => on_host::<T, 2>))
};
// SAFETY: as `SUM`.
static MIN: [Kernel<Scatter, 3>; 3] = unsafe {
    let names = ["min", "min_ordered", "min_lines"];
    Kernel::array(&SCATTER_REDUCE, names, hosts!(all T => on_host::<T, 3>))
};

fn source() -> Source {
    let of = Source::new().with::<Scatter>().push(module::ELEMENT).push(module::REPORT);
    of.push(module::WALK).push(include_str!("scatter.cuh"))
}

/// How a GPU's threads share the work: one takes an element of the index, an element of the result with all
/// indices that may name it, or a line of both. The last two take indices in order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Share {
    Places,
    Ordered,
    Lines,
}

impl Share {
    /// For `lines` of `count` indices into `size` places each.
    fn of(reduce: Reduce, lines: usize, count: usize, size: usize) -> Self {
        const FEW: usize = 32;
        const MANY_LINES: usize = 1 << 14;
        const LOOKS: usize = 1 << 26;
        let looks = lines.saturating_mul(size).saturating_mul(count);
        match count {
            _ if reduce == Reduce::Assign => Self::Places,
            // What one index names nobody else does.
            1 => Self::Places,
            _ if count <= FEW || lines >= MANY_LINES && count <= FEW << 7 => Self::Lines,
            _ if size > 0 && looks <= LOOKS => Self::Ordered,
            _ => Self::Places,
        }
    }
}

cuda_struct! {
    /// `steps` are those of source, index and result along the dimension that is indexed, `count` the
    /// indices along it. `lines` goes over the other dimensions, `places` over all elements of the
    /// index, or where each of the result has a thread over these, with their number in that dimension. There are `elements` of what
    /// threads take.
    struct Scatter {
        report: Report,
        elements: u64,
        count: u64,
        steps: [i64; 3],
        lines: Walk<3>,
        places: Walk<4>,
    }
}

/// Elements of `source` into `out`, each at its own place but for dimension `dim`, where `index` says
/// which. `index` is `int64`, has as many dimensions as both, is no larger than `source`, and no larger than
/// `out` in any dimension but `dim` (`torch.scatter`, `torch.scatter_add`, `torch.scatter_reduce`).
///
/// Floats are added in the indices' order on the CPU, and on a GPU unless there are many for each place.
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`], [`ErrorKind::DTypeMismatch`], [`ErrorKind::DimOutOfRange`];
/// [`ErrorKind::InvalidArgument`] for indices of another dtype; [`ErrorKind::OutOfStorage`],
/// [`ErrorKind::OverlappingWrite`], [`ErrorKind::OverlappingOperands`], [`ErrorKind::TooManyDims`]; otherwise as
/// [`Kernel::launch`]; [`ErrorKind::IndexCheck`].
#[track_caller]
pub fn scatter(
    target: Target<'_>,
    op: &'static str,
    out: View<'_>,
    dim: usize,
    index: View<'_>,
    source: View<'_>,
    reduce: Reduce,
) -> Result<()> {
    let location = Location::caller();
    super::check_index_dtype(op, index)?;
    super::check_same_dtype(op, out, source)?;
    crate::dim::check_dim(op, dim, out.sizes().len())?;
    if index.numel() == 0 {
        return check_operands(op, &[source.read(), index.read(), out.read_write()]);
    }
    // A scalar counts as one element in a row.
    let row = |l: &Layout| if l.ndim() == 0 { l.unsqueeze(0) } else { Ok(l.clone()) };
    let [from, at, to] = [row(source.layout)?, row(index.layout)?, row(out.layout)?];
    let ndim = to.ndim();
    let fits =
        |d: usize| at.sizes()[d] <= from.sizes()[d] && (d == dim || at.sizes()[d] <= to.sizes()[d]);
    if from.ndim() != ndim || at.ndim() != ndim || !(0..ndim).all(fits) {
        let reason = format!(
            "an index of sizes {:?} for a source of {:?} and a result of {:?}; it must have as many \
             dimensions, be no larger than the source, and no larger than the result in any but \
             dimension {dim}",
            index.sizes(),
            source.sizes(),
            out.sizes()
        );
        return Err(Error::shape(op, reason).at(location));
    }
    let mut used = from.clone();
    for d in 0..ndim {
        used = used.narrow(d as isize, 0, at.sizes()[d])?;
    }
    let source = View { layout: &used, ..source };
    let index = View { layout: &at, ..index };
    let out = View { layout: &to, ..out };
    let operands = [source.read(), index.read(), out.read_write()];
    check_operands(op, &operands)?;

    let (count, size) = (at.sizes()[dim], to.sizes()[dim]);
    let line_count = index.numel() / count;
    let share = Share::of(reduce, line_count, count, size);
    let elements = match share {
        Share::Places => index.numel(),
        Share::Ordered => line_count * size,
        Share::Lines => line_count,
    };
    let strides = |d: usize| [used.strides()[d], at.strides()[d], to.strides()[d]];
    let lines = (0..ndim).rev().filter(|&d| d != dim).map(|d| (at.sizes()[d], strides(d)));
    let places: SmallVec<[Dim<4>; 6]> = (0..ndim)
        .rev()
        .map(|d| {
            let [a, b, c] = strides(d);
            match (d == dim, share == Share::Ordered) {
                (false, _) => (at.sizes()[d], [a, b, c, 0]),
                (true, true) => (size, [0, 0, c, 1]),
                (true, false) => (count, [a, b, 0, 0]),
            }
        })
        .collect();
    let params = Scatter {
        report: Report::new(dim, size),
        elements: elements as u64,
        count: count as u64,
        steps: strides(dim).map(|step| step as i64),
        lines: Walk::new(op, lines)?,
        places: Walk::new(op, places)?,
    };
    let kernel = match reduce {
        Reduce::Sum => &SUM[share as usize],
        Reduce::Prod => &PROD[share as usize],
        Reduce::Max => &MAX[share as usize],
        Reduce::Min => &MIN[share as usize],
        Reduce::Assign => &ASSIGN,
    };
    kernel.launch(target, op, &operands, &params, Grid::cover(elements, BLOCK))
}

/// # Safety
/// As [`HostKernel`](warpline_cuda_sys_safe::HostKernel): a source of `T`, indices of `i64`, a result of `T`.
unsafe fn on_host<T: HostElement, const KIND: usize>(launch: &HostLaunch<'_>, p: &Scatter) {
    let (source, out) = (Shared::<T>::operand(launch, 0), Shared::<T>::operand(launch, 2));
    let index = Shared::<i64>::operand(launch, 1);
    let [a, b, c] = p.steps.map(|step| step as isize);
    let count = p.count as isize;
    let grain = (GRAIN / p.count as usize).max(1);
    host::parallel_for(launch.parallel, p.lines.numel(), grain, |lines| {
        for line in lines {
            let [from, at, to] = p.lines.offsets(line);
            for n in 0..count {
                // SAFETY: declared elements; the result's only where the index is in range, in a
                // line that is this thread's. The report's mailbox is there for the launch.
                unsafe {
                    let k = index.read(at + n * b);
                    if !p.report.check_index(k) {
                        continue;
                    }
                    let (value, place) = (source.read(from + n * a), to + k as isize * c);
                    let new = if KIND == Reduce::Assign as usize {
                        value
                    } else {
                        let (x, y) = (out.read(place).get(), value.get());
                        T::put(match KIND {
                            0 => x.add(y),
                            1 => x.mul(y),
                            2 => x.maximum(y),
                            _ => x.minimum(y),
                        })
                    };
                    out.write(place, new);
                }
            }
        }
    });
}
