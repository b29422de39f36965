//! An elementwise op of another crate, with its gradient.

use warpline::autograd::{GradcheckOptions, gradcheck, gradgradcheck};
use warpline::{
    DType, Result, Tensor, TensorOrScalar, apply_elementwise, simulated, tensor, with_runtime,
};
use warpline_kernels::elementwise_ops;

elementwise_ops! {
    // SAFETY: CUDA's expression is arithmetic on the operands.
    unsafe;

    /// `(x + sqrt(x² + b)) / 2`: a `relu` without a corner.
    SQUAREPLUS = "squareplus"(x, b in 0.5..4.0), FLOATS => Same, Keep, "(x + sqrt_of(x * x + b)) / (C)2", {
        float => (x + (x * x + b).sqrt()) / 2.0
    }, gradients(g) {
        x: g * (x * (x.square() + b).rsqrt() + 1.0) * 0.5,
        b: g * (x.square() + b).rsqrt() * 0.25
    }
}

/// `(x + sqrt(x² + b)) / 2`.
#[track_caller]
fn squareplus<'a>(x: &'a Tensor, b: impl Into<TensorOrScalar<'a>>) -> Result<Tensor> {
    apply_elementwise(&SQUAREPLUS, &[x.into(), b.into()])
}

fn values_and_gradients(at: &str) -> Result<()> {
    let x = tensor([-2f64, 0.0, 1.5], at)?.requires_grad_(true)?;
    let b = tensor([5f64, 4.0, 0.0], at)?;
    assert_eq!(squareplus(&x, &b)?.detach().to_vec::<f64>()?, [0.5, 1.0, 1.5]);
    assert_eq!(squareplus(&x.detach(), 4.0)?.i(1)?.item::<f64>()?, 1.0);
    let halves = squareplus(&x.detach().to(DType::F16)?, 4.0)?;
    assert_eq!((halves.dtype(), halves.i(1)?.item::<f64>()?), (DType::F16, 1.0));

    let b = tensor([[0.5f64], [2.0]], at)?.requires_grad_(true)?;
    let f = |inputs: &[Tensor]| Ok(vec![squareplus(&inputs[0], &inputs[1])?]);
    gradcheck(f, &[x.clone(), b.clone()], GradcheckOptions::default())?;
    gradgradcheck(f, &[x, b], GradcheckOptions::default())
}

#[test]
fn values_and_gradients_are_right() -> Result<()> {
    values_and_gradients("cpu")?;
    with_runtime(&simulated(1)?, || values_and_gradients("cuda"))
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_values_and_gradients_are_right() -> Result<()> {
    values_and_gradients("cuda")
}
