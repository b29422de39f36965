//! Rows of functions that return no tensor. Their results are compared with the model, or with each other.

use warpline::cuda::{self, MemPool, PoolOptions, Stream, StreamOptions};
use warpline::{DType, Generator};

use crate::generate::Draw;
use crate::model::{self, Kinds, Predict, Track, UNKNOWN, Value, within};
use crate::row::{DTYPES, Row, row};

/// Returns the numbers that [`crate::prelude::facts`] returns for a tensor of the model.
fn facts(t: &Value) -> Vec<i64> {
    let mut facts = vec![
        t.ndim() as i64,
        t.numel() as i64,
        t.dtype as i64,
        t.dtype.size() as i64,
        t.place as i64,
        i64::from(t.contiguous()),
        i64::from(t.track != Track::No),
        i64::from(t.track != Track::Node),
    ];
    if t.numel() > 0 {
        facts.push(t.offset as i64);
        let steps = t.sizes.iter().zip(&t.strides).filter(|(n, _)| **n > 1);
        facts.extend(steps.flat_map(|(&n, &stride)| [n as i64, stride as i64]));
    }
    facts
}

/// Draws the index of a GPU.
fn gpu(d: &mut Draw<'_>) {
    d.int(0, 1);
}

const ABSENT: Kinds = &["NoSuchDevice", "CudaUnavailable"];

/// Predicts a query of GPU `index`.
fn on_gpu(index: i64) -> Predict {
    if (0..2).contains(&index) { Ok(vec![]) } else { Err(ABSENT) }
}

/// Draws a tensor with a number of dimensions.
fn with_dims(d: &mut Draw<'_>, count: usize) {
    d.tensor(&DTYPES, |v| v.ndim() == count);
}

pub(crate) fn rows() -> Vec<Row> {
    let rows = vec![
        row!(
            "queries of a tensor",
            |d| {
                d.tensor(&DTYPES, |v| v.track != Track::Maybe);
                let facts = facts(&d.arg(0));
                d.numbers.extend(facts);
            },
            |t, n| {
                if t[0].track == Track::Maybe || facts(&t[0]) != n {
                    Err(UNKNOWN)
                } else {
                    Ok(vec![])
                }
            },
            |t, n| {
                let facts = crate::prelude::facts(&t[0])?;
                // Without GPUs, all tensors are on the host.
                let place = if crate::prelude::no_gpus()? { 2 } else { n[4] };
                let equal = facts[..4] == n[..4] && facts[4] == place && facts[5..] == n[5..];
                crate::prelude::holds(equal, "the queries agree with the model")?;
            }
        )
        .weight(8),
        row!(
            "Tensor::dims",
            |d| with_dims(d, 2),
            |t, _| if t[0].ndim() == 2 { Ok(vec![]) } else { Err(&["ShapeMismatch"]) },
            |t, _| {
                let [rows, columns] = t[0].dims()?;
                crate::prelude::holds(rows * columns == t[0].numel(), "sizes")?;
            }
        ),
        row!(
            "Tensor::to_vec2",
            |d| d.tensor(&[DType::F32], |v| v.ndim() == 2),
            |t, _| match (t[0].ndim() == 2, t[0].dtype == DType::F32) {
                (true, true) => Ok(vec![]),
                (false, false) => Err(UNKNOWN),
                (true, false) => Err(&["DTypeMismatch"]),
                (false, true) => Err(&["ShapeMismatch"]),
            },
            |t, _| {
                let rows = t[0].to_vec2::<f32>()?;
                crate::prelude::holds(rows.len() == t[0].size()[0], "one list for each row")?;
            }
        ),
        row!(
            "Tensor::item::<f32>",
            |d| d.tensor(&[DType::F32], |v| v.numel() == 1),
            |t, _| match (t[0].numel() == 1, t[0].dtype == DType::F32) {
                (true, true) => Ok(vec![]),
                (false, false) => Err(UNKNOWN),
                (true, false) => Err(&["DTypeMismatch"]),
                (false, true) => Err(&["NotAScalar"]),
            },
            |t, _| {
                let (item, all) = (t[0].item::<f32>()?, t[0].to_vec::<f32>()?);
                crate::prelude::holds(item.to_bits() == all[0].to_bits(), "the only element")?;
            }
        ),
        row!(
            "Tensor::iter",
            |d| d.tensor(&DTYPES, |v| v.ndim() > 0),
            |t, _| if t[0].ndim() > 0 {
                Ok(vec![])
            } else {
                Err(&["ShapeMismatch", "InvalidArgument"])
            },
            |t, _| {
                let rows = t[0].detach().iter()?;
                crate::prelude::holds(rows.len() == t[0].size()[0], "one tensor for each row")?;
            }
        ),
        row!(
            "Tensor::equal",
            |d| {
                d.tensor(&DTYPES, |v| !v.tracked());
                d.same();
            },
            |t, _| {
                if t[0].place != t[1].place {
                    return Err(&["DeviceMismatch"]);
                }
                if t[0].dtype != t[1].dtype { Err(UNKNOWN) } else { Ok(vec![]) }
            },
            |t, _| {
                let (a, b) = (crate::prelude::read(&t[0])?, crate::prelude::read(&t[1])?);
                let equal = a == b && t[0].size() == t[1].size();
                crate::prelude::holds(t[0].equal(&t[1])? == equal, "the elements agree")?;
            }
        ),
        row!(
            "promote_types and result_type",
            |d| {
                d.any();
                d.any();
                let dtype = model::result_type(&d.arg(0), &d.arg(1));
                d.number(dtype as i64);
            },
            |t, n| {
                let own = model::result_type(&t[0], &t[1]);
                if own as i64 == n[0] { Ok(vec![]) } else { Err(UNKNOWN) }
            },
            |t, n| {
                let own = warpline::result_type(&t[0], &t[1]);
                crate::prelude::holds(own == crate::prelude::dtype(n[0]), "the promoted dtype")?;
                let (a, b) = (t[0].dtype(), t[1].dtype());
                let both = warpline::promote_types(a, b) == warpline::promote_types(b, a);
                crate::prelude::holds(both, "promotion is symmetric")?;
            }
        ),
        row!("statistics of memory", gpu, |_, n| on_gpu(n[0]), |_, n| {
            let device = n[0] as usize;
            if device < 2 && crate::prelude::no_gpus()? {
                return Ok(vec![]);
            }
            let (own, peak) =
                (cuda::memory_allocated(device)?, cuda::max_memory_allocated(device)?);
            let (all, top) = (cuda::memory_reserved(device)?, cuda::max_memory_reserved(device)?);
            crate::prelude::holds(own <= peak && own <= all && all <= top, "memory adds up")?;
            let stats = cuda::memory_stats(device)?;
            let same = stats.allocated_bytes.all.current == own as i64;
            crate::prelude::holds(same, "the statistics agree")?;
            let info = cuda::mem_get_info(device)?;
            crate::prelude::holds(info.free + all <= info.total, "the driver agrees")?;
            let segments = cuda::memory_snapshot()?;
            let sizes = segments.iter().filter(|s| s.device == device).map(|s| s.total_size);
            crate::prelude::holds(sizes.sum::<usize>() == all, "the segments are the memory")?;
            cuda::reset_peak_memory_stats(device)?;
            crate::prelude::holds(cuda::max_memory_allocated(device)? == own, "the peak is reset")?;
        }),
        row!("properties of a device", gpu, |_, n| on_gpu(n[0]), |_, n| {
            let device = n[0] as usize;
            if device < 2 && crate::prelude::no_gpus()? {
                return Ok(vec![]);
            }
            let properties = cuda::get_device_properties(device)?;
            let same = cuda::get_device_name(device)? == properties.name
                && cuda::get_device_capability(device)? == properties.compute_capability
                && cuda::mem_get_info(device)?.total <= properties.total_memory;
            crate::prelude::holds(same, "the properties agree")?;
        }),
        row!(
            "cuda::can_device_access_peer",
            |d| {
                gpu(d);
                gpu(d);
            },
            |_, n| on_gpu(n[0]).and(on_gpu(n[1])),
            |_, n| {
                let (a, b) = (n[0] as usize, n[1] as usize);
                if a.max(b) < 2 && crate::prelude::no_gpus()? {
                    return Ok(vec![]);
                }
                let both =
                    cuda::can_device_access_peer(a, b)? == cuda::can_device_access_peer(b, a)?;
                crate::prelude::holds(both, "access is mutual")?;
            }
        ),
        row!("cuda::with_device", gpu, |_, n| on_gpu(n[0]), |_, n| {
            let device = n[0] as usize;
            if device < 2 && crate::prelude::no_gpus()? {
                return Ok(vec![]);
            }
            let before = cuda::current_device()?;
            let inside = cuda::with_device(device, cuda::current_device)?;
            let restored = inside == device && cuda::current_device()? == before;
            crate::prelude::holds(restored, "the device is current inside")?;
        }),
        row!(
            "priorities of streams",
            |d| {
                gpu(d);
                d.int(-4, 1);
            },
            |_, n| {
                on_gpu(n[0])?;
                within(&n[1..], i64::from(i32::MIN), i64::from(i32::MAX))?;
                Ok(vec![])
            },
            |_, n| {
                let (device, priority) = (n[0] as usize, n[1] as i32);
                if device < 2 && crate::prelude::no_gpus()? {
                    return Ok(vec![]);
                }
                let stream = Stream::new(StreamOptions::new().device(device).priority(priority))?;
                let clamped = stream.priority()? == priority.clamp(-3, 0);
                crate::prelude::holds(clamped, "the priority is in its range")?;
                let (own, current) = (stream.device_index(), cuda::current_stream(device)?);
                crate::prelude::holds(own == device, "the stream is of its device")?;
                let inside = cuda::with_stream(&stream, || cuda::current_stream(device))?;
                let restored = inside == stream && cuda::current_stream(device)? == current;
                crate::prelude::holds(restored, "the stream is current inside")?;
            }
        ),
        row!(
            "cuda::exclusive_stream",
            |d| {
                gpu(d);
                d.int(-2, 0);
            },
            |_, n| {
                on_gpu(n[0])?;
                within(&n[1..], i64::from(i32::MIN), i64::from(i32::MAX))?;
                Ok(vec![])
            },
            |_, n| {
                let device = n[0] as usize;
                if device < 2 && crate::prelude::no_gpus()? {
                    return Ok(vec![]);
                }
                let own = cuda::exclusive_stream(device, n[1] as i32)?;
                let other = cuda::exclusive_stream(device, n[1] as i32)?;
                let differ = own != other && own.id() != other.id();
                crate::prelude::holds(differ && own.query()?, "two idle streams")?;
            }
        ),
        row!(
            "cuda::set_per_process_memory_fraction",
            |d| {
                gpu(d);
                d.int(50, 100);
            },
            |_, n| {
                on_gpu(n[0])?;
                if !(0..=100).contains(&n[1]) {
                    return Err(&["InvalidArgument", "CudaUnavailable"]);
                }
                within(&n[1..], 50, 100)?;
                Ok(vec![])
            },
            |_, n| {
                let (device, part) = (n[0] as usize, n[1] as f64 / 100.0);
                if device < 2 && crate::prelude::no_gpus()? && (0.0..=1.0).contains(&part) {
                    return Ok(vec![]);
                }
                cuda::set_per_process_memory_fraction(part, device)?;
                let set = cuda::get_per_process_memory_fraction(device)?;
                cuda::set_per_process_memory_fraction(1.0, device)?;
                crate::prelude::holds(set == part, "the limit is set")?;
            }
        ),
        row!(
            "states of generators",
            |d| {
                let place = d.place();
                d.number(place as i64);
                d.int(0, 99);
                d.mistake(1);
            },
            |_, n| {
                within(&n[..1], 0, 2)?;
                within(&n[2..], 0, 1)?;
                if n[2] == 0 { Ok(vec![]) } else { Err(&["InvalidArgument"]) }
            },
            |_, n| {
                let generator = Generator::on(crate::prelude::place(n[0])?)?;
                generator.manual_seed(n[1] as u64);
                let state = generator.get_state()?;
                if n[2] == 1 {
                    return generator.set_state(&state.narrow(0, 0, 3)?).map(|()| vec![]);
                }
                let draw = || {
                    let device = generator.device();
                    warpline::with_generator(&generator, || warpline::rand([5], device))?
                        .to_vec::<f32>()
                };
                let first = draw()?;
                generator.set_state(&state)?;
                let again = draw()? == first && generator.initial_seed() == n[1] as u64;
                crate::prelude::holds(again, "a state repeats its numbers")?;
            }
        ),
        row!(
            "states of the ambient generators",
            |d| {
                let place = d.place();
                d.number(place as i64);
                d.mistake(1);
            },
            |_, n| {
                within(&n[..1], 0, 2)?;
                within(&n[1..], 0, 1)?;
                if n[1] == 0 { Ok(vec![]) } else { Err(&["InvalidArgument"]) }
            },
            |_, n| {
                let device = crate::prelude::place(n[0])?;
                let get = || match device.is_cuda() {
                    true => cuda::get_rng_state(device),
                    false => warpline::get_rng_state(),
                };
                let set = |state: &warpline::Tensor| match device.is_cuda() {
                    true => cuda::set_rng_state(state, device),
                    false => warpline::set_rng_state(state),
                };
                let state = get()?;
                if n[1] == 1 {
                    return set(&state.to(DType::I64)?).map(|()| vec![]);
                }
                let first = warpline::rand([5], device)?.to_vec::<f32>()?;
                set(&state)?;
                let again = warpline::rand([5], device)?.to_vec::<f32>()? == first;
                crate::prelude::holds(again, "a state repeats its numbers")?;
            }
        ),
        row!("MemPool::snapshot", gpu, |_, n| on_gpu(n[0]), |_, n| {
            let device = n[0] as usize;
            if device < 2 && crate::prelude::no_gpus()? {
                return Ok(vec![]);
            }
            let pool = MemPool::new(device, PoolOptions::default())?;
            let other = MemPool::new(device, PoolOptions::default())?;
            let known = pool.device() == device && pool.id() != other.id();
            crate::prelude::holds(known && pool.snapshot().is_empty(), "an empty pool")?;
            let inside = cuda::with_mem_pool(&pool, || warpline::ones([3], device))?;
            let sizes = pool.snapshot().iter().map(|s| s.total_size).sum::<usize>();
            crate::prelude::holds(sizes > 0, "the pool has the tensor's memory")?;
            drop(inside);
        }),
        row!(
            "modes of autograd",
            |d| {
                d.int(0, 1);
            },
            |_, n| within(n, 0, 1).map(|()| vec![]),
            |_, n| {
                use warpline::autograd::is_grad_enabled;
                let (on, nested) = match n[0] {
                    0 => warpline::no_grad(|| {
                        Ok((is_grad_enabled(), warpline::enable_grad(|| Ok(is_grad_enabled()))?))
                    }),
                    _ => warpline::inference_mode(|| Ok((is_grad_enabled(), true))),
                }?;
                crate::prelude::holds(!on && nested && is_grad_enabled(), "the mode ends")?;
            }
        ),
    ];
    // The peaks, limits and generators are shared by all threads.
    rows.into_iter().map(Row::exclusive).collect()
}
