//! Resizing of images by nearest elements, linear or cubic interpolation, one dimension at a time.
//! The gradient is the transpose of this linear map.
//!
//! As in PyTorch, coordinates are computed in the compute type, which is `f32` for half-width
//! floats.

mod cpu;

#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::iter::BLOCK;
use warpline_runtime::launch::{Grid, Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{Error, Operand, Result, Target, View, cuda_struct};

use crate::programs::{FLOATS, kernels};

pub(crate) const PROGRAMS: &[&Program] = &[&RESAMPLE];

kernels! {
    RESAMPLE = "resample", FLOATS, |_, ty| {
        let of = Source::new().with::<Resample>().push(module::ELEMENT);
        of.push(include_str!("resample.cuh")).push(&format!("RESAMPLE({ty})"))
    } => {
        // SAFETY: `Resample::new` makes all parameters, with the sizes of the launch's operands,
        // which are contiguous. The kernel clamps coordinates to the image, and each element of the
        // result is written by one thread.
        unsafe FORWARD: Kernel<Resample, 2> = float cpu::resample;
        // SAFETY: `Resample::new` makes all parameters, with the sizes of the launch's operands,
        // which are contiguous. Each element of the image is written by one thread.
        unsafe BACKWARD: Kernel<Resample, 2> = float cpu::resample_backward;
    }
}

/// The way in which an element of the result is computed from elements of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interpolation {
    /// The element at or before the coordinate (`"nearest"`).
    Nearest,
    /// The element whose centre is nearest (`"nearest-exact"`).
    NearestExact,
    /// Linear interpolation between two neighbours (`"linear"`, `"bilinear"`, `"trilinear"`).
    Linear,
    /// Cubic interpolation between four neighbours (`"bicubic"`).
    Cubic,
}

cuda_struct! {
    /// The image has shape `[outer, input, inner]`, the result `[outer, output, inner]`. `scale` is
    /// the distance between neighbouring elements of the result, in elements of the image.
    struct Resample {
        outer: u64,
        inner: u64,
        input: i32,
        output: i32,
        kind: u32,
        align_corners: u32,
        scale: f64,
    }
}

/// Resizes the middle dimension of `image`, which has shape `[outer, input, inner]`, and writes the
/// result to `out`, which has shape `[outer, output, inner]`. Both must be contiguous and have the
/// same floating-point dtype.
///
/// `how` is `(kind, align_corners, scale)`. `scale` is the distance between neighbouring elements of
/// the result in elements of the image, usually `input / output`. If `align_corners` is true, the
/// first elements of image and result have the same coordinate, and so do the last elements; `scale`
/// is ignored.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the dtype is not floating-point.
/// - [`ErrorKind::DTypeMismatch`] if the dtypes differ.
/// - [`ErrorKind::ShapeMismatch`] if a view does not have three dimensions or is not contiguous, if
///   `outer` or `inner` differs between the views, if `input * inner` or `output * inner` is 2³¹ or
///   more, or if `input` is 0 and `output` is not.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingOperands`] if the views share memory.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn resample(
    target: Target<'_>,
    image: View<'_>,
    how: (Interpolation, bool, f64),
    out: View<'_>,
) -> Result<()> {
    run(target, "resample", &FORWARD, [image, out], how, &[image.read(), out.write()])
}

/// Computes the gradient of [`resample`] with respect to its image into `image`. `grad` is the
/// gradient of the result. `how` must have the value that the forward pass had.
///
/// # Errors
/// The errors of [`resample`], where `grad` takes the place of `out`.
#[track_caller]
pub fn resample_backward(
    target: Target<'_>,
    grad: View<'_>,
    how: (Interpolation, bool, f64),
    image: View<'_>,
) -> Result<()> {
    run(target, "resample_backward", &BACKWARD, [image, grad], how, &[grad.read(), image.write()])
}

impl Resample {
    /// Checks the image and the result, and makes the parameters.
    #[track_caller]
    fn new(
        op: &'static str,
        image: View<'_>,
        result: View<'_>,
        (kind, align_corners, scale): (Interpolation, bool, f64),
    ) -> Result<Self> {
        result.check_dtype(op, image.dtype)?;
        // Kernels count the elements of an image in 32 bits.
        let counted = |n: usize, inner: usize| {
            n.checked_mul(inner.max(1)).is_some_and(|elements| elements < 1 << 31)
        };
        match (image.sizes(), result.sizes()) {
            (&[outer, input, inner], &[outer2, output, inner2])
                if (outer, inner) == (outer2, inner2)
                    && counted(input, inner)
                    && counted(output, inner)
                    && (input > 0 || output == 0)
                    && image.layout.is_contiguous()
                    && result.layout.is_contiguous() =>
            {
                Ok(Self {
                    outer: outer as u64,
                    inner: inner as u64,
                    input: input as i32,
                    output: output as i32,
                    kind: kind as u32,
                    align_corners: align_corners.into(),
                    scale: match align_corners {
                        true if output > 1 => (input as f64 - 1.0) / (output as f64 - 1.0),
                        true => 0.0,
                        false => scale,
                    },
                })
            }
            (image, result) => {
                let reason = format!(
                    "the image has sizes {image:?} and the result {result:?}; both must be \
                     contiguous and have three sizes, equal except for the second"
                );
                Err(Error::shape(op, reason))
            }
        }
    }
}

/// Launches a kernel that writes its second operand.
#[track_caller]
fn run(
    target: Target<'_>,
    op: &'static str,
    kernel: &Kernel<Resample, 2>,
    [image, result]: [View<'_>; 2],
    how: (Interpolation, bool, f64),
    operands: &[Operand<'_>; 2],
) -> Result<()> {
    kernel.check_dtype(op, image.dtype)?;
    let params = Resample::new(op, image, result, how)?;
    check_operands(op, operands)?;
    let written = operands[1].view;
    if written.numel() == 0 {
        return Ok(());
    }
    // Neighbouring threads of a block process neighbouring elements of one plane, `[length,
    // inner]`.
    let across = written.sizes()[1..].iter().product::<usize>().div_ceil(BLOCK as usize);
    let grid = [across.min(1 << 30) as u32, params.outer.min(65_535) as u32, 1];
    kernel.launch(target, op, operands, &params, Grid::new(grid, BLOCK))
}
