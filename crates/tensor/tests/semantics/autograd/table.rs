//! The formulas of the elementwise table: gradients and second gradients against central differences.

use warpline::autograd::{GradcheckOptions, gradcheck, gradgradcheck};
use warpline::{
    DType, Device, Error, Result, Scalar, SyncPolicy, Tensor, TensorOrScalar, by_name, tensor,
};
use warpline_kernels::elementwise::{Op, table};

use super::{grad, leaf};
use crate::common;

/// Operands of differentiable dtype that have no gradient, each with the reason.
const WITHOUT_GRADIENT: [(&str, &[usize], &str); 13] = [
    ("softplus", &[1, 2], NUMBER),
    ("elu", &[1], NUMBER),
    ("celu", &[1], NUMBER),
    ("leaky_relu", &[1], NUMBER),
    ("softshrink", &[1], NUMBER),
    ("hardshrink", &[1], NUMBER),
    ("threshold", &[1, 2], NUMBER),
    ("nan_to_num", &[1, 2, 3], NUMBER),
    ("logit", &[1], NUMBER),
    ("round_decimals", &[1], NUMBER),
    ("addcmul", &[3], NUMBER),
    ("addcdiv", &[3], NUMBER),
    ("nextafter", &[0, 1], "PyTorch declares it not differentiable"),
];
const NUMBER: &str = "PyTorch takes a number";

/// Elements of each operand.
const N: usize = 9;

/// Differences have an error of about 1e-10 here, and PyTorch's constants in single precision one of 3e-8.
const OPTIONS: GradcheckOptions = GradcheckOptions { eps: 1e-5, atol: 1e-7, rtol: 1e-6 };

/// An element of an operand inside the op's domain. The fractions of multiples of the golden ratio spread evenly.
fn sample(op: &Op, operand: usize, i: usize) -> f64 {
    let range = op.domain(operand);
    let fraction = (0.17 + 0.29 * operand as f64 + 0.618_033_988_749_895 * i as f64).fract();
    range.start + (range.end - range.start) * fraction
}

fn differentiable(op: &Op, operand: usize) -> bool {
    op.backward().is_some_and(|backward| backward.formula().gradient(operand).is_some())
}

fn ops_of_floats() -> impl Iterator<Item = &'static Op> {
    table().filter(|op| matches!(op.dtypes(DType::F64), Ok((DType::F64, DType::F64))))
}

/// Checks an op with its differentiable operands as tensors, except that operand `number` is a number. The numbers of
/// the other operands are sample `i` of their domains.
fn check(op: &'static Op, number: Option<usize>, i: usize, device: Device) -> Result<()> {
    let condition = tensor((0..N).map(|i| i % 3 != 1).collect::<Vec<_>>(), device)?;
    let tracked: Vec<usize> =
        (0..op.inputs()).filter(|&k| differentiable(op, k) && number != Some(k)).collect();
    let inputs = tracked.iter().map(|&k| {
        let values: Vec<f64> = (0..N).map(|i| sample(op, k, i)).collect();
        tensor(values, device)?.requires_grad_(true)
    });
    let inputs: Vec<Tensor> = inputs.collect::<Result<_>>()?;
    let f = |inputs: &[Tensor]| {
        let operand = |k: usize| match tracked.iter().position(|&operand| operand == k) {
            Some(at) => TensorOrScalar::Tensor(&inputs[at]),
            None if op.is_condition(k) => TensorOrScalar::Tensor(&condition),
            None => TensorOrScalar::Scalar(Scalar::Float(sample(op, k, i))),
        };
        let operands: Vec<TensorOrScalar<'_>> = (0..op.inputs()).map(operand).collect();
        Ok(vec![by_name::elementwise(op, &operands)?])
    };
    gradcheck(f, &inputs, OPTIONS)?;
    gradgradcheck(f, &inputs, OPTIONS)
}

fn all(device: Device) -> Result<()> {
    let (mut count, mut failures) = (0, Vec::new());
    for op in ops_of_floats().filter(|op| op.backward().is_some()) {
        let operands: Vec<usize> = (0..op.inputs()).filter(|&k| differentiable(op, k)).collect();
        let numbers = operands.iter().filter(|_| operands.len() > 1).copied().map(Some);
        for number in numbers.chain([None]) {
            let has_numbers = number.is_some() || operands.len() < op.inputs();
            for i in if has_numbers { 0..3 } else { 0..1 } {
                count += 1;
                if let Err(error) = check(op, number, i, device) {
                    let name = op.name();
                    failures.push(format!("{name}, number {number:?}, sample {i}: {error}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{device}: {} failed\n{}", failures.len(), failures.join("\n"));
    assert!(count > 200, "{count} checks");
    Ok(())
}

#[test]
fn formulas_agree_with_differences() {
    common::cpu(|_| all(Device::Cpu));
    common::worlds(1, |_| all(Device::cuda(0)));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_formulas_agree_with_differences() {
    common::gpu(1, SyncPolicy::Auto, |_| all(Device::cuda(0)));
}

#[test]
fn operands_without_gradient_are_listed() {
    let listed = |op: &Op, k: usize| {
        WITHOUT_GRADIENT
            .iter()
            .any(|(name, operands, _)| *name == op.name() && operands.contains(&k))
    };
    for op in ops_of_floats() {
        for k in (0..op.inputs()).filter(|&k| !op.is_condition(k)) {
            assert_ne!(differentiable(op, k), listed(op, k), "operand {k} of {}", op.name());
        }
    }
    for (name, ..) in WITHOUT_GRADIENT {
        assert!(ops_of_floats().any(|op| op.name() == name), "{name} is not in the table");
    }
}

#[test]
fn a_wanted_gradient_without_formula_is_an_error_of_the_forward_pass() {
    common::cpu(|_| {
        let elu = table().find(|op| op.name() == "elu").expect("an entry");
        let (x, alpha) = (leaf(&[1.0, -2.0])?, leaf(&[0.5, 0.7])?);
        let failed = by_name::elementwise(elu, &[(&x).into(), (&alpha).into()]);
        assert!(matches!(failed, Err(Error::Gradient { .. })), "{failed:?}");
        by_name::elementwise(elu, &[(&x).into(), (&alpha.detach()).into()]).map(drop)
    });
}

#[test]
fn operands_of_unwanted_gradients_are_not_saved() {
    common::cpu(|_| {
        // The gradient of `a` reads `b`, and that of `b` reads `a`.
        let (a, b) = (leaf(&[2.0])?, tensor([3.0f64], ())?);
        let factor = a.mul(1.0)?;
        let product = factor.mul(&b)?;
        factor.add_(1.0)?;
        product.backward()?;
        assert_eq!(grad(&a)?, [3.0]);
        let product = a.mul(1.0)?.mul(&b)?;
        b.add_(1.0)?;
        assert!(matches!(product.backward(), Err(Error::Gradient { .. })));
        Ok(())
    });
}
