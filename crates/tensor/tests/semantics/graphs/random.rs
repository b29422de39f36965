//! Tests of random ops in graphs: each replay continues the random sequence of the device.

use warpline::cuda;
use warpline::{
    DType, ErrorKind, Generator, Result, Tensor, empty, manual_seed, rand, randint, randn, randperm,
};

use super::values;
use crate::common::World;

rows! {
    schedules(1) graphs_random_ops_go_on_as_eager_ones gpu_graphs_random_ops_go_on_as_eager_ones => go_on;
    schedules(1) graphs_random_ops_follow_the_seed gpu_graphs_random_ops_follow_the_seed => seeds;
    worlds(1) graphs_refuse_reads_and_changes_of_a_generators_state
        gpu_graphs_refuse_reads_and_changes_of_a_generators_state => states;
}

/// Runs random ops of several kinds.
fn draws(device: usize) -> Result<Vec<Tensor>> {
    let fill = empty([300], (DType::F64, device))?;
    fill.normal_((1.0, 2.0))?;
    let coins = empty([77], device)?;
    coins.bernoulli_(0.5)?;
    let waits = empty([50], (DType::F64, device))?;
    waits.exponential_(2.0)?;
    let drawn = [
        rand([1000], device)?,
        randn([33, 5], device)?,
        randint(0, 1 << 40, [100], device)?.to(DType::F64)?,
        randperm(3000, device)?.to(DType::F64)?,
        fill,
        coins,
        waits,
    ];
    // Convert to one dtype, so that all results can be compared.
    drawn.iter().map(|t| t.to(DType::F32)).collect()
}

fn read(drawn: &[Tensor]) -> Result<Vec<Vec<f32>>> {
    drawn.iter().map(values).collect()
}

fn go_on(world: &World) -> Result<()> {
    for device in 0..world.devices {
        let _on = cuda::device(device)?;
        manual_seed(7);
        let mut eager = Vec::new();
        for _ in 0..3 {
            eager.push(read(&draws(device)?)?);
            eager.push(vec![values(&rand([10], device)?)?]);
        }
        manual_seed(7);
        // A capture draws no numbers.
        let (graph, drawn) = cuda::graph(|| draws(device))?;
        for round in 0..3 {
            graph.replay()?;
            assert_eq!(read(&drawn)?, eager[2 * round], "replay {round} on cuda:{device}");
            let between = values(&rand([10], device)?)?;
            assert_eq!(vec![between], eager[2 * round + 1], "after replay {round}");
        }
    }
    Ok(())
}

fn seeds(_: &World) -> Result<()> {
    let (graph, drawn) = cuda::graph(|| rand([100], 0))?;
    let mut of = Vec::new();
    for seed in [1, 2, 1] {
        manual_seed(seed);
        graph.replay()?;
        of.push(values(&drawn)?);
    }
    assert_eq!(of[0], of[2]);
    assert_ne!(of[0], of[1]);
    // Two graphs that are replayed one after the other use consecutive parts of the random
    // sequence.
    let mut second = cuda::CudaGraph::new();
    let other = second.capture_with(&graph.pool()?, || rand([100], 0))?;
    manual_seed(1);
    graph.replay()?;
    second.replay()?;
    assert_eq!(values(&drawn)?, of[0]);
    manual_seed(1);
    let eager = [values(&rand([100], 0)?)?, values(&rand([100], 0)?)?];
    assert_eq!(eager, [values(&drawn)?, values(&other)?]);
    Ok(())
}

/// A replay would not repeat these calls.
fn states(_: &World) -> Result<()> {
    cuda::manual_seed(7)?;
    let (generator, state) = (Generator::on(0)?, cuda::get_rng_state(0)?);
    let (graph, drawn) = cuda::graph(|| {
        for (call, outcome) in [
            ("manual_seed", cuda::manual_seed(8)),
            ("get_rng_state", cuda::get_rng_state(0).map(drop)),
            ("set_rng_state", cuda::set_rng_state(&state, 0)),
            ("get_state", generator.get_state().map(drop)),
            ("set_state", generator.set_state(&state)),
        ] {
            let error = outcome.unwrap_err();
            assert_eq!(error.op(), call);
            assert!(matches!(error.kind(), ErrorKind::Capture { .. }), "{error}");
        }
        // The same seed changes nothing, and the CPU has no part in the capture.
        cuda::manual_seed(7)?;
        Generator::new().get_state()?;
        rand([4], 0)
    })?;
    graph.replay()?;
    let first = values(&drawn)?;
    cuda::set_rng_state(&state, 0)?;
    assert_eq!(values(&rand([4], 0)?)?, first);
    Ok(())
}
