//! Tests of replays among work of other streams and threads.

use std::sync::Arc;

use warpline::cuda::{self, CudaGraph};
use warpline::{Result, SyncPolicy, full, ones, with_runtime, zeros};
use warpline_cuda_sys_safe::sim::{CallKind, Schedule};

use super::{captured, values};
use crate::boxes::SimBox;
use crate::common::World;

rows! {
    schedules(1) graphs_are_ordered_with_other_streams gpu_graphs_are_ordered_with_other_streams => ordered;
    schedules(1) graphs_results_dropped_elsewhere_are_waited_for
        gpu_graphs_results_dropped_elsewhere_are_waited_for => dropped_results;
    schedules(1) graphs_earlier_work_can_be_waited_for_during_a_capture
        gpu_graphs_earlier_work_can_be_waited_for_during_a_capture => earlier;
    schedules(1) graphs_are_replayed_by_threads gpu_graphs_are_replayed_by_threads => threads;
    manual(1) graphs_races_are_reported gpu_graphs_races_are_reported => races;
}

/// Writes inputs, replays graphs and reads results on different streams, without explicit waits.
fn ordered(_: &World) -> Result<()> {
    let streams: Vec<_> = (0..3).map(|_| cuda::Stream::new(())).collect::<Result<_>>()?;
    let x = zeros([4096], 0)?;
    let (graph, y) = cuda::graph(|| (&x * 2.0)? + 1.0)?;
    let total = zeros([4096], 0)?;
    for round in 0..6u8 {
        cuda::with_stream(&streams[0], || x.fill_(round).map(drop))?;
        cuda::with_stream(&streams[1], || graph.replay())?;
        cuda::with_stream(&streams[2], || total.add_(&y).map(drop))?;
    }
    assert_eq!(values(&total)?, vec![36.0; 4096]);
    Ok(())
}

/// Reads a result on another stream and drops it. A later capture reuses its memory.
fn dropped_results(_: &World) -> Result<()> {
    let side = cuda::Stream::new(())?;
    let main = cuda::Stream::new(())?;
    let x = ones([4096], 0)?;
    let (mut first, mut second) = (CudaGraph::new(), CudaGraph::new());
    let y = captured(&mut first, &main, || &x + 1.0)?;
    first.replay()?;
    let address = y.data_ptr();
    // Copy on the stream that owns the memory, so that the allocator need not wait for another
    // stream.
    let kept = cuda::with_stream(&main, || {
        let mut kept = y.copy()?;
        for _ in 0..20 {
            kept = ((&kept + &y)? - 2.0)?;
        }
        Ok::<_, warpline::Error>(kept)
    })?;
    drop(y);
    let pool = first.pool()?;
    let z = cuda::with_stream(&main, || second.capture_with(&pool, || &x * 100.0))?;
    assert_eq!(z.data_ptr(), address);
    cuda::with_stream(&side, || second.replay())?;
    // Read `z` first. Only the waits of the replay itself make the other stream run.
    assert_eq!(values(&z)?, vec![100.0; 4096]);
    assert_eq!(values(&kept)?, vec![2.0; 4096]);
    Ok(())
}

/// Captures the only stream that has work. Another stream then needs the earlier work of this
/// stream.
fn earlier(_: &World) -> Result<()> {
    let (main, side) = (cuda::Stream::new(())?, cuda::Stream::new(())?);
    let x = cuda::with_stream(&main, || full([4096], 5.0, 0))?;
    let mut graph = CudaGraph::new();
    let y = captured(&mut graph, &main, || {
        let eager = cuda::with_stream(&side, || values(&(&x + 1.0)?))?;
        assert_eq!(eager, vec![6.0; 4096]);
        &x + 2.0
    })?;
    graph.replay()?;
    assert_eq!(values(&y)?, vec![7.0; 4096]);
    Ok(())
}

/// Several threads replay the same graph, each on its own stream. The graph has a random op.
fn threads(world: &World) -> Result<()> {
    let counter = zeros([256], 0)?;
    let (graph, noise) = cuda::graph(|| {
        counter.add_(1.0)?;
        warpline::rand([256], 0)
    })?;
    let graph = Arc::new(graph);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (graph, runtime, noise) =
                (Arc::clone(&graph), world.runtime.clone(), noise.clone());
            scope.spawn(move || {
                with_runtime(&runtime, || {
                    let stream = cuda::Stream::new(())?;
                    let _on = cuda::stream(&stream)?;
                    for _ in 0..8 {
                        graph.replay()?;
                        let noise = (&noise * 1.0)?;
                        assert!(values(&noise)?.iter().all(|v| (0.0..1.0).contains(v)));
                    }
                    Ok::<_, warpline::Error>(())
                })
                .expect("a thread's replays");
            });
        }
    });
    assert_eq!(values(&counter)?, vec![32.0; 256]);
    Ok(())
}

fn races(_: &World) -> Result<()> {
    let (main, side) = (cuda::Stream::new(())?, cuda::Stream::new(())?);
    let x = cuda::with_stream(&main, || ones([10], 0))?;
    let mut graph = CudaGraph::new();
    let y = captured(&mut graph, &main, || &x + 1.0)?;
    drop(cuda::take_races());
    cuda::with_stream(&main, || x.fill_(3.0).map(drop))?;
    cuda::with_stream(&side, || graph.replay())?;
    let races = cuda::take_races();
    assert_eq!(races.len(), 1, "{races:?}");
    assert_eq!((races[0].first.op, races[0].second.op), ("fill_", "replay"));
    side.synchronize()?;
    // With the waits there is no race.
    side.wait_stream(&main)?;
    cuda::with_stream(&side, || graph.replay())?;
    main.wait_stream(&side)?;
    assert_eq!(cuda::with_stream(&main, || values(&y))?, [4.0; 10]);
    let races = cuda::take_races();
    assert!(races.is_empty(), "{races:?}");
    Ok(())
}

/// Graphs with separate pools do not wait for each other, and no replay makes the host wait.
#[test]
fn graphs_wait_only_for_work_on_their_memory() {
    let world = SimBox::with(1, Schedule::Lazy, SyncPolicy::Auto);
    world.enter(|| {
        let streams = [cuda::Stream::new(())?, cuda::Stream::new(())?];
        let x = full([100], 1.0, 0)?;
        let (first, y) = cuda::graph(|| &x + 1.0)?;
        let (second, z) = cuda::graph(|| &x + 2.0)?;
        cuda::synchronize(())?;
        let before = (world.host_waits(), world.count(CallKind::StreamWaitEvent));
        for _ in 0..5 {
            cuda::with_stream(&streams[0], || first.replay())?;
            cuda::with_stream(&streams[1], || second.replay())?;
        }
        let after = (world.host_waits(), world.count(CallKind::StreamWaitEvent));
        assert_eq!(before, after, "nothing was to be waited for");
        assert!(!streams[0].query()?, "the schedule is lazy");
        streams[1].synchronize()?;
        assert!(!streams[0].query()?, "the other graph need not have run");
        assert_eq!((values(&y)?, values(&z)?), (vec![2.0; 100], vec![3.0; 100]));
        Ok(())
    });
}

/// Graphs that share a pool wait for each other, because one may reuse memory of the other that no
/// tensor holds any more.
#[test]
fn graphs_of_one_pool_wait_for_each_other() {
    for share in [true, false] {
        let world = SimBox::with(1, Schedule::Lazy, SyncPolicy::Auto);
        world.enter(|| {
            let streams = [cuda::Stream::new(())?, cuda::Stream::new(())?];
            let (x, y, z) = (full([100], 1.0, 0)?, zeros([100], 0)?, zeros([100], 0)?);
            let (first, _) = cuda::graph(|| y.copy_(&(&x + 1.0)?, ()).map(drop))?;
            let pool = if share { first.pool()? } else { cuda::graph_pool_handle(())? };
            let mut second = CudaGraph::new();
            second.capture_with(&pool, || z.copy_(&(&x + 2.0)?, ()).map(drop))?;
            cuda::with_stream(&streams[0], || first.replay())?;
            cuda::with_stream(&streams[1], || second.replay())?;
            streams[1].synchronize()?;
            assert_eq!(streams[0].query()?, share);
            assert_eq!((values(&y)?, values(&z)?), (vec![2.0; 100], vec![3.0; 100]));
            Ok(())
        });
    }
}
