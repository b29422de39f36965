//! Rows of fixed combinations of calls: streams, events, graphs, pools, guards, threads, pending reads,
//! page-locked and shared memory, and loaders.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::scope;

use warpline::cuda::{self, CudaGraph, Event, EventFlags, MemPool, PoolOptions, Stream};
use warpline::{DType, Tensor, arange, runtime, tensor, with_runtime};

use crate::generate::Draw;
use crate::model::{Kinds, Predict, UNKNOWN, Value, new, writable};
use crate::row::{Effect, Row, row};

/// Draws a float tensor on a GPU, and a second tensor with the same sizes, dtype and device.
fn two(d: &mut Draw<'_>) {
    d.tensor(&[DType::F32, DType::F64], |v| v.place < 2 && !v.tracked());
    d.same();
}

fn both(t: &[Value]) -> Result<(), Kinds> {
    let equal =
        t.iter().all(|v| v.sizes == t[0].sizes && v.dtype == t[0].dtype && v.place == t[0].place);
    let plain = t.iter().all(|v| v.is_float() && !v.tracked() && v.place < 2);
    if equal && plain { Ok(()) } else { Err(UNKNOWN) }
}

/// Draws a tensor of `float32` without a gradient.
fn own(d: &mut Draw<'_>) {
    d.tensor(&[DType::F32], |v| !v.tracked());
}

fn plain(t: &[Value]) -> Predict {
    if t[0].dtype == DType::F32 && !t[0].tracked() { Ok(vec![]) } else { Err(UNKNOWN) }
}

/// Predicts a new tensor like the argument, a tensor of `float32` on a GPU without a gradient.
fn like_single(t: &[Value]) -> Predict {
    if t[0].dtype != DType::F32 || t[0].place == 2 || t[0].tracked() {
        return Err(UNKNOWN);
    }
    new(&t[0], t[0].dtype, &t[0].sizes)
}

/// Predicts a new tensor like the first of two arguments.
fn sum(t: &[Value]) -> Predict {
    both(t)?;
    new(&t[0], t[0].dtype, &t[0].sizes)
}

/// Predicts a change of the first of two arguments. The two must not share memory.
fn added(t: &[Value]) -> Predict {
    both(t)?;
    writable(&t[0]).map_err(|_| UNKNOWN)?;
    if t[0].storage == t[1].storage || t[0].numel() == 0 { Err(UNKNOWN) } else { Ok(vec![]) }
}

pub(crate) fn rows() -> Vec<Row> {
    vec![
        row!("cuda::synchronize", |_| {}, |_, _| Ok(vec![]), |_, _| if cuda::device_count()? > 0 {
            cuda::synchronize(0)?
        })
        .weight(3),
        row!("cuda::empty_cache", |_| {}, |_, _| Ok(vec![]), |_, _| cuda::empty_cache()).weight(3),
        row!(
            "cuda::manual_seed",
            |d| {
                d.int(0, 9);
            },
            |_, _| Ok(vec![]),
            |_, n| warpline::manual_seed(n[0] as u64)
        )
        .exclusive()
        .weight(3),
        row!(
            "cuda::synchronize(absent device)",
            |d| {
                d.int(2, 9);
            },
            |_, n| if n[0] >= 2 { Err(&["NoSuchDevice", "CudaUnavailable"]) } else { Err(UNKNOWN) },
            |_, n| cuda::synchronize(n[0] as usize)?
        )
        .weight(1),
        row!(
            "tensors on an absent device",
            |d| {
                d.int(2, 9);
            },
            |_, n| if n[0] >= 2 { Err(&["NoSuchDevice", "CudaUnavailable"]) } else { Err(UNKNOWN) },
            |_, n| {
                warpline::zeros([2], n[0] as usize)?;
            }
        )
        .weight(1),
        row!("events between two streams", two, |t, _| sum(t), |t, _| {
            if !t[0].is_cuda() {
                return Ok(vec![t[0].add(&t[1])?.mul(2)?]);
            }
            let (first, second) = (Stream::new(t[0].device())?, Stream::new(t[0].device())?);
            let sum = cuda::with_stream(&first, || t[0].add(&t[1]))?;
            let event = first.record_event(None)?;
            second.wait_event(&event)?;
            let product = cuda::with_stream(&second, || sum.mul(2))?;
            event.synchronize()?;
            product
        }),
        row!(
            "Event::new and queries",
            |d| d.tensor(&[DType::F32], |v| v.place < 2),
            |_, _| Ok(vec![]),
            |t, _| {
                if !t[0].is_cuda() {
                    return Ok(vec![]);
                }
                let (start, end) = (
                    Event::new(EventFlags::new().enable_timing(true)),
                    Event::new(EventFlags::new().enable_timing(true)),
                );
                let stream = cuda::current_stream(t[0].device())?;
                stream.record_event(Some(&start))?;
                t[0].detach().add(1)?;
                stream.record_event(Some(&end))?;
                end.synchronize()?;
                assert!(end.query()? && start.elapsed_time(&end)? >= 0.0);
            }
        ),
        row!(
            "a graph is replayed",
            |d| {
                two(d);
                d.int(1, 3);
            },
            |t, n| {
                if !(1..=3).contains(&n[0]) {
                    return Err(UNKNOWN);
                }
                added(t)
            },
            |t, n| {
                if !t[0].is_cuda() {
                    for _ in 0..n[0] {
                        t[0].add_(&t[1])?;
                    }
                    return Ok(vec![]);
                }
                let mut graph = CudaGraph::new();
                cuda::with_device(t[0].device(), || graph.capture(|| t[0].add_(&t[1]).map(drop)))?;
                for _ in 0..n[0] {
                    graph.replay()?;
                }
            }
        )
        .effect(Effect::WritesDetached)
        .exclusive()
        .weight(8),
        row!(
            "a capture panics",
            two,
            |t, _| {
                both(t)?;
                Ok(vec![])
            },
            |t, _| {
                if !t[0].is_cuda() {
                    return Ok(vec![]);
                }
                let mut graph = CudaGraph::new();
                let panicked = catch_unwind(AssertUnwindSafe(|| {
                    cuda::with_device(t[0].device(), || {
                        graph.capture::<()>(|| {
                            t[0].add(&t[1])?;
                            resume_unwind(Box::new("the program's own panic"))
                        })
                    })
                }));
                assert!(panicked.is_err());
            }
        )
        .exclusive()
        .weight(3),
        row!(
            "a capture fails",
            two,
            |t, _| {
                both(t)?;
                Err(&["InvalidArgument"])
            },
            |t, _| {
                if !t[0].is_cuda() {
                    return Err(crate::prelude::own_error());
                }
                let mut graph = CudaGraph::new();
                cuda::with_device(t[0].device(), || {
                    graph.capture(|| {
                        t[0].add(&t[1])?;
                        Err::<(), _>(crate::prelude::own_error())
                    })
                })?;
            }
        )
        .exclusive()
        .weight(3),
        row!(
            "a read in a capture fails",
            two,
            |t, _| {
                both(t)?;
                if t[0].numel() == 0 { Err(UNKNOWN) } else { Err(&["Capture"]) }
            },
            |t, _| {
                if !t[0].is_cuda() {
                    return Err(warpline::Error::capture("read", "on the host"));
                }
                let mut graph = CudaGraph::new();
                cuda::with_device(t[0].device(), || {
                    graph.capture(|| t[0].add(&t[1])?.to_scalars().map(drop))
                })?;
            }
        )
        .exclusive()
        .weight(3),
        row!(
            "a tensor of a pool outlives it",
            |d| d.tensor(&[DType::F32], |v| v.place < 2 && !v.tracked()),
            |t, _| like_single(t),
            |t, _| {
                if !t[0].is_cuda() {
                    return Ok(vec![t[0].mul(3)?]);
                }
                let pool = MemPool::new(t[0].device(), PoolOptions::default())?;
                let other = Stream::new(t[0].device())?;
                let inside = cuda::with_mem_pool(&pool, || t[0].mul(3))?;
                cuda::with_stream(&other, || inside.add(1))?;
                inside
            }
        ),
        row!(
            "MemPool::over the program's memory",
            |d| d.tensor(&[DType::F32], |v| v.place < 2 && !v.tracked()),
            |t, _| like_single(t),
            |t, _| {
                if !t[0].is_cuda() {
                    return Ok(vec![t[0].mul(3)?]);
                }
                let options = PoolOptions::default();
                let pool = MemPool::over(t[0].device(), options, crate::prelude::memory)?;
                cuda::with_mem_pool(&pool, || t[0].mul(3))?.copy()?
            }
        ),
        row!(
            "a guard is forgotten in a thread that ends",
            |d| d.tensor(&[DType::F32], |v| v.place < 2 && !v.tracked()),
            |t, _| {
                if !t[0].is_float() || t[0].place == 2 || t[0].tracked() {
                    return Err(UNKNOWN);
                }
                new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, _| {
                if !t[0].is_cuda() {
                    return Ok(vec![t[0].add(5)?]);
                }
                let runtime = runtime();
                scope(|s| {
                    s.spawn(|| {
                        with_runtime(&runtime, || {
                            std::mem::forget(cuda::stream(&Stream::new(t[0].device())?)?);
                            t[0].add(5)
                        })
                    })
                    .join()
                    .unwrap()
                })?
            }
        ),
        row!(
            "with_stream restores the stream after a panic",
            |d| d.tensor(&[DType::F32], |v| v.place < 2),
            |_, _| Ok(vec![]),
            |t, _| {
                if !t[0].is_cuda() {
                    return Ok(vec![]);
                }
                let (stream, before) =
                    (Stream::new(t[0].device())?, cuda::current_stream(t[0].device())?);
                let panicked = catch_unwind(AssertUnwindSafe(|| {
                    cuda::with_stream::<()>(&stream, || {
                        resume_unwind(Box::new("the program's own panic"))
                    })
                }));
                assert!(panicked.is_err() && cuda::current_stream(t[0].device())? == before);
            }
        ),
        row!(
            "another thread hears nothing of a wrong index",
            |d| d.tensor(&[DType::F32], |v| v.place < 2),
            |t, _| {
                if t[0].place == 2 {
                    return Err(UNKNOWN);
                }
                Ok(vec![])
            },
            |t, _| {
                if !t[0].is_cuda() {
                    return Ok(vec![]);
                }
                let device = t[0].device();
                let rows = arange(6, (DType::F32, device))?.view([3, 2])?;
                let bad = rows.index_select(0, &tensor([9i64], device)?)?;
                let runtime = runtime();
                scope(|s| {
                    s.spawn(|| {
                        with_runtime(&runtime, || {
                            let own = tensor([1f32, 2.0], device)?;
                            assert_eq!(own.add(1)?.to_vec::<f32>()?, [2.0, 3.0]);
                            cuda::synchronize(device)
                        })
                    })
                    .join()
                    .unwrap()
                })?;
                assert!(matches!(
                    bad.to_vec::<f32>().unwrap_err().kind(),
                    warpline::ErrorKind::IndexCheck { index: 9, .. }
                ));
                drop(bad);
                // Consume the report, which the next wait would otherwise return.
                let _ = cuda::synchronize(device);
            }
        ),
        row!(
            "threads add to their own tensors",
            two,
            |t, _| {
                both(t)?;
                new(&t[0], t[0].dtype, &[3]).map(|_| vec![])
            },
            |t, _| {
                let runtime = runtime();
                let work = || {
                    with_runtime(&runtime, || {
                        let own = t[0].copy()?;
                        for _ in 0..3 {
                            own.add_(&t[1])?;
                        }
                        crate::prelude::read(&own)
                    })
                };
                let (a, b) = scope(|s| {
                    let (a, b) = (s.spawn(work), s.spawn(work));
                    (a.join().unwrap(), b.join().unwrap())
                });
                let (a, b) = (a?, b?);
                assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
        ),
        row!("a read is pending while its tensor changes", own, |t, _| plain(t), |t, _| {
            let own = t[0].copy()?;
            let pending = own.to_vec_async::<f32>()?;
            own.zero_()?;
            drop(own);
            let read = crate::prelude::read(&t[0])?;
            assert!(
                pending.wait()?.iter().zip(&read).all(|(a, b)| f64::from(*a) == *b || b.is_nan())
            );
        }),
        row!("a pending read is dropped", own, |t, _| plain(t), |t, _| {
            let own = t[0].copy()?;
            drop(own.to_vec_async::<f32>()?);
            drop(own.cpu_async()?);
        }),
        row!(
            "page-locked memory is changed and dropped after a copy",
            own,
            |t, _| {
                plain(t)?;
                new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, _| {
                if !t[0].is_cuda() {
                    return Ok(vec![t[0].copy()?]);
                }
                let pinned = t[0].to_non_blocking("cpu")?;
                let back = pinned.to_non_blocking(t[0].device())?;
                pinned.zero_()?;
                drop(pinned);
                back
            }
        )
        .weight(8),
        row!(
            "shared memory is copied back",
            own,
            |t, _| {
                plain(t)?;
                new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, _| {
                let shared = t[0].share_memory()?;
                assert!(shared.is_shared());
                shared.copy()?
            }
        )
        .exclusive()
        .weight(3),
        row!(
            "two graphs share a pool",
            two,
            |t, _| {
                both(t)?;
                if t[0].numel() == 0 {
                    return Err(UNKNOWN);
                }
                new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, _| {
                if !t[0].is_cuda() {
                    return Ok(vec![t[0].add(&t[1])?.mul(2)?]);
                }
                cuda::with_device(t[0].device(), || {
                    let mut first = CudaGraph::new();
                    let sum = first.capture(|| t[0].add(&t[1]))?;
                    let mut second = CudaGraph::new();
                    let product = second.capture_with(&first.pool()?, || sum.mul(2))?;
                    first.replay()?;
                    second.replay()?;
                    let result = product.copy()?;
                    first.reset();
                    Ok(vec![result])
                })?
            }
        )
        .exclusive(),
        row!(
            "a graph outlives its tensors",
            two,
            |t, _| {
                both(t)?;
                Ok(vec![])
            },
            |t, _| {
                if !t[0].is_cuda() || t[0].numel() == 0 {
                    return Ok(vec![]);
                }
                let own = t[0].copy()?;
                let mut graph = CudaGraph::new();
                cuda::with_device(t[0].device(), || graph.capture(|| own.add_(&t[1]).map(drop)))?;
                drop(own);
                graph.replay()?;
                graph.replay()?;
            }
        )
        .exclusive(),
        row!(
            "a loader with workers",
            |d| d.tensor(&[DType::F32], |v| v.ndim() == 2 && !v.tracked() && !v.sizes.contains(&0)),
            |t, _| {
                if t[0].ndim() != 2
                    || t[0].numel() == 0
                    || t[0].tracked()
                    || t[0].dtype != DType::F32
                {
                    return Err(UNKNOWN);
                }
                new(&t[0], t[0].dtype, &t[0].sizes)
            },
            |t, _| {
                let host = t[0].cpu()?;
                let rows = warpline::data::TensorDataset::new(host.clone(), host)?;
                let loader = warpline::data::DataLoader::new(rows).batch_size(2)?.num_workers(2);
                let batches = loader
                    .iter()?
                    .map(|batch| batch.map(|batch| batch.0))
                    .collect::<warpline::Result<Vec<_>>>()?;
                warpline::cat(&batches, 0)?.to(t[0].device())?
            }
        )
        .exclusive()
        .weight(3),
        row!(
            "identities of views",
            |d| d.tensor(&[DType::F32, DType::I64], |v| v.ndim() == 2),
            |t, _| {
                if t[0].ndim() != 2 || t[0].numel() == 0 {
                    return Err(UNKNOWN);
                }
                Ok(vec![])
            },
            |t, _| {
                let t = t[0].detach();
                let same = |a: &Tensor, b: &Tensor| -> warpline::Result<bool> {
                    let (a, b) = (crate::prelude::read(a)?, crate::prelude::read(b)?);
                    Ok(a.iter()
                        .zip(&b)
                        .all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()))
                };
                assert!(same(&t.t()?.t()?, &t)? && same(&t.flip([0, 1])?.flip([1, 0])?, &t)?);
                assert!(same(&t.reshape(-1)?.view(t.size())?, &t)?);
                assert!(same(
                    &warpline::cat(
                        &t.unbind(0)?
                            .iter()
                            .map(|row| row.unsqueeze(0))
                            .collect::<warpline::Result<Vec<_>>>()?,
                        0
                    )?,
                    &t
                )?);
                assert!(same(&warpline::stack(&t.unbind(1)?, 1)?, &t)?);
            }
        ),
    ]
}
