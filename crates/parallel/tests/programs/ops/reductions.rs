//! Rows of reductions, norms and sorting.

use warpline::{DType, DiffOptions, NormOptions, SortOptions, VarOptions};

use crate::generate::{Draw, FLOATS};
use crate::model::{Kinds, Out, Predict, UNKNOWN, Value, dim, new, size, takes};
use crate::row::{Row, row};

/// Returns the sizes without dimension `d` or, if `keep` is true, with 1 in its place.
fn reduced(t: &Value, d: usize, keep: bool) -> Vec<usize> {
    let mut sizes = t.sizes.clone();
    if d < sizes.len() {
        if keep {
            sizes[d] = 1;
        } else {
            sizes.remove(d);
        }
    }
    sizes
}

fn over(t: &[Value], n: &[i64], dtype: Result<DType, Kinds>, keep: bool) -> Predict {
    let d = dim(&t[0], n[0]);
    if d.is_err() && dtype.is_err() {
        return Err(UNKNOWN);
    }
    let (d, dtype) = (d?, dtype?);
    new(&t[0], dtype, &reduced(&t[0], d, keep))
}

/// The dtype of a sum.
fn wide(t: &[Value]) -> Result<DType, Kinds> {
    Ok(if t[0].is_float() { t[0].dtype } else { DType::I64 })
}

fn floats(t: &[Value]) -> Result<DType, Kinds> {
    takes(t[0].is_float())?;
    Ok(t[0].dtype)
}

/// Returns the dtype of `any` and `all`, which is `uint8` for `uint8`, as in PyTorch.
fn truth(t: &[Value]) -> Result<DType, Kinds> {
    Ok(if t[0].dtype == DType::U8 { DType::U8 } else { DType::Bool })
}

fn any_dim(d: &mut Draw<'_>) {
    d.any();
    d.dim();
}

fn float_dim(d: &mut Draw<'_>) {
    d.float();
    d.dim();
}

/// Draws a tensor without empty dimensions, and one of its dimensions.
fn full_dim(d: &mut Draw<'_>) {
    d.tensor(&crate::row::DTYPES, |v| !v.sizes.contains(&0));
    d.dim();
}

/// Predicts values and indices along a dimension.
fn extreme(t: &[Value], n: &[i64]) -> Predict {
    let d = dim(&t[0], n[0])?;
    if size(&t[0], d) == 0 {
        return Err(UNKNOWN);
    }
    takes(t[0].dtype != DType::Bool)?;
    let sizes = reduced(&t[0], d, false);
    let mut both = new(&t[0], t[0].dtype, &sizes)?;
    both.extend(new(&t[0], DType::I64, &sizes)?);
    Ok(both)
}

pub(crate) fn rows() -> Vec<Row> {
    vec![
        row!("Tensor::sum", any_dim, |t, n| over(t, n, wide(t), false), |t, n| t[0].sum(n[0])?)
            .rounded()
            .weight(8),
        row!("Tensor::sum(all)", |d| d.any(), |t, _| new(&t[0], wide(t)?, &[]), |t, _| t[0]
            .sum(())?)
        .rounded()
        .weight(8),
        row!("Tensor::sum_keepdim", any_dim, |t, n| over(t, n, wide(t), true), |t, n| t[0]
            .sum_keepdim(n[0])?)
        .rounded(),
        row!(
            "Tensor::sum(two)",
            |d| {
                d.tensor(&crate::row::DTYPES, |v| v.ndim() >= 2);
                d.number(0);
                d.number(-1);
            },
            |t, n| {
                let dims = [dim(&t[0], n[0])?, dim(&t[0], n[1])?];
                if dims[0] == dims[1] {
                    return if t[0].ndim() > 0 { Err(&["InvalidArgument"]) } else { Err(UNKNOWN) };
                }
                let sizes: Vec<usize> = t[0]
                    .sizes
                    .iter()
                    .enumerate()
                    .filter(|(d, _)| !dims.contains(d))
                    .map(|(_, n)| *n)
                    .collect();
                new(&t[0], wide(t)?, &sizes)
            },
            |t, n| t[0].sum([n[0], n[1]])?
        )
        .rounded(),
        row!("Tensor::mean", float_dim, |t, n| over(t, n, floats(t), false), |t, n| t[0]
            .mean(n[0])?)
        .rounded(),
        row!(
            "Tensor::prod",
            |d| {
                d.float();
                d.dim();
            },
            |t, n| over(t, n, wide(t), false),
            |t, n| t[0].prod(n[0])?
        )
        .rounded(),
        row!(
            "Tensor::amax",
            full_dim,
            |t, n| {
                let d = dim(&t[0], n[0])?;
                if size(&t[0], d) == 0 {
                    return Err(UNKNOWN);
                }
                over(t, n, Ok(t[0].dtype), false)
            },
            |t, n| t[0].amax(n[0])?
        ),
        row!("Tensor::max", full_dim, extreme, |t, n| t[0].max(n[0])?).sharp(),
        row!("Tensor::min", full_dim, extreme, |t, n| t[0].min(n[0])?).sharp(),
        row!(
            "Tensor::argmax",
            full_dim,
            |t, n| {
                if t[0].dtype == DType::Bool {
                    return Err(UNKNOWN);
                }
                let d = dim(&t[0], n[0])?;
                if size(&t[0], d) == 0 || t[0].dtype == DType::Bool {
                    return Err(UNKNOWN);
                }
                over(t, n, Ok(DType::I64), false)
            },
            |t, n| t[0].argmax(n[0])?
        )
        .sharp(),
        row!("Tensor::any", any_dim, |t, n| over(t, n, truth(t), false), |t, n| t[0].any(n[0])?)
            .sharp(),
        row!("Tensor::all", any_dim, |t, n| over(t, n, truth(t), false), |t, n| t[0].all(n[0])?)
            .sharp(),
        row!("Tensor::count_nonzero", any_dim, |t, n| over(t, n, Ok(DType::I64), false), |t, n| t
            [0]
        .count_nonzero(n[0])?)
        .sharp(),
        row!("Tensor::softmax", float_dim, |t, n| over_same(t, n), |t, n| t[0].softmax(n[0])?)
            .rounded(),
        row!("Tensor::log_softmax", float_dim, |t, n| over_same(t, n), |t, n| t[0]
            .log_softmax(n[0])?)
        .rounded(),
        row!(
            "Tensor::logsumexp",
            |d| {
                d.tensor(&FLOATS, |v| !v.sizes.contains(&0));
                d.dim();
            },
            |t, n| {
                if t[0].sizes.contains(&0) || !t[0].is_float() {
                    return Err(UNKNOWN);
                }
                over(t, n, floats(t), false)
            },
            |t, n| t[0].logsumexp(n[0])?
        )
        .rounded(),
        row!(
            "Tensor::var",
            |d| {
                d.float();
                d.dim();
                d.int(0, 1);
            },
            |t, n| {
                if !(0..=1).contains(&n[1]) {
                    return Err(UNKNOWN);
                }
                over(t, n, floats(t), false)
            },
            |t, n| t[0].var(VarOptions::new().dim(n[0]).correction(n[1] as usize))?
        )
        .rounded(),
        row!("Tensor::norm", float_dim, |t, n| { over(t, n, floats(t), false) }, |t, n| t[0]
            .norm(NormOptions::new().dim(n[0]))?)
        .rounded(),
        row!(
            "Tensor::sort",
            |d| {
                d.tensor(&crate::row::DTYPES, |v| v.dtype != DType::Bool);
                d.dim();
                d.int(0, 1);
            },
            |t, n| {
                if t[0].dtype == DType::Bool {
                    return Err(UNKNOWN);
                }
                dim(&t[0], n[0])?;
                let mut both = new(&t[0], t[0].dtype, &t[0].sizes)?;
                both.extend(new(&t[0], DType::I64, &t[0].sizes)?);
                Ok(both)
            },
            |t, n| t[0].sort(SortOptions::new().dim(n[0]).descending(n[1] == 1))?
        )
        .sharp(),
        row!(
            "Tensor::topk",
            |d| {
                d.tensor(&crate::row::DTYPES, |v| v.dtype != DType::Bool && v.ndim() > 0);
                d.int(0, 2);
                d.number(-1);
            },
            |t, n| {
                if t[0].dtype == DType::Bool || t[0].ndim() == 0 {
                    return Err(UNKNOWN);
                }
                let d = dim(&t[0], n[1])?;
                if n[0] < 0 || n[0] as usize > size(&t[0], d) {
                    return Err(&["InvalidArgument"]);
                }
                let mut sizes = t[0].sizes.clone();
                sizes[d] = n[0] as usize;
                let mut both = new(&t[0], t[0].dtype, &sizes)?;
                both.extend(new(&t[0], DType::I64, &sizes)?);
                Ok(both)
            },
            |t, n| t[0].topk(n[0] as usize, n[1])?
        )
        .sharp(),
        row!(
            "Tensor::diff",
            |d| {
                d.float();
                d.int(0, 2);
                d.dim();
            },
            |t, n| {
                if t[0].ndim() == 0 || n[0] < 0 {
                    return Err(UNKNOWN);
                }
                let d = dim(&t[0], n[1])?;
                let mut sizes = t[0].sizes.clone();
                sizes[d] = sizes[d].saturating_sub(n[0] as usize);
                if n[0] == 0 {
                    return Ok(vec![Out::Same(0)]);
                }
                if t[0].dtype == DType::Bool {
                    return Err(UNKNOWN);
                }
                new(&t[0], t[0].dtype, &sizes)
            },
            |t, n| t[0].diff(DiffOptions::new().n(n[0] as usize).dim(n[1]))?
        ),
    ]
}

fn over_same(t: &[Value], n: &[i64]) -> Predict {
    let d = dim(&t[0], n[0]);
    if d.is_err() && !t[0].is_float() {
        return Err(UNKNOWN);
    }
    d?;
    takes(t[0].is_float())?;
    new(&t[0], t[0].dtype, &t[0].sizes)
}
