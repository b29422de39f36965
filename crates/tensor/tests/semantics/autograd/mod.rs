//! Tests of gradients: graphs, backward passes, in-place ops, views, hooks.

mod drops;
mod edges;
mod functions;
mod graph;
mod hooks;
mod in_place;
mod launches;
mod lists;
mod modes;
mod order;
mod passes;
mod table;
mod views;

use warpline::{DType, Result, Tensor, tensor};

/// Returns a leaf of `float64` that requires a gradient.
fn leaf(values: &[f64]) -> Result<Tensor> {
    tensor(values, DType::F64)?.requires_grad_(true)
}

fn grad(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.grad().expect("a gradient").to_vec()
}
