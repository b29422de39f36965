//! Tests of unary ops that run on every target.

use warpline_kernels::elementwise::*;
use warpline_runtime::testing::{
    Tensor, assert_close, on_every_target, on_gpu, samples, shapes, stored,
};
use warpline_runtime::{DType, ErrorKind, ResultExt as _, Target};

const OPS: [&Op; 23] = [
    &NEG,
    &ABS,
    &SIGN,
    &SQUARE,
    &RELU,
    &FLOOR,
    &CEIL,
    &ROUND,
    &EXP,
    &EXPM1,
    &LOG,
    &LOG1P,
    &SQRT,
    &RSQRT,
    &RECIPROCAL,
    &SIN,
    &COS,
    &TANH,
    &ERF,
    &SIGMOID,
    &SILU,
    &GELU,
    &GELU_TANH,
];

fn reference(op: &str, x: f64) -> f64 {
    match op {
        "neg" => -x,
        "abs" => x.abs(),
        "sign" if x.is_nan() => 0.0,
        "sign" if x == 0.0 => 0.0,
        "sign" => x.signum(),
        "square" => x * x,
        "relu" if x.is_nan() => x,
        "relu" => x.max(0.0),
        "floor" => x.floor(),
        "ceil" => x.ceil(),
        "round" => x.round_ties_even(),
        "exp" => x.exp(),
        "expm1" => x.exp_m1(),
        "log" => x.ln(),
        "log1p" => x.ln_1p(),
        "sqrt" => x.sqrt(),
        "rsqrt" => 1.0 / x.sqrt(),
        "reciprocal" => x.recip(),
        "sin" => x.sin(),
        "cos" => x.cos(),
        "tanh" => x.tanh(),
        "erf" => libm::erf(x),
        "sigmoid" => 1.0 / (1.0 + (-x).exp()),
        "silu" => x / (1.0 + (-x).exp()),
        "gelu" => x * 0.5 * libm::erfc(-x * 0.5f64.sqrt()),
        "gelu_tanh" => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        other => panic!("no reference for {other}"),
    }
}

/// `gelu_of_infinity` is NaN in PyTorch's CPU library, and infinity in its CUDA kernel.
fn every_shape_and_dtype(target: Target<'_>, gelu_of_infinity: f64) {
    for shape in shapes() {
        for dtype in DType::ALL {
            let n = shape.memory[0].iter().product();
            let a = Tensor::new(target, dtype, shape.memory[0], &samples(dtype, n, 5))
                .with(shape.views[0]);
            let x = a.floats(target);
            for op in OPS {
                if op.dtypes(dtype).ok() != Some((dtype, dtype)) {
                    continue;
                }
                let out = Tensor::garbage(target, dtype, shape.memory[2]).with(shape.views[2]);
                apply(target, op, dtype, &[a.view().into()], out.view()).unwrap();
                let of = |&x: &f64| match op.name() {
                    "gelu" if x == f64::INFINITY => gelu_of_infinity,
                    name => reference(name, x),
                };
                let expected: Vec<f64> = x.iter().map(of).collect();
                let context = format!("{} of {} {dtype}", op.name(), shape.name);
                assert_close(dtype, &out.floats(target), &expected, &context);
            }
        }
    }
}

fn large_arguments(target: Target<'_>) {
    // Arguments that reveal a naive range reduction or an overflowing exponential.
    let x: Vec<f64> = [1e4, -1e4, 123.456, -90.0, 88.0, 1e-7, -1e-7, 30.5, 0.5, 1.5, 2.5]
        .iter()
        .map(|&x| stored(DType::F32, x))
        .collect();
    for dtype in [DType::F32, DType::F64] {
        let a = Tensor::new(target, dtype, &[x.len()], &x);
        for op in OPS {
            let out = Tensor::garbage(target, dtype, &[x.len()]);
            apply(target, op, dtype, &[a.view().into()], out.view()).unwrap();
            let expected: Vec<f64> = x.iter().map(|&x| reference(op.name(), x)).collect();
            assert_close(dtype, &out.floats(target), &expected, &format!("{} {dtype}", op.name()));
        }
    }
}

fn in_place(target: Target<'_>) {
    let x = samples(DType::F32, 50_001, 6);
    let a = Tensor::new(target, DType::F32, &[x.len()], &x);
    apply(target, &NEG, DType::F32, &[a.view().into()], a.view()).unwrap();
    let expected: Vec<f64> = x.iter().map(|x| -x).collect();
    assert_close(DType::F32, &a.floats(target), &expected, "in place");
}

#[test]
fn unary_ops_are_right_on_the_cpu_and_on_simulated_devices() {
    on_every_target(|target| every_shape_and_dtype(target, f64::NAN));
    on_every_target(large_arguments);
    on_every_target(in_place);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_unary_ops_are_right() {
    on_gpu(|target| every_shape_and_dtype(target, f64::INFINITY));
    on_gpu(large_arguments);
    on_gpu(in_place);
}

#[test]
fn dtypes_follow_pytorch() {
    assert_eq!(EXP.dtypes(DType::I64).unwrap(), (DType::F32, DType::F32));
    assert_eq!(EXP.dtypes(DType::Bool).unwrap(), (DType::F32, DType::F32));
    assert_eq!(EXP.dtypes(DType::F64).unwrap(), (DType::F64, DType::F64));
    assert_eq!(ABS.dtypes(DType::I8).unwrap(), (DType::I8, DType::I8));
    assert!(matches!(NEG.dtypes(DType::Bool).kind(), Some(ErrorKind::UnsupportedDType { .. })));
    assert!(matches!(GELU.dtypes(DType::I32).kind(), Some(ErrorKind::UnsupportedDType { .. })));
}

#[test]
fn what_cannot_be_done_is_an_error() {
    on_every_target(|target| {
        let b = Tensor::garbage(target, DType::Bool, &[4]);
        let neg = apply(target, &NEG, DType::Bool, &[b.view().into()], b.view());
        assert!(matches!(neg.kind(), Some(ErrorKind::UnsupportedDType { .. })));
    });
}
