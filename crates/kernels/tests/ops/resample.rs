//! Tests of resizing and its gradient, on every target.

use warpline_kernels::resample::*;
use warpline_runtime::DType::{BF16, F16, F32, F64, I32};
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu};
use warpline_runtime::{ErrorKind, Target};

const KINDS: [Interpolation; 4] = [
    Interpolation::Nearest,
    Interpolation::NearestExact,
    Interpolation::Linear,
    Interpolation::Cubic,
];

/// Enlarges a row, and compares the result with PyTorch's values.
#[test]
fn a_row_is_resampled_in_each_mode() {
    on_every_target(|target| {
        let image = Tensor::new(target, F64, &[1, 3, 1], &[1.0, 2.0, 4.0]);
        let row = |kind, align| {
            let out = Tensor::garbage(target, F64, &[1, 6, 1]);
            resample(target, image.view(), (kind, align, 0.5), out.view()).unwrap();
            out.floats(target)
        };
        assert_eq!(row(Interpolation::Nearest, false), [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]);
        assert_eq!(row(Interpolation::NearestExact, false), [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]);
        assert_eq!(row(Interpolation::Linear, false), [1.0, 1.25, 1.75, 2.5, 3.5, 4.0]);
        assert_close(
            F64,
            &row(Interpolation::Linear, true),
            &[1.0, 1.4, 1.8, 2.4, 3.2, 4.0],
            "aligned",
        );
        // The interpolation passes through elements at whole coordinates.
        let aligned = row(Interpolation::Cubic, true);
        assert_close(F64, &[aligned[0], aligned[5]], &[1.0, 4.0], "ends");
    });
}

/// `⟨resample x, y⟩ = ⟨x, resample_backward y⟩` for any sizes.
fn transposes(target: Target<'_>) {
    for (input, output) in [(5, 9), (9, 5), (1, 4), (4, 1), (7, 7), (64, 3), (3, 50)] {
        for kind in KINDS {
            for align in [false, true] {
                for scale in [input as f64 / output as f64, 0.37] {
                    for (dtype, inner) in [(F64, 3), (F64, 1), (F32, 2), (F16, 2), (BF16, 1)] {
                        let of = (kind, align, scale);
                        let value = |i: usize| ((i * 7 % 11) as f64 - 5.0) / 4.0;
                        let x: Vec<f64> = (0..2 * input * inner).map(value).collect();
                        let y: Vec<f64> = (0..2 * output * inner).map(value).rev().collect();
                        let image = Tensor::new(target, dtype, &[2, input, inner], &x);
                        let grad = Tensor::new(target, dtype, &[2, output, inner], &y);
                        let larger = Tensor::garbage(target, dtype, &[2, output, inner]);
                        let back = Tensor::garbage(target, dtype, &[2, input, inner]);
                        resample(target, image.view(), of, larger.view()).unwrap();
                        resample_backward(target, grad.view(), of, back.view()).unwrap();
                        let dot = |a: &[f64], b: &[f64]| -> f64 {
                            a.iter().zip(b).map(|(a, b)| a * b).sum()
                        };
                        let (there, here) =
                            (dot(&larger.floats(target), &y), dot(&x, &back.floats(target)));
                        let floor = match dtype {
                            F64 => 1e-10,
                            F32 => 1e-3,
                            _ => 2.0,
                        };
                        assert!(
                            (there - here).abs() <= floor,
                            "{dtype} {input} to {output}, {of:?}: {there} and {here}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn the_gradient_of_no_rows_is_zero() {
    on_every_target(|target| {
        let grad = Tensor::garbage(target, F32, &[2, 0, 3]);
        let back = Tensor::garbage(target, F32, &[2, 4, 3]);
        let of = (Interpolation::Linear, false, 1.0);
        resample_backward(target, grad.view(), of, back.view()).unwrap();
        assert_eq!(back.floats(target), [0.0; 24]);
    });
}

#[test]
fn the_gradient_is_the_transpose() {
    on_every_target(transposes);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_the_gradient_is_the_transpose() {
    on_gpu(transposes);
}

#[test]
fn operands_with_wrong_shapes_are_refused() {
    on_every_target(|target| {
        let refused = |dtype, input: &[usize], out_dtype, output: &[usize]| {
            let image = Tensor::garbage(target, dtype, input);
            let out = Tensor::garbage(target, out_dtype, output);
            resample(target, image.view(), (Interpolation::Linear, false, 1.0), out.view())
                .unwrap_err()
        };
        let error = refused(I32, &[1, 2, 1], I32, &[1, 3, 1]);
        assert!(matches!(error.kind(), ErrorKind::UnsupportedDType { .. }), "{error}");
        let error = refused(F32, &[1, 2, 1], F64, &[1, 3, 1]);
        assert!(matches!(error.kind(), ErrorKind::DTypeMismatch { .. }), "{error}");
        for sizes in [[2, 3, 1], [1, 3, 2]] {
            let error = refused(F32, &[1, 2, 1], F32, &sizes);
            assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { .. }), "{error}");
        }
        let error = refused(F32, &[1, 0, 1], F32, &[1, 3, 1]);
        assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { .. }), "{error}");
    });
}
