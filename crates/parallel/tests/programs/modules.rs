//! Rows of modules: forward passes, modes, moves and state dictionaries.

use warpline_nn as nn;
use warpline_nn::Module as _;

use crate::generate::{Draw, FLOATS};
use crate::model::{Kinds, Out, Predict, UNKNOWN, Value, dtype, new, only, within};
use crate::row::{Row, row};

/// Draws a tensor of floats without empty dimensions, and the dtype and device of a module.
fn input(d: &mut Draw<'_>, fits: impl Fn(&Value) -> bool) {
    d.tensor(&FLOATS, |v| !v.sizes.contains(&0) && fits(v));
    let value = d.arg(0);
    d.number(value.dtype as i64);
    d.number(value.place as i64);
}

/// Passes the size of a dimension of argument 0, counted from the end.
fn size_from_end(d: &mut Draw<'_>, from_end: usize) -> i64 {
    let sizes = d.arg(0).sizes;
    let size = sizes.len().checked_sub(from_end).map_or(1, |at| sizes[at]);
    d.number(size as i64);
    size as i64
}

/// Predicts a forward pass of a module with the numbers `[dtype, device, …]`, except for its sizes. `mistake` is the
/// error of an input with wrong sizes.
fn passes(t: &Value, n: &[i64], mistake: Option<Kinds>) -> Result<(), Kinds> {
    let own = dtype(n[0])?;
    within(&n[1..2], 0, 2)?;
    if t.sizes.contains(&0) {
        return Err(UNKNOWN);
    }
    if !own.is_float() {
        return Err(&["InvalidArgument"]);
    }
    only(&[
        (t.place as i64 != n[1], &["DeviceMismatch"]),
        (t.dtype != own, &["OperandDTypes", "DTypeMismatch", "UnsupportedDType"]),
        (mistake.is_some(), mistake.unwrap_or(UNKNOWN)),
    ])
}

/// Fails if the input of a norm does not have the norm's dtype, which some norms accept.
fn of_own_dtype(t: &Value, n: &[i64]) -> Result<(), Kinds> {
    if dtype(n[0])?.is_float() && dtype(n[0])? != t.dtype { Err(UNKNOWN) } else { Ok(()) }
}

/// Returns the error of an input whose last size is not `last`.
fn last(t: &Value, last: i64) -> Option<Kinds> {
    let fits = t.sizes.last().is_some_and(|&n| n as i64 == last);
    (!fits).then_some(&["ShapeMismatch"])
}

/// Predicts a linear map of the last dimension to `outputs` features.
fn mapped(t: &Value, n: &[i64], inputs: i64, outputs: i64) -> Predict {
    passes(t, n, last(t, inputs))?;
    let mut sizes = t.sizes.clone();
    *sizes.last_mut().expect("a dimension") = outputs as usize;
    new(t, t.dtype, &sizes)
}

/// Draws an image for the numbers `[dtype, device, inputs, outputs, kernel, stride, padding, groups]`.
fn image(d: &mut Draw<'_>) {
    input(d, |v| (3..=4).contains(&v.ndim()));
    let inputs = size_from_end(d, 3);
    let groups = if d.random.percent(50) { 1 } else { inputs };
    let times = d.random.below(2) as i64 + 1;
    d.number(groups * times);
    d.int(1, 2);
    d.int(1, 2);
    d.int(0, 1);
    d.number(groups);
}

fn convolved(t: &[Value], n: &[i64]) -> Predict {
    let [inputs, outputs, kernel, stride, padding, groups] = n[2..] else { return Err(UNKNOWN) };
    within(&[inputs, outputs], 1, 16)?;
    within(&[kernel], 1, 4)?;
    within(&[stride, padding, groups], 0, 4)?;
    let divides = groups > 0 && inputs % groups == 0 && outputs % groups == 0;
    if !dtype(n[0])?.is_float() || !divides {
        within(&n[1..2], 0, 2)?;
        return Err(&["InvalidArgument"]);
    }
    const WRONG: Kinds = &["ShapeMismatch", "InvalidArgument"];
    let count = t[0].ndim();
    if !(3..=4).contains(&count) || t[0].sizes[count - 3] as i64 != inputs || stride == 0 {
        return passes(&t[0], n, Some(WRONG)).and(Err(UNKNOWN));
    }
    let places = |size: usize| (size as i64 + 2 * padding - kernel).div_euclid(stride) + 1;
    let (height, width) = (places(t[0].sizes[count - 2]), places(t[0].sizes[count - 1]));
    passes(&t[0], n, (height <= 0 || width <= 0).then_some(WRONG))?;
    let mut sizes = t[0].sizes.clone();
    sizes.splice(count - 3.., [outputs as usize, height as usize, width as usize]);
    new(&t[0], t[0].dtype, &sizes)
}

/// Draws an input for the numbers `[dtype, device, channels, training]` of a batch norm.
fn batch(d: &mut Draw<'_>) {
    input(d, |v| (2..=3).contains(&v.ndim()));
    let channels = d.arg(0).sizes.get(1).copied().unwrap_or(1);
    d.number(channels as i64);
    d.int(0, 1);
}

fn normalized(t: &[Value], n: &[i64]) -> Predict {
    within(&n[2..3], 1, 8)?;
    within(&n[3..], 0, 1)?;
    of_own_dtype(&t[0], n)?;
    let mistake: Option<Kinds> = if !(2..=3).contains(&t[0].ndim()) {
        Some(&["InvalidArgument"])
    } else if t[0].sizes[1] as i64 != n[2] {
        Some(&["ShapeMismatch", "InvalidArgument"])
    } else if n[3] == 1 && t[0].numel() == t[0].sizes[1] {
        // One value for each channel has no variance.
        Some(&["InvalidArgument", "ShapeMismatch"])
    } else {
        None
    };
    passes(&t[0], n, mistake)?;
    new(&t[0], t[0].dtype, &t[0].sizes)
}

/// Draws an input for the numbers `[dtype, device, width, heads, flag]`.
fn sequence(d: &mut Draw<'_>) {
    input(d, |v| (2..=3).contains(&v.ndim()));
    let width = size_from_end(d, 1);
    let heads = if d.random.percent(50) { 1 } else { width };
    d.number(heads);
    d.int(0, 1);
}

fn attended(t: &[Value], n: &[i64]) -> Predict {
    let [width, heads, flag] = n[2..] else { return Err(UNKNOWN) };
    within(&[width], 1, 8)?;
    within(&[heads], 0, 8)?;
    within(&[flag], 0, 1)?;
    let own = dtype(n[0])?;
    within(&n[1..2], 0, 2)?;
    if heads == 0 || width % heads != 0 || !own.is_float() {
        return Err(&["InvalidArgument"]);
    }
    let wrong: Option<Kinds> = match t[0].ndim() {
        2 | 3 => last(&t[0], width),
        _ => Some(&["InvalidArgument", "ShapeMismatch"]),
    };
    passes(&t[0], n, wrong)?;
    new(&t[0], t[0].dtype, &t[0].sizes)
}

/// Predicts a load of a weight into a map with the numbers `[dtype, device, inputs, outputs, mistake, strict]`.
fn loaded(t: &[Value], n: &[i64]) -> Predict {
    let own = dtype(n[0])?;
    within(&n[1..2], 0, 2)?;
    within(&n[2..4], 0, 8)?;
    within(&n[4..5], 0, 2)?;
    within(&n[5..], 0, 1)?;
    if !own.is_float() {
        return Err(&["InvalidArgument"]);
    }
    if t[0].sizes != [n[3] as usize, n[2] as usize] || (n[4] > 0 && n[5] == 1) {
        return Err(&["LoadState"]);
    }
    Ok(vec![Out::New { dtype: own, place: n[1] as usize, sizes: t[0].sizes.clone() }])
}

pub(crate) fn rows() -> Vec<Row> {
    let rows = vec![
        row!(
            "nn::Linear",
            |d| {
                input(d, |v| v.ndim() > 0);
                size_from_end(d, 1);
                d.int(1, 4);
            },
            |t, n| {
                within(&n[2..], 0, 8)?;
                mapped(&t[0], n, n[2], n[3])
            },
            |t, n| {
                let map = nn::Linear::new(n[2] as usize, n[3] as usize, ())?;
                crate::prelude::fixed(map, n)?.forward(&t[0])?
            }
        )
        .rounded(),
        row!("nn::Conv2d", image, convolved, |t, n| {
            let options = nn::ConvOptions::new()
                .stride(n[5] as usize)
                .padding(n[6] as usize)
                .groups(n[7] as usize);
            let map = nn::Conv2d::new(n[2] as usize, n[3] as usize, n[4] as usize, options)?;
            crate::prelude::fixed(map, n)?.forward(&t[0])?
        })
        .rounded(),
        row!(
            "nn::LayerNorm",
            |d| {
                input(d, |v| v.ndim() > 0);
                size_from_end(d, 1);
            },
            |t, n| {
                within(&n[2..], 1, 8)?;
                of_own_dtype(&t[0], n)?;
                mapped(&t[0], n, n[2], n[2])
            },
            |t, n| {
                crate::prelude::fixed(nn::LayerNorm::new(n[2] as usize, ())?, n)?.forward(&t[0])?
            }
        )
        .rounded(),
        row!(
            "nn::RMSNorm",
            |d| {
                input(d, |v| v.ndim() > 0);
                size_from_end(d, 1);
            },
            |t, n| {
                within(&n[2..], 1, 8)?;
                of_own_dtype(&t[0], n)?;
                mapped(&t[0], n, n[2], n[2])
            },
            |t, n| crate::prelude::fixed(nn::RMSNorm::new(n[2] as usize, ())?, n)?
                .forward(&t[0])?
        )
        .rounded(),
        row!("nn::BatchNorm1d", batch, normalized, |t, n| {
            let mut norm = crate::prelude::fixed(nn::BatchNorm1d::new(n[2] as usize, ())?, n)?;
            norm.set_training(n[3] == 1);
            norm.forward(&t[0])?
        })
        .rounded(),
        row!(
            "nn::Embedding",
            |d| {
                d.tensor(&FLOATS, |v| v.ndim() == 2 && !v.sizes.contains(&0));
                let entries = d.arg(0).sizes.first().copied().unwrap_or(1) as i64;
                d.int(-entries, entries - 1);
                d.int(0, 6);
            },
            |t, n| {
                within(&n[1..], 0, 6)?;
                if t[0].ndim() != 2 {
                    return Err(&["ShapeMismatch"]);
                }
                let entries = t[0].sizes[0] as i64;
                if !(-entries..entries).contains(&n[0]) {
                    return Err(&["InvalidArgument"]);
                }
                if !t[0].is_float() || t[0].numel() == 0 {
                    return Err(UNKNOWN);
                }
                new(&t[0], t[0].dtype, &[n[1] as usize, t[0].sizes[1]])
            },
            |t, n| {
                let options = nn::EmbeddingFromPretrainedOptions::new().padding_idx(n[0]);
                let table = nn::Embedding::from_pretrained(&t[0], options)?;
                let indices = warpline::arange(n[1], t[0].device())?;
                table.forward(&indices.remainder(t[0].size()[0] as i64)?)?
            }
        )
        .constant(),
        row!(
            "nn::Sequential",
            |d| {
                input(d, |v| v.ndim() > 0);
                size_from_end(d, 1);
                d.int(1, 4);
                d.int(1, 4);
            },
            |t, n| {
                within(&n[2..], 1, 8)?;
                mapped(&t[0], n, n[2], n[4])
            },
            |t, n| {
                let net = nn::Sequential::new()
                    .with(nn::Linear::new(n[2] as usize, n[3] as usize, ())?)
                    .with(nn::ReLU)
                    .with(nn::Dropout::new(0.5)?)
                    .with(nn::Linear::new(n[3] as usize, n[4] as usize, ())?);
                let mut net = crate::prelude::fixed(net, n)?;
                net.eval();
                net.forward(&t[0])?
            }
        )
        .rounded(),
        row!("nn::MultiheadAttention", sequence, attended, |t, n| {
            let layer = nn::MultiheadAttention::new(n[2] as usize, n[3] as usize, ())?;
            let layer = crate::prelude::fixed(layer, n)?;
            let options = nn::MultiheadAttentionForwardOptions::new().is_causal(n[4] == 1);
            layer.forward(&t[0], &t[0], &t[0], options)?
        })
        .rounded(),
        row!("nn::TransformerEncoderLayer", sequence, attended, |t, n| {
            let options =
                nn::TransformerEncoderLayerOptions::new().dim_feedforward(4).norm_first(n[4] == 1);
            let layer = nn::TransformerEncoderLayer::new(n[2] as usize, n[3] as usize, options)?;
            let mut layer = crate::prelude::fixed(layer, n)?;
            layer.eval();
            layer.forward(&t[0], ())?
        })
        .rounded(),
        row!(
            "nn::Dropout in training",
            |d| {
                d.float();
                d.int(1, 99);
            },
            |t, n| {
                if !(0..=100).contains(&n[0]) {
                    return Err(&["InvalidArgument"]);
                }
                within(n, 1, 99)?;
                if !t[0].is_float() {
                    return Err(UNKNOWN);
                }
                new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, n| nn::Dropout::new(n[0] as f64 / 100.0)?.forward(&t[0])?
        )
        .random(),
        row!(
            "Module::eval",
            |d| {
                d.float();
                d.int(0, 100);
            },
            |_, n| {
                if (0..=100).contains(&n[0]) { Ok(vec![]) } else { Err(&["InvalidArgument"]) }
            },
            |t, n| {
                let mut layer = nn::Dropout::new(n[0] as f64 / 100.0)?;
                layer.eval();
                let same = layer.forward(&t[0])?.is_same(&t[0]);
                crate::prelude::holds(same, "dropout does nothing in evaluation")?;
            }
        ),
        row!(
            "Module::load_state_dict",
            |d| {
                input(d, |v| v.ndim() == 2);
                size_from_end(d, 1);
                size_from_end(d, 2);
                d.int(0, 2);
                d.int(0, 1);
            },
            loaded,
            |t, n| {
                let map = nn::Linear::new(n[2] as usize, n[3] as usize, ())?;
                let mut map = crate::prelude::fixed(map, n)?;
                let (mut state, before) = (map.state_dict(), map.weight.copy()?);
                state.insert("weight", t[0].clone());
                match n[4] {
                    1 => drop(state.remove("bias")),
                    2 => drop(state.insert("scale", t[0].clone())),
                    _ => {}
                }
                match map.load_state_dict(&state, n[5] == 1) {
                    Ok(keys) => {
                        let (missing, unexpected) =
                            (keys.missing_keys.len(), keys.unexpected_keys.len());
                        let right = (missing == 1, unexpected == 1) == (n[4] == 1, n[4] == 2);
                        crate::prelude::holds(right, "the keys that differ are listed")?;
                    }
                    Err(error) => {
                        let (now, before) =
                            (crate::prelude::read(&map.weight)?, crate::prelude::read(&before)?);
                        crate::prelude::holds(now == before, "nothing is loaded")?;
                        return Err(error);
                    }
                }
                map.weight.detach()
            }
        )
        .constant(),
        row!(
            "Module::deep_copy",
            |d| {
                input(d, |v| v.ndim() > 0);
                size_from_end(d, 1);
                d.int(1, 4);
            },
            |t, n| {
                within(&n[2..], 0, 8)?;
                mapped(&t[0], n, n[2], n[3])
            },
            |t, n| {
                let map = nn::Linear::new(n[2] as usize, n[3] as usize, ())?;
                let map = crate::prelude::fixed(map, n)?;
                let copy = map.deep_copy()?;
                map.weight.zero_()?;
                drop(map);
                copy.forward(&t[0])?
            }
        )
        .rounded(),
        row!(
            "Module::to moves parameters of an optimizer",
            |d| {
                let dtype = warpline::DType::F32;
                d.number(dtype as i64);
                d.int(0, 1);
            },
            |_, n| {
                within(&n[1..], 0, 1)?;
                match dtype(n[0])? {
                    warpline::DType::F32 => Ok(vec![]),
                    other if other.is_float() => Err(&["Moved"]),
                    _ => Err(&["InvalidArgument"]),
                }
            },
            |_, n| {
                let mut map = nn::Linear::new(2, 2, ())?;
                let options = nn::optim::SGDOptions::new().lr(n[1] as f64);
                let mut optimizer = nn::optim::SGD::new(map.parameters(), options)?;
                map.to(crate::prelude::dtype(n[0]))?;
                nn::optim::Optimizer::step(&mut optimizer)?;
            }
        ),
    ];
    // Modules draw their first parameters from the generator of the CPU, so these rows run exclusively.
    rows.into_iter().map(Row::exclusive).collect()
}
