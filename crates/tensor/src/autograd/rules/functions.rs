//! Functions of one number, and some of two.

use std::f64::consts::{LN_2, LN_10, PI};

use super::derivative::{Derivative, OUT, Terms, X, Y, rules};
use crate::{Result, Tensor, where_cond};

rules! {
    "exp" [OUT] |t, g, _| g.mul(&t.out()?);
    "expm1" [OUT] |t, g, _| g.mul(&t.out()?.add(1.0)?);
    "exp2" [OUT] |t, g, _| g.mul(&t.out()?)?.mul(LN_2);
    "log" [X] |t, g, _| g.div(&t.x(g)?);
    "log1p" [X] |t, g, _| g.div(&t.x(g)?.add(1.0)?);
    "log2" [X] |t, g, _| g.div(&t.x(g)?.mul(LN_2)?);
    "log10" [X] |t, g, _| g.div(&t.x(g)?.mul(LN_10)?);
    "sqrt" [OUT] |t, g, _| g.div(&t.out()?.mul(2.0)?);
    "rsqrt" [OUT] |t, g, _| g.mul(&t.out()?.pow(3.0)?)?.mul(-0.5);
    "sin" [X] |t, g, _| g.mul(&t.x(g)?.cos()?);
    "cos" [X] |t, g, _| g.mul(&t.x(g)?.sin()?)?.neg();
    "tan" [OUT] |t, g, _| g.mul(&t.out()?.square()?.add(1.0)?);
    "asin" [X] |t, g, _| g.mul(&one_less_square(&t.x(g)?)?.rsqrt()?);
    "acos" [X] |t, g, _| g.mul(&one_less_square(&t.x(g)?)?.rsqrt()?)?.neg();
    "atan" [X] |t, g, _| g.div(&t.x(g)?.square()?.add(1.0)?);
    "sinh" [X] |t, g, _| g.mul(&t.x(g)?.cosh()?);
    "cosh" [X] |t, g, _| g.mul(&t.x(g)?.sinh()?);
    "asinh" [X] |t, g, _| g.mul(&t.x(g)?.square()?.add(1.0)?.rsqrt()?);
    "acosh" [X] |t, g, _| g.mul(&t.x(g)?.square()?.sub(1.0)?.rsqrt()?);
    "atanh" [X] |t, g, _| g.div(&one_less_square(&t.x(g)?)?);
    "deg2rad" [0] |_, g, _| g.mul(PI / 180.0);
    "rad2deg" [0] |_, g, _| g.mul(180.0 / PI);
    "erf" [X] |t, g, _| g.mul(&bell(&t.x(g)?)?);
    "erfc" [X] |t, g, _| g.mul(&bell(&t.x(g)?)?)?.neg();
    "erfinv" [OUT] |t, g, _| g.mul(&t.out()?.square()?.exp()?)?.mul(PI.sqrt() / 2.0);
    "lgamma" [X] |t, g, _| g.mul(&t.x(g)?.digamma()?);
    "digamma" [X] |t, g, _| g.mul(&trigamma(&t.x(g)?)?);
    "sinc" [X] |t, g, _| {
        let x = t.x(g)?.mul(PI)?;
        let slope = x.mul(&x.cos()?)?.sub(&x.sin()?)?.div(&x.square()?)?.mul(PI)?;
        g.mul(&where_cond(&x.eq(0.0)?, 0.0, &slope)?)
    };
    "logit" [X] |t, g, _| logit(&t.x(g)?, g, t.number(1));
    "atan2" [X | Y, X | Y] |t, g, i| {
        let (y, x) = (t.x(g)?, t.y(g)?);
        let over = y.square()?.add(&x.square()?)?;
        if i == 0 { g.mul(&x.div(&over)?) } else { g.mul(&y.neg()?.div(&over)?) }
    };
    "hypot" [X | OUT, Y | OUT] |t, g, i| g.mul(&t.tensor(i, g)?.div(&t.out()?)?);
    "copysign" [X | OUT, 0] |t, g, i| match i {
        0 => {
            let x = t.x(g)?;
            g.mul(&where_cond(&x.eq(0.0)?, 0.0, &t.out()?.div(&x)?)?)
        }
        _ => g.zeros_like(()),
    };
    "xlogy" [X | Y, X | Y] |t, g, i| {
        let (x, y) = (t.x(g)?, t.y(g)?);
        if i == 0 {
            let flat = x.eq(0.0)?.logical_and(&y.le(0.0)?)?;
            g.mul(&where_cond(&flat, 0.0, &y.log()?)?)
        } else {
            g.mul(&x.div(&y)?)
        }
    };
    "logaddexp" [X | Y, X | Y] |t, g, i| {
        let apart = t.tensor(1 - i, g)?.sub(&t.tensor(i, g)?)?;
        g.div(&apart.exp()?.add(1.0)?)
    };
    "logaddexp2" [X | Y, X | Y] |t, g, i| {
        let apart = t.tensor(1 - i, g)?.sub(&t.tensor(i, g)?)?;
        g.div(&apart.exp2()?.add(1.0)?)
    };
}

fn one_less_square(x: &Tensor) -> Result<Tensor> {
    x.square()?.neg()?.add(1.0)
}

/// The slope of the error function.
fn bell(x: &Tensor) -> Result<Tensor> {
    x.square()?.neg()?.exp()?.mul(2.0 / PI.sqrt())
}

fn logit(x: &Tensor, g: &Tensor, eps: f64) -> Result<Tensor> {
    let (low, high) = if eps < 0.0 { (0.0, 1.0) } else { (eps, 1.0 - eps) };
    let outside = x.lt(low)?.logical_or(&x.gt(high)?)?;
    let slope = x.mul(&x.neg()?.add(1.0)?)?.reciprocal()?;
    g.mul(&where_cond(&outside, if eps < 0.0 { f64::NAN } else { 0.0 }, &slope)?)
}

/// The slope of digamma as PyTorch has it, to ten digits: by reflection where `x` is below one half, by
/// recurrence up to where its series is.
fn trigamma(x: &Tensor) -> Result<Tensor> {
    let below = x.lt(0.5)?;
    let mut z = where_cond(&below, &x.neg()?.add(1.0)?, x)?;
    let mut sum = z.zeros_like(())?;
    for _ in 0..6 {
        sum = sum.add(&z.square()?.reciprocal()?)?;
        z = z.add(1.0)?;
    }
    let over = z.square()?.reciprocal()?;
    let series = over.mul(-1.0 / 42.0)?.add(1.0 / 30.0)?.mul(&over)?.neg()?.add(1.0 / 6.0)?;
    let tail = series.mul(&over)?.add(&z.mul(2.0)?.reciprocal()?)?.add(1.0)?;
    sum = sum.add(&tail.div(&z)?)?;
    let reflected = x.mul(PI)?.sin()?.square()?.reciprocal()?.mul(PI * PI)?.sub(&sum)?;
    where_cond(&below, &reflected, &sum)
}
