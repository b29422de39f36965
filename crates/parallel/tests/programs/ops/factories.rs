//! Rows of functions that make tensors, copy them and read them.

use warpline::{
    DType, arange, arange_start_step, empty, eye, full, linspace, logspace, ones, rand, randint,
    randn, randperm, tril_indices, triu_indices, zeros,
};

use crate::generate::Draw;
use crate::model::{ANY, Out, Predict, UNKNOWN, Value, count, float_of};
use crate::prelude::{dtype, pattern, place, read, sizes};
use crate::row::{Effect, Row, row};

/// Draws `[dtype, place, sizes…]`.
fn options_and_sizes(d: &mut Draw<'_>) {
    d.dtype();
    let place = d.place();
    d.number(place as i64);
    d.sizes().into_iter().for_each(|n| d.number(n as i64));
}

/// Draws a tensor and a device.
fn tensor_and_place(d: &mut Draw<'_>) {
    d.any();
    let place = d.place();
    d.number(place as i64);
}

/// Predicts a copy of `t[0]` on the device in `n[0]`.
fn moved(t: &[Value], n: &[i64]) -> Predict {
    if !(0..3).contains(&n[0]) {
        return Err(UNKNOWN);
    }
    Ok(vec![Out::New { dtype: t[0].dtype, place: n[0] as usize, sizes: t[0].sizes.clone() }])
}

/// Returns the dtype with a number, if there is one.
fn named(number: i64) -> Option<DType> {
    DType::ALL.get(usize::try_from(number).ok()?).copied()
}

/// Predicts a new tensor of the dtype in `n[0]` on the device in `n[1]`.
fn made(n: &[i64], sizes: &[usize]) -> Predict {
    let valid = |dtype: i64| (0..DType::ALL.len() as i64).contains(&dtype);
    if !valid(n[0]) || !(0..3).contains(&n[1]) {
        return Err(UNKNOWN);
    }
    count(sizes)?;
    Ok(vec![Out::New { dtype: dtype(n[0]), place: n[1] as usize, sizes: sizes.to_vec() }])
}

/// Predicts a tensor with the sizes `n[at..]`. One of them may be too large.
fn sized(n: &[i64], at: usize) -> Predict {
    let sizes = sizes(&n[at..]);
    let bits = sizes.iter().try_fold(1usize, |all, &n| all.checked_mul(n)).is_none();
    if bits && sizes.contains(&0) {
        return Err(UNKNOWN);
    }
    if bits {
        made(n, &[0])?;
        return Err(&["SizeOverflow"]);
    }
    made(n, &sizes)
}

fn floats(n: &[i64], at: usize) -> Predict {
    let predicted = sized(n, at)?;
    crate::model::takes(dtype(n[0]).is_float())?;
    Ok(predicted)
}

/// Draws `[dtype, place, count]`.
fn options_and_count(d: &mut Draw<'_>) {
    d.dtype();
    let place = d.place();
    d.number(place as i64);
    d.int(0, 9);
}

fn counted(n: &[i64]) -> Predict {
    if n[2] < 0 {
        return Err(UNKNOWN);
    }
    made(n, &[n[2] as usize])
}

/// Predicts the indices of a triangle of a small matrix. For a matrix with few rows or columns and a
/// huge number of the others, the call may succeed or fail, which depends on the offset.
fn triangle(n: &[i64]) -> Predict {
    let [rows, columns] = [n[0] as usize, n[1] as usize];
    match (rows, columns) {
        (0..=64, 0..=64) => Ok(vec![]),
        (0..=8, columns) if columns >= 1 << 62 => Err(ANY),
        (rows, 0..=8) if rows >= 1 << 62 => Err(ANY),
        _ => Err(UNKNOWN),
    }
}

pub(crate) fn rows() -> Vec<Row> {
    vec![
        row!(
            "Tensor::from_vec",
            |d| {
                d.number(0);
                d.number(0);
                d.number(0);
                d.number(0);
                d.number(2);
            },
            |_, n| {
                if n[3] < 0 || !(0..=64).contains(&n[2]) {
                    return Err(UNKNOWN);
                }
                made(n, &sizes(&n[4..]))
            },
            |_, n| pattern(n)?
        )
        .weight(1),
        row!("drop", |d| d.any(), |_, _| Ok(vec![]), |_, _| ()).effect(Effect::Drop).weight(15),
        row!("Tensor::to_vec", |d| d.any(), |_, _| Ok(vec![]), |t, _| {
            read(&t[0])?;
        })
        .effect(Effect::Read)
        .weight(20),
        row!("Tensor::clone", |d| d.any(), |_, _| Ok(vec![Out::Same(0)]), |t, _| t[0].clone()),
        row!("Tensor::to_string", |d| d.any(), |_, _| Ok(vec![]), |t, _| {
            let _ = t[0].to_string();
        }),
        row!(
            "Tensor::copy",
            |d| d.any(),
            |t, _| crate::model::new(&t[0], t[0].dtype, &t[0].sizes),
            |t, _| t[0].copy()?
        ),
        row!("zeros", options_and_sizes, |_, n| sized(n, 2), |_, n| zeros(
            sizes(&n[2..]),
            (dtype(n[0]), place(n[1])?)
        )?),
        row!("ones", options_and_sizes, |_, n| sized(n, 2), |_, n| ones(
            sizes(&n[2..]),
            (dtype(n[0]), place(n[1])?)
        )?),
        row!("empty", options_and_sizes, |_, n| sized(n, 2), |_, n| {
            let t = empty(sizes(&n[2..]), (dtype(n[0]), place(n[1])?))?;
            t.zero_()?;
            t
        }),
        row!("full", options_and_sizes, |_, n| sized(n, 2), |_, n| full(
            sizes(&n[2..]),
            3,
            (dtype(n[0]), place(n[1])?)
        )?),
        row!("rand", options_and_sizes, |_, n| floats(n, 2), |_, n| rand(
            sizes(&n[2..]),
            (dtype(n[0]), place(n[1])?)
        )?)
        .random()
        .weight(2),
        row!("randn", options_and_sizes, |_, n| floats(n, 2), |_, n| randn(
            sizes(&n[2..]),
            (dtype(n[0]), place(n[1])?)
        )?)
        .random()
        .weight(2),
        row!("randint", options_and_sizes, |_, n| sized(n, 2), |_, n| randint(
            0,
            2,
            sizes(&n[2..]),
            (dtype(n[0]), place(n[1])?)
        )?)
        .random()
        .weight(2),
        row!(
            "randperm",
            options_and_count,
            |_, n| {
                if named(n[0]) == Some(DType::Bool) {
                    return Err(UNKNOWN);
                }
                counted(n)
            },
            |_, n| randperm(n[2] as usize, (dtype(n[0]), place(n[1])?))?
        )
        .random()
        .weight(2),
        row!(
            "arange",
            options_and_count,
            |_, n| {
                if named(n[0]) == Some(DType::Bool) {
                    return Err(UNKNOWN);
                }
                counted(n)
            },
            |_, n| arange(n[2], (dtype(n[0]), place(n[1])?))?
        ),
        row!(
            "arange_start_step",
            |d| {
                d.number(DType::I64 as i64);
                d.number(0);
                d.int(-9, 9);
                d.int(-9, 9);
                d.int(-3, 3);
            },
            |_, n| {
                let (start, end, step) = (n[2] as i128, n[3] as i128, n[4] as i128);
                if step == 0 || (end > start) != (step > 0) && end != start {
                    made(n, &[0])?;
                    return if named(n[0]) == Some(DType::I64) {
                        Err(&["InvalidArgument"])
                    } else {
                        Err(UNKNOWN)
                    };
                }
                if named(n[0]) != Some(DType::I64) {
                    return Err(UNKNOWN);
                }
                let steps = (end - start + step - step.signum()) / step;
                made(n, &[usize::try_from(steps).map_err(|_| UNKNOWN)?])
            },
            |_, n| arange_start_step(n[2], n[3], n[4], (dtype(n[0]), place(n[1])?))?
        ),
        row!(
            "linspace",
            options_and_count,
            |_, n| {
                if !named(n[0]).is_some_and(DType::is_float) {
                    return Err(UNKNOWN);
                }
                counted(n)
            },
            |_, n| linspace(0.0, 4.0, n[2] as usize, (dtype(n[0]), place(n[1])?))?
        )
        .rounded(),
        row!(
            "logspace",
            options_and_count,
            |_, n| {
                if !named(n[0]).is_some_and(DType::is_float) {
                    return Err(UNKNOWN);
                }
                counted(n)
            },
            |_, n| logspace(0.0, 4.0, n[2] as usize, 2.0, (dtype(n[0]), place(n[1])?))?
        )
        .rounded(),
        row!(
            "eye",
            options_and_count,
            |_, n| {
                if n[2] < 0 {
                    return Err(UNKNOWN);
                }
                let side = n[2] as usize;
                made(n, &[side, side])
            },
            |_, n| eye(n[2] as usize, (dtype(n[0]), place(n[1])?))?
        ),
        // Only calls with small or with huge matrices are predicted, but every call must return.
        row!(
            "tril_indices",
            |d| {
                d.int(0, 5);
                d.int(0, 5);
                d.int(-4, 4);
            },
            |_, n| triangle(n),
            |_, n| {
                let pairs = tril_indices(n[0] as usize, n[1] as usize, n[2], place(0)?)?;
                assert_eq!(pairs.size()[0], 2);
            }
        ),
        row!(
            "triu_indices",
            |d| {
                d.int(0, 5);
                d.int(0, 5);
                d.int(-4, 4);
            },
            |_, n| triangle(n),
            |_, n| {
                let pairs = triu_indices(n[0] as usize, n[1] as usize, n[2], place(0)?)?;
                assert_eq!(pairs.size()[0], 2);
            }
        ),
        row!(
            "Tensor::to(dtype)",
            |d| {
                d.any();
                d.dtype();
            },
            |t, n| {
                if !(0..10).contains(&n[0]) {
                    return Err(UNKNOWN);
                }
                let to = dtype(n[0]);
                if to == t[0].dtype {
                    return Ok(vec![Out::Same(0)]);
                }
                // The conversion of a float outside the range of an integer dtype is not defined.
                if t[0].is_float() && !to.is_float() {
                    return Err(UNKNOWN);
                }
                crate::model::new(&t[0], to, &t[0].sizes)
            },
            |t, n| t[0].to(dtype(n[0]))?
        )
        .weight(8),
        row!(
            "Tensor::to(device)",
            tensor_and_place,
            moved,
            |t, n| if t[0].device() == place(n[0])? {
                t[0].copy()?
            } else {
                t[0].to(place(n[0])?)?
            }
        )
        .weight(12),
        row!("Tensor::to_non_blocking", tensor_and_place, moved, |t, n| if t[0].device()
            == place(n[0])?
        {
            t[0].copy()?
        } else {
            t[0].to_non_blocking(place(n[0])?)?
        })
        .weight(12),
        row!(
            "Tensor::zeros_like",
            |d| d.any(),
            |t, _| crate::model::new(&t[0], t[0].dtype, &t[0].sizes),
            |t, _| t[0].zeros_like(())?
        )
        .constant(),
        row!(
            "Tensor::full_like",
            |d| {
                d.any();
                d.int(0, 100);
            },
            |t, n| {
                if !(0..=100).contains(&n[0]) {
                    return Err(UNKNOWN);
                }
                crate::model::new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, n| t[0].full_like(n[0], ())?
        )
        .constant(),
        row!(
            "Tensor::item",
            |d| d.any(),
            |t, _| if t[0].numel() == 1 { Ok(vec![]) } else { Err(&["NotAScalar"]) },
            |t, _| {
                t[0].to_scalar()?;
            }
        ),
        row!(
            "Tensor::contiguous",
            |d| d.any(),
            |t, _| if t[0].contiguous() {
                Ok(vec![Out::Same(0)])
            } else {
                crate::model::new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, _| t[0].contiguous()?
        ),
    ]
    .into_iter()
    .chain([row!(
        "Tensor::mean_of_copy",
        |d| d.float(),
        |t, _| if t[0].is_float() {
            crate::model::new(&t[0], float_of(t[0].dtype), &[])
        } else {
            Err(UNKNOWN)
        },
        |t, _| t[0].copy()?.mean(())?
    )
    .rounded()])
    .collect()
}
