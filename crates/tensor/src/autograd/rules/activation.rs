//! Activations.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

use warpline_kernels::elementwise as table;

use super::derivative::{Derivative, OUT, Terms, X, Y, rules};
use crate::tensor::op;
use crate::{Result, Tensor, where_cond};

/// Of `selu`.
const ALPHA: f64 = 1.673_263_242_354_377_2;
const SCALE: f64 = 1.050_700_987_355_480_5;

rules! {
    "relu" [OUT] |t, g, _| op(&table::RELU_BACKWARD, g, &t.out()?);
    "sigmoid" [OUT] |t, g, _| op(&table::SIGMOID_BACKWARD, g, &t.out()?);
    "tanh" [OUT] |t, g, _| op(&table::TANH_BACKWARD, g, &t.out()?);
    "silu" [X] |t, g, _| op(&table::SILU_BACKWARD, g, &t.x(g)?);
    "gelu" [X] |t, g, _| op(&table::GELU_BACKWARD, g, &t.x(g)?);
    "gelu_tanh" [X] |t, g, _| op(&table::GELU_TANH_BACKWARD, g, &t.x(g)?);
    "relu_backward" [Y, 0] |t, g, i| match i {
        0 => op(&table::RELU_BACKWARD, g, &t.y(g)?),
        _ => g.zeros_like(()),
    };
    "sigmoid_backward" [Y, X | Y] |t, g, i| match i {
        0 => op(&table::SIGMOID_BACKWARD, g, &t.y(g)?),
        _ => g.mul(&t.x(g)?)?.mul(&t.y(g)?.mul(-2.0)?.add(1.0)?),
    };
    "tanh_backward" [Y, X | Y] |t, g, i| match i {
        0 => op(&table::TANH_BACKWARD, g, &t.y(g)?),
        _ => g.mul(&t.x(g)?)?.mul(&t.y(g)?.mul(-2.0)?),
    };
    "silu_backward" [Y, X | Y] |t, g, i| {
        let x = t.y(g)?;
        if i == 0 {
            return op(&table::SILU_BACKWARD, g, &x);
        }
        let sigmoid = x.sigmoid()?;
        let rest = sigmoid.neg()?.add(1.0)?;
        let inner = x.mul(&rest.sub(&sigmoid)?)?.add(2.0)?;
        g.mul(&t.x(g)?)?.mul(&sigmoid.mul(&rest)?.mul(&inner)?)
    };
    "gelu_backward" [Y, X | Y] |t, g, i| {
        let x = t.y(g)?;
        if i == 0 {
            return op(&table::GELU_BACKWARD, g, &x);
        }
        let square = x.square()?;
        let bell = square.mul(-0.5)?.exp()?.mul(1.0 / (2.0 * PI).sqrt())?;
        g.mul(&t.x(g)?)?.mul(&bell.mul(&square.neg()?.add(2.0)?)?)
    };
    "gelu_tanh_backward" [Y, X | Y] |t, g, i| {
        let x = t.y(g)?;
        if i == 0 {
            return op(&table::GELU_TANH_BACKWARD, g, &x);
        }
        g.mul(&t.x(g)?)?.mul(&gelu_tanh_curvature(&x)?)
    };
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

/// The second derivative of `x/2 (1 + tanh u)` with `u = √(2/π) (x + 0.044715 x³)`.
fn gelu_tanh_curvature(x: &Tensor) -> Result<Tensor> {
    const BETA: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
    const CUBIC: f64 = 0.044_715;
    let square = x.square()?;
    let tanh = x.mul(&square.mul(CUBIC)?.add(1.0)?)?.mul(BETA)?.tanh()?;
    let slope = square.mul(3.0 * CUBIC)?.add(1.0)?.mul(BETA)?;
    let bent = x.mul(x)?.mul(3.0 * CUBIC * BETA)?.sub(&x.mul(&tanh)?.mul(&slope.square()?)?)?;
    tanh.square()?.neg()?.add(1.0)?.mul(&slope.add(&bent)?)
}
