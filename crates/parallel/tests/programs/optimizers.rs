//! Rows of optimizers, schedulers, gradient clipping, gradient scalers and regions of autocast.

use warpline::{DType, amp};
use warpline_nn as nn;
use warpline_nn::Module as _;

use crate::generate::Draw;
use crate::model::{Predict, UNKNOWN, Value, dtype, new, only, within};
use crate::row::{Row, row};

const SINGLES: [DType; 3] = [DType::F32, DType::F32, DType::F64];

/// Draws a batch for the numbers `[dtype, device, inputs, optimizer, rate, steps]`.
fn batch(d: &mut Draw<'_>) {
    d.tensor(&SINGLES, |v| v.ndim() == 2 && !v.sizes.contains(&0));
    let value = d.arg(0);
    d.number(value.dtype as i64);
    d.number(value.place as i64);
    d.number(value.sizes.last().map_or(1, |&n| n as i64));
    d.int(0, 4);
    d.int(0, 50);
    d.int(1, 3);
}

/// Predicts a weight with one output feature, trained with the numbers of `batch`.
fn trained(t: &[Value], n: &[i64]) -> Predict {
    let own = dtype(n[0])?;
    within(&n[1..2], 0, 2)?;
    within(&n[2..3], 1, 8)?;
    within(&n[3..4], 0, 4)?;
    within(&n[5..], 1, 3)?;
    if !own.is_float() || n[4] < 0 {
        return Err(&["InvalidArgument"]);
    }
    if !SINGLES.contains(&own) || t[0].ndim() != 2 || t[0].numel() == 0 || !t[0].is_float() {
        return Err(UNKNOWN);
    }
    only(&[
        (t[0].place as i64 != n[1], &["DeviceMismatch"]),
        (t[0].dtype != own, &["OperandDTypes", "DTypeMismatch"]),
        (t[0].sizes[1] as i64 != n[2], &["ShapeMismatch"]),
    ])?;
    new(&t[0], own, &[1, n[2] as usize])
}

/// Draws a tensor with elements for a parameter.
fn parameter(d: &mut Draw<'_>) {
    d.tensor(&SINGLES, |v| !v.sizes.contains(&0));
}

/// Predicts a new tensor like a parameter that `parameter` draws.
fn like_parameter(t: &Value) -> Predict {
    if !SINGLES.contains(&t.dtype) || t.numel() == 0 {
        return Err(UNKNOWN);
    }
    new(t, t.dtype, &t.sizes)
}

pub(crate) fn rows() -> Vec<Row> {
    let rows = vec![
        row!("a step of training", batch, trained, |t, n| {
            let map = nn::Linear::new(n[2] as usize, 1, ())?;
            let map = crate::prelude::fixed(map, n)?;
            map.requires_grad_(true)?;
            let mut optimizer =
                crate::prelude::optimizer(n[3], &map.parameters(), n[4] as f64 / 1000.0)?;
            // All gradients are sums of positive numbers, because rounding could change the sign of other sums.
            let batch = t[0].detach().abs()?.add(1)?;
            for _ in 0..n[5] {
                optimizer.zero_grad()?;
                map.forward(&batch)?.sum(())?.backward()?;
                optimizer.step()?;
            }
            map.weight.detach()
        })
        .rounded()
        .constant()
        .weight(8),
        row!(
            "Optimizer::load_state_dict",
            |d| {
                parameter(d);
                d.int(0, 4);
                d.mistake(2);
            },
            |t, n| {
                within(&n[..1], 0, 4)?;
                within(&n[1..], 0, 2)?;
                if n[1] > 0 {
                    like_parameter(&t[0])?;
                    // The state of a step of SGD without momentum has no tensors.
                    return Err(if n[0] == 0 && n[1] == 1 {
                        UNKNOWN
                    } else {
                        &["InvalidArgument"]
                    });
                }
                like_parameter(&t[0])
            },
            |t, n| {
                let own = |extra: usize| {
                    let copy = t[0].detach().copy()?.requires_grad_(true)?;
                    let others = (0..extra).map(|_| warpline::ones([2], t[0].device()));
                    let others = others.map(|t| t?.requires_grad_(true));
                    std::iter::once(Ok(copy)).chain(others).collect::<warpline::Result<Vec<_>>>()
                };
                let step = |to: &mut Box<dyn nn::optim::Optimizer>| {
                    for parameter in to.parameters() {
                        parameter.set_grad(&parameter.detach().ones_like(())?)?;
                    }
                    to.step()
                };
                let (first, second) = (own(0)?, own(if n[1] == 2 { 1 } else { 0 })?);
                let mut from = crate::prelude::optimizer(n[0], &first, 0.5)?;
                step(&mut from)?;
                let mut state = from.state_dict()?.to_tensors()?;
                if n[1] == 1 {
                    let wrong = |name: &str| name.starts_with("state.") && !name.ends_with("step");
                    let names: Vec<String> =
                        state.keys().filter(|name| wrong(name)).map(String::from).collect();
                    for name in names {
                        state.insert(name, warpline::ones([3, 0, 1, 1, 1, 1], t[0].device())?);
                    }
                }
                let mut to = crate::prelude::optimizer(n[0], &second, 0.25)?;
                to.load_state_dict(&nn::optim::OptimizerState::from_tensors(&state)?)?;
                crate::prelude::holds(to.lr(0) == 0.5, "the learning rate is loaded")?;
                second[0].detach().copy_(&first[0].detach(), ())?;
                step(&mut from)?;
                step(&mut to)?;
                let (a, b) = (first[0].detach(), second[0].detach());
                let (a, b) = (crate::prelude::read(&a)?, crate::prelude::read(&b)?);
                let equal = a.iter().zip(&b).all(|(a, b)| a == b || a.is_nan() && b.is_nan());
                crate::prelude::holds(equal, "both optimizers take the same step")?;
                first[0].detach()
            }
        )
        .rounded()
        .constant(),
        row!(
            "optim::StepLR",
            |d| {
                d.int(1, 3);
                d.int(0, 5);
            },
            |_, n| {
                within(&n[1..], 0, 5)?;
                within(&n[..1], 0, 3)?;
                if n[0] == 0 { Err(&["InvalidArgument"]) } else { Ok(vec![]) }
            },
            |_, n| {
                let weight = warpline::zeros([2], ())?.requires_grad_(true)?;
                let mut optimizer = crate::prelude::optimizer(0, &[weight], 8.0)?;
                let mut scheduler = nn::optim::StepLR::new(&mut *optimizer, n[0] as u32, 0.5)?;
                for _ in 0..n[1] {
                    optimizer.step()?;
                    nn::optim::Scheduler::step(&mut scheduler, &mut *optimizer)?;
                }
                let rate = 8.0 * 0.5f64.powi((n[1] / n[0]) as i32);
                crate::prelude::holds(optimizer.lr(0) == rate, "the rate is halved")?;
            }
        ),
        row!(
            "Optimizer::set_setting",
            |d| {
                d.int(0, 4);
                d.int(0, 9);
                d.number(0);
            },
            |_, n| {
                within(&n[..1], 0, 4)?;
                within(&n[1..2], 0, i64::MAX)?;
                if n[2] == 0 { Ok(vec![]) } else { Err(&["InvalidArgument"]) }
            },
            |_, n| {
                let weight = warpline::zeros([2], ())?.requires_grad_(true)?;
                let mut optimizer = crate::prelude::optimizer(n[0], &[weight], 1.0)?;
                optimizer.set_setting(n[2] as usize, "lr", n[1] as f64)?;
                let set = optimizer.lr(0) == n[1] as f64 && optimizer.group_count() == 1;
                crate::prelude::holds(set, "the setting is changed")?;
            }
        ),
        row!(
            "an optimizer without leaves",
            |d| {
                parameter(d);
                d.int(0, 4);
                d.int(0, 1);
            },
            |t, n| {
                within(&n[..1], 0, 4)?;
                within(&n[1..], 0, 2)?;
                like_parameter(&t[0])?;
                // 0: a leaf. 1: a leaf that is listed once in a second group. 2: the result of an op.
                if n[1] == 0 { Ok(vec![]) } else { Err(&["InvalidArgument"]) }
            },
            |t, n| {
                let leaf = t[0].detach().copy()?.requires_grad_(true)?;
                let list = match n[1] {
                    0 => vec![leaf],
                    1 => vec![leaf.clone(), leaf],
                    _ => vec![leaf.mul(2)?],
                };
                crate::prelude::optimizer(n[0], &list, 0.5)?.zero_grad()?
            }
        ),
        row!(
            "optim::clip_grad_norm_",
            |d| {
                parameter(d);
                d.int(0, 9);
            },
            |t, n| {
                within(n, 0, 9)?;
                Ok([like_parameter(&t[0])?, new(&t[0], t[0].dtype, &[])?].concat())
            },
            |t, n| {
                let leaf = t[0].detach().copy()?.requires_grad_(true)?;
                leaf.set_grad(&t[0].detach().copy()?)?;
                let norm =
                    nn::optim::clip_grad_norm_(std::slice::from_ref(&leaf), n[0] as f64, ())?;
                (leaf.grad().unwrap(), norm)
            }
        )
        .rounded()
        .constant(),
        row!(
            "amp::GradScaler",
            |d| {
                d.tensor(&[DType::F32], |v| !v.sizes.contains(&0));
                d.int(0, 16);
                d.int(101, 300);
                d.int(0, 1);
            },
            |t, n| {
                within(&n[2..], 0, 1)?;
                if n[1] <= 100 || n[0] >= 128 {
                    return Err(&["InvalidArgument"]);
                }
                within(&n[..1], 0, 16)?;
                if t[0].dtype != DType::F32 {
                    return Err(UNKNOWN);
                }
                like_parameter(&t[0])
            },
            |t, n| {
                let leaf = t[0].detach().copy()?.requires_grad_(true)?;
                let mut optimizer = crate::prelude::optimizer(0, std::slice::from_ref(&leaf), 1.0)?;
                let (scale, overflows) = (2f64.powf(n[0] as f64), n[2] == 1);
                let options = nn::amp::GradScalerOptions::new()
                    .init_scale(scale)
                    .growth_factor(n[1] as f64 / 100.0)
                    .growth_interval(1);
                let mut scaler = nn::amp::GradScaler::new(options)?;
                scaler.scale(&leaf.sum(())?)?.backward()?;
                if overflows {
                    leaf.grad().unwrap().fill_(f64::INFINITY)?;
                }
                scaler.step(&mut *optimizer)?;
                scaler.update()?;
                let factor = if overflows { 0.5 } else { n[1] as f64 / 100.0 };
                let near = (scaler.get_scale()? / (scale * factor) - 1.0).abs() < 1e-6;
                crate::prelude::holds(near, "the scale follows the overflow")?;
                leaf.detach()
            }
        )
        .constant()
        .weight(6),
        row!(
            "amp::GradScaler without a loss",
            |d| d.mistake(2),
            |_, n| match n[0] {
                0 => Ok(vec![]),
                1 | 2 => Err(&["InvalidArgument"]),
                _ => Err(UNKNOWN),
            },
            |_, n| {
                let leaf = warpline::ones([2], ())?.requires_grad_(true)?;
                let mut optimizer = crate::prelude::optimizer(0, &[leaf], 1.0)?;
                let mut scaler = nn::amp::GradScaler::new(())?;
                match n[0] {
                    1 => scaler.step(&mut *optimizer)?,
                    2 => scaler.update()?,
                    _ => drop(nn::amp::GradScaler::new(())?.state_dict()?),
                }
            }
        ),
        row!(
            "amp::autocast",
            |d| {
                d.tensor(&[DType::F32], |v| v.ndim() == 2);
                let first = d.arg(0);
                d.fresh(DType::F32, first.place, 0, &[first.sizes.last().map_or(1, |&n| n), 2]);
                let narrow = d.random.pick(&[DType::F16, DType::BF16]);
                d.number(narrow as i64);
            },
            |t, n| {
                let narrow = dtype(n[0])?;
                if !narrow.is_float() || narrow == DType::F64 {
                    return Err(&["InvalidArgument"]);
                }
                if t.iter().any(|v| v.ndim() != 2 || v.dtype != DType::F32)
                    || narrow == DType::F32
                    || t[0].place != t[1].place
                {
                    return Err(UNKNOWN);
                }
                if t[0].sizes[1] != t[1].sizes[0] {
                    return Err(&["ShapeMismatch"]);
                }
                new(&t[0], narrow, &[t[0].sizes[0], t[1].sizes[1]])
            },
            |t, n| {
                let narrow = crate::prelude::dtype(n[0]);
                let product = amp::autocast(t[0].device(), narrow, || {
                    let enabled = amp::is_autocast_enabled(t[0].device())?;
                    let own = amp::get_autocast_dtype(t[0].device())? == narrow;
                    crate::prelude::holds(enabled && own, "the region is open")?;
                    t[0].matmul(&t[1])
                });
                let open = amp::is_autocast_enabled(t[0].device())?;
                crate::prelude::holds(!open, "the region has ended")?;
                product?
            }
        )
        .rounded()
        .weight(6),
        row!(
            "nested regions of autocast",
            |d| {
                d.tensor(&[DType::F32], |v| v.ndim() == 1);
                let first = d.arg(0);
                let wrong = usize::from(d.random.percent(20));
                d.fresh(DType::F32, first.place, 0, &[first.numel() + wrong]);
            },
            |t, _| {
                if t.iter().any(|v| v.ndim() != 1 || v.dtype != DType::F32 || v.place != t[0].place)
                {
                    return Err(UNKNOWN);
                }
                if t[0].sizes != t[1].sizes {
                    return Err(&["ShapeMismatch"]);
                }
                new(&t[0], DType::F32, &[])
            },
            |t, _| {
                let device = t[0].device();
                amp::autocast(device, DType::BF16, || {
                    let off = amp::AutocastOptions::new().enabled(false);
                    amp::autocast(device, off, || t[0].matmul(&t[1]))
                })?
            }
        )
        .rounded(),
    ];
    rows.into_iter().map(Row::exclusive).collect()
}
