//! Fills: tensors of one value, of evenly spaced values, and the identity matrix.

mod cpu;

use crate::programs::{BITS, NUMBERS, committed, kernels};
use cpu::FillLoop;
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::host::HostElement;
use warpline_runtime::iter::{
    self, BLOCK, Bits, Flat, Index, Kernels, Params, Variant, Widths, vector_width,
};
use warpline_runtime::launch::{Grid, Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{
    DType, Error, Layout, Result, Scalar, Site, Target, View, by_dtype, cuda_struct, dispatch,
};

/// Fills for elements of 1, 2, 4 and 8 bytes, and sequences for each dtype except bool.
pub(crate) const PROGRAMS: &[&Program] = &[&FILL, &SEQUENCE];

static FILL: Program = Program::new("fill", BITS, iter::KERNELS, |_, ty| {
    let of = Source::new().with::<Params<Flat, Fill>>().with::<Params<Index<1>, Fill>>();
    let of = of.push(module::ELEMENT).push(module::SPACE).push(include_str!("fill.cuh"));
    of.push(&format!("FILL({ty}, {ty})"))
})
.with_ptx(committed);

kernels! {
    SEQUENCE = "sequence", NUMBERS, |_, ty| {
        let of = Source::new().with::<Sequence>().push(module::ELEMENT).push(module::SPACE);
        of.push(include_str!("sequence.cuh")).push(&format!("SEQUENCE({ty}, {ty})"))
    } => {
        // SAFETY: only `arange` and `linspace` make `Sequence`s, with the size of the launch's
        // operand. `run_sequence` sets the stride. Each element is written by one thread.
        unsafe EVENLY_SPACED: Kernel<Sequence, 1> = number cpu::sequence;
    }
}

static FILLS: Kernels<Fill, 1> = Kernels::new(by_dtype!(all T => {
    let vector = vector_width(size_of::<T>());
    // SAFETY: both kernels write every element of the view. `FILL` has `vector_width` elements per
    // thread.
    Some(unsafe {
        Variant::new::<FillLoop<T>>(&FILL, [T::DTYPE], Widths { vector, run: vector })
    })
}));

cuda_struct! {
    struct Fill {
        /// Bytes of the element, in the low bytes.
        bits: Bits,
    }
}

cuda_struct! {
    struct Sequence {
        numel: u64,
        stride: i64,
        /// Index from which values are computed backwards from `last`.
        middle: u64,
        /// Whether values are the integers `first_int + i * step_int`.
        exact: u64,
        first: f64,
        last: f64,
        step: f64,
        first_int: i64,
        step_int: i64,
    }
}

/// Returns the bytes of `value` as an element of `dtype`, in the low bytes.
pub(crate) fn bits_of(dtype: DType, value: Scalar) -> u64 {
    dispatch!(dtype, all T => cpu::bits_of::<T>(value))
}

/// Sets every element to `value`, converted to the dtype of `out` (`Tensor.fill_`). Supports every
/// dtype.
///
/// # Errors
/// - [`ErrorKind::TooManyDims`] if `out` has more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if `out` reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn fill(target: Target<'_>, out: View<'_>, value: Scalar) -> Result<()> {
    fill_at(target, Site::here("fill_"), out, value)
}

#[track_caller]
fn fill_at(target: Target<'_>, site: Site, out: View<'_>, value: Scalar) -> Result<()> {
    let bits = bits_of(out.dtype, value).into();
    FILLS.launch(target, site, out.dtype, [out], Fill { bits })
}

/// Sets element `i` of `out`, which has one dimension, to `start + i * step` (`torch.arange`). The
/// arithmetic is in integers if the dtype and both numbers are integers, otherwise in `f64`.
/// Supports every dtype except bool.
///
/// # Errors
/// - [`ErrorKind::ShapeMismatch`] if `out` does not have one dimension.
/// - [`ErrorKind::UnsupportedDType`] if `out` is boolean.
/// - [`ErrorKind::OutOfStorage`] if `out` reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn arange(target: Target<'_>, out: View<'_>, start: Scalar, step: Scalar) -> Result<()> {
    let exact = !matches!(
        (out.dtype.is_float(), start, step),
        (true, ..) | (_, Scalar::Float(_), _) | (_, _, Scalar::Float(_))
    );
    let numel = out.numel() as u64;
    let sequence = Sequence {
        numel,
        stride: 0,
        middle: numel,
        exact: exact.into(),
        first: start.to_f64(),
        last: 0.0,
        step: step.to_f64(),
        first_int: start.to_i64(),
        step_int: step.to_i64(),
    };
    run_sequence(target, "arange", out, sequence)
}

/// Fills `out`, which has one dimension, with evenly spaced values from `start` to `end`, both
/// included (`torch.linspace`). The second half is computed backwards from `end`, so that the last
/// value is exact. Supports every dtype except bool.
///
/// # Errors
/// The errors of [`arange`].
#[track_caller]
pub fn linspace(target: Target<'_>, out: View<'_>, start: f64, end: f64) -> Result<()> {
    let numel = out.numel() as u64;
    let sequence = Sequence {
        numel,
        stride: 0,
        middle: if numel == 1 { 1 } else { numel / 2 },
        exact: 0,
        first: start,
        last: end,
        step: (end - start) / (numel.max(2) - 1) as f64,
        first_int: 0,
        step_int: 0,
    };
    run_sequence(target, "linspace", out, sequence)
}

#[track_caller]
fn run_sequence(
    target: Target<'_>,
    name: &'static str,
    out: View<'_>,
    sequence: Sequence,
) -> Result<()> {
    let &[stride] = out.strides() else {
        let reason = format!("the result must have one dimension, but has sizes {:?}", out.sizes());
        return Err(Error::shape(name, reason));
    };
    check_operands(name, &[out.write()])?;
    let sequence = Sequence { stride: stride as i64, ..sequence };
    let grid = Grid::cover(out.numel(), BLOCK);
    EVENLY_SPACED.launch(target, name, &[out.write()], &sequence, grid)
}

/// Sets the diagonal of a matrix to 1 and all other elements to 0 (`torch.eye`). Supports every
/// dtype.
///
/// # Errors
/// - [`ErrorKind::ShapeMismatch`] if `out` is not a matrix.
/// - The errors of [`fill`].
#[track_caller]
pub fn eye(target: Target<'_>, out: View<'_>) -> Result<()> {
    let site = Site::here("eye");
    let (&[n, m], &[row, column]) = (out.sizes(), out.strides()) else {
        let reason =
            format!("the result must have two dimensions, but has sizes {:?}", out.sizes());
        return Err(Error::shape("eye", reason));
    };
    fill_at(target, site, out, Scalar::Int(0))?;
    let diagonal = Layout::from_parts(
        [n.min(m)].into_iter().collect(),
        [row + column].into_iter().collect(),
        out.layout.offset(),
    );
    fill_at(target, site, View { layout: &diagonal, ..out }, Scalar::Int(1))
}

#[cfg(test)]
mod tests {
    #[test]
    fn fills_take_the_structs_that_their_sources_define() {
        super::FILLS.check_sources().unwrap();
    }
}
