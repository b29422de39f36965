//! Activations.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI, SQRT_2};

use super::derivative::{Derivative, OUT, Terms, X, rules};
use crate::{Result, Tensor, where_cond};

/// Of `selu`.
const ALPHA: f64 = 1.673_263_242_354_377_2;
const SCALE: f64 = 1.050_700_987_355_480_5;

rules! {
    "relu" [OUT] |t, g, _| where_cond(&t.out()?.le(0.0)?, 0.0, g);
    "sigmoid" [OUT] |t, g, _| {
        let out = t.out()?;
        g.mul(&out.mul(&out.neg()?.add(1.0)?)?)
    };
    "silu" [X] |t, g, _| {
        let x = t.x(g)?;
        let sigmoid = x.sigmoid()?;
        g.mul(&sigmoid.mul(&x.mul(&sigmoid.neg()?.add(1.0)?)?.add(1.0)?)?)
    };
    "gelu" [X] |t, g, _| {
        let x = t.x(g)?;
        let cdf = x.mul(FRAC_1_SQRT_2)?.erf()?.add(1.0)?.mul(0.5)?;
        let pdf = x.square()?.mul(-0.5)?.exp()?.mul(1.0 / (2.0 * PI).sqrt())?;
        g.mul(&cdf.add(&x.mul(&pdf)?)?)
    };
    "gelu_tanh" [X] |t, g, _| gelu_tanh(&t.x(g)?, g);
    "selu" [X] |t, g, _| {
        let x = t.x(g)?;
        let curved = x.exp()?.mul(SCALE * ALPHA)?;
        g.mul(&where_cond(&x.gt(0.0)?, SCALE, &curved)?)
    };
    "elu" [X] |t, g, _| {
        let x = t.x(g)?;
        g.mul(&where_cond(&x.gt(0.0)?, 1.0, &x.exp()?.mul(t.number(1))?)?)
    };
    "celu" [X] |t, g, _| {
        let x = t.x(g)?;
        // PyTorch has the quotient in single precision.
        let over = 1.0 / f64::from(t.number(1) as f32);
        let curved = x.mul(over)?.exp()?.mul(over * t.number(1))?;
        g.mul(&where_cond(&x.gt(0.0)?, 1.0, &curved)?)
    };
    "leaky_relu" [X] |t, g, _| where_cond(&t.x(g)?.gt(0.0)?, g, &g.mul(t.number(1))?);
    "hardsigmoid" [X] |t, g, _| {
        let x = t.x(g)?;
        let within = x.gt(-3.0)?.logical_and(&x.lt(3.0)?)?;
        // PyTorch has the sixth in single precision.
        where_cond(&within, &g.mul(f64::from(1f32 / 6.0))?, 0.0)
    };
    "hardswish" [X] |t, g, _| {
        let x = t.x(g)?;
        let curved = g.mul(&x.div(3.0)?.add(0.5)?)?;
        where_cond(&x.lt(-3.0)?, 0.0, &where_cond(&x.le(3.0)?, &curved, g)?)
    };
    "mish" [X] |t, g, _| {
        let x = t.x(g)?;
        let tanh = x.softplus(1.0, 20.0)?.tanh()?;
        let slope = x.mul(&x.sigmoid()?)?.mul(&tanh.square()?.neg()?.add(1.0)?)?;
        g.mul(&tanh.add(&slope)?)
    };
    "logsigmoid" [X] |t, g, _| g.mul(&t.x(g)?.neg()?.sigmoid()?);
    "softsign" [X] |t, g, _| g.div(&t.x(g)?.abs()?.add(1.0)?.square()?);
    "tanhshrink" [X] |t, g, _| g.mul(&t.x(g)?.tanh()?.square()?);
    "softplus" [X] |t, g, _| {
        let scaled = t.x(g)?.mul(t.number(1))?;
        where_cond(&scaled.gt(t.number(2))?, g, &g.mul(&scaled.sigmoid()?)?)
    };
    "softshrink" | "hardshrink" [X] |t, g, _| {
        where_cond(&t.x(g)?.abs()?.le(t.number(1))?, 0.0, g)
    };
    "threshold" [X] |t, g, _| where_cond(&t.x(g)?.le(t.number(1))?, 0.0, g);
}

/// Of `x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
fn gelu_tanh(x: &Tensor, g: &Tensor) -> Result<Tensor> {
    const BETA: f64 = SQRT_2 * FRAC_2_SQRT_PI * 0.5;
    const CUBIC: f64 = 0.044_715;
    let square = x.square()?;
    let tanh = x.mul(&square.mul(CUBIC)?.add(1.0)?)?.mul(BETA)?.tanh()?;
    let inner = square.mul(3.0 * CUBIC)?.add(1.0)?.mul(BETA)?;
    let right = x.mul(0.5)?.mul(&tanh.square()?.neg()?.add(1.0)?)?.mul(&inner)?;
    g.mul(&tanh.add(1.0)?.mul(0.5)?.add(&right)?)
}
