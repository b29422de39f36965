//! Rows of data loaders, samplers and page-locked memory.

use warpline::data::{DataLoader, DistributedSampler, RandomSampler, Sampler as _, TensorDataset};
use warpline::{DType, cuda};

use crate::generate::Draw;
use crate::model::{Kinds, Out, Predict, UNKNOWN, Value, within};
use crate::row::{DTYPES, Row, row};

/// Draws inputs and targets for the numbers `[batch size, workers, drops the last, first batch]`.
fn rows_of(d: &mut Draw<'_>) {
    d.tensor(&DTYPES, |v| v.ndim() > 0 && !v.tracked() && !v.sizes.contains(&0));
    d.same();
    let count = d.arg(0).sizes.first().map_or(1, |&n| n as i64);
    let size = d.int(1, count);
    let worker = d.random.percent(30);
    d.number(i64::from(worker));
    d.int(0, 1);
    d.int(0, (count / size - 1).max(0));
}

/// Predicts the batches from batch `n[3]` on, put together.
fn loaded(t: &[Value], n: &[i64]) -> Predict {
    let [batch, workers, drops, first] = n[..] else { return Err(UNKNOWN) };
    within(&[workers], 0, 2)?;
    within(&[drops], 0, 1)?;
    within(&[batch, first], 0, 8)?;
    if t.iter().any(|v| v.tracked() || v.numel() > 4096) {
        return Err(UNKNOWN);
    }
    let wrong = t[0].ndim() == 0 || t[1].ndim() == 0 || t[0].sizes[0] != t[1].sizes[0];
    match (wrong, batch == 0) {
        (true, _) => return Err(&["ShapeMismatch"]),
        (false, true) => return Err(&["InvalidArgument"]),
        (false, false) => {}
    }
    let (count, batch) = (t[0].sizes[0], batch as usize);
    let end = if drops == 1 { count / batch * batch } else { count };
    let start = first as usize * batch;
    if start >= end || t.iter().any(|v| v.sizes.contains(&0)) {
        return Err(UNKNOWN);
    }
    let out = |v: &Value| {
        let mut sizes = v.sizes.clone();
        sizes[0] = end - start;
        Out::New { dtype: v.dtype, place: v.place, sizes }
    };
    Ok(t.iter().map(out).collect())
}

/// The kinds of error for a tensor on a GPU. `DeviceMismatch` marks calls that are wrong only if there are GPUs.
const ON_A_GPU: Kinds = &["CannotPin", "DeviceMismatch"];

pub(crate) fn rows() -> Vec<Row> {
    vec![
        row!("data::DataLoader", rows_of, loaded, |t, n| {
            let set = TensorDataset::new(t[0].clone(), t[1].clone())?;
            let loader = DataLoader::new(set)
                .batch_size(n[0] as usize)?
                .num_workers(n[1] as usize)
                .drop_last(n[2] == 1);
            let batches = loader.iter_from(n[3] as usize)?.collect::<warpline::Result<Vec<_>>>()?;
            let rest = batches.len() + n[3] as usize == loader.len();
            crate::prelude::holds(rest, "the loader has the rest of its batches")?;
            let (inputs, targets): (Vec<_>, Vec<_>) = batches.into_iter().unzip();
            (warpline::cat(&inputs, 0)?, warpline::cat(&targets, 0)?)
        })
        .exclusive(),
        row!(
            "data::DataLoader(pin_memory)",
            |d| {
                d.tensor(&DTYPES, |v| {
                    v.ndim() > 0 && v.place == 2 && !v.tracked() && !v.sizes.contains(&0)
                });
                d.int(1, 3);
                d.int(0, 2);
            },
            |t, n| {
                within(&n[..1], 1, 4)?;
                within(&n[1..], 0, 2)?;
                if t[0].ndim() == 0 {
                    return Err(&["ShapeMismatch"]);
                }
                if t[0].tracked() || t[0].sizes.contains(&0) || t[0].numel() > 4096 {
                    return Err(UNKNOWN);
                }
                if t[0].place != 2 {
                    return Err(ON_A_GPU);
                }
                let (dtype, sizes) = (t[0].dtype, t[0].sizes.clone());
                Ok(vec![Out::New { dtype, place: n[1] as usize, sizes }])
            },
            |t, n| {
                let pins = t[0].is_cuda() || !crate::prelude::no_gpus()?;
                let set = TensorDataset::new(t[0].clone(), t[0].clone())?;
                let loader = DataLoader::new(set).batch_size(n[0] as usize)?.pin_memory(pins);
                let mut copies = vec![];
                for batch in loader.iter()? {
                    let batch = batch?.0;
                    crate::prelude::holds(batch.is_pinned() == pins, "batches are page-locked")?;
                    copies.push(batch.to_non_blocking(crate::prelude::place(n[1])?)?);
                }
                warpline::cat(&copies, 0)?
            }
        )
        .exclusive(),
        row!(
            "Tensor::pin_memory",
            |d| d.tensor(&DTYPES, |v| v.place == 2 && !v.tracked()),
            |t, _| {
                if t[0].place != 2 {
                    return Err(ON_A_GPU);
                }
                crate::model::new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, _| {
                let own = t[0].copy()?;
                if crate::prelude::no_gpus()? {
                    return Ok(vec![own]);
                }
                let pinned = own.pin_memory()?;
                crate::prelude::holds(pinned.is_pinned(), "the copy is page-locked")?;
                pinned
            }
        ),
        row!(
            "data::DistributedSampler",
            |d| {
                d.int(0, 20);
                let replicas = d.int(1, 4);
                d.int(0, replicas - 1);
                d.int(0, 9);
            },
            |_, n| {
                within(&n[..1], 0, 20)?;
                within(&n[1..2], 0, 8)?;
                within(&n[3..], 0, 9)?;
                // A negative rank becomes a huge one.
                if (0..n[1]).contains(&n[2]) { Ok(vec![]) } else { Err(&["InvalidArgument"]) }
            },
            |_, n| {
                let (samples, replicas) = (n[0] as usize, n[1] as usize);
                let own = DistributedSampler::new(samples, replicas, n[2] as usize)?;
                crate::prelude::holds(own.indices().len() == own.len(), "the length is known")?;
                let mut all = vec![];
                for rank in 0..replicas {
                    let sampler =
                        DistributedSampler::new(samples, replicas, rank)?.seed(n[3] as u64);
                    all.extend(sampler.indices());
                }
                all.sort_unstable();
                all.dedup();
                let whole = all == (0..samples).collect::<Vec<_>>();
                crate::prelude::holds(whole, "the ranks have all samples")?;
            }
        ),
        row!(
            "data::RandomSampler",
            |d| {
                d.int(0, 20);
                d.int(0, 9);
                d.number(2);
            },
            |_, n| {
                within(&n[..1], 0, 20)?;
                match n[2] {
                    2 => Ok(vec![]),
                    0 | 1 => Err(&["InvalidArgument"]),
                    _ => Err(UNKNOWN),
                }
            },
            |_, n| {
                if n[2] < 2 && crate::prelude::no_gpus()? {
                    return Err(crate::prelude::own_error());
                }
                let generator = warpline::Generator::on(crate::prelude::place(n[2])?)?;
                let order = || -> warpline::Result<Vec<usize>> {
                    generator.manual_seed(n[1] as u64);
                    Ok(RandomSampler::new(n[0] as usize).generator(&generator)?.indices())
                };
                let (first, mut second) = (order()?, order()?);
                crate::prelude::holds(first == second, "a seed has one order")?;
                second.sort_unstable();
                let whole = second == (0..n[0] as usize).collect::<Vec<_>>();
                crate::prelude::holds(whole, "the order has all samples")?;
            }
        ),
        row!(
            "a loader whose samples fail",
            |d| {
                d.int(1, 6);
                d.int(0, 2);
                d.number(-1);
            },
            |_, n| {
                within(&n[..1], 1, 8)?;
                within(&n[1..2], 0, 2)?;
                match n[2] {
                    -1 => Ok(vec![]),
                    at if (0..n[0]).contains(&at) => Err(&["InvalidArgument"]),
                    _ => Err(UNKNOWN),
                }
            },
            |_, n| {
                struct Failing(usize, i64);
                impl warpline::data::Dataset for Failing {
                    type Sample = f32;
                    fn len(&self) -> usize {
                        self.0
                    }
                    fn get(&self, index: usize) -> warpline::Result<f32> {
                        match index as i64 == self.1 {
                            true => Err(crate::prelude::own_error()),
                            false => Ok(index as f32),
                        }
                    }
                }
                let loader = DataLoader::new(Failing(n[0] as usize, n[2]));
                let loader = loader.batch_size(2)?.num_workers(n[1] as usize);
                let batches = loader.iter()?.collect::<warpline::Result<Vec<_>>>()?;
                let values = batches.iter().map(crate::prelude::read);
                let sum: f64 = values.collect::<warpline::Result<Vec<_>>>()?.concat().iter().sum();
                crate::prelude::holds(sum == (0..n[0]).sum::<i64>() as f64, "each sample once")?;
            }
        )
        .exclusive()
        .weight(3),
        row!(
            "cuda::host_memory_stats",
            |d| {
                d.tensor(&[DType::F32, DType::I64], |v| !v.tracked() && v.numel() > 0);
            },
            |t, _| if t[0].numel() > 0 { Ok(vec![]) } else { Err(UNKNOWN) },
            |t, _| {
                if crate::prelude::no_gpus()? {
                    return Ok(vec![]);
                }
                let pinned = t[0].detach().cpu()?.copy()?.pin_memory()?;
                let bytes = (pinned.numel() * pinned.element_size()) as i64;
                let counted = cuda::host_memory_stats()?.requested_bytes.current >= bytes;
                crate::prelude::holds(counted, "page-locked memory is counted")?;
                drop(pinned);
            }
        )
        .exclusive(),
    ]
}
