//! Tests of softmax, on every target.

use warpline_kernels::softmax::*;
use warpline_runtime::DType::{BF16, F16, F32, F64, I64};
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu, samples};
use warpline_runtime::{ErrorKind, ResultExt, Target};

/// Computes softmax of each row of `size` values with stride `step`, in `f64`.
fn reference(values: &[f64], size: usize, step: usize, log: bool) -> Vec<f64> {
    let mut out = values.to_vec();
    for first in (0..values.len()).filter(|i| (i / step).is_multiple_of(size)) {
        let row: Vec<f64> = (0..size).map(|i| values[first + i * step]).collect();
        let largest =
            row.iter().fold(f64::NEG_INFINITY, |a, &b| if a.is_nan() || a > b { a } else { b });
        let sum: f64 = row.iter().map(|v| (v - largest).exp()).sum();
        for (i, v) in row.iter().enumerate() {
            let v = v - largest;
            out[first + i * step] = if log { v - sum.ln() } else { v.exp() / sum };
        }
    }
    out
}

fn check(target: Target<'_>, a: &Tensor, dim: usize, log: bool) {
    let sizes = a.view().sizes();
    let step = sizes[dim + 1..].iter().product();
    let expected = reference(&a.floats(target), sizes[dim], step, log);
    let out = Tensor::garbage(target, a.dtype, sizes);
    softmax(target, a.view(), dim, out.view(), log).unwrap();
    let context = format!("{} {sizes:?} over {dim}, log {log}", a.dtype);
    assert_close(a.dtype, &out.floats(target), &expected, &context);
}

fn every_dtype_and_view(target: Target<'_>) {
    for dtype in [F16, BF16, F32, F64] {
        for sizes in [[3, 4, 5], [2, 300, 7], [1, 2, 1025]] {
            let n = sizes.iter().product();
            let mut values: Vec<f64> = samples(dtype, n, 3)
                .iter()
                .map(|v| if v.is_finite() { v % 20.0 } else { -1.0 })
                .collect();
            values[1] = f64::NEG_INFINITY;
            let base = Tensor::new(target, dtype, &sizes, &values);
            let views = [
                base.clone(),
                base.with(|l| l.transpose(0, 2)),
                base.with(|l| l.narrow(2, 0, sizes[2] - sizes[2] / 2)?.permute(&[1, 2, 0])),
            ];
            for a in &views {
                for dim in 0..3 {
                    check(target, a, dim, false);
                    check(target, a, dim, true);
                }
            }
        }
    }
}

#[test]
fn softmax_supports_every_float_dtype_and_view() {
    on_every_target(every_dtype_and_view);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_softmax_supports_every_float_dtype_and_view() {
    on_gpu(every_dtype_and_view);
}

#[test]
fn rows_longer_than_a_chunk_are_right() {
    on_every_target(|target| {
        for dtype in [F16, F32, F64] {
            let n = 300_000;
            let values: Vec<f64> = samples(dtype, n, 3)
                .iter()
                .map(|v| if v.is_finite() { v % 20.0 } else { -1.0 })
                .collect();
            let a = Tensor::new(target, dtype, &[n], &values);
            check(target, &a, 0, false);
            check(target, &a, 0, true);
            let expected = reference(&a.floats(target), n, 1, false);
            softmax(target, a.view(), 0, a.view(), false).unwrap();
            assert_close(dtype, &a.floats(target), &expected, "in place");
        }
    });
}

/// Tests rows for a warp, rows for a block, and longer rows, which begin at a vector or inside one.
/// Also tests columns with and without whole vectors.
fn every_kernel(target: Target<'_>) {
    for dtype in [F16, BF16, F32, F64] {
        for size in [1, 5, 31, 64, 300, 512, 1000, 1024, 1025, 4097, 16_384, 16_385, 33_333] {
            for start in [0, 1] {
                let n = 3 * (size + start);
                let values: Vec<f64> =
                    (0..n).map(|i| (i * 31 % 997) as f64 / 50.0 - 10.0).collect();
                let base = Tensor::new(target, dtype, &[3, size + start], &values);
                let a = base.with(|l| l.narrow(1, start as isize, size));
                check(target, &a, 1, false);
                check(target, &a, 1, true);
                // Compute in place, so that source and result have the same offset within a vector.
                let expected = reference(&a.floats(target), size, 1, false);
                softmax(target, a.view(), 1, a.view(), false).unwrap();
                assert_close(dtype, &a.floats(target), &expected, "in place");
            }
        }
        for (size, columns) in [(2, 16), (7, 49), (130, 64), (1000, 33), (3, 200)] {
            let n = 2 * size * columns;
            let values: Vec<f64> = (0..n).map(|i| (i * 31 % 997) as f64 / 50.0 - 10.0).collect();
            let a = Tensor::new(target, dtype, &[2, size, columns], &values);
            check(target, &a, 1, false);
            check(target, &a, 1, true);
        }
    }
    let none = [f64::NEG_INFINITY; 600];
    let a = Tensor::new(target, F32, &[600], &none);
    softmax(target, a.view(), 0, a.view(), false).unwrap();
    assert!(a.floats(target).iter().all(|x| x.is_nan()));
}

#[test]
fn rows_and_columns_of_any_size_are_right() {
    on_every_target(every_kernel);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_rows_and_columns_of_any_size_are_right() {
    on_gpu(every_kernel);
}

#[test]
fn large_values_do_not_overflow() {
    on_every_target(|target| {
        let a = Tensor::new(target, F32, &[2, 2], &[1e30, 1e30, -1e30, 3e38]);
        let out = Tensor::garbage(target, F32, &[2, 2]);
        softmax(target, a.view(), 1, out.view(), false).unwrap();
        assert_eq!(out.floats(target), [0.5, 0.5, 0.0, 1.0]);
    });
}

#[test]
fn nan_spreads_over_its_row_only() {
    on_every_target(|target| {
        let a = Tensor::new(target, F32, &[2, 2], &[1.0, f64::NAN, 2.0, 2.0]);
        let out = Tensor::garbage(target, F32, &[2, 2]);
        softmax(target, a.view(), 1, out.view(), false).unwrap();
        assert_close(F32, &out.floats(target), &[f64::NAN, f64::NAN, 0.5, 0.5], "NaN");
    });
}

#[test]
fn softmax_runs_in_place_but_not_between_shifted_views() {
    on_every_target(|target| {
        let a = Tensor::new(target, F32, &[4], &[0.0; 4]);
        softmax(target, a.view(), 0, a.view(), false).unwrap();
        assert_eq!(a.floats(target), [0.25; 4]);
        let (first, second) = (a.with(|l| l.narrow(0, 0, 3)), a.with(|l| l.narrow(0, 1, 3)));
        assert!(matches!(
            softmax(target, first.view(), 0, second.view(), false).kind(),
            Some(ErrorKind::OverlappingOperands)
        ));
    });
}

#[test]
fn a_scalar_is_a_row_and_bad_arguments_are_refused() {
    on_every_target(|target| {
        let scalar = Tensor::new(target, F32, &[], &[3.0]);
        softmax(target, scalar.view(), 0, scalar.view(), false).unwrap();
        assert_eq!(scalar.floats(target), [1.0]);
        let none = Tensor::new(target, F32, &[0, 3], &[]);
        softmax(target, none.view(), 0, none.view(), false).unwrap();
        let integers = Tensor::garbage(target, I64, &[2]);
        assert!(matches!(
            softmax(target, integers.view(), 0, integers.view(), false).kind(),
            Some(ErrorKind::UnsupportedDType { .. })
        ));
        let (a, b) = (Tensor::garbage(target, F32, &[2]), Tensor::garbage(target, F32, &[3]));
        assert!(matches!(
            softmax(target, a.view(), 0, b.view(), false).kind(),
            Some(ErrorKind::ShapeMismatch { .. })
        ));
        assert!(matches!(
            softmax(target, a.view(), 1, a.view(), false).kind(),
            Some(ErrorKind::DimOutOfRange { .. })
        ));
    });
}

/// Tests gradients of rows and columns, with incoming gradients that are transposed or expanded.
fn gradients(target: Target<'_>) {
    for dtype in [F16, BF16, F32, F64] {
        for sizes in [[3, 1, 5], [2, 300, 7], [40, 3, 2], [1, 2, 1500]] {
            let n: usize = sizes.iter().product();
            let values: Vec<f64> = (0..n).map(|i| (i * 7 % 13) as f64 / 16.0 - 0.5).collect();
            let out = Tensor::new(target, dtype, &sizes, &values);
            let turned = [sizes[2], sizes[1], sizes[0]];
            let grads = [
                Tensor::new(target, dtype, &turned, &values).with(|l| l.transpose(0, 2)),
                Tensor::new(target, dtype, &[], &[0.25]).with(|l| l.expand(&sizes)),
            ];
            for (grad, dim, log) in grads.iter().flat_map(|grad| {
                (0..3).flat_map(move |dim| [false, true].map(|log| (grad, dim, log)))
            }) {
                let (g, y) = (grad.floats(target), out.floats(target));
                let (size, step) = (sizes[dim], sizes[dim + 1..].iter().product::<usize>());
                let mut expected = vec![0.0; n];
                for first in (0..n).filter(|i| (i / step).is_multiple_of(size)) {
                    let row = || (0..size).map(|i| first + i * step);
                    let sum: f64 = row().map(|i| if log { g[i] } else { g[i] * y[i] }).sum();
                    for i in row() {
                        let slope = if log { g[i] - y[i].exp() * sum } else { y[i] * (g[i] - sum) };
                        expected[i] = slope;
                    }
                }
                let result = Tensor::garbage(target, dtype, &sizes);
                softmax_backward(target, grad.view(), out.view(), dim, result.view(), log).unwrap();
                let context = format!("{dtype} {sizes:?} over {dim}, log {log}");
                assert_close(dtype, &result.floats(target), &expected, &context);
            }
        }
    }
}

#[test]
fn gradients_of_rows_and_columns_are_right() {
    on_every_target(gradients);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_gradients_of_rows_and_columns_are_right() {
    on_gpu(gradients);
}
