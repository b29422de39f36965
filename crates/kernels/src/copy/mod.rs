//! Copies between layouts and dtypes, on one device or on the host.

mod cpu;

use crate::programs::{BITS, committed, cuda_type};
use cpu::{Conversion, SameDtypeCopy};
use warpline_runtime::host::{Cast, HostElement};
use warpline_runtime::iter::{
    self, BLOCK, Flat, Index, Kernels, Params, Variant, Widths, vector_width,
};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::overlap::{self, Overlap};
use warpline_runtime::{DType, Element, Result, Site, Target, View, launch};
use warpline_runtime::{bf16, by_dtype, cuda_struct, dispatch, f16};

cuda_struct! {
    /// The kernels' arguments: the number of the result's [`DType`]. Only the kernels of [`ANY`]
    /// read it.
    struct Args {
        to: u32,
    }
}

pub(crate) const PROGRAMS: &[&Program] = &[&COPY, &CAST, &ANY];

/// Kernels for copies between views of one dtype: one variant per element size.
static COPY: Program =
    Program::new("copy", BITS, iter::KERNELS, |_, ty| source("copy", ty, ty, ty))
        .with_ptx(committed);

macro_rules! pairs {
    ($($from:ident $to:ident),*) => {
        /// Conversions with kernels of their own. All others go through [`ANY`].
        const PAIRS: &[&str] = &[$(concat!(stringify!($from), "_", stringify!($to))),*];

        /// Returns the variant of [`CAST`] for two dtypes, if there is one.
        const fn pair(from: DType, to: DType) -> Option<&'static str> {
            match (from, to) {
                $((<$from as Element>::DTYPE, <$to as Element>::DTYPE) => {
                    Some(concat!(stringify!($from), "_", stringify!($to)))
                })*
                _ => None,
            }
        }
    };
}

pairs! {
    f32 f16, f16 f32, f32 bf16, bf16 f32, f32 f64, f64 f32, i64 f32, i32 f32, u8 f32, bool f32,
    f32 i64, bool i64, i32 i64, i64 i32, i8 f32, i16 f32, f32 i32, f32 i16, f32 i8, f32 u8,
    f32 bool, f16 bf16, bf16 f16
}

static CAST: Program = Program::new("cast", PAIRS, iter::KERNELS, |_, pair| {
    let (from, to) = pair.split_once('_').unwrap_or_default();
    source("cast", pair, cuda_type(from), cuda_type(to))
})
.with_ptx(committed);

/// Conversions from each dtype to any other.
static ANY: Program = Program::new("cast_any", &DType::SUFFIXES, iter::KERNELS, |_, from| {
    let vector = DType::ALL.into_iter().find(|dtype| dtype.suffix() == from).map_or(1, any_vector);
    let source = base().push(&format!("#define ANY_VECTOR {vector}")).push(include_str!("any.cuh"));
    source.push(&format!("ANY(cast_any_{from}, {})", cuda_type(from)))
})
.with_ptx(committed);

/// Returns the number of elements per thread of the flat kernel of [`ANY`]. At most four, because
/// the result may have any dtype.
const fn any_vector(from: DType) -> usize {
    let width = vector_width(from.size());
    if width < 4 { width } else { 4 }
}

fn base() -> Source {
    let of = Source::new().with::<Params<Flat, Args>>().with::<Params<Index<2>, Args>>();
    of.push(module::ELEMENT).push(module::SPACE).push(&format!("#define BLOCK {BLOCK}"))
}

fn source(program: &str, variant: &str, from: &str, to: &str) -> Source {
    base().push(include_str!("copy.cuh")).push(&format!("COPY({program}_{variant}, {from}, {to})"))
}

/// Returns the kernels that read elements of `S` and write elements of `D`.
const fn variant<S, D>() -> Variant<Args, 2>
where
    S: HostElement<Compute: Cast<D::Compute>>,
    D: HostElement,
{
    let (from, to) = (S::DTYPE, D::DTYPE);
    let widest = if from.size() > to.size() { from.size() } else { to.size() };
    // As in the kernels: `run` is `V`, and `vector` is `V * EACH` of the flat kernel.
    let run = vector_width(widest);
    let vector = if from.size() == 2 * to.size() { 2 * run } else { run };
    let (dtypes, widths) = ([from, to], Widths { vector, run });
    // SAFETY: `copy`, the only code that launches these kernels, puts the result's dtype into the
    // arguments. Kernels and loops read the first view and write the second one. The widths are the
    // kernels' own numbers.
    unsafe {
        if from as u64 == to as u64 {
            return match from.size() {
                1 => Variant::new::<SameDtypeCopy<u8>>(&COPY, dtypes, widths),
                2 => Variant::new::<SameDtypeCopy<i16>>(&COPY, dtypes, widths),
                4 => Variant::new::<SameDtypeCopy<i32>>(&COPY, dtypes, widths),
                _ => Variant::new::<SameDtypeCopy<i64>>(&COPY, dtypes, widths),
            };
        }
        let (program, widths) = match pair(from, to) {
            Some(_) => (&CAST, widths),
            None => (&ANY, Widths { vector: any_vector(from), run: 1 }),
        };
        Variant::new::<Conversion<S, D>>(program, dtypes, widths)
    }
}

/// Copies `src` into `dst` (`Tensor.copy_`), converting elements to the dtype of `dst`. Both have
/// the same sizes, any dtypes, and the same device. Expand `src` to broadcast it.
///
/// A float loses its fraction on conversion to an integer. An integer wraps. Every value except 0
/// converts to `true`.
///
/// A float outside the range of `i32` or `i64` becomes the nearest integer of the range. A float is
/// converted to `u8` through `i64`, and to `i8` or `i16` through `i32`; the low bits are kept. A
/// NaN becomes 0, with two exceptions: every NaN becomes the least `i64`, and an `f64` NaN becomes
/// the least `i32`. These are PyTorch's results on CUDA. Warpline also returns them on the CPU,
/// where PyTorch leaves them undefined.
///
/// # Errors
/// - [`ShapeMismatch`](warpline_runtime::ErrorKind::ShapeMismatch) if the sizes differ.
/// - [`TooManyDims`](warpline_runtime::ErrorKind::TooManyDims) if the views have more than 16
///   dimensions after merging.
/// - [`OutOfStorage`](warpline_runtime::ErrorKind::OutOfStorage) if a view reaches outside its
///   storage.
/// - [`OverlappingWrite`](warpline_runtime::ErrorKind::OverlappingWrite) if elements of `dst`
///   overlap each other.
/// - [`OverlappingOperands`](warpline_runtime::ErrorKind::OverlappingOperands) if the views share
///   memory without being the same elements.
/// - The errors of the launch.
#[track_caller]
pub fn copy(target: Target<'_>, src: View<'_>, dst: View<'_>) -> Result<()> {
    const NAME: &str = "copy_";
    let site = Site::here(NAME);
    for view in [src, dst] {
        view.check_inside(NAME)?;
    }
    if src.storage.same_as(dst.storage)
        && src.dtype == dst.dtype
        && overlap::between((src.layout, src.dtype.size()), (dst.layout, dst.dtype.size()))
            == Overlap::Same
    {
        return Ok(());
    }
    if let Target::Cuda(_, _, stream) = target
        && src.dtype == dst.dtype
        && src.sizes() == dst.sizes()
        && src.layout.is_contiguous()
        && dst.layout.is_contiguous()
        && src.storage.cuda_device().is_some()
        && dst.storage.cuda_device().is_some()
    {
        let size = src.dtype.size();
        launch::check_in_place(NAME, &[src.read(), dst.write()])?;
        let (to, from) = (dst.layout.offset() * size, src.layout.offset() * size);
        let bytes = src.numel() * size;
        return launch::copy_bytes(
            stream,
            (dst.storage, to),
            (src.storage, from),
            bytes,
            true,
            site.location,
        );
    }
    let args = Args { to: dst.dtype as u32 };
    let kernels: &Kernels<Args, 2> = dispatch!(src.dtype, all S => {
        static FROM: Kernels<Args, 2> =
            Kernels::new(by_dtype!(all D => Some(variant::<S, D>())));
        &FROM
    });
    kernels.launch(target, site, dst.dtype, [src, dst], args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_take_the_structs_that_their_sources_define() {
        for dtype in DType::ALL {
            let kernels: Kernels<Args, 2> = dispatch!(dtype, all S => Kernels::new(by_dtype!(all D => Some(variant::<S, D>()))));
            kernels.check_sources().unwrap();
        }
    }
}
