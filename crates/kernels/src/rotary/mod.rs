//! Rotary position embeddings: each pair of elements in a row is rotated by an angle that depends
//! on the position of the row.
//!
//! A row is the vector of one head at one position. Several neighbouring threads (lanes) share a
//! row. Each lane rotates single pairs, or groups of four pairs if all operands are aligned to
//! vectors of four elements. The elements after the last pair are copied.

mod cpu;

use crate::programs::{FLOATS, kernels};
#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::iter::{BLOCK, Walk};
use warpline_runtime::launch::{self, Grid, Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, Result, Target, View, cuda_struct};

pub(crate) const PROGRAMS: &[&Program] = &[&ROTARY_EMBEDDING];

/// Pairs that a lane rotates at a time if the operands are aligned.
const VECTOR: usize = 4;

kernels! {
    ROTARY_EMBEDDING = "rotary_embedding", FLOATS, |_, ty| {
        let of = Source::new().with::<Rotary>().push(module::ELEMENT).push(module::WALK);
        let of = of.push(&format!("#define BLOCK {BLOCK}\n#define VECTOR {VECTOR}"));
        let of = of.push(include_str!("rotary.cuh"));
        of.push(&format!("ROTARY({ty}, elements, 1)\nROTARY({ty}, vectors, VECTOR)"))
    } => {
        // SAFETY: only `rotary_embedding` makes `Rotary`s, with the sizes and strides of the launch's
        // operands, after a check of their sizes and dtypes. Each element of the result is written by
        // one thread. `vectors` is launched only if all operands are aligned to vectors.
        unsafe ROTATIONS: [Kernel<Rotary, 4>; 2] = float cpu::rotary_embedding[elements, vectors];
    }
}

cuda_struct! {
    /// A row has `pairs` rotated pairs and `rest` copied elements. `lanes` is the binary logarithm
    /// of the number of threads per row. `steps` are the strides of the operands along a row, and
    /// `walk` covers the rows. If `is_wide` is set, cosines and sines have the compute type.
    struct Rotary {
        rows: u64,
        pairs: u64,
        rest: u64,
        lanes: u64,
        is_interleaved: u64,
        is_wide: u64,
        is_inverse: u64,
        steps: [i64; 4],
        walk: Walk<4>,
    }
}

/// The kind of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Whether pair `i` consists of the neighbours `2 * i` and `2 * i + 1`. If false, it consists
    /// of elements `i` and `i + pairs`.
    pub is_interleaved: bool,
    /// Whether to rotate by the negated angles. The gradient needs this inverse rotation.
    pub is_inverse: bool,
}

/// Rotates pairs of elements of `input` into `out`: `(a, b)` becomes
/// `(a cos - b sin, b cos + a sin)`.
///
/// All views must have the same sizes, except that the last dimension of `cos` and `sin` is the
/// number of pairs. The elements after the last pair are copied. `cos` and `sin` must have the
/// dtype of the input, but may also have dtype `float32` if the input has half-width floats,
/// because half-width floats are computed in `float32`.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the dtype of the input is not floating-point.
/// - [`ErrorKind::DTypeMismatch`] if `out` has a different dtype than the input, if `cos` or `sin`
///   does not have one of the dtypes above, or if `cos` and `sin` have different dtypes.
/// - [`ErrorKind::ShapeMismatch`] if an operand has no dimensions, if sizes other than the last
///   differ, if the last sizes of `input` and `out` or of `cos` and `sin` differ, or if a row of
///   the input is shorter than two elements per pair.
/// - [`ErrorKind::TooManyDims`] if the views have more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if `out` shares memory with another operand.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn rotary_embedding(
    target: Target<'_>,
    input: View<'_>,
    cos: View<'_>,
    sin: View<'_>,
    out: View<'_>,
    rotation: Rotation,
) -> Result<()> {
    const OP: &str = "rotary_embedding";
    ROTATIONS[0].check_dtype(OP, input.dtype)?;
    let is_half = matches!(input.dtype, DType::F16 | DType::BF16);
    let is_wide = is_half && cos.dtype == DType::F32;
    let of_angles = if is_wide { DType::F32 } else { input.dtype };
    for (view, expected) in [(out, input.dtype), (cos, of_angles), (sin, of_angles)] {
        view.check_dtype(OP, expected)?;
    }
    let (Some((&width, rows)), Some((&pairs, of_cos))) =
        (input.sizes().split_last(), cos.sizes().split_last())
    else {
        return Err(Error::shape(OP, "each operand must have at least one dimension"));
    };
    if rows != of_cos
        || cos.sizes() != sin.sizes()
        || input.sizes() != out.sizes()
        || pairs > width / 2
    {
        let reason = format!(
            "the input has sizes {:?}, cos {:?}, sin {:?} and the result {:?}; only the last size \
             of cos and sin may differ, and a row must have at least two elements per pair",
            input.sizes(),
            cos.sizes(),
            sin.sizes(),
            out.sizes()
        );
        return Err(Error::shape(OP, reason));
    }
    let operands = [input.read(), cos.read(), sin.read(), out.write()];
    check_operands(OP, &operands)?;
    if out.numel() == 0 {
        return Ok(());
    }
    let views = [input, cos, sin, out];
    let strides = |d: usize| views.map(|view| view.strides()[d]);
    let walk = Walk::new(OP, (0..rows.len()).rev().map(|d| (rows[d], strides(d))))?;
    let mut params = Rotary {
        rows: walk.numel() as u64,
        pairs: pairs as u64,
        rest: (width - 2 * pairs) as u64,
        lanes: 0,
        is_interleaved: rotation.is_interleaved.into(),
        is_wide: is_wide.into(),
        is_inverse: rotation.is_inverse.into(),
        steps: strides(rows.len()).map(|step| step as i64),
        walk,
    };
    let is_vector = matches!(target, Target::Cuda(..)) && params.has_vectors(OP, &views)?;
    // Give each lane about four pairs, because it computes the offsets of its row only once.
    let lanes = (pairs.max(1) + (width - 2 * pairs)).div_ceil(VECTOR);
    let lanes = lanes.next_power_of_two().min(BLOCK as usize);
    params.lanes = lanes.ilog2().into();
    let grid = Grid::cover((params.rows as usize).saturating_mul(lanes), BLOCK);
    ROTATIONS[usize::from(is_vector)].launch(target, OP, &operands, &params, grid)
}

impl Rotary {
    /// Returns whether every group of [`VECTOR`] elements of a row is an aligned vector in each
    /// operand.
    #[track_caller]
    fn has_vectors(&self, op: &'static str, views: &[View<'_>; 4]) -> Result<bool> {
        let whole = |n: u64| n.is_multiple_of(VECTOR as u64);
        let is_dense = self.steps == [1; 4] && whole(self.pairs) && whole(self.rest);
        let aligned = |stride: &isize| stride.unsigned_abs().is_multiple_of(VECTOR);
        if !is_dense || !self.walk.dims().all(|(_, strides)| strides.iter().all(aligned)) {
            return Ok(false);
        }
        for view in views {
            let bytes = (VECTOR * view.dtype.size()) as u64;
            if !launch::address(op, view)?.addr().is_multiple_of(bytes) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
