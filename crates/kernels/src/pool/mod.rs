//! Max pools and average pools, with their gradients. A max pool also returns the index of each
//! largest element.
//!
//! In a gradient, a single thread adds up the contributions of all windows that contain an element
//! of the image. Their order is fixed, so sums are the same in each run.

mod cpu;

use warpline_runtime::launch::{Kernel, check_operands};
use warpline_runtime::module::{self, Program, Source};
use warpline_runtime::{DType, Error, ErrorKind, Operand, Result, Target, View, cuda_struct};

use crate::programs::{FLOATS, kernels};
use crate::window::{Taps, grid, images};

pub use crate::window::Window;

/// Number of threads that keep a GPU busy.
const BUSY: usize = 1 << 19;

pub(crate) const PROGRAMS: &[&Program] = &[&MAX_POOL, &AVG_POOL];

// SAFETY, for all kernels: only `check` makes `Pools`. It has checked that image and results have
// the sizes of the window, and takes the strides from them. The kernels access nothing outside the
// image, because they cut windows at its borders and skip an index outside. Each element of a result
// is written by one thread.
kernels! {
    MAX_POOL = "max_pool", FLOATS, |_, ty| {
        source().push(include_str!("max.cuh")).push(&format!("MAX_POOL({ty})"))
    } => {
        unsafe MAX: Kernel<Pools, 3> = float cpu::max_pool;
        unsafe MAX_BACKWARD: Kernel<Pools, 3> = float cpu::max_pool_backward;
    }
    AVG_POOL = "avg_pool", FLOATS, |_, ty| {
        source().push(include_str!("avg.cuh")).push(&format!("AVG_POOL({ty})"))
    } => {
        unsafe AVG: Kernel<Pools, 2> = float cpu::avg_pool;
        unsafe AVG_BACKWARD: Kernel<Pools, 2> = float cpu::avg_pool_backward;
    }
}

fn source() -> Source {
    Source::new().with::<Pools>().push(module::ELEMENT).push(include_str!("spans.cuh"))
}

/// The region of the image that a result is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regions {
    /// A window that moves by its stride.
    Moving,
    /// Parts whose sizes in a dimension differ by at most one, as many as the result has elements.
    /// Neighbouring parts may overlap if the size of the image is not a multiple of the size of the
    /// result. Only `input` and `output` of the [`Window`] are used.
    Adaptive,
}

/// The divisor of an average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divisor {
    /// The number of window elements, including those in the padding.
    Padded,
    /// The number of window elements inside the image.
    Inside,
    /// A fixed number, which must not be 0.
    Number(i64),
}

cuda_struct! {
    /// The parameters of all kernels. `image` and `result` hold the strides of batch, channel and
    /// the three spatial dimensions. `team` is the number of neighbouring threads that process
    /// neighbouring channels at one position.
    struct Pools {
        taps: Taps,
        batch: u32,
        channels: u32,
        image: [i64; 5],
        result: [i64; 5],
        divisor: i64,
        adaptive: u32,
        padded: u32,
        team: u64,
    }
}

/// Computes the largest element of each region into `values`, and its index within the image's
/// channel into `indices` (`torch.nn.functional.max_pool2d` and `adaptive_max_pool2d`). A NaN
/// counts as the largest.
///
/// `image` is `[batch, channels, …]` with one to three spatial dimensions of the sizes
/// `window.input`. `values` and `indices` have the spatial sizes `window.output` and equal strides.
/// The dtype of `image` and `values` is floating-point; `indices` has dtype `int64`.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the dtype is not floating-point.
/// - [`ErrorKind::DTypeMismatch`] if `values` has a different dtype than `image`, or `indices` does
///   not have dtype `int64`.
/// - [`ErrorKind::ShapeMismatch`] if the spatial sizes of `image` are not `window.input`, if
///   `values` or `indices` has spatial sizes other than `window.output`, or a batch or number of
///   channels that differs from that of `image`, if the strides of `values` and `indices` differ,
///   if [`Window::check`] finds the window too large, or, for [`Regions::Adaptive`], if the image
///   is empty and the result is not, or if `(input + 1) * (output + 1)` is 2³¹ or more in a
///   dimension.
/// - [`ErrorKind::InvalidArgument`] if a stride or a dilation is 0.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of a result overlap each other.
/// - [`ErrorKind::OverlappingOperands`] if a result shares memory with another operand.
/// - The errors of [`Kernel::launch`].
#[track_caller]
pub fn max_pool(
    target: Target<'_>,
    image: View<'_>,
    window: &Window,
    regions: Regions,
    values: View<'_>,
    indices: View<'_>,
) -> Result<()> {
    const OP: &str = "max_pool";
    let params = check(OP, image, window, regions, &[values], Some(indices))?;
    let operands = [image.read(), values.write(), indices.write()];
    run(OP, target, &MAX, &params, (&operands, values))
}

/// Computes the gradient of [`max_pool`] with respect to its image into `image`. `grad` is the
/// gradient of `values`, and `indices` is the result of the forward pass. `grad` and `indices` must
/// have equal strides.
///
/// # Errors
/// The errors of [`max_pool`], where `grad` takes the place of `values`, and `image` is the result.
#[track_caller]
pub fn max_pool_backward(
    target: Target<'_>,
    grad: View<'_>,
    indices: View<'_>,
    window: &Window,
    regions: Regions,
    image: View<'_>,
) -> Result<()> {
    const OP: &str = "max_pool_backward";
    let params = check(OP, image, window, regions, &[grad], Some(indices))?;
    let operands = [grad.read(), indices.read(), image.write()];
    run(OP, target, &MAX_BACKWARD, &params, (&operands, image))
}

/// Computes the average of each region into `out` (`torch.nn.functional.avg_pool2d` and
/// `adaptive_avg_pool2d`).
///
/// `image` is `[batch, channels, …]` with one to three spatial dimensions of the sizes
/// `window.input`, and `out` has the spatial sizes `window.output`. Both must have the same
/// floating-point dtype. Half-width floats are summed in `float32`.
///
/// # Errors
/// - [`ErrorKind::InvalidArgument`] if `divisor` is [`Divisor::Number`] with 0, or if `regions` is
///   [`Regions::Moving`] and a dilation of the window is not 1.
/// - The errors of [`max_pool`], where `out` takes the place of `values`.
#[track_caller]
pub fn avg_pool(
    target: Target<'_>,
    image: View<'_>,
    window: &Window,
    regions: Regions,
    divisor: Divisor,
    out: View<'_>,
) -> Result<()> {
    const OP: &str = "avg_pool";
    let params = divided(OP, check(OP, image, window, regions, &[out], None)?, divisor)?;
    run(OP, target, &AVG, &params, (&[image.read(), out.write()], out))
}

/// Computes the gradient of [`avg_pool`] with respect to its image into `image`. `grad` is the
/// gradient of the forward result.
///
/// # Errors
/// The errors of [`avg_pool`], where `grad` takes the place of `out`, and `image` is the result.
#[track_caller]
pub fn avg_pool_backward(
    target: Target<'_>,
    grad: View<'_>,
    window: &Window,
    regions: Regions,
    divisor: Divisor,
    image: View<'_>,
) -> Result<()> {
    const OP: &str = "avg_pool_backward";
    let params = divided(OP, check(OP, image, window, regions, &[grad], None)?, divisor)?;
    run(OP, target, &AVG_BACKWARD, &params, (&[grad.read(), image.write()], image))
}

#[track_caller]
fn divided(op: &'static str, params: Pools, divisor: Divisor) -> Result<Pools> {
    if params.adaptive == 0 && params.taps.dilation != [1; 3] {
        return Err(Error::invalid(op, "average pools do not support dilation"));
    }
    let (divisor, padded) = match divisor {
        Divisor::Number(0) => {
            return Err(Error::invalid(op, "the divisor must not be zero"));
        }
        Divisor::Number(number) => (number, 0),
        Divisor::Padded => (0, 1),
        Divisor::Inside => (0, 0),
    };
    Ok(Pools { divisor, padded, ..params })
}

/// Launches a kernel whose threads cover the elements of `over`: a thread processes one spatial
/// position, in one or several channels and images.
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
    let elements: usize = over.sizes()[2..].iter().product();
    let (batch, channels) = (params.batch as usize, params.channels as usize);
    // If the channels are innermost in memory, neighbouring threads process neighbouring channels.
    // Kernels compute the index of a thread in 32 bits.
    let team = channels.next_power_of_two().min(128);
    let is_last = over.strides()[1] == 1 && elements.saturating_mul(team) < 1 << 31;
    let team = if is_last { team } else { 1 };
    let threads = elements.saturating_mul(team);
    let across = channels.div_ceil(team);
    // A thread computes its windows once for all of its images. If there are enough threads to keep
    // the GPU busy, each thread processes several images.
    let images = (BUSY / threads.saturating_mul(across).max(1)).clamp(1, batch);
    let grid = grid(threads, [images, across]);
    kernel.launch(target, op, operands, &Pools { team: team as u64, ..*params }, grid)
}

#[track_caller]
fn check(
    op: &'static str,
    image: View<'_>,
    window: &Window,
    regions: Regions,
    results: &[View<'_>],
    indices: Option<View<'_>>,
) -> Result<Pools> {
    let dtype = image.dtype;
    if !dtype.is_float() {
        return Err(ErrorKind::UnsupportedDType { dtype }.of(op));
    }
    let wanted = results.iter().map(|r| (r, dtype)).chain(indices.iter().map(|i| (i, DType::I64)));
    let mut result = None;
    for (view, expected) in wanted {
        view.check_dtype(op, expected)?;
        let ([batch, channels], mut own) = images(op, *view, window.output)?;
        // The stride of a dimension of size 1 has no effect.
        let [d, h, w] = window.output;
        for (stride, size) in own.iter_mut().zip([batch, channels, d, h, w]) {
            *stride = if size == 1 { 0 } else { *stride };
        }
        if *result.get_or_insert(own) != own || [batch, channels] != image.sizes()[..2] {
            let reason = format!(
                "a result has sizes {:?} and strides {:?}, and the image has sizes {:?}; results must \
                 have the batch and the channels of the image, and equal strides",
                view.sizes(),
                view.strides(),
                image.sizes()
            );
            return Err(Error::shape(op, reason));
        }
    }
    let ([batch, channels], strides) = images(op, image, window.input)?;
    let taps = window.packed(op)?;
    let adaptive = regions == Regions::Adaptive;
    // Kernels compute the first element of an adaptive part in 32 bits.
    let parts = |d: usize| (window.input[d] + 1).checked_mul(window.output[d] + 1);
    let fits = |n: Option<usize>| n.is_some_and(|n| n < 1 << 31);
    if adaptive && !(0..3).all(|d| fits(parts(d)) && (window.input[d] > 0 || window.output[d] == 0))
    {
        let reason = format!(
            "an image of sizes {:?} cannot be divided into {:?} parts: the image is empty, or the parts are too many",
            window.input, window.output
        );
        return Err(Error::shape(op, reason));
    }
    Ok(Pools {
        taps,
        batch: batch as u32,
        channels: channels as u32,
        image: strides,
        result: result.unwrap_or([0; 5]),
        divisor: 0,
        adaptive: adaptive.into(),
        padded: 0,
        team: 1,
    })
}
