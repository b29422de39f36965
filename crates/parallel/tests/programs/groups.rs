//! Rows of `DataParallel` on two GPUs, and of process groups whose ranks are threads.

use std::sync::Arc;
use std::thread::scope;
use std::time::Duration;

use warpline::{DType, Tensor, with_runtime};
use warpline_nn as nn;
use warpline_parallel::distributed::{
    Backend, HashStore, InitOptions, ReduceOptions, init_process_group,
};
use warpline_parallel::{DataParallel, DataParallelOptions};

use crate::generate::Draw;
use crate::model::{Kinds, Out, Predict, UNKNOWN, Value, dtype, new, within};
use crate::row::{Row, row};

/// Draws a batch for the numbers `[dtype, device, inputs, outputs, list of GPUs, device of the result]`.
fn batch(d: &mut Draw<'_>) {
    d.tensor(&[DType::F32, DType::F64], |v| v.ndim() == 2 && !v.sizes.contains(&0));
    let value = d.arg(0);
    d.number(value.dtype as i64);
    d.number(0);
    d.number(value.sizes.last().map_or(1, |&n| n as i64));
    d.int(1, 3);
    // With the mistakes 2 and 3, a GPU is listed twice or does not exist.
    let list = if d.random.percent(15) { 2 + d.random.below(2) } else { d.random.below(2) };
    d.number(list as i64);
    d.int(0, 2);
}

/// The kinds of error with which a replica, or the module itself without GPUs, fails.
const REPLICA: Kinds = &["DataParallel", "ShapeMismatch", "OperandDTypes", "DTypeMismatch"];

fn mapped(t: &[Value], n: &[i64]) -> Predict {
    let own = dtype(n[0])?;
    within(&n[1..2], 0, 0)?;
    within(&n[2..4], 1, 8)?;
    within(&n[4..], 0, 3)?;
    within(&n[5..], 0, 2)?;
    if !own.is_float() {
        return Err(&["InvalidArgument"]);
    }
    match n[4] {
        0 | 1 => {}
        2 => return Err(&["DataParallel"]),
        _ => return Err(&["NoSuchDevice", "DataParallel"]),
    }
    if t[0].ndim() != 2 || t[0].sizes.contains(&0) {
        return Err(UNKNOWN);
    }
    if t[0].dtype != own || t[0].sizes[1] as i64 != n[2] {
        return Err(REPLICA);
    }
    let (place, sizes) = (n[5] as usize, vec![t[0].sizes[0], n[3] as usize]);
    Ok(vec![Out::New { dtype: own, place, sizes }])
}

/// Draws a contiguous tensor for a collective of `ranks` ranks, and the number of its root.
fn collective(d: &mut Draw<'_>, ranks: i64) {
    d.tensor(&[DType::F32, DType::F64, DType::I64], |v| !v.tracked() && v.numel() > 0);
    d.int(0, ranks - 1);
}

/// Predicts a collective of `ranks` ranks that returns a tensor like the first.
fn reduced(t: &[Value], n: &[i64], ranks: i64) -> Predict {
    if t[0].tracked() || t[0].numel() == 0 || t[0].numel() > 512 || t[0].dtype == DType::Bool {
        return Err(UNKNOWN);
    }
    // A negative number becomes a huge one.
    if !(0..ranks).contains(&n[0]) {
        return if t[0].dtype == DType::I16 { Err(UNKNOWN) } else { Err(&["InvalidArgument"]) };
    }
    if t[0].dtype == DType::I16 {
        return Err(&["UnsupportedDType"]);
    }
    if ![DType::F32, DType::F64, DType::I64].contains(&t[0].dtype) {
        return Err(UNKNOWN);
    }
    new(&t[0], t[0].dtype, &t[0].sizes)
}

pub(crate) fn rows() -> Vec<Row> {
    vec![
        row!("DataParallel::forward", batch, mapped, |t, n| {
            let map = nn::Linear::new(n[2] as usize, n[3] as usize, ())?;
            let map = crate::prelude::fixed(map, n)?;
            let list: &[usize] = match n[4] {
                0 => &[0, 1],
                1 => &[0],
                2 => &[0, 0],
                _ => &[0, 2],
            };
            if n[4] > 1 && crate::prelude::no_gpus()? {
                // Without GPUs, the list has no effect.
                let error =
                    warpline_parallel::DataParallelError::OutputDevice { output_device: -2 };
                return Err(error.into());
            }
            let options = DataParallelOptions::new()
                .device_ids(list)
                .output_device(crate::prelude::place(n[5])?);
            let net = DataParallel::new(map, options)?;
            let alone = net.device_ids().len() < 2;
            let input = if alone { t[0].to(crate::prelude::place(0)?)? } else { t[0].clone() };
            // A single replica leaves its output where it is.
            net.forward(input)?.to(crate::prelude::place(n[5])?)?
        })
        .rounded()
        .exclusive(),
        row!(
            "a process group of one rank",
            |d| collective(d, 1),
            |t, n| reduced(t, n, 1),
            |t, n| {
                let options = InitOptions::new(Arc::new(HashStore::new()), 0, 1)
                    .timeout(Duration::from_secs(10));
                let options = match (0..2).find(|&k| t[0].device() == warpline::Device::cuda(k)) {
                    Some(device) => options.device(device),
                    None => options.backend(Backend::Cpu),
                };
                let group = init_process_group(options)?;
                let own = t[0].copy()?.contiguous()?;
                group.all_reduce(&own, ReduceOptions::new().async_op(true))?.wait()?;
                group.broadcast(&own, n[0] as usize, ())?.wait()?;
                group.barrier()?;
                own
            }
        )
        .exclusive()
        .weight(3),
        row!(
            "a process group of two threads",
            |d| collective(d, 2),
            |t, n| reduced(t, n, 2),
            |t, n| {
                let (store, world) = (Arc::new(HashStore::new()), warpline::runtime());
                let gpus = t[0].is_cuda();
                // A rank that copies from the other rank's GPU during a collective can wait for its own part in the
                // collective, so the copies come first.
                let copy = |device: i64| match gpus {
                    true => t[0].to(crate::prelude::place(device)?)?.copy()?.contiguous(),
                    false => t[0].copy()?.contiguous(),
                };
                let copies = [copy(0)?, copy(1)?];
                let rank = |rank: usize| -> warpline::Result<Tensor> {
                    let options =
                        InitOptions::new(store.clone(), rank, 2).timeout(Duration::from_secs(10));
                    let options = match gpus {
                        true => options.device(rank),
                        false => options.backend(Backend::Cpu),
                    };
                    let group = init_process_group(options)?;
                    let own = copies[rank].clone();
                    group.all_reduce(&own, ())?.wait()?;
                    group.broadcast(&own, n[0] as usize, ())?.wait()?;
                    group.barrier()?;
                    Ok(own)
                };
                let (a, b) = scope(|s| {
                    let other = s.spawn(|| with_runtime(&world, || rank(1)));
                    let own = rank(0);
                    let joined = other.join();
                    (own, joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                });
                let (a, b) = (a?.to(t[0].device())?, b?.to(t[0].device())?);
                let (twice, other) = (t[0].mul(2)?, crate::prelude::read(&b)?);
                let (own, twice) = (crate::prelude::read(&a)?, crate::prelude::read(&twice)?);
                let bits = |v: &[f64]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                let equal = bits(&own) == bits(&other)
                    && own.iter().zip(&twice).all(|(a, b)| a == b || a.is_nan() && b.is_nan());
                crate::prelude::holds(equal, "both ranks have the sum")?;
                a
            }
        )
        .exclusive()
        .weight(2),
    ]
}
