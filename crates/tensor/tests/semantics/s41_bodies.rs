//! S41: bodies of captured control flow: their order with other streams, their memory, marks, gradients
//! and errors.

use std::panic::{AssertUnwindSafe, catch_unwind};

use warpline::cuda::{self, CudaGraph, Stream, graph_if, graph_while};
use warpline::{
    DType, Error, ErrorKind, RaceReport, Result, SyncPolicy, Tensor, full, no_grad, ones, rand,
    tensor, with_runtime, zeros,
};
use warpline_cuda_sys_safe::CudaCode;
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule};

use crate::boxes::SimBox;
use crate::common::World;
use crate::s08_index_check::failed;
use crate::s41_control_flow::{captured, values};

crate::rows! {
    schedules64(1) s41_bodies_are_ordered_with_other_streams
        gpu_s41_bodies_are_ordered_with_other_streams => streams;
    manual(1) s41_ordered_bodies_do_not_race gpu_s41_ordered_bodies_do_not_race => no_races;
    schedules64(1) s41_iterations_keep_tensors_that_a_body_drops
        gpu_s41_iterations_keep_tensors_that_a_body_drops => dropped;
    schedules(1) s41_invalid_conditions_and_bodies_are_refused
        gpu_s41_invalid_conditions_and_bodies_are_refused => refused;
    schedules64(1) s41_a_failed_body_fails_its_capture
        gpu_s41_a_failed_body_fails_its_capture => failed_bodies;
    schedules64(1) s41_an_index_out_of_range_in_a_body_is_reported
        gpu_s41_an_index_out_of_range_in_a_body_is_reported => indices;
    schedules64(1) s41_a_step_of_training_fits_in_a_body
        gpu_s41_a_step_of_training_fits_in_a_body => training;
    schedules64(1) s41_streams_of_a_body_share_its_memory
        gpu_s41_streams_of_a_body_share_its_memory => shared_memory;
    manual(1) s41_streams_of_a_body_share_its_memory_under_manual
        gpu_s41_streams_of_a_body_share_its_memory_under_manual => shared_memory_in_order;
    schedules64(1) s41_streams_around_a_body_are_refused_in_it
        gpu_s41_streams_around_a_body_are_refused_in_it => around;
    schedules64(1) s41_other_threads_do_not_synchronize_during_a_body
        gpu_s41_other_threads_do_not_synchronize_during_a_body => synchronized;
    schedules64(1) s41_tensors_of_a_body_are_refused_outside_it
        gpu_s41_tensors_of_a_body_are_refused_outside_it => outside;
    schedules64(1) s41_ops_of_a_body_are_differentiated_in_it
        gpu_s41_ops_of_a_body_are_differentiated_in_it => gradients;
}

/// Another thread synchronizes the device while a body is captured. A GPU refuses this, and the capture goes on. The
/// simulator captures on the host, so it may allow it.
fn synchronized(world: &World) -> Result<()> {
    let condition = ones([], (DType::Bool, 0))?;
    let x = zeros([3], 0)?;
    let (graph, ()) = captured(|| {
        graph_if(&condition, || {
            x.add_(1.0)?;
            let result = std::thread::scope(|scope| {
                let other = || with_runtime(&world.runtime, || cuda::synchronize(0));
                scope.spawn(other).join().expect("no panic")
            });
            match result {
                Ok(()) => assert!(!world.real),
                Err(error) => assert!(error.to_string().contains("captur"), "{error}"),
            }
            x.add_(1.0).map(drop)
        })
    })?;
    graph.replay()?;
    assert_eq!(x.to_vec::<f32>()?, [2.0; 3]);
    Ok(())
}

/// The body uses results of a stream that joined the capture, and the other way round. Two bodies
/// use one more stream, which the capture uses afterwards.
fn streams(_: &World) -> Result<()> {
    let [side, joined] = [Stream::new(())?, Stream::new(())?];
    let [runs, again] = [zeros([1], (DType::I32, 0))?, zeros([1], (DType::I32, 0))?];
    let x = ones([50], 0)?;
    let on = |stream: &Stream, f: &dyn Fn() -> Result<()>| {
        stream.wait_stream(&cuda::current_stream(())?)?;
        cuda::with_stream(stream, f)
    };
    let (graph, [before, after, last]) = captured(|| {
        side.wait_stream(&cuda::current_stream(())?)?;
        let before = cuda::with_stream(&side, || x.mul(2.0))?;
        graph_while(&runs, || {
            before.add_(1.0)?;
            on(&joined, &|| (0..5).try_for_each(|_| before.add_(&x).map(drop)))?;
            runs.sub_(1).map(drop)
        })?;
        let after = cuda::with_stream(&side, || before.mul(10.0))?;
        graph_while(&again, || {
            on(&joined, &|| after.add_(1.0).map(drop))?;
            after.mul_(2.0)?;
            on(&joined, &|| again.sub_(1).map(drop))
        })?;
        joined.wait_stream(&cuda::current_stream(())?)?;
        let last = cuda::with_stream(&joined, || after.add(&before))?;
        Ok([before, after, last])
    })?;
    for [count, second] in [[4, 1], [0, 0], [1, 3], [0, 2]] {
        runs.fill_(count)?;
        again.fill_(second)?;
        graph.replay()?;
        let expected = 2.0 + 6.0 * count as f32;
        assert_eq!(values(&before)?, [expected; 50]);
        let then = (0..second).fold(10.0 * expected, |after, _| (after + 1.0) * 2.0);
        assert_eq!(values(&after)?, [then; 50]);
        assert_eq!(values(&last)?, [then + expected; 50]);
    }
    Ok(())
}

fn no_races(world: &World) -> Result<()> {
    world.runtime.set_race_report(RaceReport::Error);
    let (side, runs, x) = (Stream::new(())?, zeros([1], (DType::I32, 0))?, ones([1000], 0)?);
    cuda::synchronize(())?;
    let stream = Stream::new(())?;
    let mut graph = CudaGraph::new();
    let after = cuda::with_stream(&stream, || {
        graph.capture(|| {
            side.wait_stream(&stream)?;
            let before = cuda::with_stream(&side, || x.mul(2.0))?;
            stream.wait_stream(&side)?;
            graph_while(&runs, || {
                before.add_(1.0)?;
                runs.sub_(1).map(drop)
            })?;
            side.wait_stream(&stream)?;
            let after = cuda::with_stream(&side, || before.mul(10.0))?;
            stream.wait_stream(&side)?;
            Ok(after)
        })
    })?;
    for count in [3, 0] {
        cuda::with_stream(&stream, || {
            runs.fill_(count)?;
            graph.replay()
        })?;
        cuda::synchronize(())?;
        assert_eq!(values(&after)?, [20.0 + 10.0 * count as f32; 1000]);
    }
    // A body that is not ordered after work of another stream is a race.
    let race = cuda::with_stream(&stream, || {
        graph.capture(|| {
            side.wait_stream(&stream)?;
            let before = cuda::with_stream(&side, || x.mul(2.0))?;
            graph_if(&runs, || before.add_(1.0).map(drop))
        })
    });
    let error = race.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Race), "{error}");
    Ok(())
}

/// A tensor of the pool that a body uses and drops has the same values in each iteration, although
/// the body allocates memory of the same size afterwards.
fn dropped(_: &World) -> Result<()> {
    let (left, sum, source) =
        (zeros([1], (DType::I64, 0))?, zeros([5000], 0)?, full([5000], 3.0, 0)?);
    let (graph, ()) = captured(|| {
        let mut made = Some(source.mul(2.0)?);
        graph_while(&left, || {
            sum.add_(&made.take().expect("called once"))?;
            for _ in 0..3 {
                sum.add_(&source.mul(100.0)?)?;
            }
            left.sub_(1).map(drop)
        })
    })?;
    let pool = cuda::memory_reserved(0)?;
    for count in [1, 5, 2] {
        sum.zero_()?;
        left.fill_(count)?;
        graph.replay()?;
        assert_eq!(values(&sum)?, [906.0 * count as f32; 5000]);
    }
    assert_eq!(cuda::memory_reserved(0)?, pool);
    Ok(())
}

/// Size of a tensor whose ops take a simulated device some time.
pub(crate) const LARGE: usize = 5000;

/// Each of a body's two streams makes and drops tensors of one size.
fn both_streams(
    joined: &Stream,
    [sum, other, a, b]: [&Tensor; 4],
    left: &Tensor,
    f: impl Fn(&dyn Fn() -> Result<()>) -> Result<()>,
) -> Result<()> {
    let (graph, ()) = captured(|| {
        graph_while(left, || {
            joined.wait_stream(&cuda::current_stream(())?)?;
            for _ in 0..3 {
                sum.add_(&a.mul(1.0)?)?;
                f(&|| other.add_(&b.mul(1.0)?).map(drop))?;
            }
            cuda::current_stream(())?.wait_stream(joined)?;
            left.sub_(1).map(drop)
        })
    })?;
    for count in [1, 4] {
        sum.zero_()?;
        other.zero_()?;
        left.fill_(count)?;
        graph.replay()?;
        assert_eq!(values(sum)?, [6.0 * count as f32; LARGE]);
        assert_eq!(values(other)?, [900.0 * count as f32; LARGE]);
    }
    Ok(())
}

fn shared_memory(_: &World) -> Result<()> {
    let joined = Stream::new(())?;
    let [sum, other] = [zeros([LARGE], 0)?, zeros([LARGE], 0)?];
    let [a, b] = [full([LARGE], 2.0, 0)?, full([LARGE], 300.0, 0)?];
    let left = zeros([1], (DType::I64, 0))?;
    both_streams(&joined, [&sum, &other, &a, &b], &left, |f| cuda::with_stream(&joined, f))
}

/// Each stream only uses its own temporary tensors, so the program orders nothing but the streams at begin and end.
fn shared_memory_in_order(world: &World) -> Result<()> {
    world.runtime.set_race_report(RaceReport::Error);
    let stream = Stream::new(())?;
    cuda::with_stream(&stream, || shared_memory(world))
}

fn around(_: &World) -> Result<()> {
    let [stream, side] = [Stream::new(())?, Stream::new(())?];
    let condition = ones([1], (DType::Bool, 0))?;
    let [x, y] = [ones([3], 0)?, ones([3], 0)?];
    let in_capture = |k: &ErrorKind| matches!(k, ErrorKind::Capture { .. });
    let mut graph = CudaGraph::new();
    cuda::with_stream(&stream, || {
        graph.capture(|| {
            side.wait_stream(&stream)?;
            graph_if(&condition, || {
                for around in [&stream, &side] {
                    cuda::with_stream(around, || {
                        fails("add_", y.add_(1.0), in_capture, "the capture around the body");
                        fails("zeros", zeros([3], 0), in_capture, "the capture around the body");
                        fails(
                            "graph_if",
                            graph_if(&condition, || Ok(())),
                            in_capture,
                            "another body",
                        );
                        Ok(())
                    })?;
                }
                x.add_(1.0).map(drop)
            })?;
            // After the body, the streams can be used again.
            cuda::with_stream(&side, || y.add_(1.0).map(drop))
        })
    })?;
    for (run, expected) in [(true, 2.0), (false, 2.0)] {
        condition.fill_(run)?;
        cuda::with_stream(&stream, || graph.replay())?;
        assert_eq!(values(&x)?, [expected; 3]);
    }
    assert_eq!(values(&y)?, [3.0; 3]);
    Ok(())
}

fn outside(_: &World) -> Result<()> {
    let (x, condition) = (ones([3], 0)?, ones([1], (DType::Bool, 0))?);
    let w = ones([3], 0)?.requires_grad_(true)?;
    let in_capture = |k: &ErrorKind| matches!(k, ErrorKind::Capture { .. });
    let text = "made in the body of `graph_if` or `graph_while`";
    let (graph, made) = captured(|| {
        let mut made = None;
        graph_if(&condition, || {
            let y = x.mul(2.0)?;
            // A body within can use it.
            graph_if(&condition, || x.copy_(&y.add(1.0)?, ()).map(drop))?;
            made = Some(y);
            w.mul(2.0)?.sum(())?.backward()
        })?;
        let made = made.expect("the body was called");
        fails("add_", x.add_(&made), in_capture, text);
        graph_if(&condition, || {
            fails("add_", x.add_(&made), in_capture, text);
            fails("add_", made.add_(1.0), in_capture, text);
            Ok(())
        })?;
        Ok(made)
    })?;
    for run in [false, true] {
        condition.fill_(run)?;
        graph.replay()?;
        fails("to_vec", made.to_vec::<f32>(), in_capture, text);
        fails("add", made.add(1.0), in_capture, text);
        fails("to_vec", w.grad().expect("a gradient").to_vec::<f32>(), in_capture, text);
    }
    assert_eq!(values(&x)?, [3.0; 3]);
    let other = captured(|| x.copy_(&made, ()).map(drop));
    fails("copy_", other, in_capture, text);
    drop(made);
    // A gradient from outside the body accumulates in each run of a loop.
    let (left, w) = (zeros([1], (DType::I64, 0))?, ones([3], 0)?.requires_grad_(true)?);
    w.set_grad(Some(&zeros([3], 0)?))?;
    let (graph, ()) = captured(|| {
        graph_while(&left, || {
            w.mul(2.0)?.sum(())?.backward()?;
            left.sub_(1).map(drop)
        })
    })?;
    left.fill_(3)?;
    graph.replay()?;
    assert_eq!(values(&w.grad().expect("a gradient"))?, [6.0; 3]);
    Ok(())
}

/// The gradient of an op that a replay may skip is refused outside of its body.
fn gradients(_: &World) -> Result<()> {
    let (run, w) = (ones([1], (DType::Bool, 0))?, ones([3], 0)?.requires_grad_(true)?);
    w.set_grad(Some(&zeros([3], 0)?))?;
    let is_gradient = |k: &ErrorKind| matches!(k, ErrorKind::Gradient { .. });
    let text = "recorded in the body of `graph_if` or `graph_while`";
    let (graph, ()) = captured(|| {
        let (y, z) = (w.mul(2.0)?, w.mul(3.0)?);
        graph_if(&run, || y.add_(&w).map(drop))?;
        fails("add_", y.sum(())?.backward(), is_gradient, text);
        graph_if(&run, || {
            fails("add_", y.sum(())?.backward(), is_gradient, text);
            // The forward ops of `z` always run.
            z.sum(())?.backward()
        })
    })?;
    for (value, expected) in [(false, 0.0), (true, 3.0), (true, 6.0)] {
        run.fill_(value)?;
        graph.replay()?;
        assert_eq!(values(&w.grad().expect("a gradient"))?, [expected; 3]);
    }
    // The stream decides whether an op is in the body, not the thread.
    let others_ops = captured(|| {
        let y = w.mul(1.0)?;
        graph_if(&run, || on_thread(|| y.copy_(&w.mul(5.0)?, ()).map(drop)))?;
        fails("copy_", y.sum(())?.backward(), is_gradient, text);
        graph_if(&run, || {
            let z = w.mul(2.0)?;
            on_thread(|| z.sum(())?.backward())
        })
    });
    drop(others_ops?);
    // Ops on the CPU, and views of outer tensors that the body reads first, are not in the body.
    let host = ones([2], ())?.requires_grad_(true)?;
    let mut doubled = None;
    let (_graph, ()) = captured(|| {
        let base = w.mul(1.0)?;
        let view = base.narrow(0, 0, 2)?;
        base.mul_(3.0)?;
        graph_if(&run, || {
            doubled = Some(host.mul(2.0)?);
            y_of(&view)
        })?;
        view.sum(())?.backward()
    })?;
    doubled.expect("the body was called").sum(())?.backward()?;
    assert_eq!(values(&host.grad().expect("a gradient"))?, [2.0; 2]);
    Ok(())
}

/// Uses a tensor without recording.
fn y_of(view: &Tensor) -> Result<()> {
    view.detach().mul(2.0).map(drop)?;
    view.mul(2.0)?.detach().sum(()).map(drop)
}

/// Runs `f` on another thread, with this thread's runtime and current stream.
fn on_thread(f: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    let (runtime, stream) = (warpline::runtime(), cuda::current_stream(())?);
    std::thread::scope(|scope| {
        let run = || with_runtime(&runtime, || cuda::with_stream(&stream, f));
        scope.spawn(run).join().expect("no panic")
    })
}

#[track_caller]
fn fails<R: std::fmt::Debug>(
    op: &str,
    answer: Result<R>,
    kind: impl Fn(&ErrorKind) -> bool,
    text: &str,
) {
    let error = answer.unwrap_err();
    assert!(error.op() == op && kind(error.kind()), "{error:?}");
    assert!(error.to_string().contains(text), "{error}");
    assert!(error.to_string().contains("s41_bodies.rs"), "{error}");
}

/// Nests `depth` branches.
fn nest(depth: usize, condition: &Tensor) -> Result<()> {
    if depth == 0 { Ok(()) } else { graph_if(condition, || nest(depth - 1, condition)) }
}

fn refused(world: &World) -> Result<()> {
    let x = ones([3], 0)?;
    let condition = ones([1], (DType::Bool, 0))?;
    let check = || {
        let is_float = |k: &ErrorKind| matches!(k, ErrorKind::UnsupportedDType { .. });
        fails("graph_if", graph_if(&ones((), 0)?, || Ok(())), is_float, "float32");
        let is_invalid = |k: &ErrorKind| matches!(k, ErrorKind::InvalidArgument { .. });
        for n in [0, 2] {
            let several = zeros([n], (DType::I32, 0))?;
            fails("graph_while", graph_while(&several, || Ok(())), is_invalid, "one element");
        }
        Ok::<_, Error>(())
    };
    check()?;
    let (graph, ()) = captured(|| {
        check()?;
        // A refused call leaves the capture as it was.
        let elsewhere = |k: &ErrorKind| matches!(k, ErrorKind::DeviceMismatch { .. });
        let on_cpu = tensor(true, ())?;
        fails("graph_if", graph_if(&on_cpu, || Ok(())), elsewhere, "cpu");
        if world.devices > 1 {
            let other = ones([1], (DType::Bool, 1))?;
            fails("graph_while", graph_while(&other, || Ok(())), elsewhere, "cuda:1");
        }
        let in_capture = |k: &ErrorKind| matches!(k, ErrorKind::Capture { .. });
        let drawn = graph_while(&condition, || {
            fails("rand", rand([3], 0), in_capture, "before the loop");
            fails("item", condition.item::<bool>(), in_capture, "");
            condition.fill_(false).map(drop)
        });
        drawn?;
        // A branch runs at most once, so it may draw.
        graph_if(&condition, || x.copy_(&rand([3], 0)?, ()).map(drop))?;
        // The depth that hardware supports is not documented.
        nest(if world.real { 4 } else { 32 }, &condition)?;
        x.add_(1.0).map(drop)
    })?;
    graph.replay()?;
    assert_eq!(values(&x)?, [2.0; 3]);
    let deep = captured(|| nest(33, &condition));
    let in_capture = |k: &ErrorKind| matches!(k, ErrorKind::Capture { .. });
    fails("graph_if", deep, in_capture, "32 deep");
    Ok(())
}

fn failed_bodies(_: &World) -> Result<()> {
    let (x, condition) = (ones([3], 0)?, ones([1], (DType::Bool, 0))?);
    let stream = Stream::new(())?;
    let oops = || Error::invalid("oops", "the body fails");
    let is_invalid = |error: &Error| error.op() == "oops";
    // The error of the body is the error of the capture.
    let answer = captured(|| graph_if(&condition, || Err(oops())));
    assert!(is_invalid(&answer.unwrap_err()));
    // A program cannot go on with half a body.
    let answer = captured(|| {
        let answer = graph_while(&condition, || {
            x.add_(1.0)?;
            Err(oops())
        });
        assert!(is_invalid(&answer.unwrap_err()));
        x.add_(1.0).map(drop)
    });
    let error = answer.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Capture { .. }), "{error}");
    assert!(error.to_string().contains("`graph_while` failed"), "{error}");
    // After a panic, the former stream is current, and neither stream is captured.
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        cuda::with_stream(&stream, || {
            CudaGraph::new().capture(|| {
                graph_if(&condition, || graph_while(&condition, || panic!("in the body")))
            })
        })
    }));
    let payload = panicked.unwrap_err();
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"in the body"));
    assert!(!stream.is_capturing() && cuda::current_stream(())?.is_default());
    // A body may catch its own panic, but the capture has failed.
    let answer = captured(|| {
        let body = || graph_if(&condition, || panic!("in the body"));
        assert!(catch_unwind(AssertUnwindSafe(body)).is_err());
        x.add_(1.0).map(drop)
    });
    assert!(matches!(answer.unwrap_err().kind(), ErrorKind::Capture { .. }));
    // The device is as it was.
    let (graph, ()) = captured(|| graph_if(&condition, || x.add_(1.0).map(drop)))?;
    graph.replay()?;
    assert_eq!(values(&x)?, [2.0; 3]);
    // Outside a capture, errors end the loop.
    let mut calls = 0;
    let answer = graph_while(&condition, || {
        calls += 1;
        if calls == 3 { Err(oops()) } else { Ok(()) }
    });
    assert!(is_invalid(&answer.unwrap_err()) && calls == 3);
    Ok(())
}

fn indices(_: &World) -> Result<()> {
    let (table, at, left) =
        (ones([4], 0)?, zeros([1], (DType::I64, 0))?, zeros([1], (DType::I64, 0))?);
    let sum = zeros([1], 0)?;
    let (graph, ()) = captured(|| {
        graph_while(&left, || {
            sum.add_(&table.index_select(0, &at)?)?;
            at.add_(1)?;
            left.sub_(1).map(drop)
        })
    })?;
    left.fill_(4)?;
    graph.replay()?;
    assert_eq!(values(&sum)?, [4.0]);
    // The fifth element does not exist.
    left.fill_(1)?;
    graph.replay()?;
    let check = failed(sum.to_vec::<f32>());
    assert_eq!((check.op, check.index), ("index_select", 4));
    let _ = cuda::synchronize(());
    at.zero_()?;
    sum.zero_()?;
    left.fill_(2)?;
    graph.replay()?;
    assert_eq!(values(&sum)?, [2.0]);
    Ok(())
}

/// Gradient descent until the loss is small: forward, backward and update in one body.
fn training(_: &World) -> Result<()> {
    let (w, target) = (zeros([4], 0)?, full([4], 3.0, 0)?);
    let (open, steps) = (ones([1], (DType::Bool, 0))?, zeros([1], (DType::I64, 0))?);
    let w = w.requires_grad_(true)?;
    let step = || {
        w.set_grad(None)?;
        let loss = w.sub(&target)?.square()?.sum(())?;
        loss.backward()?;
        no_grad(|| {
            let grad = w.grad().expect("a gradient");
            w.detach().sub_(&grad.mul(0.25)?)?;
            steps.add_(1)?;
            open.copy_(&loss.detach().gt(1e-3)?.reshape([1])?, ()).map(drop)
        })
    };
    let restart = || {
        w.detach().zero_()?;
        steps.zero_()?;
        open.fill_(true).map(drop)
    };
    graph_while(&open, step)?;
    let expected = (w.detach().to_vec::<f32>()?, steps.to_vec::<i64>()?);
    assert!(expected.1[0] > 3, "{expected:?}");
    let (graph, ()) = captured(|| graph_while(&open, step))?;
    for _ in 0..3 {
        restart()?;
        graph.replay()?;
        assert_eq!((w.detach().to_vec::<f32>()?, steps.to_vec::<i64>()?), expected);
    }
    Ok(())
}

/// Whichever driver call fails, the error names the op, and the device stays usable.
#[test]
fn s41_refused_driver_calls_are_errors() {
    let calls = [
        CallKind::ConditionCreate,
        CallKind::Launch,
        CallKind::CaptureConditional,
        CallKind::BeginCaptureToBody,
    ];
    for call in calls {
        let machine = SimBox::with(1, Schedule::Eager, SyncPolicy::Auto);
        machine.enter(|| {
            let (x, condition) = (ones([3], 0)?, ones([1], (DType::Bool, 0))?);
            machine.sim.inject(Fault::new(call, CudaCode::NOT_SUPPORTED));
            let answer = captured(|| graph_if(&condition, || x.add_(1.0).map(drop)));
            fails("graph_if", answer, |k| matches!(k, ErrorKind::Driver), call.name());
            let (graph, ()) = captured(|| graph_if(&condition, || x.add_(1.0).map(drop)))?;
            graph.replay()?;
            assert_eq!(values(&x)?, [2.0; 3], "{call:?}");
            Ok(())
        });
    }
}
