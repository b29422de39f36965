//! Tests of fills that run on every target.

use warpline_kernels::fill::*;
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu, shapes, stored};
use warpline_runtime::{DType, ErrorKind, ResultExt as _, Scalar, Target};

fn fills(target: Target<'_>) {
    for shape in shapes() {
        for dtype in DType::ALL {
            let memory = Tensor::garbage(target, dtype, shape.memory[2]);
            let out = memory.with(shape.views[2]);
            for value in [Scalar::Int(3), Scalar::Float(2.5), Scalar::Bool(true), Scalar::Int(0)] {
                fill(target, out.view(), value).unwrap();
                let expected = vec![stored(dtype, value.to_f64()); out.view().numel()];
                assert_close(dtype, &out.floats(target), &expected, shape.name);
            }
            // Elements outside of the view keep their values.
            let all = memory.floats(target);
            let untouched = stored(dtype, 77.0);
            let changed = all.iter().filter(|&&v| v != untouched).count();
            assert_eq!(changed, out.view().numel(), "{} {dtype}", shape.name);
        }
    }
}

fn sequences(target: Target<'_>) {
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::Bool) {
        let out = Tensor::garbage(target, dtype, &[5]);
        arange(target, out.view(), Scalar::Int(2), Scalar::Int(3)).unwrap();
        assert_eq!(out.floats(target), [2.0, 5.0, 8.0, 11.0, 14.0], "{dtype}");
        linspace(target, out.view(), 0.0, 8.0).unwrap();
        assert_eq!(out.floats(target), [0.0, 2.0, 4.0, 6.0, 8.0], "{dtype}");
    }
    let out = Tensor::garbage(target, DType::F32, &[10]);
    arange(target, out.view(), Scalar::Int(0), Scalar::Float(0.1)).unwrap();
    let tenths: Vec<f64> = (0..10).map(|i| f64::from(i) * 0.1).collect();
    assert_close(DType::F32, &out.floats(target), &tenths, "tenths");
    // Integers that no float represents.
    let out = Tensor::garbage(target, DType::I64, &[2]);
    arange(target, out.view(), Scalar::Int((1 << 60) + 1), Scalar::Int(2)).unwrap();
    assert_eq!(out.values(target), [Scalar::Int((1 << 60) + 1), Scalar::Int((1 << 60) + 3)]);
    // The first and the last value are exact for every step.
    let out = Tensor::garbage(target, DType::F64, &[100_003]);
    linspace(target, out.view(), -0.3, 0.7).unwrap();
    let values = out.floats(target);
    assert_eq!((values[0], values[100_002]), (-0.3, 0.7));
    assert!(values.is_sorted());
    let one = Tensor::garbage(target, DType::F32, &[1]);
    linspace(target, one.view(), 2.0, 5.0).unwrap();
    assert_eq!(one.floats(target), [2.0]);
    // A view of every second element.
    let memory = Tensor::garbage(target, DType::I32, &[6]);
    let out = memory.with(|l| l.slice(0, 0, 6, 2));
    arange(target, out.view(), Scalar::Int(1), Scalar::Int(-1)).unwrap();
    assert_eq!(memory.floats(target), [1.0, 77.0, 0.0, 77.0, -1.0, 77.0]);
}

fn identities(target: Target<'_>) {
    let out = Tensor::garbage(target, DType::F16, &[2, 3]);
    eye(target, out.view()).unwrap();
    assert_eq!(out.floats(target), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    let tall = Tensor::garbage(target, DType::I64, &[3, 2]);
    eye(target, tall.view()).unwrap();
    assert_eq!(tall.floats(target), [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
    eye(target, Tensor::garbage(target, DType::F32, &[0, 4]).view()).unwrap();
}

#[test]
fn fills_are_right_on_the_cpu_and_on_simulated_devices() {
    on_every_target(fills);
    on_every_target(sequences);
    on_every_target(identities);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_fills_are_right() {
    on_gpu(fills);
    on_gpu(sequences);
    on_gpu(identities);
}

#[test]
fn what_cannot_be_done_is_an_error() {
    on_every_target(|target| {
        let matrix = Tensor::garbage(target, DType::F32, &[2, 2]);
        let range = arange(target, matrix.view(), Scalar::Int(0), Scalar::Int(1));
        assert!(matches!(range.kind(), Some(ErrorKind::ShapeMismatch { .. })));
        let vector = Tensor::garbage(target, DType::Bool, &[2]);
        assert!(matches!(eye(target, vector.view()).kind(), Some(ErrorKind::ShapeMismatch { .. })));
        let range = arange(target, vector.view(), Scalar::Int(0), Scalar::Int(1));
        assert!(matches!(range.kind(), Some(ErrorKind::UnsupportedDType { .. })));
        let expanded = vector.with(|l| l.narrow(0, 0, 1)?.expand(&[3]));
        let error = fill(target, expanded.view(), Scalar::Int(1));
        assert!(matches!(error.kind(), Some(ErrorKind::OverlappingWrite)));
    });
}
