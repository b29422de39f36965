//! Sums, products, quotients, powers, roundings.

use super::derivative::{Derivative, OUT, Terms, X, Y, Z, rules};
use crate::{Result, RoundingMode, Tensor, where_cond};

rules! {
    "add" [0, 0] |_, g, _| Ok(g.clone());
    "sub" [0, 0] |_, g, i| if i == 0 { Ok(g.clone()) } else { g.neg() };
    "mul" [Y, X] |t, g, i| t.times(g, 1 - i);
    "div" [Y, X | Y] |t, g, i| match i {
        0 => t.over(g, 1),
        _ => t.over(&t.x(g)?.div(&t.y(g)?)?.mul(g)?.neg()?, 1),
    };
    "neg" [0] |_, g, _| g.neg();
    "abs" [X] |t, g, _| g.mul(&t.x(g)?.sign()?);
    "square" [X] |t, g, _| g.mul(&t.x(g)?.mul(2.0)?);
    "reciprocal" [OUT] |t, g, _| g.neg()?.mul(&t.out()?.square()?);
    "sign" | "floor" | "ceil" | "round" | "round_decimals" | "trunc" | "floor_divide" | "div_trunc" | "heaviside"
        [0, 0] |_, g, _| g.zeros_like(());
    "frac" [0] |_, g, _| Ok(g.clone());
    "remainder" [0, X | Y] |t, g, i| match i {
        0 => Ok(g.clone()),
        _ => g.mul(&t.x(g)?.div_rounded(&t.y(g)?, RoundingMode::Floor)?)?.neg(),
    };
    "fmod" [0, X | Y] |t, g, i| match i {
        0 => Ok(g.clone()),
        _ => g.mul(&t.x(g)?.div_rounded(&t.y(g)?, RoundingMode::Trunc)?)?.neg(),
    };
    "pow" [X | Y, X | Y | OUT] |t, g, i| power(t, g, i);
    "lerp" [Z, Z, X | Y] |t, g, i| match i {
        0 => g.mul(&t.tensor(2, g)?.neg()?.add(1.0)?),
        1 => t.times(g, 2),
        _ => g.mul(&t.y(g)?.sub(&t.x(g)?)?),
    };
    "addcmul" [0, Z, Y] |t, g, i| match i {
        0 => Ok(g.clone()),
        i => t.times(g, 3 - i)?.mul(t.number(3)),
    };
    "addcdiv" [0, Z, Y | Z] |t, g, i| match i {
        0 => Ok(g.clone()),
        1 => t.over(g, 2)?.mul(t.number(3)),
        _ => t.over(&t.over(&t.times(g, 1)?, 2)?, 2)?.mul(-t.number(3)),
    };
}

/// Of `x ** y`; the exponent 0 has no slope, and 0 to a power that is not negative none in the exponent.
fn power(t: &Terms<'_>, g: &Tensor, i: usize) -> Result<Tensor> {
    let (x, y) = (t.x(g)?, t.y(g)?);
    if i == 0 {
        let slope = y.mul(&x.pow(&y.sub(1.0)?)?)?;
        return g.mul(&where_cond(&y.eq(0.0)?, 0.0, &slope)?);
    }
    let flat = x.eq(0.0)?.logical_and(&y.ge(0.0)?)?;
    g.mul(&where_cond(&flat, 0.0, &t.out()?.mul(&x.log()?)?)?)
}
