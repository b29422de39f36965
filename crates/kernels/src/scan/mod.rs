//! Running sums, products and extremes along a dimension.

#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod added;

use std::panic::Location;

use warpline_cuda_sys_safe::HostLaunch;

use crate::dim::{check_dim, check_result, rows_along};
use crate::programs::{committed, cuda_type};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::host::{self, Cast, GRAIN, HostElement, Number, SharedPtr};
use warpline_runtime::iter::{BLOCK, Walk};
use warpline_runtime::launch::{Grid, Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Result, Target, View, cuda_struct, hosts};

/// Number of consecutive elements of a row that a thread scans.
const EACH: usize = 4;
/// Minimum number of rows for which each thread scans a whole row, if the elements of a row are not
/// adjacent.
const MANY: usize = 2048;

/// The declaration of a scan.
struct Declaration {
    name: &'static str,
    kernels: ScanKernels,
}

/// Two kernels of a scan: the first has a block per row, the second has a thread per row.
enum ScanKernels {
    Values([Kernel<Scan, 2>; 2]),
    /// Kernels that also write indices.
    Indexed([Kernel<Scan, 3>; 2]),
}

/// Declares the scans of a program. CUDA code that the scans need in addition to `scan.cuh` follows
/// the name of the program in parentheses. A scan has a variant of `ScanOp`, the name of the op,
/// the name of the kernels, CUDA code, the kind of kernels, and a CPU implementation. A module has
/// at most one invocation, because the macro defines the enum `ScanOp`.
macro_rules! scans {
    ($program:ident = $program_name:literal $(($own:literal))? {
        $($(#[$doc:meta])* $scan:ident = $op:literal, $name:literal, $cuda:literal, $kind:ident($host:expr);)*
    }) => {
        /// The operation that combines each element with all elements before it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ScanOp {
            $($(#[$doc])* $scan,)*
        }

        impl ScanOp {
            /// Every scan.
            #[doc(hidden)]
            pub const ALL: [Self; NAMES.len()] = [$(Self::$scan),*];

            pub(in $crate::scan) fn declaration(self) -> &'static Declaration {
                &DECLARATIONS[self as usize]
            }
        }

        /// Names of the kernels, by `ScanOp`.
        const NAMES: &[[&str; 2]] = &[$([$name, concat!($name, "_columns")]),*];

        static $program: Program =
            Program::new($program_name, &DType::SUFFIXES, NAMES.as_flattened(), |program, suffix| {
                let of = source()$(.push($own))?;
                $(let of = of.push(&format!(
                    $cuda,
                    name = format!("{}_{suffix}_{}", program.name(), $name),
                    ty = cuda_type(suffix),
                ));)*
                of
            })
            .with_ptx(committed);

        // Indexed by `ScanOp`.
        //
        // SAFETY: only `run` makes `Scan`s, with the sizes and strides of the launch's operands.
        // Each element of the results is written by one thread and read by none.
        static DECLARATIONS: [Declaration; NAMES.len()] = unsafe {[$(Declaration {
            name: $op,
            kernels: ScanKernels::$kind(Kernel::array(
                &$program,
                NAMES[ScanOp::$scan as usize],
                hosts!(all T => $host),
            )),
        }),*]};
    };
}
#[cfg(feature = "testing")]
use scans;

scans! {
    SCAN = "scan" {
        /// Sum. Integers wrap.
        Sum = "cumsum", "sum", "SCAN({name}, {ty}, Sum<compute_t<{ty}>>)", Values(sums::<T, true>);
        /// Product. Integers wrap.
        Prod = "cumprod", "prod", "SCAN({name}, {ty}, Prod<compute_t<{ty}>>)", Values(sums::<T, false>);
        /// Maximum so far, with the index of its last occurrence. NaN from the first NaN on.
        Max = "cummax", "max", "INDEXED_SCAN({name}, {ty}, Best<compute_t<{ty}>, true>)", Indexed(extremes::<T, true>);
        /// Minimum so far, with the index of its last occurrence. NaN from the first NaN on.
        Min = "cummin", "min", "INDEXED_SCAN({name}, {ty}, Best<compute_t<{ty}>, false>)", Indexed(extremes::<T, false>);
    }
}

pub(crate) const PROGRAMS: &[&Program] = &[&SCAN];

impl ScanOp {
    /// Returns PyTorch's name of the scan.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.declaration().name
    }

    /// Returns whether the scan also returns indices.
    #[must_use]
    pub fn has_indices(self) -> bool {
        matches!(self.declaration().kernels, ScanKernels::Indexed(_))
    }
}

/// Returns the CUDA source of `scan.cuh`.
fn source() -> Source {
    let of = Source::new().with::<Scan>().push(module::ELEMENT).push(module::WALK);
    let of = of.push(&format!("#define BLOCK {BLOCK}\n#define EACH {EACH}"));
    of.push(include_str!("scan.cuh"))
}

cuda_struct! {
    /// A scan of `rows` rows of `size` elements. `steps` are the strides of source, result and
    /// indices along a row.
    struct Scan {
        rows: u64,
        size: u64,
        steps: [i64; 3],
        walk: Walk<3>,
    }
}

/// Computes `torch.cumsum`, `cumprod`, `cummax` or `cummin` over dimension `dim` of `a` into `out`,
/// which must have the sizes and the dtype of `a`. Supports every dtype. For a maximum or minimum,
/// `index` receives the indices; it must have dtype `int64` and the sizes of `a`. For a sum or
/// product, `index` must be `None`. A GPU computes half-width floats in `float32`. As in PyTorch, the
/// CPU computes sums and products of `float32` and half-width floats in `float64`.
///
/// # Errors
/// - [`ErrorKind::InvalidArgument`] if `index` is `None` for a maximum or minimum, or `Some` for a
///   sum or product.
/// - [`ErrorKind::DTypeMismatch`] if `out` has a different dtype than `a`, or `index` does not have
///   dtype `int64`.
/// - [`ErrorKind::ShapeMismatch`] if `out` or `index` has different sizes than `a`.
/// - [`ErrorKind::DimOutOfRange`] if `a` has no dimension `dim`.
/// - [`ErrorKind::TooManyDims`] if the views have more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of a result overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if a result shares memory with another operand.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn scan(
    target: Target<'_>,
    scan: ScanOp,
    a: View<'_>,
    dim: usize,
    out: View<'_>,
    index: Option<View<'_>>,
) -> Result<()> {
    run(target, scan.declaration(), a, dim, out, index)
}

/// Runs a scan, which this module or a test declares.
#[track_caller]
fn run(
    target: Target<'_>,
    &Declaration { name: op, ref kernels }: &Declaration,
    a: View<'_>,
    dim: usize,
    out: View<'_>,
    index: Option<View<'_>>,
) -> Result<()> {
    let location = Location::caller();
    let mismatch = || {
        let reason =
            "a maximum or minimum needs a tensor for the indices, and a sum or product takes none";
        Error::invalid(op, reason).at(location)
    };
    if index.is_some() != matches!(kernels, ScanKernels::Indexed(_)) {
        return Err(mismatch());
    }
    let dtypes = [Some((out, a.dtype)), index.map(|index| (index, DType::I64))];
    for (view, expected) in dtypes.into_iter().flatten() {
        check_result(op, view, expected, a)?;
    }
    check_dim(op, dim, a.sizes().len())?;
    let [source, result] = [a.read(), out.write()];
    match index {
        Some(index) => check_operands(op, &[source, result, index.write()])?,
        None => check_operands(op, &[source, result])?,
    }
    if a.numel() == 0 {
        return Ok(());
    }
    let third = index.unwrap_or(out);
    let (size, steps, walk) = rows_along(op, dim, [a, out, third])?;
    let rows = walk.numel();
    let is_columns = rows >= MANY && steps[0] != 1;
    let params = Scan { rows: rows as u64, size: size as u64, steps, walk };
    let grid = Grid::linear(if is_columns { rows.div_ceil(BLOCK as usize) } else { rows }, BLOCK);
    let at = usize::from(is_columns);
    match (kernels, index) {
        (ScanKernels::Indexed(kernels), Some(index)) => {
            kernels[at].launch(target, op, &[source, result, index.write()], &params, grid)
        }
        (ScanKernels::Values(kernels), None) => {
            kernels[at].launch(target, op, &[source, result], &params, grid)
        }
        _ => Err(mismatch()),
    }
}

/// Running sums and products on the host. `f32` and half-width floats are computed in `f64`, as in
/// PyTorch.
trait RunningSum: Number {
    fn sum(values: &mut dyn Iterator<Item = Self>, sums: &mut dyn FnMut(Self), adds: bool);
}

macro_rules! wide {
    ($($ty:ty)*) => {$(
        impl RunningSum for $ty {
            fn sum(values: &mut dyn Iterator<Item = Self>, sums: &mut dyn FnMut(Self), adds: bool) {
                let mut sum = <$ty>::from_number(!adds);
                for value in values {
                    sum = if adds { sum.add(value) } else { sum.mul(value) };
                    sums(sum);
                }
            }
        }
    )*};
}

wide! { bool u8 i8 i16 i32 i64 f64 }

impl RunningSum for f32 {
    fn sum(values: &mut dyn Iterator<Item = Self>, sums: &mut dyn FnMut(Self), adds: bool) {
        let mut wide = values.map(f64::from);
        f64::sum(&mut wide, &mut |sum| sums(sum.cast()), adds);
    }
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are the
/// source and the result, with elements of type `T`.
unsafe fn sums<T: HostElement<Compute: RunningSum>, const ADDS: bool>(
    launch: &HostLaunch<'_>,
    p: &Scan,
) {
    // SAFETY: the caller guarantees the conditions of `values`.
    unsafe { values::<T>(launch, p, |values, sums| RunningSum::sum(values, sums, ADDS)) }
}

/// Scans rows on the host. `row` receives an iterator over the elements of a row and a function
/// that writes the next result; it must call the function once per element.
///
/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are the
/// source and the result, with elements of type `T`.
unsafe fn values<T: HostElement>(
    launch: &HostLaunch<'_>,
    p: &Scan,
    row: impl Fn(&mut dyn Iterator<Item = T::Compute>, &mut dyn FnMut(T::Compute)) + Sync,
) {
    let (source, out) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
    let [a, b, _] = p.steps.map(|step| step as isize);
    let size = p.size as isize;
    host::parallel_for(launch.parallel, p.rows as usize, GRAIN / p.size as usize, |rows| {
        for number in rows {
            let [from, to, _] = p.walk.offsets(number);
            let mut at = 0..size;
            // SAFETY: `i` is less than the size of a row, and the launch declares the source as
            // read.
            let mut values = (0..size).map(|i| unsafe { source.read(from + i * a) }.get());
            let mut write = |value| {
                let i = at.next().expect("one result per element of the row");
                // SAFETY: `i` is less than the size of the row, and the row belongs to this thread.
                unsafe { out.write(to + i * b, T::put(value)) };
            };
            row(&mut values, &mut write);
        }
    });
}

/// # Safety
/// The conditions of [`HostKernel`](warpline_cuda_sys_safe::HostKernel). The operands are the source (`T`), the result
/// (`T`) and the indices (`i64`).
unsafe fn extremes<T: HostElement, const LARGEST: bool>(launch: &HostLaunch<'_>, p: &Scan) {
    let (source, out) = (SharedPtr::<T>::operand(launch, 0), SharedPtr::<T>::operand(launch, 1));
    let index = SharedPtr::<i64>::operand(launch, 2);
    let [a, b, c] = p.steps.map(|step| step as isize);
    host::parallel_for(launch.parallel, p.rows as usize, GRAIN / p.size as usize, |rows| {
        for row in rows {
            let [from, to, at] = p.walk.offsets(row);
            let mut best = None;
            for i in 0..p.size as isize {
                // SAFETY: `i` is less than the size of a row. The rows of both results belong to
                // this thread.
                unsafe {
                    let value = source.read(from + i * a).get();
                    let (held, position) = match best {
                        Some((held, position)) if !replaces::<_, LARGEST>(held, value) => {
                            (held, position)
                        }
                        _ => (value, i),
                    };
                    best = Some((held, position));
                    out.write(to + i * b, T::put(held));
                    index.write(at + i * c, position as i64);
                }
            }
        }
    });
}

fn replaces<C: Number, const LARGEST: bool>(held: C, value: C) -> bool {
    value.is_nan() || !held.is_nan() && if LARGEST { value >= held } else { value <= held }
}
