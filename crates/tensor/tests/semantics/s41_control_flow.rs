//! S41: captured control flow depends on values on the device. The host takes no part in a replay.

use warpline::cuda::{self, CudaGraph, Stream, graph_if, graph_while};
use warpline::{DType, Device, Result, RuntimeConfig, Tensor, arange, ones, tensor, zeros};
use warpline_cuda_sys_safe::sim::{CallKind, SimConfig};
use warpline_cuda_sys_safe::{CudaCode, DriverError};

use crate::boxes::SimBox;
use crate::common::{self, World};

crate::rows! {
    schedules64(1) s41_a_branch_runs_if_its_condition_is_true
        gpu_s41_a_branch_runs_if_its_condition_is_true => branches;
    schedules64(1) s41_a_loop_runs_while_its_condition_is_true
        gpu_s41_a_loop_runs_while_its_condition_is_true => loops;
    schedules64(1) s41_bodies_nest gpu_s41_bodies_nest => nested;
    schedules64(1) s41_a_decoder_stops_at_its_end_token_without_the_host
        gpu_s41_a_decoder_stops_at_its_end_token_without_the_host => decoder;
}

/// Captures on a new stream, which is current during the capture.
pub(crate) fn captured<R>(f: impl FnOnce() -> Result<R>) -> Result<(CudaGraph, R)> {
    let stream = Stream::new(())?;
    let mut graph = CudaGraph::new();
    let result = cuda::with_stream(&stream, || graph.capture(f))?;
    Ok((graph, result))
}

/// Captures on a GPU. Returns `None` for the CPU.
fn graph_on(device: Device, body: &dyn Fn() -> Result<()>) -> Result<Option<CudaGraph>> {
    if device.is_cpu() {
        return Ok(None);
    }
    cuda::with_device(device, || Ok(Some(captured(body)?.0)))
}

pub(crate) fn values(t: &Tensor) -> Result<Vec<f32>> {
    t.to_vec()
}

fn branches(world: &World) -> Result<()> {
    for device in world.places() {
        for dtype in [DType::Bool, DType::U8, DType::I8, DType::I16, DType::I32, DType::I64] {
            let (x, condition) = (zeros([100], device)?, zeros((), (dtype, device))?);
            let body = || graph_if(&condition, || x.add_(1.0).map(drop));
            let mut runs = 0.0;
            let graph = graph_on(device, &body)?;
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
        let graph = graph_on(device, &body)?;
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
        let graph = graph_on(device, &body)?;
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
        let mut steps = 0;
        for first in 0..VOCABULARY as i64 {
            decoder.restart(first)?;
            graph.replay()?;
            steps = decoder.position.item::<i64>()?;
            if steps > 3 {
                decoder.restart(first)?;
                break;
            }
        }
        assert!(steps > 3);
        cuda::synchronize(())?;
        let calls = [CallKind::Launch, CallKind::GraphLaunch].map(|call| machine.count(call));
        let waits = machine.host_waits();
        graph.replay()?;
        assert_eq!(machine.count(CallKind::Launch), calls[0]);
        assert_eq!(machine.count(CallKind::GraphLaunch), calls[1] + 1);
        assert_eq!(machine.host_waits(), waits);
        cuda::synchronize(())?;
        assert_eq!(decoder.position.item::<i64>()?, steps);
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
