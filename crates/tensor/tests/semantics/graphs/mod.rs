//! Graphs: captured once, replayed, and in order with everything else. Twins named `gpu_…` run on
//! real devices.

mod in_a_row;
mod model;
mod order;
mod ported;
mod random;
mod refused;
mod replay;

use warpline::cuda::{self, CudaGraph, Stream};
use warpline::{Result, Tensor};

/// Captures on a stream of one's own.
fn captured<R>(graph: &mut CudaGraph, stream: &Stream, f: impl FnOnce() -> Result<R>) -> Result<R> {
    cuda::with_stream(stream, || graph.capture(f))
}

fn values(t: &Tensor) -> Result<Vec<f32>> {
    t.to_vec()
}
