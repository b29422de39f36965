//! Rows of convolutions and pools.

use warpline::DType;
use warpline::functional::{ConvOptions, MaxPoolOptions, conv1d, max_pool2d};

use crate::generate::{Draw, FLOATS};
use crate::model::{Predict, UNKNOWN, Value, new};
use crate::row::{Row, row};

/// Returns the number of positions of a window, as PyTorch computes it.
fn places(size: usize, kernel: i64, stride: i64, dilation: i64) -> Option<i128> {
    let reach = dilation as i128 * (kernel as i128 - 1) + 1;
    let room = size as i128 - reach;
    (room >= 0).then(|| room / stride as i128 + 1)
}

fn image(d: &mut Draw<'_>) {
    d.tensor(&FLOATS, |v| v.ndim() == 3 && !v.sizes.contains(&0));
    for _ in 0..2 {
        d.int(1, 2);
    }
    d.int(1, 3);
    d.int(1, 3);
}

/// Predicts a pool over the last two dimensions, with `[kernel…, stride, dilation]` in `n`.
fn pool(t: &[Value], n: &[i64]) -> Predict {
    if t[0].ndim() != 3 || t[0].sizes.contains(&0) || !t[0].is_float() {
        return Err(UNKNOWN);
    }
    if n.iter().any(|n| *n <= 0) {
        // Negative numbers become huge sizes, which the model does not predict. A zero is refused.
        return if n.contains(&0) && n.iter().all(|n| *n >= 0) {
            Err(&["InvalidArgument", "ShapeMismatch"])
        } else {
            Err(UNKNOWN)
        };
    }
    let size = |d: usize| places(t[0].sizes[d], n[d - 1], n[2], n[3]);
    match (size(1), size(2)) {
        (Some(h), Some(w)) => {
            // A stride or dilation beyond 32 bits has no effect: since the window fits, the window
            // has only one position or only one element.
            let sizes = [t[0].sizes[0], h as usize, w as usize];
            new(&t[0], t[0].dtype, &sizes)
        }
        _ => Err(&["ShapeMismatch", "InvalidArgument"]),
    }
}

fn signal(d: &mut Draw<'_>) {
    d.tensor(&[DType::F32, DType::F64], |v| v.ndim() == 3 && !v.sizes.contains(&0));
    let value = d.arg(0);
    let channels = value.sizes.get(1).copied().unwrap_or(1);
    d.fresh(value.dtype, value.place, 0, &[2, channels, 2]);
    d.int(1, 3);
    d.int(1, 2);
}

fn conv(t: &[Value], n: &[i64]) -> Predict {
    let fits =
        t[0].ndim() == 3 && t[1].ndim() == 3 && !t[0].sizes.contains(&0) && t[1].sizes[2] > 0;
    if !fits || t[0].dtype != t[1].dtype || t[0].place != t[1].place || !t[0].is_float() {
        return Err(UNKNOWN);
    }
    if t[0].sizes[1] != t[1].sizes[1] {
        return Err(&["ShapeMismatch"]);
    }
    if n.iter().any(|n| *n <= 0) {
        return if n.contains(&0) && n.iter().all(|n| *n >= 0) {
            Err(&["InvalidArgument", "ShapeMismatch"])
        } else {
            Err(UNKNOWN)
        };
    }
    match places(t[0].sizes[2], t[1].sizes[2] as i64, n[0], n[1]) {
        Some(places) => new(&t[0], t[0].dtype, &[t[0].sizes[0], t[1].sizes[0], places as usize]),
        None => Err(&["ShapeMismatch", "InvalidArgument"]),
    }
}

pub(crate) fn rows() -> Vec<Row> {
    vec![
        row!("functional::max_pool2d", image, pool, |t, n| max_pool2d(
            &t[0],
            [n[0] as usize, n[1] as usize],
            MaxPoolOptions::new().stride(n[2] as usize).dilation(n[3] as usize)
        )?),
        row!("functional::conv1d", signal, conv, |t, n| conv1d(
            &t[0],
            &t[1],
            None,
            ConvOptions::new().stride(n[0] as usize).dilation(n[1] as usize)
        )?)
        .rounded(),
    ]
}
