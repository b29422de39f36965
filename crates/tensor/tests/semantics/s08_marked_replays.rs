//! Tests of row S8, graphs with indices out of range: which tensors a failed replay marks, and
//! which inputs must be overwritten before the next replay.

use warpline::cuda::{self, CudaGraph};
use warpline::{Result, RuntimeConfig, embedding, zeros};

use crate::common::{self, World};
use crate::s08_index_check::{failed, table};
use crate::s08_marked_tensors::{assert_marked, picked, which};

crate::rows! {
    schedules(1) s08_replays_mark_their_results gpu_s08_replays_mark_their_results => replays;
    schedules(1) s08_replays_of_marked_inputs_fail gpu_s08_replays_of_marked_inputs_fail => marked_inputs;
    schedules(1) s08_replays_in_a_row_fail_from_the_bad_index_on
        gpu_s08_replays_in_a_row_fail_from_the_bad_index_on => in_a_row;
    schedules(1) s08_a_failed_replay_spoils_none_that_begins_after_it
        gpu_s08_a_failed_replay_spoils_none_that_begins_after_it => pipelined;
    schedules(1) s08_replays_know_what_was_written_between_them
        gpu_s08_replays_know_what_was_written_between_them => between;
    schedules64(1) s08_a_replay_that_follows_a_known_failure_is_refused
        gpu_s08_a_replay_that_follows_a_known_failure_is_refused => known;
}

fn replays(_: &World) -> Result<()> {
    let (t, which) = (table(0)?, which(1)?);
    let (sum, kept) = (zeros([1, 3], 0)?, zeros([2, 3], 0)?);
    let mut graph = CudaGraph::new();
    let [row, twice, other] = graph.capture(|| {
        let row = embedding(&t, &which)?;
        let twice = (&row * 2.0)?;
        sum.add_(&row)?;
        kept.narrow(0, 0, 1)?.copy_(&row, ())?;
        Ok([row, twice, t.add(1.0)?])
    })?;
    let set = |index: i64| which.fill_(index).map(drop);
    for _ in 0..2 {
        set(1)?;
        graph.replay()?;
        assert_eq!(twice.to_vec::<f32>()?, [6.0, 8.0, 10.0]);
        set(8)?;
        graph.replay()?;
        for marked in [&row, &twice, &sum, &kept, &row] {
            assert_marked(marked, 8);
        }
        assert_eq!(failed(row.add(1.0)).index, 8);
        // Results that do not depend on the failed check are right.
        assert_eq!(kept.narrow(0, 1, 1)?.to_vec::<f32>()?, [0.0; 3]);
        assert_eq!(other.to_vec::<f32>()?[0], 1.0);
        // A replay overwrites its results, but the program must overwrite marked inputs before the
        // replay.
        set(2)?;
        assert_eq!(failed(graph.replay()).index, 8);
        sum.zero_()?;
        graph.replay()?;
        for right in [&row, &sum, &kept.narrow(0, 0, 1)?] {
            assert_eq!(right.to_vec::<f32>()?, [6.0, 7.0, 8.0]);
        }
        assert_eq!(twice.to_vec::<f32>()?, [12.0, 14.0, 16.0]);
        sum.zero_()?;
    }
    // If several replays are in flight, the failure of the last one is not lost.
    for index in [1, 8] {
        set(index)?;
        graph.replay()?;
    }
    assert_marked(&twice, 8);
    cuda::synchronize(0)?;
    // The report of a wait removes no mark, and a copy to the host copies the mark.
    sum.zero_()?;
    set(9)?;
    graph.replay()?;
    let host = twice.to_non_blocking("cpu")?;
    assert_eq!(failed(cuda::synchronize(0)).index, 9);
    assert_marked(&host, 9);
    drop((graph, which, twice));
    assert_marked(&host, 9);
    assert_marked(&row, 9);
    Ok(())
}

/// Tests a graph whose input is marked, when the failure is known at the replay and when it is not.
fn marked_inputs(_: &World) -> Result<()> {
    let (t, input, out) = (table(0)?, zeros([1, 3], 0)?, zeros([1, 3], 0)?);
    let (mut graph, mut second) = (CudaGraph::new(), CudaGraph::new());
    let (made, apart) = graph.capture(|| {
        out.copy_(&input, ())?;
        Ok((input.add(1.0)?, zeros([3], 0)?))
    })?;
    graph.replay()?;
    let pool = graph.pool()?;
    let last = second.capture_with(&pool, || made.add(1.0))?;
    for index in [20, 21] {
        input.copy_(&picked(&t, index)?, ())?;
        graph.replay()?;
        second.replay()?;
        for marked in [&last, &out, &made, &input] {
            assert_marked(marked, index);
        }
        assert_eq!(apart.to_vec::<f32>()?, [0.0; 3]);
        assert_eq!(failed(second.replay()).index, index);
        assert_eq!(failed(graph.replay()).index, index);
        input.fill_(1.0)?;
        graph.replay()?;
        assert_eq!(out.to_vec::<f32>()?, [1.0; 3]);
        assert_marked(&last, index);
        second.replay()?;
        assert_eq!(last.to_vec::<f32>()?, [3.0; 3]);
    }
    Ok(())
}

/// With blocking launches, the result of a failed launch is also marked.
#[test]
fn s08_a_blocking_launch_marks_its_result() {
    let config = RuntimeConfig { launch_blocking: true, ..RuntimeConfig::default() };
    common::schedules_with(1, &config, |_| {
        let (t, which, out) = (table(0)?, which(1)?, zeros([1, 3], 0)?);
        let mut graph = CudaGraph::new();
        graph.capture(|| out.copy_(&embedding(&t, &which)?, ()).map(drop))?;
        which.fill_(6)?;
        assert_eq!(failed(graph.replay()).index, 6);
        cuda::synchronize(0)?;
        assert_marked(&out, 6);
        which.fill_(1)?;
        graph.replay()?;
        assert_eq!(out.to_vec::<f32>()?, [3.0, 4.0, 5.0]);
        Ok(())
    });
}

/// Tests consecutive replays, between which nothing else uses the tensors of the graph.
fn in_a_row(_: &World) -> Result<()> {
    let (t, which, sum) = (table(0)?, which(-1)?, zeros([1, 3], 0)?);
    let (rounds, twice) = (zeros([1], 0)?, zeros([1, 3], 0)?);
    let mut graph = CudaGraph::new();
    graph.capture(|| {
        // Read the sum of the previous replay.
        twice.copy_(&(&sum * 2.0)?, ())?;
        which.add_(1)?;
        sum.add_(&embedding(&t, &which)?)?;
        rounds.add_(1.0).map(drop)
    })?;
    for waits in [true, false] {
        for round in 1..=4 {
            graph.replay()?;
            if waits {
                cuda::synchronize(0)?;
            }
            if round == 2 {
                assert_eq!(which.item::<i64>()?, 1);
            }
        }
        // Uses on another stream are ordered after the last replay.
        let other = cuda::Stream::new(0)?;
        cuda::with_stream(&other, || {
            assert_eq!((&sum + 1.0)?.to_vec::<f32>()?, [19.0, 23.0, 27.0]);
            assert_eq!(twice.to_vec::<f32>()?, [18.0, 24.0, 30.0]);
            Ok::<_, warpline::Error>(())
        })?;
        graph.replay()?;
        assert_eq!(twice.to_vec::<f32>()?, [36.0, 44.0, 52.0]);
        // Results of earlier replays are right. This sum and every later sum are marked.
        assert_marked(&sum, 4);
        assert_eq!(rounds.to_vec::<f32>()?, [5.0]);
        assert_eq!(failed(graph.replay()).index, 4);
        sum.zero_()?;
        which.fill_(-1)?;
        rounds.zero_()?;
        for _ in 0..3 {
            graph.replay()?;
        }
        assert_eq!(sum.to_vec::<f32>()?, [9.0, 12.0, 15.0]);
        // Several replays overlap the replay that fails.
        let overlapping = (0..4).try_for_each(|_| graph.replay());
        let index = overlapping.map_or_else(|error| failed::<(), _>(Err(error)).index, |()| 4);
        assert_eq!(index, 4);
        for marked in [&sum, &twice] {
            let found = failed(marked.to_vec::<f32>()).index;
            assert!((4..8).contains(&found), "{found}");
        }
        let _ = cuda::synchronize(0);
        sum.zero_()?;
        which.fill_(-1)?;
        rounds.zero_()?;
    }
    Ok(())
}

/// Tests a replay when the failure is known and nothing has used the tensors of the graph since the
/// failed replay.
fn known(_: &World) -> Result<()> {
    let (t, which, sum) = (table(0)?, which(1)?, zeros([1, 3], 0)?);
    let mut graph = CudaGraph::new();
    graph.capture(|| {
        which.add_(1)?;
        sum.add_(&embedding(&t, &which)?).map(drop)
    })?;
    for _ in 0..2 {
        (0..3).try_for_each(|_| graph.replay())?;
        assert_eq!(failed(cuda::synchronize(0)).index, 4);
        assert_eq!(failed(graph.replay()).index, 4, "the sum is an input");
        assert_marked(&sum, 4);
        sum.zero_()?;
        which.fill_(1)?;
    }
    (0..2).try_for_each(|_| graph.replay())?;
    assert_eq!(sum.to_vec::<f32>()?, [15.0, 17.0, 19.0]);
    Ok(())
}

/// Tests a program that always has replays in flight.
fn pipelined(_: &World) -> Result<()> {
    let (t, which) = (table(0)?, which(1)?);
    let mut graph = CudaGraph::new();
    let row = graph.capture(|| embedding(&t, &which))?;
    let stream = cuda::current_stream(0)?;
    let (mut rows, mut events) = (Vec::new(), Vec::new());
    for round in 0..10 {
        which.fill_(if round == 3 { 8 } else { 1 })?;
        graph.replay()?;
        rows.push(row.copy());
        events.push(stream.record_event(None)?);
        if let [.., former, _] = &events[..] {
            let _ = former.synchronize();
        }
    }
    for (round, row) in rows.into_iter().enumerate() {
        match row.and_then(|row| row.to_vec::<f32>()) {
            Ok(values) if round != 3 => assert_eq!(values, [3.0, 4.0, 5.0], "{round}"),
            // Overlapping replays share one report slot.
            answer if [2, 3, 4].contains(&round) => assert_eq!(failed(answer).index, 8),
            answer => panic!("{round}: {answer:?}"),
        }
    }
    Ok(())
}

/// Tests that between replays the input of a graph may be overwritten with a result of a replay or
/// with good values.
fn between(_: &World) -> Result<()> {
    let (t, which, x) = (table(0)?, which(8)?, zeros([1, 3], 0)?);
    let mut graph = CudaGraph::new();
    let (twice, row) = graph.capture(|| Ok(((&x * 2.0)?, embedding(&t, &which)?)))?;
    graph.replay()?;
    // Once the failure is known, calls that read the row are refused.
    let copied = x.copy_(&row, ()).map(drop);
    let replayed = copied.and_then(|()| (0..3).try_for_each(|_| graph.replay()));
    match replayed {
        Ok(()) => assert_marked(&twice, 8),
        Err(error) => assert_eq!(failed::<(), _>(Err(error)).index, 8),
    }
    let _ = cuda::synchronize(0);
    let mut looped = CudaGraph::new();
    let twice = looped.capture(|| {
        let twice = (&x * 2.0)?;
        x.copy_(&embedding(&t, &which)?, ())?;
        Ok(twice)
    })?;
    x.zero_()?;
    which.fill_(8)?;
    looped.replay()?;
    x.zero_()?;
    which.fill_(1)?;
    looped.replay()?;
    assert_eq!(twice.to_vec::<f32>()?, [0.0; 3]);
    let _ = cuda::synchronize(0);
    Ok(())
}
