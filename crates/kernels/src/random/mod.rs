//! Random numbers with PyTorch's values: MT19937 on the CPU, Philox on CUDA.
//!
//! A tensor is filled in memory order. On CUDA the values depend on the launch geometry, and so on
//! the number of multiprocessors and threads of the device, as in PyTorch. PyTorch splits the
//! launch for a tensor of more than 2³¹ elements. This crate does not, so its values differ from
//! PyTorch's for such tensors.

mod cuda;
mod dropout;
mod float;
mod mt;
mod order;
mod permute;
mod philox;

use std::panic::Location;

use half::{bf16, f16};

use mt::FillTarget;
use warpline_runtime::dispatch;
use warpline_runtime::generator::CpuGenerator;
use warpline_runtime::host::{Cast, HostElement};
use warpline_runtime::launch;
use warpline_runtime::module::Program;
use warpline_runtime::{DType, Error, ErrorKind, Result, Site, Target, View};

pub use dropout::dropout;
pub use permute::randperm;

pub(crate) const PROGRAMS: &[&Program] = &[
    &cuda::UNIFORM,
    &cuda::NORMAL,
    &cuda::EXPONENTIAL,
    &cuda::BERNOULLI,
    &cuda::RANDINT,
    &dropout::DROPOUT,
    &permute::PERMUTE,
];

/// Minimum size of an integer range for which integers are computed from 64 random bits. For such a
/// range, the remainders of 32 random bits would not be uniformly distributed.
const WIDE_RANGE: u64 = 1 << 28;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Distribution {
    Uniform,
    Normal,
    Exponential,
    Bernoulli,
    Randint,
}

/// The distribution of a fill, with its parameters.
#[derive(Clone, Copy, Debug)]
struct RandomFill {
    op: &'static str,
    distribution: Distribution,
    /// The parameters of a distribution of floats: `from` and `to`, mean and standard deviation,
    /// rate, or probability.
    a: f64,
    b: f64,
    /// The number of integers in the range of [`randint`]. 0 means 2⁶⁴.
    range: u64,
    /// The lowest integer of the range.
    base: i64,
    location: &'static Location<'static>,
}

/// An element type that integers convert to.
trait FromInt: HostElement {
    fn from_i64(value: i64) -> Self;
}

impl<T: HostElement> FromInt for T
where
    i64: Cast<T::Compute>,
{
    fn from_i64(value: i64) -> Self {
        T::put(value.cast())
    }
}

/// Fills `out` with uniform values in `[from, to)` (`Tensor.uniform_`). The dtype is
/// floating-point.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the dtype is not floating-point.
/// - [`ErrorKind::InvalidArgument`] if `from > to`, if either is NaN, or if `to - from` exceeds the
///   largest value of the dtype.
/// - [`ErrorKind::TooManyDims`] if `out` has more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if `out` reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - The errors of [`Kernel::launch`](launch::Kernel::launch).
#[track_caller]
pub fn uniform(target: Target<'_>, out: View<'_>, from: f64, to: f64) -> Result<()> {
    const OP: &str = "uniform_";
    require_float(OP, out.dtype)?;
    if from.partial_cmp(&to).is_none_or(|o| o.is_gt()) {
        return Err(Error::invalid(
            OP,
            format!("expects a [from, to) range, but found from={from} > to={to}"),
        ));
    }
    let largest = match out.dtype {
        DType::F16 => f16::MAX.to_f64(),
        DType::BF16 => bf16::MAX.to_f64(),
        DType::F32 => f32::MAX.into(),
        _ => f64::MAX,
    };
    if to - from > largest {
        return Err(Error::invalid(
            OP,
            format!(
                "expects to - from <= {largest:e} for {}, but found {from} and {to}",
                out.dtype
            ),
        ));
    }
    fill(target, out, OP, Distribution::Uniform, [from, to])
}

/// Fills `out` with normally distributed values (`Tensor.normal_`). The dtype is floating-point.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the dtype is not floating-point.
/// - [`ErrorKind::InvalidArgument`] if `std` is negative or NaN.
/// - [`ErrorKind::TooManyDims`] if `out` has more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if `out` reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - The errors of [`Kernel::launch`](launch::Kernel::launch).
#[track_caller]
pub fn normal(target: Target<'_>, out: View<'_>, mean: f64, std: f64) -> Result<()> {
    const OP: &str = "normal_";
    require_float(OP, out.dtype)?;
    if std.is_nan() || std < 0.0 {
        return Err(Error::invalid(OP, format!("expects std >= 0.0, but found std {std}")));
    }
    fill(target, out, OP, Distribution::Normal, [mean, std])
}

/// Fills `out` with exponentially distributed values of rate `lambda` (`Tensor.exponential_`). The
/// dtype is floating-point.
///
/// # Errors
/// - [`ErrorKind::UnsupportedDType`] if the dtype is not floating-point.
/// - [`ErrorKind::InvalidArgument`] if `lambda` is not positive.
/// - [`ErrorKind::TooManyDims`] if `out` has more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if `out` reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - The errors of [`Kernel::launch`](launch::Kernel::launch).
#[track_caller]
pub fn exponential(target: Target<'_>, out: View<'_>, lambda: f64) -> Result<()> {
    const OP: &str = "exponential_";
    require_float(OP, out.dtype)?;
    if lambda.is_nan() || lambda <= 0.0 {
        return Err(Error::invalid(OP, format!("expects lambda > 0.0, but found lambda={lambda}")));
    }
    fill(target, out, OP, Distribution::Exponential, [lambda, 0.0])
}

/// Sets each element of `out` to 1 with probability `p`, otherwise to 0 (`Tensor.bernoulli_`).
/// Supports every dtype.
///
/// # Errors
/// - [`ErrorKind::InvalidArgument`] if `p` is not in `[0, 1]`.
/// - [`ErrorKind::TooManyDims`] if `out` has more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if `out` reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - The errors of [`Kernel::launch`](launch::Kernel::launch).
#[track_caller]
pub fn bernoulli(target: Target<'_>, out: View<'_>, p: f64) -> Result<()> {
    const OP: &str = "bernoulli_";
    if !(0.0..=1.0).contains(&p) {
        return Err(Error::invalid(OP, format!("expects p to be in [0, 1], but got p={p}")));
    }
    fill(target, out, OP, Distribution::Bernoulli, [p, 0.0])
}

/// Fills `out` with integers in `[low, high)` (`torch.randint`, `Tensor.random_(low, high)`).
/// Supports every dtype whose range contains `low` and `high - 1`.
///
/// # Errors
/// - [`ErrorKind::InvalidArgument`] if `low >= high`, or if `low` or `high - 1` is out of the range
///   of the dtype.
/// - [`ErrorKind::TooManyDims`] if `out` has more than 16 dimensions after merging.
/// - [`ErrorKind::OutOfStorage`] if `out` reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if elements of `out` overlap each other.
/// - The errors of [`Kernel::launch`](launch::Kernel::launch).
#[track_caller]
pub fn randint(target: Target<'_>, out: View<'_>, low: i64, high: i64) -> Result<()> {
    const OP: &str = "random_";
    if low >= high {
        return Err(Error::invalid(
            OP,
            format!("expects 'from' to be less than 'to', but got from={low} >= to={high}"),
        ));
    }
    let bounds = match out.dtype {
        DType::Bool => (0, 1),
        DType::U8 => (0, u8::MAX.into()),
        DType::I8 => (i8::MIN.into(), i8::MAX.into()),
        DType::I16 => (i16::MIN.into(), i16::MAX.into()),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        DType::F16 => (-65504, 65504),
        _ => (i64::MIN, i64::MAX),
    };
    for (name, value) in [("from", low), ("to - 1", high - 1)] {
        if value < bounds.0 || value > bounds.1 {
            return Err(Error::invalid(
                OP,
                format!(
                    "{name} is {value}, out of bounds for {} ({} to {})",
                    out.dtype, bounds.0, bounds.1
                ),
            ));
        }
    }
    let fill = RandomFill {
        op: OP,
        distribution: Distribution::Randint,
        a: 0.0,
        b: 0.0,
        range: high.wrapping_sub(low) as u64,
        base: low,
        location: Location::caller(),
    };
    run(target, out, &fill)
}

#[track_caller]
fn fill(
    target: Target<'_>,
    out: View<'_>,
    op: &'static str,
    distribution: Distribution,
    [a, b]: [f64; 2],
) -> Result<()> {
    let fill =
        RandomFill { op, distribution, a, b, range: 0, base: 0, location: Location::caller() };
    run(target, out, &fill)
}

#[track_caller]
fn require_float(op: &'static str, dtype: DType) -> Result<()> {
    if dtype.is_float() { Ok(()) } else { Err(ErrorKind::UnsupportedDType { dtype }.of(op)) }
}

#[track_caller]
fn run(target: Target<'_>, out: View<'_>, fill: &RandomFill) -> Result<()> {
    launch::check_operands(fill.op, &[out.write()])?;
    if out.numel() == 0 {
        return Ok(());
    }
    target.check(fill.op)?;
    if let Target::Cuda(_, device, _) = target {
        return cuda::fill(target, device, out, fill);
    }
    let site = Site { op: fill.op, location: fill.location };
    let RandomFill { a, b, range, base, .. } = *fill;
    match fill.distribution {
        Distribution::Bernoulli => dispatch!(out.dtype, all T => {
            on_cpu::<T>(target, out, site, |out, generator| mt::bernoulli(out, generator, a))
        }),
        Distribution::Randint => dispatch!(out.dtype, all T => {
            on_cpu::<T>(target, out, site, |out, generator| mt::randint(out, generator, range, base))
        }),
        distribution => dispatch!(
            out.dtype,
            float T => on_cpu::<T>(target, out, site, |out, generator| match distribution {
                Distribution::Normal => mt::normal(out, generator, a, b),
                Distribution::Exponential => mt::exponential(out, generator, a),
                _ => mt::uniform(out, generator, a, b),
            }),
            dtype => Err(ErrorKind::UnsupportedDType { dtype }.of(fill.op))
        ),
    }
}

/// Runs a fill of a CPU tensor of `T` with this thread's generator.
#[track_caller]
fn on_cpu<T: HostElement>(
    target: Target<'_>,
    out: View<'_>,
    site: Site,
    f: impl FnOnce(&mut FillTarget<'_, T>, &mut CpuGenerator),
) -> Result<()> {
    let runtime = target.runtime();
    // Every fill locks the generator before the storage, so two fills of the same tensor cannot
    // deadlock.
    let generator = runtime.cpu_generator();
    let mut generator = generator.lock();
    FillTarget::with(site, out, |out| f(out, &mut generator))
}
