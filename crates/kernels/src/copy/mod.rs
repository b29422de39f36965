//! Copies between layouts and dtypes, on one device or on the host.

mod cpu;
#[cfg(test)]
mod tests;

use bytemuck::{Pod, Zeroable};

use crate::programs::{BITS, bits, committed, cuda_type};
use warpline_runtime::iter::{self, BLOCK, Flat, Index, Kernels, Params, vector_width};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::overlap::{self, Overlap};
use warpline_runtime::{DType, Result, Site, Target, View, launch};
use warpline_runtime::{cuda_struct, dispatch};

/// The kernels' arguments: the number of the result's [`DType`]. Only the kernels of [`ANY`] read
/// it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Args {
    to: u32,
}

cuda_struct!(Args { to });

pub(crate) const PROGRAMS: &[&Program] = &[&COPY, &CAST, &ANY];

/// Copies within a dtype, by the size of the elements.
static COPY: Program =
    Program::new("copy", BITS, iter::KERNELS, |_, ty| source("copy", ty, ty, ty))
        .with_ptx(committed);

/// Conversions with kernels of their own. All others go through [`ANY`].
const PAIRS: &[&str] = &[
    "f32_f16", "f16_f32", "f32_bf16", "bf16_f32", "f32_f64", "f64_f32", "i64_f32", "i32_f32",
    "u8_f32", "bool_f32", "f32_i64", "bool_i64", "i32_i64", "i64_i32", "i8_f32", "i16_f32",
    "f32_i32", "f32_i16", "f32_i8", "f32_u8", "f32_bool", "f16_bf16", "bf16_f16",
];

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
fn any_vector(from: DType) -> usize {
    vector_width(from.size()).min(4)
}

fn base() -> Source {
    let of = Source::new().with::<Params<Flat, Args>>().with::<Params<Index<2>, Args>>();
    of.push(module::ELEMENT).push(module::SPACE).push(&format!("#define BLOCK {BLOCK}"))
}

fn source(program: &str, variant: &str, from: &str, to: &str) -> Source {
    base().push(include_str!("copy.cuh")).push(&format!("COPY({program}_{variant}, {from}, {to})"))
}

/// Returns the variant of [`CAST`] for two dtypes, if there is one.
fn pair(from: DType, to: DType) -> Option<usize> {
    PAIRS.iter().position(|pair| pair.split_once('_') == Some((from.suffix(), to.suffix())))
}

/// Copies `src` into `dst` (`Tensor.copy_`), converting elements to the dtype of `dst`. Both have
/// the same sizes, any dtypes, and the same device. Expand `src` to broadcast it.
///
/// A float loses its fraction on conversion to an integer. An integer wraps. Every value except 0
/// converts to `true`.
///
/// A float that does not fit an `i32` or `i64` becomes the nearest one. Conversions to `u8` go
/// through `i64`, and those to `i8` and `i16` through `i32`, and keep the low bits. A NaN becomes
/// 0, except that it becomes the least integer as an `i64`, and as an `i32` if it is an `f64`.
/// PyTorch gives these results on CUDA. They hold for CPU tensors too, for which PyTorch leaves
/// them undefined.
///
/// # Errors
/// - [`ShapeMismatch`](warpline_runtime::ErrorKind::ShapeMismatch) if the sizes differ.
/// - [`TooManyDims`](warpline_runtime::ErrorKind::TooManyDims) if the views have too many
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
    kernels(src.dtype, dst.dtype).launch(target, site, [src, dst], args)
}

/// Returns the kernels that read elements of `from` and write elements of `to`.
fn kernels(from: DType, to: DType) -> Kernels<Args, 2> {
    let (program, variant, [vector, run], loops) = if from == to {
        let size = from.size();
        (&COPY, bits(size), [vector_width(size); 2], cpu::same(size))
    } else {
        let loops = dispatch!(from, all S => dispatch!(to, all D => cpu::cast::<S, D>()));
        match pair(from, to) {
            Some(pair) => {
                let run = vector_width(from.size().max(to.size()));
                // The same as the flat kernel's `EACH`.
                let vector = if from.size() == 2 * to.size() { 2 * run } else { run };
                (&CAST, pair, [vector, run], loops)
            }
            None => (&ANY, from as usize, [any_vector(from), 1], loops),
        }
    };
    // SAFETY: the variant and the loops are for this pair of dtypes, and `copy`, the only caller,
    // launches with views of these dtypes. `vector` and `run` are the kernels' own numbers.
    unsafe { Kernels::new(program, variant, loops) }.with_vector(vector).with_run(run)
}
