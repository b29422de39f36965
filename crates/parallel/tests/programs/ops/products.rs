//! Rows of products of matrices and vectors, and of functions that join tensors.

use warpline::{DType, cat, einsum, stack};

use crate::generate::{Draw, FLOATS};
use crate::model::{Kinds, Predict, UNKNOWN, Value, broadcast, dim, new};
use crate::row::{DTYPES, Row, row};

/// Draws a tensor, and a matrix that fits its last dimension.
fn matrix(d: &mut Draw<'_>) {
    d.tensor(&FLOATS, |v| (1..=3).contains(&v.ndim()));
    let (first, columns) = (d.arg(0), d.random.below(4));
    let inner = first.sizes.last().copied().unwrap_or(1);
    let fits = |v: &Value| v.place == first.place && v.ndim() == 2 && v.sizes[0] == inner;
    let live = d.model.values.values().any(|v| fits(v) && v.dtype == first.dtype);
    if live {
        return d.tensor(&[first.dtype], fits);
    }
    d.fresh(first.dtype, first.place, 0, &[inner, columns]);
}

fn operands(t: &[Value]) -> Result<DType, Kinds> {
    let mut wrong: Vec<Kinds> = Vec::new();
    if t[0].place != t[1].place {
        wrong.push(&["DeviceMismatch"]);
    }
    if t[0].dtype != t[1].dtype {
        wrong.push(&["OperandDTypes"]);
    }
    match wrong[..] {
        [] if t[0].dtype == DType::Bool => Err(UNKNOWN),
        [] => Ok(t[0].dtype),
        [kinds] => Err(kinds),
        _ => Err(UNKNOWN),
    }
}

fn matmul(t: &[Value]) -> Predict {
    let dtype = operands(t);
    let (a, b) = (&t[0].sizes, &t[1].sizes);
    let sizes = if a.is_empty() || b.is_empty() {
        Err(&["ShapeMismatch"] as Kinds)
    } else {
        let (row, column) = (a.len() == 1, b.len() == 1);
        let a = if row { vec![1, a[0]] } else { a.clone() };
        let b = if column { vec![b[0], 1] } else { b.clone() };
        let (batch_a, batch_b) = (&a[..a.len() - 2], &b[..b.len() - 2]);
        let [m, k] = a[a.len() - 2..] else { unreachable!() };
        let [other, n] = b[b.len() - 2..] else { unreachable!() };
        if k != other {
            Err(&["ShapeMismatch"] as Kinds)
        } else {
            broadcast(batch_a, batch_b).map(|mut sizes| {
                sizes.extend((!row).then_some(m));
                sizes.extend((!column).then_some(n));
                sizes
            })
        }
    };
    if dtype.is_err() && sizes.is_err() {
        return Err(UNKNOWN);
    }
    new(&t[0], dtype?, &sizes?)
}

fn list(d: &mut Draw<'_>) {
    d.tensor(&DTYPES, |v| v.ndim() > 0);
    d.same();
    d.same();
    d.dim();
}

fn joined(t: &[Value], n: &[i64]) -> Predict {
    if t.iter().any(|v| v.place != t[0].place || v.sizes != t[0].sizes || v.dtype != t[0].dtype) {
        return Err(UNKNOWN);
    }
    if t[0].ndim() == 0 {
        return Err(UNKNOWN);
    }
    let d = dim(&t[0], n[0])?;
    let mut sizes = t[0].sizes.clone();
    // Tensors of the shape `[0]` are skipped.
    sizes[d] *= t.len();
    new(&t[0], t[0].dtype, &sizes)
}

fn stacked(t: &[Value], n: &[i64]) -> Predict {
    if t.iter().any(|v| v.place != t[0].place || v.dtype != t[0].dtype) {
        return Err(UNKNOWN);
    }
    if t.iter().any(|v| v.sizes != t[0].sizes) {
        return Err(&["ShapeMismatch"]);
    }
    let count = t[0].ndim() as i64 + 1;
    if !(-count..count).contains(&n[0]) {
        return Err(&["DimOutOfRange"]);
    }
    let mut sizes = t[0].sizes.clone();
    sizes.insert(n[0].rem_euclid(count) as usize, t.len());
    new(&t[0], t[0].dtype, &sizes)
}

pub(crate) fn rows() -> Vec<Row> {
    vec![
        row!("Tensor::matmul", matrix, |t, _| matmul(t), |t, _| t[0].matmul(&t[1])?)
            .rounded()
            .weight(10),
        row!(
            "Tensor::mm",
            |d| {
                d.tensor(&FLOATS, |v| v.ndim() == 2);
                let first = d.arg(0);
                let rows = first.sizes.last().copied().unwrap_or(1);
                d.fresh(first.dtype, first.place, 0, &[rows, 3]);
            },
            |t, _| if t[0].ndim() == 2 && t[1].ndim() == 2 { matmul(t) } else { Err(UNKNOWN) },
            |t, _| t[0].mm(&t[1])?
        )
        .rounded(),
        row!(
            "einsum",
            |d| {
                d.tensor(&FLOATS, |v| v.ndim() == 2);
                let first = d.arg(0);
                let rows = first.sizes.last().copied().unwrap_or(1);
                d.fresh(first.dtype, first.place, 0, &[2, rows]);
            },
            |t, _| {
                let fits =
                    t.iter().all(|v| v.ndim() == 2) && t[0].sizes.get(1) == t[1].sizes.get(1);
                if !fits
                    || t[0].dtype != t[1].dtype
                    || t[0].place != t[1].place
                    || t[0].dtype == DType::Bool
                {
                    return Err(UNKNOWN);
                }
                new(&t[0], t[0].dtype, &[t[0].sizes[0], t[1].sizes[0]])
            },
            |t, _| einsum("ij,kj->ik", t)?
        )
        .rounded(),
        row!("cat", list, joined, |t, n| cat(t, n[0])?),
        row!("stack", list, stacked, |t, n| stack(t, n[0])?),
    ]
}
