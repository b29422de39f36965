//! S38: a graph that keeps the driver's graph is made executable on demand, and can be described.

use warpline::cuda::{self, CaptureOptions, CudaGraph};
use warpline::{ErrorKind, Result, Tensor, manual_seed, rand, zeros};

use crate::common::World;

crate::rows! {
    schedules64(1) s38_a_kept_graph_is_made_executable_on_demand
        gpu_s38_a_kept_graph_is_made_executable_on_demand => on_demand;
    worlds(1) s38_a_kept_graph_is_described_in_a_file gpu_s38_a_kept_graph_is_described_in_a_file => described;
    worlds(1) s38_calls_that_need_a_kept_graph_name_it gpu_s38_calls_that_need_a_kept_graph_name_it => refused;
}

fn kept<R>(f: impl FnOnce() -> Result<R>) -> Result<(CudaGraph, R)> {
    let mut graph = CudaGraph::new();
    let result = graph.capture_with(CaptureOptions::new().keep_graph(true), f)?;
    Ok((graph, result))
}

#[track_caller]
fn fails<T: std::fmt::Debug>(op: &str, result: Result<T>, text: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.op(), op, "{error}");
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
    assert!(error.to_string().contains(text), "{error}");
}

fn on_demand(_: &World) -> Result<()> {
    let x = zeros([1000], 0)?;
    manual_seed(7);
    let (mut graph, drawn) = kept(|| x.add_(1.0)?.add(&rand([1000], 0)?))?;
    let first = graph.raw_cuda_graph()?;
    fails("raw_cuda_graph_exec", graph.raw_cuda_graph_exec(), "`instantiate`");
    graph.replay()?;
    graph.raw_cuda_graph_exec()?;
    // The replays in progress complete on the former executable graphs.
    for _ in 0..5 {
        graph.instantiate()?;
        graph.replay()?;
        graph.replay()?;
    }
    assert_eq!(graph.raw_cuda_graph()?, first);
    assert_eq!(x.to_vec::<f32>()?, [11.0; 1000]);
    // Each replay continues the sequence of random numbers, as eager ops do.
    manual_seed(7);
    let eager = (0..11).map(|_| rand([1000], 0)).collect::<Result<Vec<Tensor>>>()?;
    assert_eq!(drawn.to_vec::<f32>()?, x.add(&eager[10])?.to_vec::<f32>()?);
    Ok(())
}

fn described(_: &World) -> Result<()> {
    let x = zeros([4], 0)?;
    let (graph, ()) = kept(|| (0..3).try_for_each(|_| x.add_(1.0).map(drop)))?;
    let folder = std::env::temp_dir();
    let path = folder.join(format!("warpline-{}-{:?}.dot", std::process::id(), x.data_ptr()));
    // A second description replaces the first.
    for _ in 0..2 {
        graph.debug_dump(&path)?;
        let text = std::fs::read_to_string(&path).expect("a file");
        assert!(text.starts_with("digraph"), "{text}");
        assert!(text.matches("->").count() >= 2, "{text}");
    }
    std::fs::remove_file(&path).expect("a file");
    graph.replay()?;
    assert_eq!(x.to_vec::<f32>()?, [3.0; 4]);
    fails("debug_dump", graph.debug_dump("a\0b"), "zero byte");
    let error = graph.debug_dump(folder.join("no such folder/graph.dot")).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Driver), "{error}");
    assert_eq!(error.op(), "debug_dump");
    // The graph is unchanged.
    graph.replay()?;
    assert_eq!(x.to_vec::<f32>()?, [6.0; 4]);
    Ok(())
}

fn refused(_: &World) -> Result<()> {
    let mut empty = CudaGraph::new();
    fails("instantiate", empty.instantiate(), "empty");
    fails("raw_cuda_graph", empty.raw_cuda_graph(), "empty");
    fails("debug_dump", empty.debug_dump("graph.dot"), "empty");
    let x = zeros([4], 0)?;
    let (mut graph, _) = cuda::graph(|| x.add(1.0))?;
    fails("instantiate", graph.instantiate(), "`keep_graph`");
    fails("raw_cuda_graph", graph.raw_cuda_graph(), "keep_graph`");
    fails("debug_dump", graph.debug_dump("graph.dot"), "keep_graph`");
    graph.raw_cuda_graph_exec()?;
    graph.replay()
}
