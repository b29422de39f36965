//! `scatter` and related ops: elements written at indices.

use smallvec::SmallVec;
use warpline_cuda_sys_safe::HostLaunch;

use crate::dim::{at_least_1d, check_dim};
use crate::programs::{BITS, committed, cuda_type, test_sources};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::host::{self, GRAIN, HostElement, Number, SharedPtr};
use warpline_runtime::iter::{BLOCK, Dim, Walk};
use warpline_runtime::launch::{Grid, Kernel, Report, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Result, Scalar, Target, View, cuda_struct, dispatch, hosts};

/// Declares the reductions of [`scatter`]. A reduction has a variant of [`Reduce`], the name of its
/// kernels, the method that combines two values on the CPU, and the neutral element.
macro_rules! scatter_reductions {
    ($($(#[$doc:meta])* $reduce:ident = $name:literal, $step:ident, $neutral:expr;)*) => {
        /// The operation that combines an element of the result with scattered elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reduce {
            $($(#[$doc])* $reduce,)*
            /// Assignment. If several elements have the same index, the CPU stores the last of
            /// them, and a GPU any of them.
            Assign,
        }

        impl Reduce {
            #[doc(hidden)]
            pub const ALL: [Self; KERNELS.len() + 1] = [$(Self::$reduce,)* Self::Assign];

            /// Returns the neutral element of `dtype`: combined with another element, it gives that
            /// element. `None` for [`Reduce::Assign`], which has no neutral element.
            #[must_use]
            pub fn neutral(self, dtype: DType) -> Option<Scalar> {
                match self {
                    $(Self::$reduce => Some(dispatch!(dtype, all T => {
                        let neutral: <T as HostElement>::Compute = $neutral;
                        neutral.to_scalar()
                    })),)*
                    Self::Assign => None,
                }
            }

            /// Returns the new value of an element of the result whose value is `held`.
            #[inline(always)]
            fn step<C: Number>(self, held: C, value: C) -> C {
                match self {
                    $(Self::$reduce => held.$step(value),)*
                    Self::Assign => value,
                }
            }
        }

        /// Names of the kernels, indexed by `Reduce` and [`WorkUnit`].
        const KERNELS: &[[&str; 3]] =
            &[$([$name, concat!($name, "_ordered"), concat!($name, "_lines")]),*];

        // Indexed by `Reduce` and [`WorkUnit`].
        //
        // SAFETY: only `scatter` makes `Scatter`s, with the sizes and strides of the launch's
        // operands. The kernels access the result only at indices in range, and change an element
        // by atomics or from one thread.
        static REDUCE: [[Kernel<Scatter, 3>; 3]; KERNELS.len()] = unsafe {[$(Kernel::array(
            &SCATTER_REDUCE,
            KERNELS[Reduce::$reduce as usize],
            hosts!(all T => on_host::<T, { Reduce::$reduce as usize }>),
        )),*]};
    };
}

scatter_reductions! {
    /// Sum. For bools, logical or.
    Sum = "sum", add, Number::from_number(0i64);
    /// Product. For bools, logical and.
    Prod = "prod", mul, Number::from_number(1i64);
    /// Maximum. NaN if an element is NaN.
    Max = "max", maximum, Number::LOWEST;
    /// Minimum. NaN if an element is NaN.
    Min = "min", minimum, Number::HIGHEST;
}

pub(super) static SCATTER: Program = Program::new("scatter", BITS, &[""], |_, ty| {
    source().push(&format!("SCATTER(scatter_{ty}, {ty}, ASSIGN)"))
})
.with_ptx(committed);

pub(super) static SCATTER_REDUCE: Program =
    Program::new("scatter_reduce", &DType::SUFFIXES, KERNELS.as_flattened(), |_, suffix| {
        let ty = cuda_type(suffix);
        KERNELS.iter().fold(source(), |of, [name, ..]| {
            let kind = name.to_uppercase();
            of.push(&format!("SCATTER_REDUCE(scatter_reduce_{suffix}_{name}, {ty}, {kind})"))
        })
    })
    .with_ptx(committed);

// SAFETY: only `scatter` makes `Scatter`s, with the sizes and strides of the launch's operands. The
// kernel reads source and index within their layouts, and writes the result only at indices in
// range. Several threads may write the same element, each with one store, and any of these stores
// may be the last.
static ASSIGN: Kernel<Scatter, 3> = unsafe {
    Kernel::new(&SCATTER, "", hosts!(bits T => on_host::<T, { Reduce::Assign as usize }>))
};
test_sources!(ASSIGN, REDUCE);

fn source() -> Source {
    let kinds = KERNELS.iter().map(|[name, ..]| name.to_uppercase() + ", ").collect::<String>();
    let of = Source::new().with::<Scatter>().push(module::ELEMENT).push(module::REPORT);
    of.push(module::WALK)
        .push(&format!("enum {{ {kinds}ASSIGN }};"))
        .push(include_str!("scatter.cuh"))
}

/// The work of a GPU thread: one element of the index (`Elements`), one element of the result
/// (`Ordered`), or one line along the indexed dimension (`Lines`). For an element of the result,
/// the thread searches a line of indices. `Ordered` and `Lines` combine elements in the order of
/// the indices, without atomics.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkUnit {
    Elements,
    Ordered,
    Lines,
}

impl WorkUnit {
    /// Chooses the unit of work for `lines` lines, each with `count` indices into `size` elements
    /// of the result.
    fn of(reduce: Reduce, lines: usize, count: usize, size: usize) -> Self {
        const FEW: usize = 32;
        const MANY_LINES: usize = 1 << 14;
        const LOOKS: usize = 1 << 26;
        let looks = lines.saturating_mul(size).saturating_mul(count);
        match count {
            _ if reduce == Reduce::Assign => Self::Elements,
            // With one index per line, no two threads access the same element.
            1 => Self::Elements,
            _ if count <= FEW || lines >= MANY_LINES && count <= FEW << 7 => Self::Lines,
            _ if size > 0 && looks <= LOOKS => Self::Ordered,
            _ => Self::Elements,
        }
    }
}

cuda_struct! {
    /// `steps` are the strides of source, index and result along the indexed dimension, and `count`
    /// is the number of indices in this dimension. `lines` covers the other dimensions. `walk`
    /// covers all elements of the index or, for [`WorkUnit::Ordered`], all elements of the result
    /// and their positions in the indexed dimension. `elements` is the number of units of work.
    struct Scatter {
        report: Report,
        elements: u64,
        count: u64,
        steps: [i64; 3],
        lines: Walk<3>,
        walk: Walk<4>,
    }
}

/// Scatters elements of `source` into `out` (`torch.scatter`, `torch.scatter_add`,
/// `torch.scatter_reduce`). The element of `out` for an element of `source` has the same position,
/// but with `index` as the position in dimension `dim`. `reduce` combines the two elements.
///
/// `index` must have dtype `int64` and as many dimensions as `source` and `out`. Each size of
/// `index` must be at most that of `source` and, except in `dim`, at most that of `out`. `source`
/// and `out` must have the same dtype; every dtype is supported. Scalars count as tensors of one
/// dimension.
///
/// The CPU adds floats in the order of the indices. A GPU keeps this order unless it would have to
/// search too many indices. Then it uses atomics, and the rounding of a sum may differ from run to
/// run.
///
/// # Errors
/// - [`ErrorKind::DTypeMismatch`] if `index` does not have dtype `int64`, or `source` has a different dtype than `out`.
/// - [`ErrorKind::DimOutOfRange`] if `out` has no dimension `dim`.
/// - [`ErrorKind::ShapeMismatch`] if `index` is not empty, and the numbers of dimensions differ or
///   `index` is larger than described above.
/// - [`ErrorKind::TooManyDims`] if the views have more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if `out` shares memory with another operand.
/// - [`ErrorKind::IndexCheck`] if an index is out of range; on a GPU, a later wait or read of `out`
///   returns this error.
/// - The errors of [`Kernel::launch`].
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
    super::check_index_dtype(op, index)?;
    source.check_dtype(op, out.dtype)?;
    check_dim(op, dim, out.sizes().len())?;
    if index.numel() == 0 {
        return check_operands(op, &[source.read(), index.read(), out.read_write()]);
    }
    let [from, at, to] =
        [at_least_1d(source.layout)?, at_least_1d(index.layout)?, at_least_1d(out.layout)?];
    let ndim = to.ndim();
    let fits =
        |d: usize| at.sizes()[d] <= from.sizes()[d] && (d == dim || at.sizes()[d] <= to.sizes()[d]);
    if from.ndim() != ndim || at.ndim() != ndim || !(0..ndim).all(fits) {
        let reason = format!(
            "the index has sizes {:?}, the source {:?} and the result {:?}; all must have the \
             same number of dimensions, and the index must not be larger than the source in any \
             dimension, or than the result in any dimension except {dim}",
            index.sizes(),
            source.sizes(),
            out.sizes()
        );
        return Err(Error::shape(op, reason));
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
    let unit = WorkUnit::of(reduce, line_count, count, size);
    let elements = match unit {
        WorkUnit::Elements => index.numel(),
        WorkUnit::Ordered => line_count * size,
        WorkUnit::Lines => line_count,
    };
    let strides = |d: usize| [used.strides()[d], at.strides()[d], to.strides()[d]];
    let lines = (0..ndim).rev().filter(|&d| d != dim).map(|d| (at.sizes()[d], strides(d)));
    let dims: SmallVec<[Dim<4>; 6]> = (0..ndim)
        .rev()
        .map(|d| {
            let [a, b, c] = strides(d);
            match (d == dim, unit == WorkUnit::Ordered) {
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
        walk: Walk::new(op, dims)?,
    };
    let kernel = match reduce {
        Reduce::Assign => &ASSIGN,
        _ => &REDUCE[reduce as usize][unit as usize],
    };
    kernel.launch(target, op, &operands, &params, Grid::cover(elements, BLOCK))
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are the
/// source (`T`), the index (`i64`) and the result (`T`).
unsafe fn on_host<T: HostElement, const KIND: usize>(launch: &HostLaunch<'_>, p: &Scatter) {
    let (source, out) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 2));
    let index = SharedPtr::<i64>::operand(launch, 1);
    let [a, b, c] = p.steps.map(|step| step as isize);
    let count = p.count as isize;
    let grain = (GRAIN / p.count as usize).max(1);
    host::parallel_for(launch.parallel, p.lines.numel(), grain, |lines| {
        for line in lines {
            let [from, at, to] = p.lines.offsets(line);
            for n in 0..count {
                // SAFETY: source and index have these elements. The result is accessed only at an
                // index in range, in a line that belongs to this thread. The report's mailbox lives
                // as long as the launch.
                unsafe {
                    let k = index.read(at + n * b);
                    if !p.report.check_index(k) {
                        continue;
                    }
                    let (value, at) = (source.read(from + n * a), to + k as isize * c);
                    let new = Reduce::ALL[KIND].step(out.read(at).get(), value.get());
                    out.write(at, T::put(new));
                }
            }
        }
    });
}
