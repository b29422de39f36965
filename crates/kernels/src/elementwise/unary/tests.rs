//! Cases for unary ops, the same on every target.

use super::*;
use warpline_runtime::testing::{
    Tensor, assert_close, on_every_target, on_gpu, samples, shapes, stored,
};

fn reference(op: UnaryOp, x: f64) -> f64 {
    match op {
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Sign if x.is_nan() => 0.0,
        UnaryOp::Sign if x == 0.0 => 0.0,
        UnaryOp::Sign => x.signum(),
        UnaryOp::Square => x * x,
        UnaryOp::Relu if x.is_nan() => x,
        UnaryOp::Relu => x.max(0.0),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round_ties_even(),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Expm1 => x.exp_m1(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Log1p => x.ln_1p(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Rsqrt => 1.0 / x.sqrt(),
        UnaryOp::Reciprocal => x.recip(),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Erf => libm::erf(x),
        UnaryOp::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        UnaryOp::Silu => x / (1.0 + (-x).exp()),
        UnaryOp::Gelu => x * 0.5 * libm::erfc(-x * 0.5f64.sqrt()) + 0.0 * x,
        UnaryOp::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}

fn every_shape_and_dtype(target: Target<'_>) {
    for shape in shapes() {
        for dtype in DType::ALL {
            let n = shape.memory[0].iter().product();
            let a = Tensor::new(target, dtype, shape.memory[0], &samples(dtype, n, 5))
                .with(shape.views[0]);
            let x = a.floats(target);
            for op in UnaryOp::ALL {
                if op.dtype(dtype).ok() != Some(dtype) {
                    continue;
                }
                let out = Tensor::garbage(target, dtype, shape.memory[2]).with(shape.views[2]);
                unary(target, op, a.view(), out.view()).unwrap();
                let expected: Vec<f64> = x.iter().map(|&x| reference(op, x)).collect();
                let context = format!("{} of {} {dtype}", op.name(), shape.name);
                assert_close(dtype, &out.floats(target), &expected, &context);
            }
        }
    }
}

fn large_arguments(target: Target<'_>) {
    // Where a naive reduction of the argument, or an overflowing exponential, would show.
    let x: Vec<f64> = [1e4, -1e4, 123.456, -90.0, 88.0, 1e-7, -1e-7, 30.5, 0.5, 1.5, 2.5]
        .iter()
        .map(|&x| stored(DType::F32, x))
        .collect();
    for dtype in [DType::F32, DType::F64] {
        let a = Tensor::new(target, dtype, &[x.len()], &x);
        for op in UnaryOp::ALL {
            let out = Tensor::garbage(target, dtype, &[x.len()]);
            unary(target, op, a.view(), out.view()).unwrap();
            let expected: Vec<f64> = x.iter().map(|&x| reference(op, x)).collect();
            assert_close(dtype, &out.floats(target), &expected, &format!("{op:?} {dtype}"));
        }
    }
}

fn in_place(target: Target<'_>) {
    let x = samples(DType::F32, 50_001, 6);
    let a = Tensor::new(target, DType::F32, &[x.len()], &x);
    unary(target, UnaryOp::Neg, a.view(), a.view()).unwrap();
    let expected: Vec<f64> = x.iter().map(|x| -x).collect();
    assert_close(DType::F32, &a.floats(target), &expected, "in place");
}

#[test]
fn cpu_and_simulated() {
    on_every_target(every_shape_and_dtype);
    on_every_target(large_arguments);
    on_every_target(in_place);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_unary() {
    on_gpu(every_shape_and_dtype);
    on_gpu(large_arguments);
    on_gpu(in_place);
}

#[test]
fn dtypes_follow_pytorch() {
    assert_eq!(UnaryOp::Exp.dtype(DType::I64).unwrap(), DType::F32);
    assert_eq!(UnaryOp::Exp.dtype(DType::Bool).unwrap(), DType::F32);
    assert_eq!(UnaryOp::Exp.dtype(DType::F64).unwrap(), DType::F64);
    assert_eq!(UnaryOp::Abs.dtype(DType::I8).unwrap(), DType::I8);
    assert!(matches!(UnaryOp::Neg.dtype(DType::Bool), Err(Error::UnsupportedDType { .. })));
    assert!(matches!(UnaryOp::Gelu.dtype(DType::I32), Err(Error::UnsupportedDType { .. })));
}

#[test]
fn what_cannot_be_done_is_an_error() {
    on_every_target(|target| {
        let i = Tensor::garbage(target, DType::I32, &[4]);
        let f = Tensor::garbage(target, DType::F32, &[4]);
        let exp = unary(target, UnaryOp::Exp, i.view(), i.view());
        assert!(matches!(exp, Err(Error::UnsupportedDType { .. })));
        let neg = unary(target, UnaryOp::Neg, i.view(), f.view());
        assert!(matches!(neg, Err(Error::DTypeMismatch { .. })));
    });
}

#[test]
fn codes_are_positions() {
    for (i, op) in UnaryOp::ALL.into_iter().enumerate() {
        assert_eq!(op as usize, i);
    }
}

#[test]
fn the_modules_have_every_kernel() {
    warpline_runtime::testing::assert_entries(&[&INT, &F16, &BF16, &F32, &F64]);
}
