//! Random numbers with PyTorch's own values: MT19937 on the CPU, Philox on CUDA.
//!
//! A tensor is filled in the order of its memory. On CUDA the values depend on the launch
//! geometry, and so on the device's multiprocessors and their threads, as they do in PyTorch;
//! beyond 2^31 elements PyTorch splits the launch and values differ from then on.

mod cuda;
mod dropout;
mod mt;
mod order;
mod permute;
mod philox;
mod real;
#[cfg(test)]
mod tests;

use std::panic::Location;

use half::{bf16, f16};

use mt::Out;
use order::order;
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

/// Integer ranges from here on are drawn from 64 bits: the remainder of 32 would be skewed.
const WIDE_RANGE: u64 = 1 << 28;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Uniform,
    Normal,
    Exponential,
    Bernoulli,
    Randint,
}

/// What a tensor is filled with.
#[derive(Clone, Copy, Debug)]
struct Fill {
    op: &'static str,
    kind: Kind,
    /// The distribution's parameters.
    a: f64,
    b: f64,
    /// How many integers there are to draw from; 0 is 2^64.
    range: u64,
    /// The lowest of them.
    base: i64,
    location: &'static Location<'static>,
}

/// An element type that integers are stored in.
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

/// Fills with uniform values in `[from, to)` (`Tensor.uniform_`). `out` is of a float dtype.
///
/// # Errors
/// [`ErrorKind::UnsupportedDType`]; [`ErrorKind::InvalidArgument`] when `from > to`, or when the
/// interval is wider than the dtype; otherwise as [`launch::run`].
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
    fill(target, out, OP, Kind::Uniform, [from, to])
}

/// Fills with normal values (`Tensor.normal_`). `out` is of a float dtype.
///
/// # Errors
/// [`ErrorKind::UnsupportedDType`]; [`ErrorKind::InvalidArgument`] when `std` is negative or NaN;
/// otherwise as [`launch::run`].
#[track_caller]
pub fn normal(target: Target<'_>, out: View<'_>, mean: f64, std: f64) -> Result<()> {
    const OP: &str = "normal_";
    require_float(OP, out.dtype)?;
    if std.is_nan() || std < 0.0 {
        return Err(Error::invalid(OP, format!("expects std >= 0.0, but found std {std}")));
    }
    fill(target, out, OP, Kind::Normal, [mean, std])
}

/// Fills with exponential values of rate `lambda` (`Tensor.exponential_`). `out` is of a float
/// dtype.
///
/// # Errors
/// [`ErrorKind::UnsupportedDType`]; [`ErrorKind::InvalidArgument`] when `lambda` is not positive;
/// otherwise as [`launch::run`].
#[track_caller]
pub fn exponential(target: Target<'_>, out: View<'_>, lambda: f64) -> Result<()> {
    const OP: &str = "exponential_";
    require_float(OP, out.dtype)?;
    if lambda.is_nan() || lambda <= 0.0 {
        return Err(Error::invalid(OP, format!("expects lambda > 0.0, but found lambda={lambda}")));
    }
    fill(target, out, OP, Kind::Exponential, [lambda, 0.0])
}

/// Fills with 1 with probability `p` and else with 0 (`Tensor.bernoulli_`). `out` is of any
/// dtype.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] when `p` is not in `[0, 1]`; otherwise as [`launch::run`].
#[track_caller]
pub fn bernoulli(target: Target<'_>, out: View<'_>, p: f64) -> Result<()> {
    const OP: &str = "bernoulli_";
    if !(0.0..=1.0).contains(&p) {
        return Err(Error::invalid(OP, format!("expects p to be in [0, 1], but got p={p}")));
    }
    fill(target, out, OP, Kind::Bernoulli, [p, 0.0])
}

/// Fills with integers in `[low, high)` (`torch.randint`, `Tensor.random_(low, high)`). `out` is
/// of any dtype that holds them.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] when there is no such integer, or when the dtype does not reach
/// them; otherwise as [`launch::run`].
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
    let fill = Fill {
        op: OP,
        kind: Kind::Randint,
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
    kind: Kind,
    [a, b]: [f64; 2],
) -> Result<()> {
    let fill = Fill { op, kind, a, b, range: 0, base: 0, location: Location::caller() };
    run(target, out, &fill)
}

#[track_caller]
fn require_float(op: &'static str, dtype: DType) -> Result<()> {
    if dtype.is_float() { Ok(()) } else { Err(ErrorKind::UnsupportedDType { dtype }.of(op)) }
}

#[track_caller]
fn run(target: Target<'_>, out: View<'_>, fill: &Fill) -> Result<()> {
    launch::check_operands(fill.op, &[out.write()])?;
    if out.numel() == 0 {
        return Ok(());
    }
    target.check(fill.op)?;
    if let Target::Cuda(_, device, _) = target {
        return cuda::fill(target, device, out, fill);
    }
    let site = Site { op: fill.op, location: fill.location };
    on_cpu(target, out, site, |out, dtype, generator| {
        let Fill { a, b, range, base, .. } = *fill;
        // SAFETY: the operand's elements are of `dtype`, and each arm's type is that of its dtype.
        unsafe {
            match fill.kind {
                Kind::Bernoulli => dispatch!(dtype, all T => mt::bernoulli::<T>(out, generator, a)),
                Kind::Randint => {
                    dispatch!(dtype, all T => mt::randint::<T>(out, generator, range, base));
                }
                kind => dispatch!(dtype, float T => match kind {
                    Kind::Normal => mt::normal::<T>(out, generator, a, b),
                    Kind::Exponential => mt::exponential::<T>(out, generator, a),
                    _ => mt::uniform::<T>(out, generator, a, b),
                }, _ => unreachable!("the dtype was checked")),
            }
        }
    })
}

/// Runs a fill of a CPU tensor with the runtime's generator.
#[track_caller]
fn on_cpu(
    target: Target<'_>,
    out: View<'_>,
    site: Site,
    f: impl FnOnce(&Out<'_>, DType, &mut CpuGenerator),
) -> Result<()> {
    let order = order(site.op, out.layout)?;
    let runtime = target.runtime();
    // Taken before the storage's lock, always: two fills of one tensor wait for one another here.
    let mut generator = runtime.cpu_generator();
    launch::with_operands(site, &[out.write()], &[], |launch| {
        let (numel, contiguous) = (out.numel(), out.layout.is_contiguous());
        f(&Out { launch, order, numel, contiguous }, out.dtype, &mut generator);
    })
}
