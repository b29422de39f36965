//! Functions of one `f32` element, computed in `f64`, where cancellation and overflow are harmless.
//! The relative error of the polynomials is less than 2⁻³¹, a hundredth of a unit in the last place
//! of an `f32`. Coefficients are listed from the lowest power.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, LN_2, LOG2_E};

/// (eʳ - 1 - r) / r² as a polynomial of r, for |r| ≤ ln 2 / 2.
const EXP: [f64; 6] = [
    0.500000001353873,
    0.16666666681704215,
    0.04166646419740569,
    0.008333310844647862,
    0.0013933730715792083,
    0.00019891080463998843,
];

/// (ln(1 + f) - f) / f² as a polynomial of f, for √½ ≤ 1 + f ≤ √2.
const LOG: [f64; 11] = [
    -0.5000000005545165,
    0.33333332792999204,
    -0.24999971698140327,
    0.2000005738825762,
    -0.16669006307204182,
    0.14285624989907217,
    -0.1243226805928479,
    0.11037689258302641,
    -0.10769472428395056,
    0.10589881969443307,
    -0.06020956499496654,
];

/// erf z / z as a polynomial of z², for z ≤ 1/2.
const ERF: [f64; 6] = [
    1.1283791670824095,
    -0.37612638525650693,
    0.11283774013179539,
    -0.026863143032249386,
    0.005200413724335493,
    -0.0007694534279142308,
];

/// e^(z²) erfc z as a polynomial of (z - 4) / (z + 4), for 0 ≤ z ≤ [`ERFC_END`].
const ERFC: [f64; 12] = [
    0.1369994576329735,
    -0.2590680493409763,
    0.21871967950917529,
    -0.1642577847151273,
    0.10896313290744424,
    -0.06310834391640541,
    0.03129955797666464,
    -0.012839899803712126,
    0.0040591912498205394,
    -0.0008144342366069886,
    -2.805061426808442e-05,
    0.00010148083270909257,
];

/// Bound of z. For larger z, z erfc z is less than any positive `f32`.
const ERFC_END: f64 = 11.0;

/// Adding this number to a far smaller number rounds the smaller number to an integer, which is
/// then in the low bits of the sum.
const MAGIC: f64 = 1.5 * (1u64 << 52) as f64;

#[inline(always)]
fn poly<const N: usize>(x: f64, coefficients: [f64; N]) -> f64 {
    coefficients.into_iter().rev().reduce(|sum, c| sum * x + c).unwrap_or(0.0)
}

/// Limits `x` to `low..=high`. NaN stays NaN.
#[inline(always)]
fn clamp(x: f64, low: f64, high: f64) -> f64 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// Returns `(2ⁿ, eʳ - 1)` with `x = n ln 2 + r` and |r| ≤ ln 2 / 2. 2ⁿ is infinite if n is 1024.
#[inline(always)]
fn exp_parts(x: f64) -> (f64, f64) {
    let shifted = x * LOG2_E + MAGIC;
    let r = x - (shifted - MAGIC) * LN_2;
    let power = shifted.to_bits().wrapping_sub(MAGIC.to_bits()).wrapping_add(1023) << 52;
    (f64::from_bits(power), r + r * r * poly(r, EXP))
}

/// Returns eˣ for any `f64`: e⁻⁷⁰⁸ for `x` below -708, and infinity for `x` above about 709.4.
#[inline(always)]
pub(crate) fn exp(x: f64) -> f64 {
    let (power, p) = exp_parts(clamp(x, -708.0, 710.0));
    (1.0 + p) * power
}

/// eˣ - 1.
#[inline(always)]
pub(crate) fn expm1(x: f64) -> f64 {
    let (power, p) = exp_parts(clamp(x, -708.0, 700.0));
    // -0 keeps its sign.
    if x == 0.0 { x } else { power * p + (power - 1.0) }
}

/// Returns ln x. `x` must not be subnormal.
#[inline(always)]
pub(crate) fn log(x: f64) -> f64 {
    // The exponent of x / √½, so that the remaining factor is between √½ and √2.
    let exponent = x.to_bits().wrapping_sub(FRAC_1_SQRT_2.to_bits()) >> 52;
    let f = f64::from_bits(x.to_bits().wrapping_sub(exponent << 52)) - 1.0;
    // Converts the exponent by its bits, because not all levels of vector instructions can convert
    // integers to `f64`. For x < √½ the exponent is a 12-bit two's complement.
    let exponent = (exponent ^ 0x800).wrapping_add(MAGIC.to_bits() - 0x800);
    let n = f64::from_bits(exponent) - MAGIC;
    let value = n * LN_2 + (f + f * f * poly(f, LOG));
    let value = if x == f64::INFINITY { x } else { value };
    let value = if x == 0.0 { f64::NEG_INFINITY } else { value };
    if x >= 0.0 { value } else { f64::NAN }
}

/// ln(1 + x).
#[inline(always)]
pub(crate) fn log1p(x: f64) -> f64 {
    // Near 0, 1 + x loses digits of x, so the series is used. -0 keeps its sign.
    let series = x - x * x * (0.5 - x / 3.0);
    if x.abs() < 1e-4 { series } else { log(1.0 + x) }
}

/// tanh x.
#[inline(always)]
pub(crate) fn tanh(x: f64) -> f64 {
    let (power, p) = exp_parts(clamp(2.0 * x.abs(), 0.0, 40.0));
    let expm1 = power * p + (power - 1.0);
    (expm1 / (expm1 + 2.0)).copysign(x)
}

/// erfc z, z ≥ 0.
#[inline(always)]
fn erfc(z: f64) -> f64 {
    let end = clamp(z, 0.0, ERFC_END);
    exp(-z * z) * poly((end - 4.0) / (end + 4.0), ERFC)
}

/// erf x.
#[inline(always)]
pub(crate) fn erf(x: f64) -> f64 {
    let z = x.abs();
    let value = if z < 0.5 { z * poly(z * z, ERF) } else { 1.0 - erfc(z) };
    value.copysign(x)
}

/// 1 / (1 + e⁻ˣ).
#[inline(always)]
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + exp(-x))
}

/// x / (1 + e⁻ˣ).
#[inline(always)]
pub(crate) fn silu(x: f64) -> f64 {
    x / (1.0 + exp(-x))
}

/// x (1 + erf(x / √2)) / 2.
#[inline(always)]
pub(crate) fn gelu(x: f64) -> f64 {
    let tail = 0.5 * erfc(x.abs() * FRAC_1_SQRT_2);
    // The last term is 0, or NaN for an infinity: PyTorch's CPU library returns NaN for both
    // infinities. Without the term they would give infinities, because `tail` is never 0.
    x * (if x < 0.0 { tail } else { 1.0 - tail }) + 0.0 * x
}

/// [`gelu`] with an approximation by tanh: x (1 + tanh u) / 2 = x / (1 + e⁻²ᵘ).
#[inline(always)]
pub(crate) fn gelu_tanh(x: f64) -> f64 {
    const SQRT_2_OVER_PI: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
    let u = SQRT_2_OVER_PI * (x + 0.044715 * x * x * x);
    x / (1.0 + exp(-2.0 * u))
}
