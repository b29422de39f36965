//! S41: captured control flow depends on values on the device. The host takes no part in a replay.

use std::panic::{AssertUnwindSafe, catch_unwind};

use warpline::cuda::{self, CudaGraph, Stream, graph_if, graph_while};
use warpline::{
    DType, Device, Error, ErrorKind, RaceReport, Result, RuntimeConfig, SyncPolicy, Tensor, arange,
    full, no_grad, ones, rand, tensor, zeros,
};
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule, SimConfig};
use warpline_cuda_sys_safe::{CudaCode, DriverError};

use crate::boxes::SimBox;
use crate::common::{self, World};
use crate::s08_index_check::failed;

crate::rows! {
    schedules64(1) s41_a_branch_runs_if_its_condition_is_true
        gpu_s41_a_branch_runs_if_its_condition_is_true => branches;
    schedules64(1) s41_a_loop_runs_while_its_condition_is_true
        gpu_s41_a_loop_runs_while_its_condition_is_true => loops;
    schedules(1) s41_bodies_nest gpu_s41_bodies_nest => nested;
    schedules(1) s41_a_decoder_stops_at_its_end_token_without_the_host
        gpu_s41_a_decoder_stops_at_its_end_token_without_the_host => decoder;
    schedules64(1) s41_bodies_are_ordered_with_other_streams
        gpu_s41_bodies_are_ordered_with_other_streams => streams;
    manual(1) s41_ordered_bodies_do_not_race gpu_s41_ordered_bodies_do_not_race => no_races;
    schedules(1) s41_iterations_keep_tensors_that_a_body_drops
        gpu_s41_iterations_keep_tensors_that_a_body_drops => dropped;
    schedules(1) s41_invalid_conditions_and_bodies_are_refused
        gpu_s41_invalid_conditions_and_bodies_are_refused => refused;
    schedules(1) s41_a_failed_body_fails_its_capture
        gpu_s41_a_failed_body_fails_its_capture => failed_bodies;
    schedules(1) s41_an_index_out_of_range_in_a_body_is_reported
        gpu_s41_an_index_out_of_range_in_a_body_is_reported => indices;
    schedules(1) s41_a_step_of_training_fits_in_a_body
        gpu_s41_a_step_of_training_fits_in_a_body => training;
}

/// Captures on a new stream, which is current during the capture.
fn captured<R>(f: impl FnOnce() -> Result<R>) -> Result<(CudaGraph, R)> {
    let stream = Stream::new(())?;
    let mut graph = CudaGraph::new();
    let result = cuda::with_stream(&stream, || graph.capture(f))?;
    Ok((graph, result))
}

fn values(t: &Tensor) -> Result<Vec<f32>> {
    t.to_vec()
}

fn branches(world: &World) -> Result<()> {
    for device in world.places() {
        for dtype in [DType::Bool, DType::U8, DType::I8, DType::I16, DType::I32, DType::I64] {
            let (x, condition) = (zeros([100], device)?, zeros((), (dtype, device))?);
            let body = || graph_if(&condition, || x.add_(1.0).map(drop));
            let mut runs = 0.0;
            let graph = if device.is_cuda() { Some(cuda::graph(body)?.0) } else { None };
            for value in [0, 1, 1, 0, 64, 0] {
                // A kernel that tests only the lowest byte would take 256 for false.
                let value = if dtype.size() > 1 { value * 256 } else { value };
                condition.fill_(value)?;
                match &graph {
                    Some(graph) => graph.replay()?,
                    None => body()?,
                }
                runs += f32::from(u8::from(value != 0));
                assert_eq!(values(&x)?, [runs; 100], "{dtype} on {device}");
            }
            // Outside the capture, the host decides.
            condition.fill_(1)?;
            body()?;
            assert_eq!(values(&x)?, [runs + 1.0; 100]);
        }
    }
    Ok(())
}

fn loops(world: &World) -> Result<()> {
    for device in world.places() {
        let (left, x) = (zeros([1], (DType::I64, device))?, zeros([10], device)?);
        let body = || {
            x.zero_()?;
            graph_while(&left, || {
                x.add_(2.0)?;
                left.sub_(1).map(drop)
            })?;
            x.add_(1.0).map(drop)
        };
        let graph = if device.is_cuda() { Some(captured(body)?.0) } else { None };
        for runs in [3, 0, 1, 17, 0, 50] {
            left.fill_(runs)?;
            match &graph {
                Some(graph) => graph.replay()?,
                None => body()?,
            }
            assert_eq!(values(&x)?, [2.0 * runs as f32 + 1.0; 10]);
            assert_eq!(left.to_vec::<i64>()?, [0]);
        }
    }
    Ok(())
}

/// Counts the steps of Collatz's sequences of the numbers below a limit: a branch and a loop in a
/// loop.
fn nested(world: &World) -> Result<()> {
    for device in world.places() {
        let integer = (DType::I64, device);
        let [start, n, steps, longest, odd] = [(); 5].map(|()| zeros([1], integer));
        let (start, n, steps, longest, odd) = (start?, n?, steps?, longest?, odd?);
        let (more, open, longer) = (
            ones([1], (DType::Bool, device))?,
            ones([1], (DType::Bool, device))?,
            ones([1], (DType::Bool, device))?,
        );
        let body = || {
            longest.zero_()?;
            more.copy_(&start.gt(0)?, ())?;
            graph_while(&more, || {
                n.copy_(&start, ())?;
                steps.zero_()?;
                open.copy_(&n.gt(1)?, ())?;
                graph_while(&open, || {
                    odd.copy_(&n.remainder(2)?, ())?;
                    graph_if(&odd, || {
                        n.mul_(6)?;
                        n.add_(2).map(drop)
                    })?;
                    n.copy_(&n.floor_divide(2)?, ())?;
                    steps.add_(1)?;
                    open.copy_(&n.gt(1)?, ()).map(drop)
                })?;
                longer.copy_(&steps.gt(&longest)?, ())?;
                graph_if(&longer, || longest.copy_(&steps, ()).map(drop))?;
                start.sub_(1)?;
                more.copy_(&start.gt(0)?, ()).map(drop)
            })
        };
        let graph = if device.is_cuda() { Some(cuda::graph(body)?.0) } else { None };
        for (limit, expected) in [(9, 19), (1, 0), (3, 7), (6, 8)] {
            start.fill_(limit)?;
            match &graph {
                Some(graph) => graph.replay()?,
                None => body()?,
            }
            assert_eq!(longest.to_vec::<i64>()?, [expected], "numbers up to {limit} on {device}");
        }
    }
    Ok(())
}

const VOCABULARY: usize = 24;
const LIMIT: usize = 12;
const END: i64 = 5;

/// A recurrent decoder, with its state on the device.
struct Decoder {
    embedding: Tensor,
    weight: Tensor,
    hidden: Tensor,
    token: Tensor,
    position: Tensor,
    tokens: Tensor,
    going: Tensor,
}

impl Decoder {
    fn new(device: Device) -> Result<Self> {
        // Numbers without a pattern, the same on each device.
        let table = |rows: usize, columns: usize, factor: f64| {
            let numbers = arange((rows * columns) as i64, (DType::F64, device))?;
            let numbers = numbers.mul(factor)?.remainder(2.0)?.sub(1.0)?;
            numbers.to(DType::F32)?.reshape([rows, columns])
        };
        let integers = |n: usize| zeros([n], (DType::I64, device));
        Ok(Self {
            embedding: table(VOCABULARY, 16, 0.754_877_666)?,
            weight: table(16, VOCABULARY, 1.324_717_957)?,
            hidden: zeros([1, 16], device)?,
            token: integers(1)?,
            position: integers(1)?,
            tokens: integers(LIMIT)?,
            going: ones([1], (DType::Bool, device))?,
        })
    }

    fn restart(&self, first: i64) -> Result<()> {
        self.hidden.zero_()?;
        self.token.fill_(first)?;
        self.position.zero_()?;
        self.tokens.fill_(-1)?;
        self.going.fill_(true).map(drop)
    }

    fn step(&self) -> Result<()> {
        let input = self.embedding.index_select(0, &self.token)?;
        self.hidden.copy_(&self.hidden.mul(0.5)?.add(&input)?.tanh()?, ())?;
        self.token.copy_(&self.hidden.matmul(&self.weight)?.argmax(1)?, ())?;
        self.tokens.index_copy_(0, &self.position, &self.token)?;
        self.position.add_(1)?;
        let open = self.position.lt(LIMIT as i64)?;
        self.going.copy_(&self.token.ne(END)?.logical_and(&open)?, ()).map(drop)
    }

    fn results(&self) -> Result<(Vec<i64>, Vec<i64>, Vec<f32>)> {
        Ok((self.tokens.to_vec()?, self.position.to_vec()?, self.hidden.to_vec()?))
    }
}

fn decoder(_: &World) -> Result<()> {
    let decoder = Decoder::new(Device::cuda(0))?;
    let (graph, ()) = cuda::graph(|| graph_while(&decoder.going, || decoder.step()))?;
    let mut expected = Vec::new();
    for first in 0..VOCABULARY as i64 {
        decoder.restart(first)?;
        loop {
            decoder.step()?;
            if !decoder.going.item::<bool>()? {
                break;
            }
        }
        expected.push(decoder.results()?);
    }
    let lengths: Vec<i64> = expected.iter().map(|(_, length, _)| length[0]).collect();
    let stopped = expected.iter().filter(|(tokens, ..)| tokens.contains(&END)).count();
    assert!(stopped > 0 && stopped < VOCABULARY, "some sequences end early: {lengths:?}");
    for replay in 0..100 {
        let first = replay * 7 % VOCABULARY;
        decoder.restart(first as i64)?;
        graph.replay()?;
        assert_eq!(decoder.results()?, expected[first], "replay {replay}");
    }
    Ok(())
}

/// The body uses results of a stream that joined the capture, and the other way round.
fn streams(_: &World) -> Result<()> {
    let (side, runs) = (Stream::new(())?, zeros([1], (DType::I32, 0))?);
    let x = ones([1000], 0)?;
    let (graph, [before, after]) = captured(|| {
        let before = cuda::with_stream(&side, || x.mul(2.0))?;
        graph_while(&runs, || {
            before.add_(1.0)?;
            // Streams can join the body, too.
            let joined = Stream::new(())?;
            cuda::with_stream(&joined, || before.add_(&x).map(drop))?;
            runs.sub_(1).map(drop)
        })?;
        let after = cuda::with_stream(&side, || before.mul(10.0))?;
        Ok([before, after])
    })?;
    for count in [4, 0, 1] {
        runs.fill_(count)?;
        graph.replay()?;
        let expected = 2.0 + 2.0 * count as f32;
        assert_eq!(values(&before)?, [expected; 1000]);
        assert_eq!(values(&after)?, [10.0 * expected; 1000]);
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
    assert!(matches!(error.kind(), ErrorKind::Race { .. }), "{error}");
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
    assert!(error.to_string().contains("s41_control_flow.rs"), "{error}");
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
        fn nest(depth: usize, condition: &Tensor) -> Result<()> {
            if depth == 0 { Ok(()) } else { graph_if(condition, || nest(depth - 1, condition)) }
        }
        nest(32, &condition)?;
        x.add_(1.0).map(drop)
    })?;
    graph.replay()?;
    assert_eq!(values(&x)?, [2.0; 3]);
    let deep = captured(|| {
        fn nest(depth: usize, condition: &Tensor) -> Result<()> {
            if depth == 0 { Ok(()) } else { graph_if(condition, || nest(depth - 1, condition)) }
        }
        nest(33, &condition)
    });
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

#[test]
fn s41_without_cuda_the_host_decides() {
    common::cpu(|_| {
        let (x, left) = (zeros([2], ())?, tensor(3i32, ())?);
        graph_while(&left, || {
            x.add_(1.0)?;
            left.sub_(1).map(drop)
        })?;
        graph_if(&left, || panic!("the condition is false"))?;
        assert_eq!(values(&x)?, [3.0; 2]);
        let decoder = Decoder::new(Device::Cpu)?;
        decoder.restart(1)?;
        graph_while(&decoder.going, || decoder.step())?;
        assert!(decoder.position.item::<i64>()? > 0);
        Ok(())
    });
}

/// A replay makes one launch and no wait, however often the body runs.
#[test]
fn s41_a_replay_of_a_loop_is_one_launch() {
    let machine = SimBox::lazy(1);
    machine.enter(|| {
        let decoder = Decoder::new(Device::cuda(0))?;
        let (graph, ()) = cuda::graph(|| graph_while(&decoder.going, || decoder.step()))?;
        decoder.restart(2)?;
        graph.replay()?;
        decoder.restart(1)?;
        cuda::synchronize(())?;
        let before = (machine.host_waits(), machine.count(CallKind::Launch));
        graph.replay()?;
        assert_eq!((machine.host_waits(), machine.count(CallKind::Launch)), before);
        assert_eq!(machine.count(CallKind::GraphLaunch), 2);
        cuda::synchronize(())?;
        assert!(decoder.position.item::<i64>()? > 1);
        Ok(())
    });
}

#[test]
fn s41_a_simulated_loop_without_an_end_fails() {
    let machine = SimBox::lazy(1);
    machine.enter(|| {
        let always = ones([1], (DType::Bool, 0))?;
        let (graph, ()) = cuda::graph(|| graph_while(&always, || Ok(())))?;
        graph.replay()?;
        let error = cuda::synchronize(()).unwrap_err();
        let code = error.driver_error().and_then(DriverError::code);
        assert_eq!(code, Some(CudaCode::LAUNCH_TIMEOUT), "{error}");
        assert!(error.to_string().contains("100000 runs"), "{error}");
        Ok(())
    });
}

/// Whichever driver call fails, the error names the op, and the device stays usable.
#[test]
fn s41_refused_driver_calls_are_errors() {
    let calls =
        [CallKind::ConditionCreate, CallKind::CaptureConditional, CallKind::BeginCaptureToBody];
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

/// Kernels of bodies keep to the elements that they declare.
#[test]
fn s41_bodies_keep_to_their_footprints() {
    let config = SimConfig { check_footprints: true, ..SimConfig::new(1) };
    let machine = SimBox::new(config, &RuntimeConfig::default());
    machine.enter(|| {
        let decoder = Decoder::new(Device::cuda(0))?;
        let (graph, ()) = cuda::graph(|| graph_while(&decoder.going, || decoder.step()))?;
        decoder.restart(0)?;
        graph.replay()?;
        cuda::synchronize(())?;
        assert!(machine.sim.violations().is_empty());
        Ok(())
    });
}
