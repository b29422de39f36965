//! Special functions: Γ, `sinc`, and relatives of the error function and the logarithm.

use std::f64::consts::PI;

use super::activation::bell;
use super::formula::Expr;
use super::host::scalars;
use super::real::{FloatFunctions, digamma, erfinv};
use crate::elementwise_ops as ops;

ops! {
    // SAFETY: the CUDA expressions access only their operands.
    unsafe ptx crate::programs::committed;

    /// `torch.lgamma`. Integers and bools are computed in `float32`.
    LGAMMA = "lgamma"(x), TO_FLOATS => Same, Keep, "lgamma_of(x)", {
        f32 = scalars(|x: f32| libm::lgamma(x.into()) as f32), f64 = scalars(libm::lgamma)
    }, gradients(g) { x: g * x.digamma() }
    /// `torch.digamma`. Integers and bools are computed in `float32`.
    DIGAMMA = "digamma"(x), TO_FLOATS => Same, Keep, "digamma_of(x)", {
        f32 = scalars(|x: f32| digamma(x.into()) as f32), f64 = scalars(digamma)
    }, gradients(g) { x: g * trigamma(x) }
    /// `torch.erfc`. Integers and bools are computed in `float32`.
    ERFC = "erfc"(x), TO_FLOATS => Same, Keep, "erfc_of(x)", {
        f32 = scalars(libm::erfcf), f64 = scalars(libm::erfc)
    }, gradients(g) {
        x: -(g * bell(x))
    }
    /// `torch.erfinv`. Integers and bools are computed in `float32`.
    ERFINV = "erfinv"(x in -0.9..0.9), TO_FLOATS => Same, F32, "erfinv_of(x)", {
        f32 = scalars(|x: f32| erfinv(x.into()) as f32), f64 = scalars(erfinv)
    }, gradients(g, out) { x: g * out.square().exp() * (PI.sqrt() / 2.0) }
    /// `torch.logit`. A negative `eps` stands for no `eps`. Integers and bools are computed in
    /// `float32`.
    LOGIT = "logit"(x in 0.05..0.95, eps in -0.2..0.3), TO_FLOATS => Same, Keep, "logit_of(x, eps)", {
        float => x.logit(eps)
    }, gradients(g) {
        x: {
            let unbounded = eps.lt(0.0);
            let (low, high) = (unbounded.select(0.0, eps), unbounded.select(1.0, 1.0 - eps));
            let outside = x.lt(low).or(x.gt(high));
            g * outside.select(unbounded.select(f64::NAN, 0.0), (x * (1.0 - x)).reciprocal())
        }
    }
    /// `torch.xlogy`. 0 if `x` is 0, unless `y` is NaN. Integers and bools are computed in
    /// `float32`.
    XLOGY = "xlogy"(x, y in 0.2..4.0), TO_FLOATS => Same, Keep, "y != y || x != (C)0 ? x * log_of(y) : (C)0", {
        float => x.times_log(y)
    }, rounds Always, gradients(g) {
        // The gradient of `x` is 0 if `x` is 0 and `y` is not positive, where the logarithm is not
        // finite.
        x: x.eq(0.0).and(y.le(0.0)).select(0.0, g.xlogy(y)),
        y: g * (x / y)
    }
    /// `torch.logaddexp`. Floats only.
    LOGADDEXP = "logaddexp"(x, y), FLOATS => Same, Keep, "log_add_exp(x, y)", {
        float => x.log_add_exp(y)
    }, gradients(g) {
        x: g / ((y - x).exp() + 1.0),
        y: g / ((x - y).exp() + 1.0)
    }
    /// `torch.logaddexp2`. Floats only.
    LOGADDEXP2 = "logaddexp2"(x, y), FLOATS => Same, Keep, "log2_add_exp2(x, y)", {
        float => x.log2_add_exp2(y)
    }, gradients(g) {
        x: g / ((y - x).exp2() + 1.0),
        y: g / ((x - y).exp2() + 1.0)
    }
    /// `torch.sinc`. Integers and bools are computed in `float32`.
    SINC = "sinc"(x), TO_FLOATS => Same, Keep, "sinc_of(x)", { float => x.sinc() }, gradients(g) {
        x: {
            let x = x * PI;
            // Compare the square with 0, and not the element, because the square of a small element
            // underflows to 0.
            g * x.square().eq(0.0).select(0.0, (x * x.cos() - x.sin()) / x.square() * PI)
        }
    }
}

/// Returns the derivative of digamma with PyTorch's algorithm, to ten digits: by reflection for
/// `x < 1/2`, and by recurrence up to the range of the series.
fn trigamma(x: Expr) -> Expr {
    let below = x.lt(0.5);
    let mut z = below.select(1.0 - x, x);
    let mut sum = z.square().reciprocal();
    for _ in 1..6 {
        z = z + 1.0;
        sum = sum + z.square().reciprocal();
    }
    z = z + 1.0;
    let over = z.square().reciprocal();
    let series = -((over * (-1.0 / 42.0) + 1.0 / 30.0) * over) + 1.0 / 6.0;
    let tail = series * over + (z * 2.0).reciprocal() + 1.0;
    let sum = sum + tail / z;
    let reflected = (x * PI).sin().square().reciprocal() * (PI * PI) - sum;
    below.select(reflected, sum)
}
