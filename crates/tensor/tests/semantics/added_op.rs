//! Tests of ops that this crate adds to the library's, with entries as in `docs/add-an-op.md`.

use warpline::amp::autocast;
use warpline::autograd::{GradcheckOptions, gradcheck, gradgradcheck};
use warpline::{DType, Result, Tensor, apply_elementwise, simulated, tensor, with_runtime};
use warpline_kernels::elementwise_ops;

use crate::common::bad_calls::everywhere;

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
    /// `x` where `c` holds, else 0.
    KEPT = "kept"(c: bool, x), FLOATS => Same, F32, "c ? x : (C)0", { float => if c != 0.0 { x } else { 0.0 } }, gradients(g) { x: c.select(g, 0.0) }
}

#[test]
fn an_entry_is_an_op_of_tensors_and_numbers() -> Result<()> {
    everywhere(|at| {
        let (x, b) = (tensor([-2f32, 0.0, 1.5], at)?, tensor([5f32, 4.0, 0.0], at)?);
        let y = apply_elementwise(&SQUAREPLUS, &[(&x).into(), (&b).into()])?;
        assert_eq!(y.to_vec::<f32>()?, [0.5, 1.0, 1.5]);
        let y = apply_elementwise(&SQUAREPLUS, &[(&x).into(), 4.0.into()])?;
        assert_eq!(y.i(1)?.item::<f32>()?, 1.0);
        let y = apply_elementwise(&SQUAREPLUS, &[(&x.to(DType::BF16)?).into(), 4.0.into()])?;
        assert_eq!((y.dtype(), y.i(1)?.item::<f32>()?), (DType::BF16, 1.0));
        assert!(apply_elementwise(&SQUAREPLUS, &[(&x.to(DType::I64)?).into(), 4.into()]).is_err());
        Ok(())
    })
}

#[test]
fn an_op_has_the_policy_of_its_entry_in_autocast() -> Result<()> {
    with_runtime(&simulated(1)?, || {
        let (c, x) = (tensor([true], "cuda")?, tensor([1.5f32], "cuda")?.to(DType::F16)?);
        let dtype = |op, operands: [&Tensor; 2]| {
            autocast("cuda", (), || apply_elementwise(op, &operands.map(Into::into)))
                .map(|y| y.dtype())
        };
        assert_eq!(dtype(&KEPT, [&c, &x])?, DType::F32);
        assert_eq!(dtype(&SQUAREPLUS, [&x, &x])?, DType::F16);
        Ok(())
    })
}

#[test]
fn a_condition_may_be_a_number() -> Result<()> {
    everywhere(|at| {
        let x = tensor([-2f32, 1.5], at)?.requires_grad_(true)?;
        for (condition, kept) in [(true, [-2.0, 1.5]), (false, [0.0, 0.0])] {
            let y = apply_elementwise(&KEPT, &[condition.into(), (&x).into()])?;
            assert_eq!(y.detach().to_vec::<f32>()?, kept);
        }
        Ok(())
    })
}

#[test]
fn an_entry_has_first_and_second_gradients() -> Result<()> {
    everywhere(|at| {
        let x = tensor([-2f64, 0.0, 1.5], at)?.requires_grad_(true)?;
        let b = tensor([[0.5f64], [2.0]], at)?.requires_grad_(true)?;
        let f = |inputs: &[Tensor]| {
            Ok(vec![apply_elementwise(&SQUAREPLUS, &[(&inputs[0]).into(), (&inputs[1]).into()])?])
        };
        gradcheck(f, &[x.clone(), b.clone()], GradcheckOptions::default())?;
        gradgradcheck(f, &[x, b], GradcheckOptions::default())
    })
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_an_entry_is_compiled_on_first_use() {
    let gradients = |at: &str| -> Result<Vec<f32>> {
        let x = tensor([-2f32, 0.0, 1.5], at)?.requires_grad_(true)?;
        apply_elementwise(&SQUAREPLUS, &[(&x).into(), 4.0.into()])?.sum(())?.backward()?;
        x.grad().expect("a gradient").to_vec()
    };
    let (found, expected) = (gradients("cuda").unwrap(), gradients("cpu").unwrap());
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-6, "{found} and {expected}");
    }
}
