//! Tests of row S8: an index out of range is an error that names the index and the line of the
//! call. On the CPU, the call itself fails. On a GPU, each read of the result fails. The next
//! `synchronize` of the thread that made the call also fails, unless a call of this thread has
//! already returned the error. The device remains usable.

use warpline::cuda::{self, CudaGraph, Stream};
use warpline::{
    DType, Error, ErrorKind, RaceReport, Result, RuntimeConfig, SyncPolicy, Tensor, arange,
    embedding, tensor, zeros,
};
use warpline_cuda_sys_safe::sim::{CallKind, Schedule};
use warpline_runtime::IndexCheck;

use crate::boxes::SimBox;
use crate::common::{self, World};

crate::rows! {
    schedules(1) s08_an_index_out_of_range_names_its_call gpu_s08_an_index_out_of_range_names_its_call
        => every_op_and_wait;
    schedules(1) s08_streams_are_blamed_apart gpu_s08_streams_are_blamed_apart => streams;
    schedules(1) s08_a_wait_reports_the_failures_that_it_covers gpu_s08_a_wait_reports_the_failures_that_it_covers => covered;
    schedules(1) s08_a_replay_names_the_captured_call gpu_s08_a_replay_names_the_captured_call
        => replays;
    manual(1) s08_index_checks_in_manual_mode gpu_s08_index_checks_in_manual_mode => every_op_and_wait;
    schedules(2) s08_devices_are_blamed_apart gpu2_s08_devices_are_blamed_apart => devices;
}

/// Returns the tensor `[[0, 1, 2], [3, 4, 5], …]`, with four rows.
pub(crate) fn table(device: usize) -> Result<Tensor> {
    arange(12.0f32, device)?.view([4, 3])
}

pub(crate) fn indices(device: usize, values: &[i64]) -> Result<Tensor> {
    tensor(values, device)
}

/// Returns the failed check. Panics on success and on other errors.
#[track_caller]
pub(crate) fn failed<R: std::fmt::Debug, E: Into<Error> + std::fmt::Debug>(
    answer: Result<R, E>,
) -> IndexCheck {
    let error = answer.expect_err("an index was out of range").into();
    IndexCheck::of(&error).unwrap_or_else(|| panic!("{error}"))
}

#[track_caller]
fn assert_is(failed: &IndexCheck, op: &str, index: i64, [dim, size]: [usize; 2], line: u32) {
    assert_eq!((failed.op, failed.index), (op, index), "{failed:?}");
    assert_eq!([failed.dim, failed.size], [dim, size], "{failed:?}");
    assert_eq!((failed.location.file(), failed.location.line()), (file!(), line), "{failed:?}");
    let text = format!("{op}: index {index} is out of range for dimension {dim} with size {size}");
    assert!(Error::from(failed.clone()).to_string().starts_with(&text), "{failed:?}");
}

type Wait = fn(&Tensor) -> Result<()>;

fn until(mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    while !done()? {}
    Ok(())
}

/// Returns waits and queries that must not report the failure of a tensor, some of them because
/// they are for other tensors.
fn silent_waits() -> Vec<Wait> {
    vec![
        |_| until(|| cuda::current_stream(())?.query()),
        |_| {
            let event = cuda::current_stream(())?.record_event(None)?;
            until(|| event.query())
        },
        |_| indices(0, &[1, 2]).map(drop),
        |_| zeros([2], 0)?.to_vec::<f32>().map(drop),
        |_| zeros([2], 0)?.cpu().map(drop),
        |_| zeros([2], 0)?.to_vec_async::<f32>()?.wait().map(drop),
        |_| zeros([2], "cpu")?.copy_(&zeros([2], 0)?, ()).map(drop),
        |_| {
            zeros([2], "cpu")?.pin_memory()?.copy_(&zeros([2], 0)?, true)?.to_vec::<f32>().map(drop)
        },
        |_| {
            drop(zeros([1 << 20], 0)?);
            cuda::empty_cache();
            zeros([1 << 20], 0).map(drop)
        },
    ]
}

/// Returns waits that must report the failure of a tensor.
fn waits() -> Vec<Wait> {
    vec![
        |_| cuda::synchronize(()),
        |_| cuda::current_stream(())?.synchronize(),
        |_| cuda::current_stream(())?.record_event(None)?.synchronize(),
        |t| t.to_vec::<f32>().map(drop),
        |t| t.sum(())?.item::<f32>().map(drop),
        |t| t.cpu().map(drop),
        |t| t.to_non_blocking("cpu")?.to_vec::<f32>().map(drop),
        |t| t.to_vec_async::<f32>()?.wait().map(drop),
        |t| {
            let pending = t.cpu_async()?;
            until(|| pending.query())?;
            pending.wait().map(drop)
        },
        |t| warpline::zeros(t.size(), "cpu")?.copy_(t, ()).map(drop),
    ]
}

fn every_op_and_wait(_: &World) -> Result<()> {
    let (t, bad) = (table(0)?, indices(0, &[1, 4, 0])?);
    let good = indices(0, &[3, 0])?;
    for wait in waits() {
        let before = t.index_select(0, &good)?;
        let (line, picked) = (line!(), t.index_select(0, &bad)?);
        let after = t.index_select(0, &good)?;
        assert_is(&failed(wait(&picked)), "index_select", 4, [0, 4], line);
        // Waits report the failure once, and each read of dependent data reports it. Other results
        // are right.
        wait(&after)?;
        assert_is(&failed(picked.to_vec::<f32>()), "index_select", 4, [0, 4], line);
        for right in [before, after, t.index_select(0, &good)?] {
            assert_eq!(right.to_vec::<f32>()?, [9.0, 10.0, 11.0, 0.0, 1.0, 2.0]);
        }
        let index = bad.narrow(0, 0, 2)?.unsqueeze(0)?.to(DType::I32)?;
        let (line, picked) = (line!(), t.t()?.gather(-1, &index)?);
        assert_is(&failed(wait(&picked)), "gather", 4, [1, 4], line);
        let (line, picked) = (line!(), embedding(&t, &bad)?);
        assert_is(&failed(wait(&picked)), "embedding", 4, [0, 4], line);
        wait(&embedding(&t, &good)?)?;
    }
    for wait in silent_waits() {
        let (line, picked) = (line!(), t.index_select(0, &bad)?);
        wait(&picked)?;
        assert_is(&failed(cuda::synchronize(())), "index_select", 4, [0, 4], line);
        wait(&picked)?;
        cuda::synchronize(())?; // reported only once
        assert_is(&failed(picked.to_vec::<f32>()), "index_select", 4, [0, 4], line);
    }
    Ok(())
}

#[test]
fn s08_on_the_cpu_the_call_itself_fails() {
    common::cpu(|_| {
        let t = arange(12.0f32, ())?.view([4, 3])?;
        for bad in [4i64, -1] {
            let index = tensor([0, bad], ())?;
            let (line, answer) = (line!(), t.index_select(0, &index));
            assert_is(&failed(answer), "index_select", bad, [0, 4], line);
            let (line, answer) = (line!(), t.t()?.gather(1, &index.unsqueeze(0)?));
            assert_is(&failed(answer), "gather", bad, [1, 4], line);
            let (line, answer) = (line!(), embedding(&t, &index));
            assert_is(&failed(answer), "embedding", bad, [0, 4], line);
        }
        Ok(())
    });
}

/// Tests that with `launch_blocking` the call itself fails, on any stream.
fn blocking(_: &World) -> Result<()> {
    let (t, bad) = (table(0)?, indices(0, &[-7])?);
    for _ in 0..3 {
        let (line, answer) = (line!(), embedding(&t, &bad));
        assert_is(&failed(answer), "embedding", -7, [0, 4], line);
        cuda::synchronize(0)?;
        let s = cuda::Stream::new(0)?;
        let (line, answer) = (line!(), cuda::with_stream(&s, || t.index_select(1, &bad)));
        assert_is(&failed(answer), "index_select", -7, [1, 3], line);
        assert_eq!(embedding(&t, &indices(0, &[2])?)?.to_vec::<f32>()?, [6.0, 7.0, 8.0]);
    }
    Ok(())
}

fn blocking_config(sync_policy: SyncPolicy) -> RuntimeConfig {
    let race_report = RaceReport::Error;
    RuntimeConfig { launch_blocking: true, sync_policy, race_report, ..RuntimeConfig::default() }
}

#[test]
fn s08_a_blocking_launch_reports_its_own_index() {
    for policy in [SyncPolicy::Auto, SyncPolicy::Manual] {
        common::schedules_with(1, &blocking_config(policy), blocking);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_s08_a_blocking_launch_reports_its_own_index() {
    common::gpu_with(1, &blocking_config(SyncPolicy::Auto), blocking);
}

fn pool_streams() -> Result<[Stream; 2]> {
    Ok([cuda::Stream::new(0)?, cuda::Stream::new(0)?])
}

fn streams(_: &World) -> Result<()> {
    let (t, bad) = (table(0)?, indices(0, &[9])?);
    cuda::synchronize(0)?;
    let [a, b] = pool_streams()?;
    for turn in 0..4 {
        let (first, _) = (line!(), cuda::with_stream(&a, || embedding(&t, &bad))?);
        let (second, _) = (line!(), cuda::with_stream(&b, || embedding(&t, &bad))?);
        // Each stream reports its own failure, in either order.
        let mut order = [(&a, first), (&b, second)];
        if turn % 2 == 1 {
            order.reverse();
        }
        for (stream, line) in order {
            assert_is(&failed(stream.synchronize()), "embedding", 9, [0, 4], line);
            stream.synchronize()?;
        }
        // Two waits for the device report the two failures one after the other.
        let (first, _) = (line!(), cuda::with_stream(&a, || embedding(&t, &bad))?);
        let (second, _) = (line!(), cuda::with_stream(&b, || embedding(&t, &bad))?);
        let mut lines = [0, 1].map(|_| failed(cuda::synchronize(0)).location.line());
        lines.sort_unstable();
        assert_eq!(lines, [first, second]);
        cuda::synchronize(0)?;
        // A wait for the device covers dropped streams.
        let gone = cuda::exclusive_stream(0, 0)?;
        let (t, bad) = (t.copy()?, bad.copy()?); // the originals must not record a use by `gone`
        let (line, _) = (line!(), cuda::with_stream(&gone, || embedding(&t, &bad))?);
        drop((gone, t, bad));
        assert_is(&failed(cuda::synchronize(0)), "embedding", 9, [0, 4], line);
        cuda::synchronize(0)?;
    }
    Ok(())
}

fn covered(_: &World) -> Result<()> {
    let (t, bad) = (table(0)?, indices(0, &[5])?);
    cuda::synchronize(0)?;
    let [a, b] = pool_streams()?;
    for _ in 0..4 {
        // A wait for the event covers neither the earlier work of `b` nor the later work of `a`.
        let (early, _) = (line!(), cuda::with_stream(&b, || embedding(&t, &bad))?);
        let event = a.record_event(None)?;
        let (late, picked) = (line!(), cuda::with_stream(&a, || embedding(&t, &bad))?);
        event.synchronize()?;
        // The copy on `a` waits for `picked` and for no other stream.
        let read = cuda::with_stream(&a, || picked.to_vec::<f32>());
        assert_is(&failed(read), "embedding", 5, [0, 4], late);
        // The failure on `b` is reported only after `a` waits for `b`, by a wait for `a`.
        a.wait_stream(&b)?;
        assert_is(&failed(a.synchronize()), "embedding", 5, [0, 4], early);
        cuda::synchronize(0)?;
    }
    Ok(())
}

fn devices(_: &World) -> Result<()> {
    let tables = [table(0)?, table(1)?];
    let bad = [indices(0, &[5])?, indices(1, &[6])?];
    for _ in 0..3 {
        let (line, _) = (line!(), [0, 1].map(|d: usize| embedding(&tables[d], &bad[d])));
        assert_is(&failed(cuda::synchronize(1)), "embedding", 6, [0, 4], line);
        cuda::synchronize(1)?;
        assert_is(&failed(cuda::synchronize(0)), "embedding", 5, [0, 4], line);
        cuda::synchronize(0)?;
    }
    Ok(())
}

fn replays(_: &World) -> Result<()> {
    let (t, which, other) = (table(0)?, indices(0, &[1, 2])?, indices(0, &[0])?);
    let mut graph = CudaGraph::new();
    let (line, [rows, columns]) = graph.capture(|| {
        let line = line!() + 1;
        Ok((line, [t.index_select(0, &which)?, t.index_select(1, &other)?]))
    })?;
    let read = |t: &Tensor| t.to_vec::<f32>();
    for bad in [-1i64, 4] {
        graph.replay()?;
        assert_eq!(read(&rows)?, [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        which.copy_(&indices(0, &[bad, 0])?, ())?;
        graph.replay()?;
        cuda::Stream::new(0)?.synchronize()?; // this stream has no replay
        for _ in 0..2 {
            assert_is(&failed(read(&rows)), "index_select", bad, [0, 4], line);
        }
        assert_eq!(read(&columns)?, [0.0, 3.0, 6.0, 9.0]); // the other call succeeded
        // Each replay reports its own failure. Both calls in the graph mark their results.
        other.copy_(&indices(0, &[3])?, ())?;
        graph.replay()?;
        assert_is(&failed(cuda::synchronize(0)), "index_select", bad, [0, 4], line);
        cuda::synchronize(0)?; // the wait reported one failure, so the other counts as reported
        assert_is(&failed(read(&rows)), "index_select", bad, [0, 4], line);
        assert_is(&failed(read(&columns)), "index_select", 3, [1, 3], line);
        which.copy_(&indices(0, &[1, 2])?, ())?;
        other.copy_(&indices(0, &[0])?, ())?;
    }
    graph.replay()?;
    assert_eq!(read(&columns)?, [0.0, 3.0, 6.0, 9.0]);
    // A graph may be dropped during its replay.
    which.copy_(&indices(0, &[7, 7])?, ())?;
    graph.replay()?;
    drop(graph);
    assert_is(&failed(cuda::synchronize(0)), "index_select", 7, [0, 4], line);
    cuda::synchronize(0)
}

/// Index checks add no host waits, and allocate report pages only for launches in flight.
#[test]
fn s08_checks_cost_nothing_where_there_are_none() {
    let world = SimBox::lazy(2);
    world.enter(|| {
        let (t, good) = (table(0)?, indices(0, &[1])?);
        t.add(1.0)?.to_vec::<f32>()?;
        cuda::synchronize(0)?;
        let (before, waits) = (world.count(CallKind::HostAlloc), world.host_waits());
        for _ in 0..2000 {
            embedding(&t, &good)?;
        }
        // No launch has run, so each occupies a slot for its report. A page has 512 slots.
        let pages = world.count(CallKind::HostAlloc) - before;
        assert!((1..=4).contains(&pages), "{pages}");
        assert_eq!(world.host_waits(), waits);
        // The slots of dropped streams are reused.
        for turn in 0..200 {
            // Create a new table, because a tensor records its readers.
            let t = table(0)?;
            let stream = cuda::exclusive_stream(0, 0)?;
            let bad = indices(0, &[100 + turn])?;
            cuda::with_stream(&stream, || embedding(&t, &bad))?;
            assert_eq!(failed(stream.synchronize()).index, 100 + turn);
        }
        assert!(world.count(CallKind::HostAlloc) - before <= pages + 1);
        Ok(())
    });
    drop(world.runtime);
    let alive = world.sim.usage();
    assert_eq!(alive.count(CallKind::HostAlloc), alive.count(CallKind::HostFree));
}

/// The slots of completed launches are reused although the program never waits.
#[test]
fn s08_a_program_that_never_waits_needs_no_more_places() {
    let world = SimBox::with(1, Schedule::Eager, SyncPolicy::Auto);
    world.enter(|| {
        let (t, good) = (table(0)?, indices(0, &[1])?);
        let sum = zeros([1, 3], 0)?;
        cuda::synchronize(0)?;
        let (before, waits) = (world.count(CallKind::HostAlloc), world.host_waits());
        for _ in 0..5000 {
            sum.add_(&embedding(&t, &good)?)?;
        }
        assert_eq!(world.count(CallKind::HostAlloc) - before, 1);
        assert_eq!(world.host_waits(), waits);
        Ok(())
    });
}

/// Without page-locked memory for the report, the launch is refused, and everything else works.
#[test]
fn s08_without_a_place_to_report_the_launch_fails() {
    let world = SimBox::lazy(1);
    world.enter(|| {
        let (t, good) = (table(0)?, indices(0, &[1])?);
        cuda::synchronize(0)?;
        let full = warpline_cuda_sys_safe::CudaCode::OUT_OF_MEMORY;
        let fault = warpline_cuda_sys_safe::sim::Fault::new(CallKind::HostAlloc, full);
        world.sim.inject(fault.times(1));
        let error = embedding(&t, &good).expect_err("no memory");
        assert!(matches!((error.op(), error.kind()), ("embedding", ErrorKind::Driver)), "{error}");
        assert_eq!(error.driver_error().and_then(|e| e.code()), Some(full), "{error:?}");
        assert_eq!(embedding(&t, &good)?.to_vec::<f32>()?, [3.0, 4.0, 5.0]);
        Ok(())
    });
}

/// Tests that each thread that waits for its own stream receives only its own failures.
fn threads(_: &World) -> Result<()> {
    let t = table(0)?;
    cuda::synchronize(0)?;
    let runtime = warpline::runtime();
    std::thread::scope(|scope| {
        for thread in 0..4i64 {
            let (t, runtime) = (&t, runtime.clone());
            scope.spawn(move || {
                warpline::with_runtime(&runtime, || {
                    let s = cuda::exclusive_stream(0, 0)?;
                    let _on = cuda::stream(&s)?;
                    for turn in 0..25 {
                        let index = 10 + thread * 100 + turn;
                        let picked = embedding(t, &indices(0, &[index])?)?;
                        assert_eq!(failed(picked.to_vec::<f32>()).index, index);
                        s.synchronize()?;
                    }
                    Ok::<_, Error>(())
                })
                .expect("no other failure");
            });
        }
    });
    Ok(())
}

crate::rows! {
    schedules(1) s08_threads_are_blamed_apart gpu_s08_threads_are_blamed_apart => threads;
}
