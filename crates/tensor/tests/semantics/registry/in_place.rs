//! Entries for in-place elementwise ops. Each op is applied to a copy of its first argument, because a
//! leaf cannot be changed in place.

use warpline::functional::HardtanhOptions;
use warpline::{DType, Result, Tensor};

use super::elementwise::{op_of, takes, with_gradient};
use super::entry::{Entry, KEEP, every, floats, numbers};
use super::sample::{Arg, each, mask, positive, within, x};

/// Applies a method to a copy, and returns the copy.
pub(super) fn on_copy(
    x: &[Tensor],
    method: impl FnOnce(&Tensor) -> Result<&Tensor>,
) -> Result<Tensor> {
    let copy = x[0].copy()?;
    method(&copy)?;
    Ok(copy)
}

macro_rules! unary {
    ($($name:ident)*) => {
        &[$((stringify!($name), |x: &[Tensor]| on_copy(x, |t| t.$name()))),*]
    };
}

macro_rules! binary {
    ($($name:ident)*) => {
        &[$((stringify!($name), |x: &[Tensor]| on_copy(x, |t| t.$name(&x[1])))),*]
    };
}

type Method = fn(&[Tensor]) -> Result<Tensor>;

const UNARY: &[(&str, Method)] = unary! {
    neg_ abs_ sign_ square_ relu_ floor_ ceil_ round_ exp_ expm1_ log_ log1p_ sqrt_ rsqrt_
    reciprocal_ sin_ cos_ tanh_ erf_ sigmoid_ silu_ gelu_ gelu_tanh_ selu_ hardsigmoid_ hardswish_
    mish_ sgn_ trunc_ frac_ exp2_ log2_ log10_ tan_ asin_ acos_ atan_ sinh_ cosh_ asinh_ acosh_
    atanh_ deg2rad_ rad2deg_ erfc_ erfinv_ lgamma_ digamma_ sinc_ logical_not_ bitwise_not_
};

const BINARY: &[(&str, Method)] = binary! {
    add_ sub_ mul_ div_ pow_ remainder_ fmod_ floor_divide_ atan2_ hypot_ copysign_ nextafter_
    xlogy_ heaviside_ eq_ ne_ lt_ le_ gt_ ge_ logical_and_ logical_or_ logical_xor_ bitwise_and_
    bitwise_or_ bitwise_xor_ bitwise_left_shift_ bitwise_right_shift_ gcd_ lcm_
};

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    for &(name, method) in UNARY {
        let op = op_of(name.trim_end_matches('_'));
        let samples = [&[9][..], &[2, 3], &[], &[0, 3]];
        let samples = samples.map(|sizes| vec![within(sizes, op.domain(0))]);
        let entry = Entry::new(format!("Tensor::{name}"), KEEP, keeps(op), samples, method);
        entries.push(with_gradient(op, entry));
    }
    for &(name, method) in BINARY {
        let op = op_of(name.trim_end_matches('_'));
        let samples = [(&[9][..], &[9][..]), (&[2, 3], &[3]), (&[2, 3], &[]), (&[0, 3], &[1])];
        let samples = samples.map(|(a, b)| vec![within(a, op.domain(0)), within(b, op.domain(1))]);
        let entry = Entry::new(format!("Tensor::{name}"), KEEP, keeps(op), samples, method);
        entries.push(with_gradient(op, entry));
    }
    entries.extend(with_parameters());
    entries.extend(fills());
    entries
}

/// Returns whether the result of an op fits the dtype of its first operand. Bool results fit every
/// dtype.
fn keeps(op: &'static warpline_kernels::elementwise::Op) -> impl Fn(DType) -> bool {
    let takes = takes(op);
    move |dtype| {
        let fits = |result: DType| result == dtype || result == DType::Bool;
        takes(dtype) && op.dtypes(dtype).is_ok_and(|(_, result)| fits(result))
    }
}

fn one() -> Vec<Vec<Arg>> {
    each(&[&[2, 3], &[], &[0, 3]])
}

fn two() -> Vec<Vec<Arg>> {
    vec![vec![x(&[2, 3]), x(&[2, 3])], vec![x(&[2, 3]), x(&[3])], vec![x(&[2, 3]), x(&[])]]
}

fn three() -> Vec<Vec<Arg>> {
    vec![
        vec![x(&[2, 3]), x(&[2, 3]), positive(&[2, 3])],
        vec![x(&[2, 3]), x(&[2, 1]), positive(&[3])],
        vec![x(&[0, 3]), x(&[1]), positive(&[3])],
    ]
}

fn with_parameters() -> Vec<Entry> {
    vec![
        Entry::new("Tensor::elu_", KEEP, floats, one(), |x| on_copy(x, |t| t.elu_(0.7))),
        Entry::new("Tensor::celu_", KEEP, floats, one(), |x| on_copy(x, |t| t.celu_(0.7))),
        Entry::new("Tensor::leaky_relu_", KEEP, floats, one(), |x| {
            on_copy(x, |t| t.leaky_relu_(0.1))
        }),
        Entry::new("Tensor::threshold_", KEEP, numbers, one(), |x| {
            on_copy(x, |t| t.threshold_(1, 3))
        }),
        Entry::new("Tensor::hardtanh_", KEEP, numbers, one(), |x| {
            on_copy(x, |t| t.hardtanh_(HardtanhOptions::new().min_val(-0.5).max_val(0.5)))
        }),
        Entry::new("Tensor::relu6_", KEEP, numbers, one(), |x| on_copy(x, Tensor::relu6_)),
        Entry::new("Tensor::logit_", KEEP, floats, [vec![within(&[2, 3], 0.05..0.95)]], |x| {
            on_copy(x, |t| t.logit_(()))
        }),
        Entry::new("Tensor::clamp_", KEEP, numbers, one(), |x| on_copy(x, |t| t.clamp_(1, 5))),
        Entry::new("Tensor::clamp_min_", KEEP, numbers, two(), |x| {
            on_copy(x, |t| t.clamp_min_(&x[1]))
        }),
        Entry::new("Tensor::clamp_max_", KEEP, numbers, two(), |x| {
            on_copy(x, |t| t.clamp_max_(&x[1]))
        }),
        Entry::new("Tensor::nan_to_num_", KEEP, every, one(), |x| {
            on_copy(x, |t| t.nan_to_num_(0.5))
        }),
        Entry::new("Tensor::round_decimals_", KEEP, floats, one(), |x| {
            on_copy(x, |t| t.round_decimals_(1))
        }),
        Entry::new("Tensor::lerp_", KEEP, floats, three(), |x| {
            on_copy(x, |t| t.lerp_(&x[1], &x[2]))
        }),
        Entry::new("Tensor::addcmul_", KEEP, numbers, three(), |x| {
            on_copy(x, |t| t.addcmul_(&x[1], &x[2], 2))
        }),
        Entry::new("Tensor::addcdiv_", KEEP, floats, three(), |x| {
            on_copy(x, |t| t.addcdiv_(&x[1], &x[2], 2))
        }),
        Entry::new("Tensor::add_scaled_", KEEP, numbers, two(), |x| {
            on_copy(x, |t| t.add_scaled_(&x[1], 2))
        }),
    ]
}

fn fills() -> Vec<Entry> {
    vec![
        Entry::new("Tensor::masked_fill_", KEEP, every, [vec![x(&[2, 3]), mask(&[3])]], |x| {
            on_copy(x, |t| t.masked_fill_(&x[1], 1))
        }),
        Entry::new("Tensor::fill_", KEEP, every, one(), |x| on_copy(x, |t| t.fill_(1))),
        Entry::new("Tensor::zero_", KEEP, every, one(), |x| on_copy(x, Tensor::zero_)),
        Entry::new("Tensor::copy_", KEEP, every, two(), |x| on_copy(x, |t| t.copy_(&x[1], ()))),
    ]
}
