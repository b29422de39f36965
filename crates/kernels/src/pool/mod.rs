//! Pools: the largest element under each place of a window, and its index, or their average; and their gradients.
//!
//! Gradients are gathered: an element of the image has one thread, which adds what the windows give that it lies in,
//! in their order, so that sums are the same each time.

mod cpu;
#[cfg(test)]
mod tests;

use std::panic::Location;

use warpline_runtime::launch::{Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{
    DType, Error, ErrorKind, Operand, Result, Target, View, cuda_struct, hosts,
};

use crate::programs::{FLOATS, committed};
use crate::window::{Taps, grid, images};

pub use crate::window::Window;

pub(crate) const PROGRAMS: &[&Program] = &[&MAX_POOL, &AVG_POOL];

static MAX_POOL: Program = Program::new("max_pool", FLOATS, &["", "backward"], |_, ty| {
    source().push(include_str!("max.cuh")).push(&format!("MAX_POOL({ty})"))
})
.with_ptx(committed);

static AVG_POOL: Program = Program::new("avg_pool", FLOATS, &["", "backward"], |_, ty| {
    source().push(include_str!("avg.cuh")).push(&format!("AVG_POOL({ty})"))
})
.with_ptx(committed);

// SAFETY: `check` makes all `Pools`, of the views that are launched with: the image's strides and sizes, while the other
// operands are contiguous and of the result's sizes. Nothing outside of the image is touched, and each element of a
// result is written by one thread.
static MAX: Kernel<Pools, 3> =
    unsafe { Kernel::new(&MAX_POOL, "", hosts!(float T => cpu::max::<T>)) };
// SAFETY: as `MAX`.
static MAX_BACKWARD: Kernel<Pools, 3> =
    unsafe { Kernel::new(&MAX_POOL, "backward", hosts!(float T => cpu::max_backward::<T>)) };
// SAFETY: as `MAX`.
static AVG: Kernel<Pools, 2> =
    unsafe { Kernel::new(&AVG_POOL, "", hosts!(float T => cpu::avg::<T>)) };
// SAFETY: as `MAX`.
static AVG_BACKWARD: Kernel<Pools, 2> =
    unsafe { Kernel::new(&AVG_POOL, "backward", hosts!(float T => cpu::avg_backward::<T>)) };

fn source() -> Source {
    Source::new().with::<Pools>().push(module::ELEMENT).push(include_str!("spans.cuh"))
}

/// Which elements make a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// Those under a window that moves by a stride.
    Moving,
    /// Those of equal parts of the image, of which neighbours overlap where its size is no multiple of the
    /// result's. Of the window the sizes of image and result count alone.
    Adaptive,
}

/// What an average's sum is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divisor {
    /// The elements of the window, with those in the padding.
    Padded,
    /// Those in the image.
    Inside,
    /// A number, which is not 0.
    Number(i64),
}

cuda_struct! {
    /// The parameters of all kernels here. `image` are strides of batch, channel and the three dimensions.
    struct Pools {
        taps: Taps,
        batch: u32,
        channels: u32,
        image: [i64; 5],
        divisor: i64,
        adaptive: u32,
        padded: u32,
    }
}

/// The largest element of each place, and its index in the image's channel (`torch.nn.functional.max_pool2d`, and
/// `adaptive_max_pool2d`). `image` is `[batch, channels, …]` with one to three dimensions more; `values` and
/// `indices`, of `int64`, are contiguous. A NaN is the largest. Floats.
///
/// # Errors
/// [`ErrorKind::UnsupportedDType`], [`ErrorKind::DTypeMismatch`], [`ErrorKind::ShapeMismatch`], [`ErrorKind::InvalidArgument`],
/// [`ErrorKind::OutOfStorage`], [`ErrorKind::OverlappingWrite`], [`ErrorKind::OverlappingOperands`], and what a launch can
/// fail with.
#[track_caller]
pub fn max_pool(
    target: Target<'_>,
    image: View<'_>,
    window: &Window,
    places: Places,
    values: View<'_>,
    indices: View<'_>,
) -> Result<()> {
    const OP: &str = "max_pool";
    let params = check(OP, image, window, places, &[values], Some(indices))?;
    let operands = [image.read(), values.write(), indices.write()];
    run(OP, target, &MAX, &params, (&operands, values))
}

/// The gradient of [`max_pool`]'s image, of that of its values and its indices.
///
/// # Errors
/// As [`max_pool`].
#[track_caller]
pub fn max_pool_backward(
    target: Target<'_>,
    grad: View<'_>,
    indices: View<'_>,
    window: &Window,
    places: Places,
    image: View<'_>,
) -> Result<()> {
    const OP: &str = "max_pool_backward";
    let params = check(OP, image, window, places, &[grad], Some(indices))?;
    let operands = [grad.read(), indices.read(), image.write()];
    run(OP, target, &MAX_BACKWARD, &params, (&operands, image))
}

/// The average of each place (`torch.nn.functional.avg_pool2d`, and `adaptive_avg_pool2d`). `image` is as of
/// [`max_pool`], `out` contiguous. Floats; the halves are added in `f32`.
///
/// # Errors
/// As [`max_pool`].
#[track_caller]
pub fn avg_pool(
    target: Target<'_>,
    image: View<'_>,
    window: &Window,
    places: Places,
    divisor: Divisor,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "avg_pool";
    let params = divided(OP, check(OP, image, window, places, &[out], None)?, divisor)?;
    run(OP, target, &AVG, &params, (&[image.read(), out.write()], out))
}

/// The gradient of [`avg_pool`]'s image, of that of its result.
///
/// # Errors
/// As [`max_pool`].
#[track_caller]
pub fn avg_pool_backward(
    target: Target<'_>,
    grad: View<'_>,
    window: &Window,
    places: Places,
    divisor: Divisor,
    image: View<'_>,
) -> Result<()> {
    const OP: &str = "avg_pool_backward";
    let params = divided(OP, check(OP, image, window, places, &[grad], None)?, divisor)?;
    run(OP, target, &AVG_BACKWARD, &params, (&[grad.read(), image.write()], image))
}

#[track_caller]
fn divided(op: &'static str, params: Pools, divisor: Divisor) -> Result<Pools> {
    if params.adaptive == 0 && params.taps.dilation != [1; 3] {
        return Err(Error::invalid(op, "averages have no dilation"));
    }
    let (divisor, padded) = match divisor {
        Divisor::Number(0) => {
            return Err(Error::invalid(op, "the divisor must be not zero"));
        }
        Divisor::Number(number) => (number, 0),
        Divisor::Padded => (0, 1),
        Divisor::Inside => (0, 0),
    };
    Ok(Pools { divisor, padded, ..params })
}

/// Runs a kernel, a thread for each of the elements of `over`'s planes.
#[track_caller]
fn run<const N: usize>(
    op: &'static str,
    target: Target<'_>,
    kernel: &Kernel<Pools, N>,
    params: &Pools,
    (operands, over): (&[Operand<'_>; N], View<'_>),
) -> Result<()> {
    check_operands(op, operands)?;
    if over.numel() == 0 {
        return Ok(());
    }
    let elements = over.sizes()[2..].iter().product();
    let grid = grid(elements, [params.batch as usize, params.channels as usize]);
    kernel.launch(target, op, operands, params, grid)
}

#[track_caller]
fn check(
    op: &'static str,
    image: View<'_>,
    window: &Window,
    places: Places,
    results: &[View<'_>],
    indices: Option<View<'_>>,
) -> Result<Pools> {
    let location = Location::caller();
    let dtype = image.dtype;
    if !dtype.is_float() {
        return Err(ErrorKind::UnsupportedDType { dtype }.of(op).at(location));
    }
    let wanted = results.iter().map(|r| (r, dtype)).chain(indices.iter().map(|i| (i, DType::I64)));
    for (view, expected) in wanted {
        if view.dtype != expected {
            return Err(ErrorKind::DTypeMismatch { expected, actual: view.dtype }
                .of(op)
                .at(location));
        }
        let ([batch, channels], _) = images(op, *view, window.output)?;
        if !view.layout.is_contiguous() || [batch, channels] != image.sizes()[..2] {
            let reason = format!(
                "a result of {:?} with strides {:?} for an image of {:?}; it has to be contiguous",
                view.sizes(),
                view.strides(),
                image.sizes()
            );
            return Err(Error::shape(op, reason).at(location));
        }
    }
    let ([batch, channels], strides) = images(op, image, window.input)?;
    let taps = window.packed(op)?;
    let adaptive = places == Places::Adaptive;
    // Where parts begin is computed in 32 bits.
    let parts = |d: usize| (window.input[d] + 1).checked_mul(window.output[d] + 1);
    let fits = |n: Option<usize>| n.is_some_and(|n| n < 1 << 31);
    if adaptive && !(0..3).all(|d| fits(parts(d)) && (window.input[d] > 0 || window.output[d] == 0))
    {
        let reason = format!("{:?} parts of an image of {:?}", window.output, window.input);
        return Err(Error::shape(op, reason).at(location));
    }
    Ok(Pools {
        taps,
        batch: batch as u32,
        channels: channels as u32,
        image: strides,
        divisor: 0,
        adaptive: adaptive.into(),
        padded: 0,
    })
}
