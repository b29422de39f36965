//! Images of another size, a dimension at a time: nearest elements, linear and cubic interpolation; and the transpose,
//! which is the gradient.
//!
//! As in PyTorch coordinates are computed in the dtype that sums are computed in, `f32` for the halves.

mod cpu;
#[cfg(test)]
mod tests;

use std::panic::Location;

use bytemuck::{Pod, Zeroable};
use warpline_cuda_sys_safe::HostKernel;
use warpline_runtime::cuda_struct;
use warpline_runtime::iter::BLOCK;
use warpline_runtime::launch::{self, Call, Code, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, ErrorKind, Result, Target, View};

use crate::programs::{FLOATS, committed};

pub(crate) const PROGRAMS: &[&Program] = &[&RESAMPLE];

static RESAMPLE: Program = Program::new("resample", FLOATS, &["", "backward"], |_, ty| {
    let of = Source::new().with::<Resample>().push(module::ELEMENT);
    of.push(include_str!("resample.cuh")).push(&format!("RESAMPLE({ty})"))
})
.with_ptx(committed);

/// How elements between those of the image are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The element before (`"nearest"`).
    Nearest,
    /// The one whose centre is nearest (`"nearest-exact"`).
    NearestExact,
    /// Of the two neighbours (`"linear"`, `"bilinear"`, `"trilinear"`).
    Linear,
    /// Of the four neighbours (`"bicubic"`).
    Cubic,
}

/// The parameters. Both tensors are `[outer, length, inner]`; elements of the result are `scale` apart in the image.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Resample {
    outer: u64,
    inner: u64,
    input: i32,
    output: i32,
    kind: u32,
    align_corners: u32,
    scale: f64,
}

cuda_struct!(Resample { outer, inner, input, output, kind, align_corners, scale });

/// An image of which one dimension has another size. `image` is `[outer, input, inner]`, `out`
/// `[outer, output, inner]`, both contiguous. `scale` is how many elements of the image one of the result stands for:
/// mostly `input / output`. With `align_corners`, the first and last elements of both lie on each other, and it does
/// not count. Floats.
///
/// # Errors
/// [`ErrorKind::UnsupportedDType`], [`ErrorKind::DTypeMismatch`], [`ErrorKind::ShapeMismatch`], [`ErrorKind::OutOfStorage`],
/// [`ErrorKind::OverlappingOperands`], and what a launch can fail with.
#[track_caller]
pub fn resample(
    target: Target<'_>,
    image: View<'_>,
    (kind, align_corners, scale): (Kind, bool, f64),
    out: View<'_>,
) -> Result<()> {
    run("resample", target, image, out, (kind, align_corners, scale), false)
}

/// The transpose of [`resample`]: the gradient of its image, of that of its result.
///
/// # Errors
/// As [`resample`].
#[track_caller]
pub fn resample_backward(
    target: Target<'_>,
    grad: View<'_>,
    (kind, align_corners, scale): (Kind, bool, f64),
    image: View<'_>,
) -> Result<()> {
    run("resample_backward", target, image, grad, (kind, align_corners, scale), true)
}

#[track_caller]
fn run(
    op: &'static str,
    target: Target<'_>,
    image: View<'_>,
    result: View<'_>,
    (kind, align_corners, scale): (Kind, bool, f64),
    backward: bool,
) -> Result<()> {
    let location = Location::caller();
    let hosts: [HostKernel; 2] = match image.dtype {
        DType::F16 => [cpu::forward::<half::f16>, cpu::backward::<half::f16>],
        DType::BF16 => [cpu::forward::<half::bf16>, cpu::backward::<half::bf16>],
        DType::F32 => [cpu::forward::<f32>, cpu::backward::<f32>],
        DType::F64 => [cpu::forward::<f64>, cpu::backward::<f64>],
        dtype => return Err(ErrorKind::UnsupportedDType { dtype }.of(op).at(location)),
    };
    if result.dtype != image.dtype {
        let (expected, actual) = (image.dtype, result.dtype);
        return Err(ErrorKind::DTypeMismatch { expected, actual }.of(op).at(location));
    }
    let fits = match (image.sizes(), result.sizes()) {
        (&[a, input, b], &[c, output, d]) => {
            // An image's elements are counted in 32 bits.
            let counted = |n: usize| n.checked_mul(b.max(1)).is_some_and(|n| n < 1 << 31);
            (a, b) == (c, d) && counted(input) && counted(output) && (input > 0 || output == 0)
        }
        _ => false,
    };
    if !fits || !image.layout.is_contiguous() || !result.layout.is_contiguous() {
        let reason = format!(
            "an image of {:?} and a result of {:?}; they have to be contiguous and have three dimensions, of which but \
             the second are the same",
            image.sizes(),
            result.sizes()
        );
        return Err(Error::shape(op, reason).at(location));
    }
    let (&[outer, input, inner], &[_, output, _]) = (image.sizes(), result.sizes()) else {
        return Ok(());
    };
    let params = Resample {
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
    };
    let operands =
        if backward { [result.read(), image.write()] } else { [image.read(), result.write()] };
    check_operands(op, &operands)?;
    let [length, written] =
        if backward { [input, image.numel()] } else { [output, result.numel()] };
    if written == 0 {
        return Ok(());
    }
    let most = |n: usize| n.min(65_535) as u32;
    let call = Call {
        op,
        operands: &operands,
        params: bytemuck::bytes_of(&params),
        checks_indices: false,
        host: hosts[usize::from(backward)],
        code: Code::Kernel {
            kernel: (&RESAMPLE, image.dtype as usize - DType::F16 as usize, backward.into()),
            // A block has neighbours of one row, or of several short ones.
            grid: [(length * inner).div_ceil(BLOCK as usize).min(1 << 30) as u32, most(outer), 1],
            block: [BLOCK, 1, 1],
            shared_bytes: 0,
        },
        location,
    };
    // SAFETY: the parameters are the operands' sizes, which are contiguous; elements of the image are clamped to it, each
    // element of what is written is once; both kernels take `Resample`.
    unsafe { launch::run(target, &call) }
}
