//! Tests of random programs on several streams: a captured and replayed program gives the same
//! values as its ops one after another.

use proptest::prelude::*;
use warpline::cuda::{self, CudaGraph};
use warpline::{Result, Tensor, full, open, with_runtime};

use super::values;

const N: usize = 64;
const STREAMS: usize = 3;
const INPUTS: usize = 2;

/// An op of the captured program. It runs on one of the captured streams.
#[derive(Clone, Debug)]
enum CapturedOp {
    /// `new = a + b`.
    Add(usize, usize),
    /// `a *= k`.
    Scale(usize, u8),
    /// `a.copy_(b)`.
    Copy(usize, usize),
    /// Drops a tensor.
    Drop(usize),
}

/// An action between replays, on a stream outside the capture.
#[derive(Clone, Debug)]
enum ReplayStep {
    /// Replays a number of times.
    Replay(u8),
    /// Writes an input.
    Set(usize, u8),
    /// Adds a result of the program to the total.
    Use(usize),
}

fn op() -> impl Strategy<Value = (usize, CapturedOp)> {
    let at = || 0..16usize;
    let op = prop_oneof![
        4 => (at(), at()).prop_map(|(a, b)| CapturedOp::Add(a, b)),
        2 => (at(), 0..3u8).prop_map(|(a, k)| CapturedOp::Scale(a, k)),
        2 => (at(), at()).prop_map(|(a, b)| CapturedOp::Copy(a, b)),
        2 => at().prop_map(CapturedOp::Drop),
    ];
    (0..STREAMS, op)
}

fn step() -> impl Strategy<Value = (usize, ReplayStep)> {
    let step = prop_oneof![
        3 => (1..4u8).prop_map(ReplayStep::Replay),
        2 => (0..INPUTS, 0..5u8).prop_map(|(i, v)| ReplayStep::Set(i, v)),
        3 => (0..16usize).prop_map(ReplayStep::Use),
    ];
    (0..STREAMS, step)
}

/// Runs the program on plain numbers, one per tensor. Returns the values of all tensors that the
/// program made and did not drop.
fn run_model(ops: &[(usize, CapturedOp)], inputs: &mut [f32; INPUTS]) -> Vec<f32> {
    let mut made: Vec<f32> = Vec::new();
    for (_, op) in ops {
        let count = INPUTS + made.len();
        let get = |made: &[f32], inputs: &[f32; INPUTS], at: usize| {
            let at = at % count;
            if at < INPUTS { inputs[at] } else { made[at - INPUTS] }
        };
        match *op {
            CapturedOp::Add(a, b) => {
                let sum = get(&made, inputs, a) + get(&made, inputs, b);
                made.push(sum);
            }
            CapturedOp::Scale(a, k) => {
                let value = get(&made, inputs, a) * f32::from(k);
                *slot(&mut made, inputs, a % count) = value;
            }
            CapturedOp::Copy(a, b) => {
                let value = get(&made, inputs, b);
                *slot(&mut made, inputs, a % count) = value;
            }
            CapturedOp::Drop(a) if a % count >= INPUTS => drop(made.remove(a % count - INPUTS)),
            CapturedOp::Drop(_) => {}
        }
    }
    made
}

fn slot<'a>(made: &'a mut [f32], inputs: &'a mut [f32; INPUTS], at: usize) -> &'a mut f32 {
    if at < INPUTS { &mut inputs[at] } else { &mut made[at - INPUTS] }
}

/// Runs the program on tensors, each op on its stream. Every stream joins the capture at the start.
fn run_ops(
    ops: &[(usize, CapturedOp)],
    streams: &[cuda::Stream],
    inputs: &[Tensor],
) -> Result<Vec<Tensor>> {
    for side in &streams[1..] {
        side.wait_stream(&streams[0])?;
    }
    let mut made: Vec<Tensor> = Vec::new();
    for (stream, op) in ops {
        let count = INPUTS + made.len();
        let get = |made: &[Tensor], at: usize| {
            let at = at % count;
            if at < INPUTS { inputs[at].clone() } else { made[at - INPUTS].clone() }
        };
        let _on = cuda::stream(&streams[*stream])?;
        match *op {
            CapturedOp::Add(a, b) => {
                let sum = (get(&made, a) + get(&made, b))?;
                made.push(sum);
            }
            CapturedOp::Scale(a, k) => drop(get(&made, a).mul_(f64::from(k))?.clone()),
            CapturedOp::Copy(a, b) => drop(get(&made, a).copy_(&get(&made, b), ())?.clone()),
            CapturedOp::Drop(a) if a % count >= INPUTS => drop(made.remove(a % count - INPUTS)),
            CapturedOp::Drop(_) => {}
        }
    }
    Ok(made)
}

fn check(ops: &[(usize, CapturedOp)], steps: &[(usize, ReplayStep)]) -> Result<()> {
    let inputs: Vec<Tensor> = (0..INPUTS).map(|_| full([N], 1.0, 0)).collect::<Result<_>>()?;
    let mut expected_inputs = [1.0f32; INPUTS];
    let take = |count: usize| -> Result<Vec<cuda::Stream>> {
        (0..count).map(|_| cuda::Stream::new(())).collect()
    };
    let (inside, outside) = (take(STREAMS)?, take(STREAMS)?);
    let mut graph = CudaGraph::new();
    let made = cuda::with_stream(&inside[0], || graph.capture(|| run_ops(ops, &inside, &inputs)))?;
    let mut expected: Option<Vec<f32>> = None;
    let (total, mut expected_total) = (full([N], 0.0, 0)?, 0.0f32);
    for (stream, step) in steps {
        let _on = cuda::stream(&outside[*stream])?;
        match *step {
            ReplayStep::Replay(times) => {
                for _ in 0..times {
                    graph.replay()?;
                    expected = Some(run_model(ops, &mut expected_inputs));
                }
            }
            ReplayStep::Set(input, value) => {
                inputs[input].fill_(f64::from(value))?;
                expected_inputs[input] = f32::from(value);
            }
            ReplayStep::Use(at) => {
                let Some(expected) = expected.as_ref().filter(|e| !e.is_empty()) else { continue };
                let at = at % expected.len();
                total.add_(&made[at])?;
                expected_total += expected[at];
            }
        }
    }
    if expected_total.is_finite() {
        assert_eq!(values(&total)?, vec![expected_total; N]);
    }
    for (made, expected) in made.iter().zip(expected.iter().flatten()) {
        assert!(!expected.is_finite() || values(made)? == vec![*expected; N]);
    }
    for (input, expected) in inputs.iter().zip(expected_inputs) {
        assert!(!expected.is_finite() || values(input)? == vec![expected; N]);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn graphs_of_random_programs_equal_the_model(
        ops in prop::collection::vec(op(), 1..14),
        steps in prop::collection::vec(step(), 1..14),
        seed in 0..1000u64,
    ) {
        for schedule in ["lazy".to_string(), format!("seed={seed}")] {
            let spec = format!("sim:1,{schedule}");
            let runtime = open(&spec, &warpline::RuntimeConfig::default()).expect("a runtime");
            with_runtime(&runtime, || check(&ops, &steps)).unwrap_or_else(|e| panic!("{spec}: {e}"));
        }
    }
}
