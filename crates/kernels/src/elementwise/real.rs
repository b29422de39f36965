//! Functions of floats that Rust lacks, with PyTorch's results.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

use crate::math::functions;

pub(super) const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
pub(super) const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

/// Functions that Rust lacks, for the floating-point types in which ops compute.
pub(super) trait FloatFunctions: Copy {
    /// Returns the remainder of [`FloatFunctions::floor_over`], with the sign of the divisor.
    fn floor_rest(self, y: Self) -> Self;
    /// Returns the quotient, rounded down.
    fn floor_over(self, y: Self) -> Self;
    /// Returns ln(eˣ + eʸ).
    fn log_add_exp(self, y: Self) -> Self;
    /// Returns log₂(2ˣ + 2ʸ).
    fn log2_add_exp2(self, y: Self) -> Self;
    /// Returns x ln y, or 0 if x is 0 and y is not NaN.
    fn times_log(self, y: Self) -> Self;
    /// Returns sin(πx) / πx.
    fn sinc(self) -> Self;
    /// Returns ln(x / (1 - x)). Limits x to `eps..=1 - eps` first, unless `eps` is negative.
    fn logit(self, eps: Self) -> Self;
    /// Returns ln(1 + eˣ).
    fn softplus(self) -> Self;
    /// Returns [`SELU_SCALE`] times x if x is positive, otherwise [`SELU_SCALE`] times α (eˣ - 1), where
    /// α is [`SELU_ALPHA`].
    fn selu(self) -> Self;
    /// Limits x to `low..=high`. NaN if any of the three is NaN.
    fn clamped(self, low: Self, high: Self) -> Self;
    /// Rounds to a multiple of `1 / scale`, or of `-scale` if `scale` is negative. A tie rounds to
    /// the even multiple.
    fn round_to(self, scale: Self) -> Self;
}

macro_rules! reals {
    ($($ty:ident)*) => {$(
        impl FloatFunctions for $ty {
            #[inline(always)]
            fn floor_rest(self, y: Self) -> Self {
                let rest = self % y;
                if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest }
            }
            #[inline(always)]
            fn floor_over(self, y: Self) -> Self {
                if y == 0.0 {
                    return self / y;
                }
                let rest = self % y;
                let below = rest != 0.0 && (rest < 0.0) != (y < 0.0);
                let quotient = (self - rest) / y - if below { 1.0 } else { 0.0 };
                if quotient == 0.0 {
                    return (0.0 as $ty).copysign(self / y);
                }
                let floor = quotient.floor();
                if quotient - floor > 0.5 { floor + 1.0 } else { floor }
            }
            #[inline(always)]
            fn log_add_exp(self, y: Self) -> Self {
                if self.is_infinite() && self == y {
                    return self;
                }
                let most = if self > y { self } else { y };
                most + (-(self - y).abs()).exp().ln_1p()
            }
            #[inline(always)]
            fn log2_add_exp2(self, y: Self) -> Self {
                if self.is_infinite() && self == y {
                    return self;
                }
                let most = if self > y { self } else { y };
                most + (-(self - y).abs()).exp2().ln_1p() * std::$ty::consts::LOG2_E
            }
            #[inline(always)]
            fn times_log(self, y: Self) -> Self {
                if y.is_nan() || self != 0.0 { self * y.ln() } else { 0.0 }
            }
            #[inline(always)]
            fn sinc(self) -> Self {
                let x = std::$ty::consts::PI * self;
                if x == 0.0 { 1.0 } else { x.sin() / x }
            }
            #[inline(always)]
            fn logit(self, eps: Self) -> Self {
                let x = if eps < 0.0 { self } else { self.clamped(eps, 1.0 - eps) };
                (x / (1.0 - x)).ln()
            }
            #[inline(always)]
            fn softplus(self) -> Self {
                self.exp().ln_1p()
            }
            #[inline(always)]
            fn selu(self) -> Self {
                let alpha = SELU_ALPHA as $ty;
                SELU_SCALE as $ty * if self > 0.0 { self } else { alpha * self.exp_m1() }
            }
            #[inline(always)]
            fn clamped(self, low: Self, high: Self) -> Self {
                let x = if self < low || low.is_nan() { low } else { self };
                if self.is_nan() || low.is_nan() { x } else if x > high || high.is_nan() { high } else { x }
            }
            #[inline(always)]
            fn round_to(self, scale: Self) -> Self {
                if scale < 0.0 {
                    (self / scale).round_ties_even() * scale
                } else {
                    (self * scale).round_ties_even() / scale
                }
            }
        }
    )*};
}

reals! { f32 f64 }

/// Returns the inverse of the error function: a rational approximation, refined by two Newton
/// steps.
pub(super) fn erfinv(y: f64) -> f64 {
    let size = y.abs();
    if size > 1.0 || size.is_nan() {
        return f64::NAN;
    }
    if size == 1.0 {
        return f64::INFINITY.copysign(y);
    }
    let mut x = if size <= 0.7 {
        let z = y * y;
        let above = ((-0.140543331 * z + 0.914624893) * z - 1.645349621) * z + 0.886226899;
        let below =
            (((0.012229801 * z - 0.329097515) * z + 1.442710462) * z - 2.118377725) * z + 1.0;
        y * above / below
    } else {
        let z = (-((1.0 - size) / 2.0).ln()).sqrt();
        let above = ((1.641345311 * z + 3.429567803) * z - 1.624906493) * z - 1.970840454;
        let below = (1.637067800 * z + 3.543889200) * z + 1.0;
        above.copysign(y) / below
    };
    for _ in 0..2 {
        x -= (libm::erf(x) - y) / (FRAC_2_SQRT_PI * (-x * x).exp());
    }
    x
}

/// Returns the derivative of ln Γ, with the asymptotic series from 10 on.
pub(super) fn digamma(x: f64) -> f64 {
    const SERIES: [f64; 7] = [
        8.333_333_333_333_333e-2,
        -2.109_279_609_279_609_3e-2,
        7.575_757_575_757_576e-3,
        -4.166_666_666_666_667e-3,
        3.968_253_968_253_968e-3,
        -8.333_333_333_333_333e-3,
        8.333_333_333_333_333e-2,
    ];
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    if x < 0.0 {
        if x == x.trunc() {
            return f64::NAN;
        }
        return digamma(1.0 - x) - PI / (PI * x.fract()).tan();
    }
    let (mut x, mut sum) = (x, 0.0);
    while x < 10.0 {
        sum -= 1.0 / x;
        x += 1.0;
    }
    let z = 1.0 / (x * x);
    let series = z * SERIES.into_iter().reduce(|sum, c| sum * z + c).unwrap_or(0.0);
    sum + x.ln() - 0.5 / x - series
}

/// Derivatives of activations.
pub(super) trait Slope: Copy {
    /// Returns the derivative of x / (1 + e⁻ˣ).
    fn silu_slope(self) -> Self;
    /// Returns the derivative of x (1 + erf(x / √2)) / 2.
    fn gelu_slope(self) -> Self;
    /// Returns the derivative of the approximation of gelu by tanh.
    fn gelu_tanh_slope(self) -> Self;
}

macro_rules! slopes {
    ($ty:ident, $exp:expr, $erf:expr) => {
        impl Slope for $ty {
            #[inline(always)]
            fn silu_slope(self) -> Self {
                let x = f64::from(self);
                let sigmoid = 1.0 / (1.0 + $exp(-x));
                // The last term is 0, or NaN for an infinity, because a GPU returns NaN there.
                (sigmoid * (1.0 + x * (1.0 - sigmoid)) + 0.0 * x) as $ty
            }
            #[inline(always)]
            fn gelu_slope(self) -> Self {
                let x = f64::from(self);
                let bell = 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * $exp(-0.5 * x * x);
                (0.5 * (1.0 + $erf(x * FRAC_1_SQRT_2)) + x * bell + 0.0 * x) as $ty
            }
            #[inline(always)]
            fn gelu_tanh_slope(self) -> Self {
                const BETA: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
                let x = f64::from(self);
                let square = x * x;
                // tanh u = 2 / (1 + e⁻²ᵘ) - 1
                let tanh = 2.0 / (1.0 + $exp(-2.0 * BETA * x * (1.0 + 0.044715 * square))) - 1.0;
                let inner = BETA * (1.0 + 3.0 * 0.044715 * square);
                (0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner) as $ty
            }
        }
    };
}

slopes! { f32, functions::exp, |x: f64| functions::erf(x) }
slopes! { f64, f64::exp, libm::erf }
