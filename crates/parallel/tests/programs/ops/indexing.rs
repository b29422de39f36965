//! Rows of functions with tensors of indices, and of functions that return indices. The indices are in
//! range; `scenarios.rs` has a row with an index out of range.

use warpline::{DType, UniqueOptions, embedding};

use crate::generate::Draw;
use crate::model::{Kinds, UNKNOWN, Value, dim, new, size, writable};
use crate::row::{DTYPES, Row, row};

/// Draws a tensor, one of its dimensions that is not empty, and indices into this dimension.
fn indexed(d: &mut Draw<'_>, count: Option<usize>) {
    d.tensor(&DTYPES, |v| v.ndim() > 0 && !v.sizes.contains(&0));
    let at = d.dim();
    let value = d.arg(0);
    let own = size(&value, at);
    let count = count.unwrap_or_else(|| d.random.below(4));
    d.fresh(DType::I64, value.place, own, &[count]);
}

/// Returns the indexed dimension. Fails if the dimension, or the device or dtype of the indices, is
/// wrong. Does not check the values of the indices, which `indexed` draws in range.
fn indices(t: &[Value], n: &[i64]) -> Result<usize, Kinds> {
    let mut wrong: Vec<Kinds> = Vec::new();
    wrong.extend(dim(&t[0], n[0]).err());
    if t[1].place != t[0].place {
        wrong.push(&["DeviceMismatch"]);
    }
    if t[1].dtype != DType::I64 {
        if t[1].dtype == DType::I32 {
            return Err(UNKNOWN);
        }
        wrong.push(&["DTypeMismatch"]);
    }
    match wrong[..] {
        [] => dim(&t[0], n[0]),
        [kinds] => Err(kinds),
        _ => Err(UNKNOWN),
    }
}

fn vector(t: &Value) -> Result<usize, Kinds> {
    match t.sizes[..] {
        [count] => Ok(count),
        _ => Err(UNKNOWN),
    }
}

pub(crate) fn rows() -> Vec<Row> {
    vec![
        row!(
            "Tensor::index_select",
            |d| {
                indexed(d, None);
                let own = d.arg(0).sizes.len();
                d.number(own as i64);
            },
            |t, n| {
                // The dimension was drawn for a tensor with `n[1]` dimensions.
                if n[1] != t[0].ndim() as i64 {
                    return Err(UNKNOWN);
                }
                // The call divides by the size of the dimension.
                if t[1].dtype == DType::Bool || t[0].sizes.contains(&0) {
                    return Err(UNKNOWN);
                }
                let count = vector(&t[1])?;
                let d = indices(t, n)?;
                let mut sizes = t[0].sizes.clone();

                if t[0].ndim() == 0 || t[1].numel() > 4 {
                    return Err(UNKNOWN);
                }
                sizes[d] = count;
                new(&t[0], t[0].dtype, &sizes)
            },
            |t, n| {
                let own = t[0].size()[n[0].rem_euclid(t[0].dim() as i64) as usize] as i64;
                t[0].index_select(n[0], &t[1].remainder(own)?)?
            }
        )
        .weight(8),
        row!(
            "Tensor::index_add_",
            |d| {
                d.tensor(&DTYPES, |v| {
                    v.ndim() == 1 && v.dtype != DType::Bool && !v.sizes.contains(&0)
                });
                let value = d.arg(0);
                d.fresh(
                    DType::I64,
                    value.place,
                    value.sizes.first().copied().unwrap_or(1).max(1),
                    &[3],
                );
                d.fresh(value.dtype, value.place, 0, &[3]);
            },
            |t, _| {
                if t[1..].iter().any(|v| v.storage == t[0].storage) {
                    return Err(UNKNOWN);
                }
                if t[0].ndim() != 1
                    || t[0].numel() == 0
                    || t[1].sizes != [3]
                    || t[2].sizes != [3]
                    || t[2].dtype != t[0].dtype
                    || t[1].dtype != DType::I64
                    || t.iter().any(|v| v.place != t[0].place)
                    || t[0].dtype == DType::Bool
                {
                    return Err(UNKNOWN);
                }
                writable(&t[0])?;
                Ok(vec![])
            },
            |t, _| t[0].index_add_(0, &t[1].remainder(t[0].size()[0] as i64)?, &t[2])?
        )
        .writes()
        .rounded(),
        row!(
            "embedding",
            |d| {
                d.tensor(&crate::generate::FLOATS, |v| v.ndim() == 2 && !v.sizes.contains(&0));
                let value = d.arg(0);
                d.fresh(
                    DType::I64,
                    value.place,
                    value.sizes.first().copied().unwrap_or(1).max(1),
                    &[2, 2],
                );
            },
            |t, _| {
                if t[0].ndim() != 2
                    || t[0].numel() == 0
                    || t[1].dtype != DType::I64
                    || t[1].place != t[0].place
                    || !t[0].is_float()
                {
                    return Err(UNKNOWN);
                }
                let mut sizes = t[1].sizes.clone();
                sizes.push(t[0].sizes[1]);
                new(&t[0], t[0].dtype, &sizes)
            },
            |t, _| embedding(&t[0], &t[1].remainder(t[0].size()[0] as i64)?)?
        ),
        row!(
            "Tensor::gather",
            |d| {
                d.tensor(&DTYPES, |v| v.ndim() > 0 && !v.sizes.contains(&0));
                let value = d.arg(0);
                d.number(0);
                d.fresh(
                    DType::I64,
                    value.place,
                    value.sizes.first().copied().unwrap_or(1).max(1),
                    &value.sizes,
                );
            },
            |t, n| {
                if t[0].ndim() == 0 || t[0].numel() == 0 || t[1].sizes != t[0].sizes {
                    return Err(UNKNOWN);
                }
                if t[1].dtype != DType::I64 {
                    return Err(UNKNOWN);
                }
                if n[0] != 0 {
                    dim(&t[0], n[0])?;
                    return Err(UNKNOWN);
                }
                indices(t, n)?;
                new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, n| if n[0] == 0 {
                t[0].gather(0, &t[1].remainder(t[0].size()[0] as i64)?)?
            } else {
                t[0].gather(n[0], &t[1])?
            }
        ),
        row!(
            "Tensor::nonzero",
            |d| d.any(),
            |t, _| {
                let _ = t;
                Ok(vec![])
            },
            |t, _| {
                t[0].nonzero()?;
            }
        )
        .sharp(),
        row!(
            "Tensor::unique",
            |d| d.any(),
            |t, _| if t[0].tracked() || t[0].dtype == DType::Bool {
                Err(UNKNOWN)
            } else {
                Ok(vec![])
            },
            |t, _| {
                t[0].unique(UniqueOptions::new().return_inverse(true).return_counts(true))?;
            }
        )
        .sharp(),
    ]
}
