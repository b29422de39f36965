//! Tests of ops that are composed of other ops, for cases that the golden files lack.

mod attention;
mod differences;
mod edges;
mod functional;
mod shapes;

use warpline::{DType, Result, Tensor, tensor};

/// Returns a leaf of `float64` that requires a gradient.
fn leaf(values: &[f64]) -> Result<Tensor> {
    tensor(values, DType::F64)?.requires_grad_(true)
}

fn grad(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.grad().expect("a gradient").to_vec()
}
