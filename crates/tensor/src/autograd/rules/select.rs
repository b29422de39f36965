//! Choices between elements.

use super::derivative::{Derivative, Terms, X, Y, Z, rules};
use crate::{Result, Tensor, where_cond};

rules! {
    "where" [0, X, X] |t, g, i| match i {
        1 => where_cond(&t.x(g)?, g, 0.0),
        _ => where_cond(&t.x(g)?, 0.0, g),
    };
    "maximum" [X | Y, X | Y] |t, g, i| {
        let (own, other) = (t.tensor(i, g)?, t.tensor(1 - i, g)?);
        // Of equals each has half.
        let shared = where_cond(&own.eq(&other)?, &g.div(2.0)?, g)?;
        where_cond(&own.lt(&other)?, 0.0, &shared)
    };
    "minimum" [X | Y, X | Y] |t, g, i| {
        let (own, other) = (t.tensor(i, g)?, t.tensor(1 - i, g)?);
        let shared = where_cond(&own.eq(&other)?, &g.div(2.0)?, g)?;
        where_cond(&own.gt(&other)?, 0.0, &shared)
    };
    "fmax" [X | Y, X | Y] |t, g, i| {
        let first = t.x(g)?.ge(&t.y(g)?)?.logical_or(&t.y(g)?.isnan()?)?;
        if i == 0 { where_cond(&first, g, 0.0) } else { where_cond(&first, 0.0, g) }
    };
    "fmin" [X | Y, X | Y] |t, g, i| {
        let first = t.x(g)?.le(&t.y(g)?)?.logical_or(&t.y(g)?.isnan()?)?;
        if i == 0 { where_cond(&first, g, 0.0) } else { where_cond(&first, 0.0, g) }
    };
    "clamp" [X | Y | Z, X | Y | Z, X | Y | Z] |t, g, i| {
        let (x, min, max) = (t.x(g)?, t.y(g)?, t.tensor(2, g)?);
        match i {
            0 => where_cond(&x.ge(&min)?.logical_and(&x.le(&max)?)?, g, 0.0),
            1 => where_cond(&min.lt(&max)?.logical_and(&x.lt(&min)?)?, g, 0.0),
            _ => where_cond(&x.gt(&max)?.logical_or(&max.lt(&min)?)?, g, 0.0),
        }
    };
    "clamp_min" [X | Y, X | Y] |t, g, i| {
        let within = t.x(g)?.ge(&t.y(g)?)?;
        if i == 0 { where_cond(&within, g, 0.0) } else { where_cond(&within, 0.0, g) }
    };
    "clamp_max" [X | Y, X | Y] |t, g, i| {
        let within = t.x(g)?.le(&t.y(g)?)?;
        if i == 0 { where_cond(&within, g, 0.0) } else { where_cond(&within, 0.0, g) }
    };
    "hardtanh" [X] |t, g, _| {
        let x = t.x(g)?;
        where_cond(&x.gt(t.number(1))?.logical_and(&x.lt(t.number(2))?)?, g, 0.0)
    };
    "nan_to_num" [X] |t, g, _| where_cond(&t.x(g)?.isfinite()?, g, 0.0);
}
