//! Tests of graphs: capture, replay, and order with other work. Tests named `gpu_…` run on real
//! devices.

mod in_a_row;
mod model;
mod order;
mod ported;
mod random;
mod refused;
mod replay;

use warpline::cuda::{self, CudaGraph, Stream};
use warpline::{Result, Tensor};

/// Captures `f` on `stream`.
fn captured<R>(graph: &mut CudaGraph, stream: &Stream, f: impl FnOnce() -> Result<R>) -> Result<R> {
    cuda::with_stream(stream, || graph.capture(f))
}

fn values(t: &Tensor) -> Result<Vec<f32>> {
    t.to_vec()
}
