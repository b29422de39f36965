//! Tests of consecutive replays. The record of a tensor that nothing else uses between the replays
//! remains with the graph.

use std::sync::atomic::{AtomicBool, Ordering};

use warpline::cuda::{self, CudaGraph, Stream};
use warpline::{Result, SyncPolicy, Tensor, full, ones, simulated, with_runtime, zeros};

use super::values;
use crate::common::World;

rows! {
    schedules64(1) graphs_of_one_pool_and_shared_tensors_take_turns
        gpu_graphs_of_one_pool_and_shared_tensors_take_turns => turns;
    schedules64(1) graphs_results_are_dropped_and_made_between_replays
        gpu_graphs_results_are_dropped_and_made_between_replays => dropped;
    schedules64(1) graphs_are_replayed_and_used_by_several_threads
        gpu_graphs_are_replayed_and_used_by_several_threads => threads;
    schedules64(1) graphs_are_replayed_on_several_streams_in_turns
        gpu_graphs_are_replayed_on_several_streams_in_turns => streams;
}

/// Captures three ops: the first adds 1 to `x`, the second adds `x` to `y`, the third returns twice `x`.
fn chain(graph: &mut CudaGraph, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    graph.capture(|| {
        x.add_(1.0)?;
        y.add_(x)?;
        x.mul(2.0)
    })
}

fn turns(_: &World) -> Result<()> {
    let (x, y) = (zeros([64], 0)?, zeros([64], 0)?);
    let (mut a, mut b) = (CudaGraph::new(), CudaGraph::new());
    let twice = chain(&mut a, &x, &y)?;
    let made = b.capture_with(&a.pool()?, || {
        y.add_(&x)?;
        twice.add(1.0)
    })?;
    let (mut one, mut sum) = (0.0, 0.0);
    for (of_a, of_b) in [(1, 1), (3, 2), (2, 3), (1, 4), (4, 1)] {
        for _ in 0..of_a {
            a.replay()?;
            one += 1.0;
            sum += one;
        }
        for _ in 0..of_b {
            b.replay()?;
            sum += one;
        }
        if of_a == 3 {
            continue;
        }
        assert_eq!(values(&y)?, [sum; 64]);
        assert_eq!(values(&made)?, [2.0 * one + 1.0; 64]);
    }
    Ok(())
}

fn dropped(_: &World) -> Result<()> {
    let (x, y) = (zeros([64], 0)?, zeros([64], 0)?);
    let (mut graph, mut later) = (CudaGraph::new(), CudaGraph::new());
    let twice = chain(&mut graph, &x, &y)?;
    (0..3).try_for_each(|_| graph.replay())?;
    let half = later.capture_with(&graph.pool()?, || twice.mul(0.25))?;
    (0..2).try_for_each(|_| graph.replay())?;
    later.replay()?;
    assert_eq!(values(&half)?, [2.5; 64]);
    drop(twice);
    (0..2).try_for_each(|_| graph.replay())?;
    drop(half);
    (0..2).try_for_each(|_| graph.replay())?;
    // The results of replays outlive the graph, and later work is ordered after the replays.
    let other = Stream::new(0)?;
    graph.replay()?;
    drop((graph, later));
    cuda::with_stream(&other, || y.add_(&x).map(drop))?;
    assert_eq!(values(&y)?, [65.0; 64]);
    assert_eq!(values(&x)?, [10.0; 64]);
    Ok(())
}

fn threads(_: &World) -> Result<()> {
    const ROUNDS: usize = 50;
    let shared = ones([256], 0)?;
    let runtime = warpline::runtime();
    let totals: Vec<Tensor> = (0..3).map(|_| zeros([256], 0)).collect::<Result<_>>()?;
    // Capture before the threads start, because driver calls of a sanitizer at the same time
    // invalidate a capture.
    let capture = |total: &Tensor| {
        let (stream, mut graph) = (Stream::new(0)?, CudaGraph::new());
        // Each graph writes its own total and reads the shared tensor.
        let captured = || {
            total.add_(&shared)?;
            total.mul(1.0)
        };
        let copy = cuda::with_stream(&stream, || graph.capture(captured))?;
        Ok((stream, graph, copy))
    };
    let graphs = totals.iter().map(capture).collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        for (at, (stream, graph, copy)) in graphs.into_iter().enumerate() {
            let (shared, runtime) = (&shared, &runtime);
            scope.spawn(move || {
                warpline::with_runtime(runtime, || {
                    cuda::with_stream(&stream, || {
                        for round in 0..ROUNDS {
                            graph.replay()?;
                            match (round + at) % 5 {
                                // Write the same values, on a stream for which the other threads
                                // wait.
                                0 => shared.fill_(1.0).map(drop)?,
                                1 => assert_eq!(values(&copy)?, [round as f32 + 1.0; 256]),
                                2 => drop(shared.add(1.0)?),
                                _ => {}
                            }
                        }
                        Ok(())
                    })
                })
                .expect("no error");
            });
        }
    });
    for total in &totals {
        assert_eq!(values(total)?, [ROUNDS as f32; 256]);
    }
    Ok(())
}

fn streams(_: &World) -> Result<()> {
    let (x, y) = (zeros([64], 0)?, full([64], 1.0, 0)?);
    let mut graph = CudaGraph::new();
    chain(&mut graph, &x, &y)?;
    let streams = (0..3).map(|_| Stream::new(0)).collect::<std::result::Result<Vec<_>, _>>()?;
    let (mut one, mut sum) = (0.0, 1.0);
    for turn in 0..24 {
        // Four consecutive replays per stream.
        cuda::with_stream(&streams[turn / 4 % 3], || graph.replay())?;
        one += 1.0;
        sum += one;
        if turn % 7 == 0 {
            cuda::with_stream(&streams[turn % 3], || y.add_(1.0).map(drop))?;
            sum += 1.0;
        }
    }
    assert_eq!(values(&y)?, [sum; 64]);
    Ok(())
}

#[test]
fn graphs_are_replayed_while_the_policy_changes() {
    const REPLAYS: usize = 500;
    let runtime = simulated(1).unwrap();
    let body = || -> Result<()> {
        let (x, y) = (zeros([8], 0)?, zeros([8], 0)?);
        let mut graph = CudaGraph::new();
        let twice = chain(&mut graph, &x, &y)?;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for policy in [SyncPolicy::Manual, SyncPolicy::Auto] {
                        runtime.set_sync_policy(policy);
                        std::thread::yield_now();
                    }
                }
            });
            let replayed = (0..REPLAYS).try_for_each(|_| graph.replay());
            done.store(true, Ordering::Relaxed);
            replayed
        })?;
        assert_eq!(values(&twice)?, [2.0 * REPLAYS as f32; 8]);
        assert_eq!(values(&y)?, [(REPLAYS * (REPLAYS + 1) / 2) as f32; 8]);
        Ok(())
    };
    with_runtime(&runtime, body).unwrap();
}
