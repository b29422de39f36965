//! Tests of row S8: `synchronize` reports a failed index check only in the thread that called the
//! failed op.

use std::thread::scope;

use warpline::cuda::{self, CudaGraph, Stream};
use warpline::data::{DataLoader, Dataset};
use warpline::functional::{NLLLossOptions, nll_loss};
use warpline::{Result, Runtime, Tensor, arange, ones, runtime, tensor, with_runtime, zeros};

use crate::common::World;
use crate::s08_index_check::{failed, table};
use crate::s08_marked_tensors::{assert_marked, picked};

crate::rows! {
    schedules64(1) s08_threads_on_their_own_tensors_hear_of_no_failure
        gpu_s08_threads_on_their_own_tensors_hear_of_no_failure => own_tensors;
    schedules64(1) s08_parallel_programs_hear_of_their_own_failures_only
        gpu_s08_parallel_programs_hear_of_their_own_failures_only => parallel;
    schedules64(1) s08_several_failures_of_a_call_are_reported_once
        gpu_s08_several_failures_of_a_call_are_reported_once => one_call;
    schedules64(1) s08_the_last_of_many_failures_is_reported
        gpu_s08_the_last_of_many_failures_is_reported => many;
    schedules64(1) s08_one_report_stands_for_all_failed_calls_of_a_thread
        gpu_s08_one_report_stands_for_all_failed_calls_of_a_thread => two_calls;
    schedules64(1) s08_a_thread_that_has_ended_leaves_its_failure_to_the_stream
        gpu_s08_a_thread_that_has_ended_leaves_its_failure_to_the_stream => ended;
    schedules64(1) s08_workers_of_a_loader_report_to_its_thread
        gpu_s08_workers_of_a_loader_report_to_its_thread => workers;
}

/// Runs `f` in another thread.
fn in_other_thread<R: Send>(runtime: &Runtime, f: impl FnOnce() -> R + Send) -> R {
    scope(|s| s.spawn(|| with_runtime(runtime, f)).join().expect("no panic"))
}

/// Makes calls of many kinds that wait for the device or query it.
fn wait_implicitly() -> Result<()> {
    let x = tensor([1.0f32, 2.0], 0)?;
    assert_eq!(x.add(1.0)?.to_vec::<f32>()?, [2.0, 3.0]);
    assert_eq!(x.sum(())?.item::<f32>()?, 3.0);
    x.cpu_async()?.wait()?;
    let event = cuda::current_stream(0)?.record_event(None)?;
    while !event.query()? {}
    event.synchronize()?;
    cuda::current_stream(0)?.synchronize()?;
    cuda::empty_cache();
    cuda::synchronize(0)
}

/// Replays a graph, with waits between the replays.
fn replay() -> Result<()> {
    let (x, mut graph) = (zeros([2], 0)?, CudaGraph::new());
    graph.capture(|| x.add_(1.0).map(drop))?;
    graph.replay()?;
    cuda::synchronize(0)?;
    graph.replay()?;
    assert_eq!(x.to_vec::<f32>()?, [2.0; 2]);
    Ok(())
}

fn own_tensors(_: &World) -> Result<()> {
    let runtime = runtime();
    let t = table(0)?;
    for index in [9, 10] {
        let bad = picked(&t, index)?;
        in_other_thread(&runtime, wait_implicitly)?;
        in_other_thread(&runtime, replay)?;
        assert_eq!(failed(cuda::synchronize(0)).index, index);
        wait_implicitly()?;
        assert_marked(&bad, index);
    }
    Ok(())
}

/// Models several tests in one process, some of which expect a failure.
fn parallel(_: &World) -> Result<()> {
    let runtime = runtime();
    let test = |number: i64| -> Result<()> {
        let t = arange(12.0f32, 0)?.view([4, 3])?;
        for turn in 0..2 {
            if number % 2 == 0 {
                wait_implicitly()?;
                continue;
            }
            let index = 100 * number + turn;
            let bad = t.index_select(0, &tensor([index], 0)?)?;
            if turn == 0 {
                assert_eq!(failed(bad.to_vec::<f32>()).index, index);
            } else {
                assert_eq!(failed(cuda::synchronize(0)).index, index);
            }
            wait_implicitly()?;
        }
        Ok(())
    };
    scope(|s| {
        let spawn = |number| {
            s.spawn({
                let (test, runtime) = (&test, &runtime);
                move || with_runtime(runtime, || test(number))
            })
        };
        let threads: Vec<_> = (0..4).map(spawn).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

/// The loss picks probabilities and weights with the same class, in two launches.
fn one_call(_: &World) -> Result<()> {
    let (input, weight) = (zeros([2, 3], 0)?, ones([3], 0)?);
    let target = tensor([1i64, 7], 0)?;
    let loss = || nll_loss(&input, &target, NLLLossOptions::new().weight(&weight));
    let bad = loss()?;
    assert_eq!(failed(bad.item::<f32>()).index, 7);
    cuda::synchronize(0)?;
    let bad = loss()?;
    assert_eq!(failed(cuda::synchronize(0)).index, 7);
    cuda::synchronize(0)?;
    assert_eq!(failed(bad.item::<f32>()).index, 7);
    // The report of a call does not count for another call.
    let (bad, _other) = (loss()?, loss()?);
    assert_eq!(failed(bad.item::<f32>()).index, 7);
    assert_eq!(failed(cuda::synchronize(0)).index, 7);
    cuda::synchronize(0)?;
    // Each replay calls the loss anew.
    target.fill_(0)?;
    let (graph, captured) = cuda::graph(loss)?;
    for index in [7, 8] {
        target.fill_(index)?;
        graph.replay()?;
        assert_eq!(failed(captured.item::<f32>()).index, index);
        cuda::synchronize(0)?;
        graph.replay()?;
        assert_eq!(failed(cuda::synchronize(0)).index, index);
        cuda::synchronize(0)?;
    }
    Ok(())
}

/// The program reads all results but the last. Nothing else reports the last failure.
fn many(_: &World) -> Result<()> {
    let t = table(0)?;
    let all = (0..20).map(|n| picked(&t, 100 + n)).collect::<Result<Vec<Tensor>>>()?;
    let event = cuda::current_stream(0)?.record_event(None)?;
    while !event.query()? {}
    for (n, bad) in all[..19].iter().enumerate() {
        assert_eq!(failed(bad.to_vec::<f32>()).index, 100 + n as i64);
    }
    assert_eq!(failed(cuda::synchronize(0)).index, 119);
    cuda::synchronize(0)
}

fn two_calls(_: &World) -> Result<()> {
    let t = table(0)?;
    let [first, second] = [picked(&t, 100)?, picked(&t, 101)?];
    assert_eq!(failed(cuda::synchronize(0)).index, 100);
    cuda::synchronize(0)?;
    for (bad, index) in [(first, 100), (second, 101)] {
        assert_eq!(failed(bad.to_vec::<f32>()).index, index);
    }
    Ok(())
}

fn ended(_: &World) -> Result<()> {
    let runtime = runtime();
    let (t, stream) = (table(0)?, Stream::new(0)?);
    cuda::synchronize(0)?;
    let bad = in_other_thread(&runtime, || cuda::with_stream(&stream, || picked(&t, 9)))?;
    Stream::new(0)?.synchronize()?; // another stream reports nothing
    assert_eq!(failed(stream.synchronize()).index, 9);
    stream.synchronize()?;
    cuda::synchronize(0)?;
    assert_marked(&bad, 9);
    Ok(())
}

/// A dataset that gathers rows on a device. All indices are out of range.
struct GatherDataset(Tensor);

impl Dataset for GatherDataset {
    type Sample = Tensor;

    fn len(&self) -> usize {
        2
    }

    fn get(&self, index: usize) -> Result<Tensor> {
        picked(&self.0, 20 + index as i64)
    }
}

fn workers(_: &World) -> Result<()> {
    for workers in [0, 1] {
        let loader = DataLoader::new(GatherDataset(table(0)?)).batch_size(1)?.num_workers(workers);
        let batches = loader.iter()?.collect::<Result<Vec<_>>>()?;
        in_other_thread(&runtime(), || cuda::synchronize(0))?;
        assert_eq!(failed(cuda::synchronize(0)).index, 20, "{workers}");
        assert_marked(&batches[0], 20);
        assert_marked(&batches[1], 21);
    }
    Ok(())
}
