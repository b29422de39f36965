//! Tests of optimizers, schedules, clipping, and saved states.

mod failed_scaling;
mod formulas;
mod fused;
mod grad_scaler;
mod grad_scaler_errors;
mod groups;
mod in_backward;
mod lbfgs;
mod schedules;
mod states;

use warpline::{DType, Device, Result, Tensor, tensor};

fn params(device: Device, dtype: DType) -> Result<Vec<Tensor>> {
    let make = |n: usize| {
        let values: Vec<f64> = (0..n).map(|i| (i as f64 * 0.7).sin()).collect();
        tensor(values, device)?.to(dtype)?.requires_grad_(true)
    };
    [3, 1, 2000].map(make).into_iter().collect()
}

/// Sets the gradients of step `i`. In every third step, the second parameter has none.
fn set_grads(params: &[Tensor], i: usize) -> Result<()> {
    for (k, param) in params.iter().enumerate() {
        let none = k == 1 && i % 3 == 1;
        let grad = param.detach().mul(0.1 * (i as f64 + 1.0))?.sin()?.add(0.01 * k as f64)?;
        param.set_grad((!none).then_some(&grad))?;
    }
    Ok(())
}

fn values(params: &[Tensor]) -> Result<Vec<Vec<f64>>> {
    params.iter().map(|p| p.detach().to(DType::F64)?.to_vec::<f64>()).collect()
}

fn close(values: &[f64], expected: &[f64]) {
    for (value, expected) in values.iter().zip(expected) {
        assert!(
            (value - expected).abs() <= 1e-12 * expected.abs().max(1.0),
            "{values:?} {expected:?}"
        );
    }
}
