//! Tests of matrix products that run on every target.

use smallvec::smallvec;
use warpline_kernels::matmul::*;
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu, samples};
use warpline_runtime::{DType, ErrorKind, Layout, ResultExt as _, Target};

/// Small integers, whose products are exact in every dtype, so that sums do not depend on the
/// order.
fn values(dtype: DType, n: usize, seed: u64) -> Vec<f64> {
    samples(dtype, n, seed)
        .iter()
        .map(|v| if v.is_finite() { (v % 3.0).trunc() } else { 1.0 })
        .collect()
}

fn reference(dtype: DType, [batch, m, n, k]: [usize; 4], a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut out = Vec::new();
    for i in 0..batch {
        for row in 0..m {
            for column in 0..n {
                let product = |d| a[(i * m + row) * k + d] * b[(i * k + d) * n + column];
                let sum: f64 = (0..k).map(product).sum();
                out.push(warpline_runtime::testing::stored(dtype, sum));
            }
        }
    }
    out
}

/// Creates a matrix of these sizes with memory layout number `kind`.
fn matrix(
    target: Target<'_>,
    dtype: DType,
    [batch, rows, columns]: [usize; 3],
    kind: usize,
    seed: u64,
) -> Tensor {
    let make = |sizes: [usize; 3]| {
        Tensor::new(target, dtype, &sizes, &values(dtype, sizes.iter().product(), seed))
    };
    match kind {
        0 => make([batch, rows, columns]),
        1 => make([batch, columns, rows]).with(|l| l.transpose(1, 2)),
        2 => make([batch, rows, columns + 3]).with(|l| l.narrow(2, 2, columns)),
        3 => make([rows, batch, columns]).with(|l| l.transpose(0, 1)),
        4 => make([1, rows, columns]).with(|l| l.expand(&[batch, rows, columns])),
        // Neither rows nor columns are contiguous.
        _ => make([batch, rows, columns * 2]).with(|l| l.slice(2, 0, columns * 2, 2)),
    }
}

#[track_caller]
fn check(target: Target<'_>, a: &Tensor, b: &Tensor, out: &Tensor) {
    let (&[batch, m, k], &[_, _, n]) = (a.view().sizes(), b.view().sizes()) else { panic!("3-D") };
    let expected = reference(out.dtype, [batch, m, n, k], &a.floats(target), &b.floats(target));
    matmul(target, a.view(), b.view(), out.view()).unwrap();
    let context = format!(
        "{} to {}: {:?} {:?} by {:?} {:?} into {:?}",
        a.dtype,
        out.dtype,
        a.view().sizes(),
        a.view().strides(),
        b.view().sizes(),
        b.view().strides(),
        out.view().strides()
    );
    assert_close(out.dtype, &out.floats(target), &expected, &context);
}

/// Dtypes that a result may have for operands of `dtype`.
fn results(dtype: DType) -> Vec<DType> {
    match dtype {
        DType::F16 | DType::BF16 => vec![dtype, DType::F32],
        _ => vec![dtype],
    }
}

fn every_dtype_and_lie(target: Target<'_>) {
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::Bool) {
        // Small products, and one that is not small.
        for [batch, m, n, k] in [
            [1, 1, 1, 1],
            [2, 5, 3, 4],
            [2, 70, 65, 17],
            [1, 1, 9, 130],
            [2, 9, 1, 0],
            [2, 35, 66, 260],
        ] {
            for kind in 0..6 {
                for other in [0, 1, kind] {
                    let a = matrix(target, dtype, [batch, m, k], kind, 1);
                    let b = matrix(target, dtype, [batch, k, n], other, 2);
                    for result in results(dtype) {
                        let out = Tensor::garbage(target, result, &[batch, m, n]);
                        check(target, &a, &b, &out);
                        let turned = Tensor::garbage(target, result, &[batch, n, m]);
                        check(target, &a, &b, &turned.with(|l| l.transpose(1, 2)));
                    }
                }
            }
        }
    }
}

#[test]
fn every_dtype_however_it_lies() {
    on_every_target(every_dtype_and_lie);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_every_dtype_however_it_lies() {
    on_gpu(every_dtype_and_lie);
}

#[test]
fn products_larger_than_a_block_are_right() {
    on_every_target(|target| {
        for dtype in [DType::F16, DType::F32, DType::I32] {
            for [m, n, k] in [[2, 2, 2100], [1030, 2, 3], [2, 2100, 1030], [1, 40_000, 2]] {
                let a = matrix(target, dtype, [2, m, k], 1, 1);
                let b = matrix(target, dtype, [2, k, n], 4, 2);
                for result in results(dtype) {
                    check(target, &a, &b, &Tensor::garbage(target, result, &[2, m, n]));
                }
            }
        }
    });
}

#[test]
fn products_with_vectors_of_any_length_are_right() {
    on_every_target(|target| {
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            // Few rows, many rows, and few rows whose long sums are split.
            for [batch, m, k] in [[3, 2, 1030], [1, 2600, 37], [1, 1, 70_001], [2, 3, 70_001]] {
                for kind in 0..6 {
                    let a = matrix(target, dtype, [batch, m, k], kind, 1);
                    let b = matrix(target, dtype, [batch, k, 1], kind, 2);
                    check(target, &a, &b, &Tensor::garbage(target, dtype, &[batch, m, 1]));
                    let out = Tensor::garbage(target, dtype, &[batch, m, 2]);
                    let [a, b, out] = [&a, &b, &out].map(|t| t.with(|l| l.transpose(1, 2)));
                    check(target, &b, &a, &out.with(|l| l.narrow(1, 1, 1)));
                }
            }
        }
    });
}

/// Layouts that the kernels for few rows support, and layouts that they nearly support.
fn few_rows_or_columns(target: Target<'_>) {
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        for [m, n, k] in [
            [1, 64, 8192],
            [2, 100, 2056],
            [4, 65, 2040],
            [5, 515, 1032],
            [9, 64, 4100],
            [16, 130, 2048],
            [17, 64, 2048],
        ] {
            // The columns of `b` are contiguous. They are adjacent in the first case, have gaps between them in the
            // second, and begin at an odd element in the third.
            for (extra, from) in [(0, 0isize), (16, 8), (9, 1)] {
                let a = matrix(target, dtype, [1, m, k], 0, 1);
                let stored = [1, n, k + extra];
                let stored =
                    Tensor::new(target, dtype, &stored, &values(dtype, n * (k + extra), 2));
                let b = stored.with(|l| l.narrow(2, from, k)).with(|l| l.transpose(1, 2));
                let out = Tensor::garbage(target, dtype, &[1, m, n]);
                check(target, &a, &b, &out);
                let out = Tensor::garbage(target, dtype, &[1, n, m + 1]);
                let turned = out.with(|l| l.narrow(2, 1, m));
                check(
                    target,
                    &b.with(|l| l.transpose(1, 2)),
                    &a.with(|l| l.transpose(1, 2)),
                    &turned,
                );
            }
        }
    }
}

#[test]
fn products_of_few_rows_or_columns_are_right() {
    on_every_target(few_rows_or_columns);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_products_of_few_rows_or_columns_are_right() {
    on_gpu(few_rows_or_columns);
}

/// Gated products of as many rows as the kernels support, of halves whose length is and is not a multiple of a block's
/// columns, and operands that no kernel supports.
fn gated(target: Target<'_>) {
    let is_device = matches!(target, Target::Cuda(..));
    for dtype in [DType::F16, DType::BF16] {
        for [m, half, k] in [[1, 32, 8], [3, 50, 2056], [8, 33, 72], [9, 64, 520], [16, 39, 2048]] {
            let a = matrix(target, dtype, [1, m, k], 0, 1).with(|l| l.squeeze(0));
            let stored = values(dtype, 2 * half * (k + 16), 2);
            let stored = Tensor::new(target, dtype, &[2 * half, k + 16], &stored);
            let b = stored.with(|l| l.narrow(1, 8, k)).with(|l| l.transpose(0, 1));
            let sums = reference(dtype, [1, m, 2 * half, k], &a.floats(target), &b.floats(target));
            let expected = sums.chunks(2 * half).flat_map(|row| {
                let (gate, up) = row.split_at(half);
                gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u)
            });
            let expected: Vec<f64> = expected.collect();
            let out = Tensor::garbage(target, dtype, &[m, half + 1]).with(|l| l.narrow(1, 1, half));
            let is_computed = matmul_silu_mul(target, a.view(), b.view(), out.view()).unwrap();
            assert_eq!(is_computed, is_device, "{dtype} {m} {half} {k}");
            if is_computed {
                let context = format!("{dtype}: {m} rows, 2 * {half} columns of {k}");
                assert_close(dtype, &out.floats(target), &expected, &context);
            }
        }
    }
    for (dtype, [m, half, k]) in [
        (DType::F32, [1, 64, 512]),
        (DType::F16, [17, 64, 512]),
        (DType::F16, [1, 64, 510]),
        (DType::F16, [1, 16, 512]),
        // Few columns and many rows, as in a transposed product of few rows.
        (DType::F16, [64, 4, 512]),
    ] {
        let [a, b] = [[m, k], [2 * half, k]].map(|sizes| Tensor::garbage(target, dtype, &sizes));
        let (b, out) = (b.with(|l| l.transpose(0, 1)), Tensor::garbage(target, dtype, &[m, half]));
        assert!(
            !matmul_silu_mul(target, a.view(), b.view(), out.view()).unwrap(),
            "{m} {half} {k}"
        );
    }
}

#[test]
fn a_gated_product_equals_a_product_and_a_gate() {
    on_every_target(gated);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_a_gated_product_equals_a_product_and_a_gate() {
    on_gpu(gated);
}

#[test]
fn a_gated_product_names_the_operands_that_do_not_fit() {
    on_every_target(|target| {
        let make = |dtype, sizes: &[usize]| Tensor::garbage(target, dtype, sizes);
        let a = make(DType::F16, &[2, 8]);
        for (b, out) in [
            (make(DType::F16, &[8, 127]), make(DType::F16, &[2, 63])),
            (make(DType::F16, &[8, 128]), make(DType::F16, &[2, 128])),
            (make(DType::F16, &[16, 128]), make(DType::F16, &[2, 64])),
            (make(DType::F16, &[1, 8, 128]), make(DType::F16, &[2, 64])),
        ] {
            let error = matmul_silu_mul(target, a.view(), b.view(), out.view()).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { .. }), "{error}");
        }
        let (b, out) = (make(DType::F16, &[8, 128]), make(DType::F32, &[2, 64]));
        let error = matmul_silu_mul(target, a.view(), b.view(), out.view()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::DTypeMismatch { .. }), "{error}");
        // The second half of the columns reaches outside the storage.
        let b = make(DType::F16, &[64, 8]);
        let layout = Layout::from_parts(smallvec![8, 128], smallvec![1, 8], 0);
        let b = b.with(|_| Ok(layout));
        let error = matmul_silu_mul(target, a.view(), b.view(), make(DType::F16, &[2, 64]).view());
        assert!(matches!(error.unwrap_err().kind(), ErrorKind::OutOfStorage { .. }));
    });
}

#[test]
fn a_product_of_matrices_is_right() {
    on_every_target(|target| {
        let a = Tensor::new(target, DType::F32, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let b = Tensor::new(target, DType::F32, &[3, 1], &[1.0, 0.0, -1.0]);
        let out = Tensor::garbage(target, DType::F32, &[2, 1]);
        matmul(target, a.view(), b.view(), out.view()).unwrap();
        assert_eq!(out.floats(target), [-2.0, -2.0]);
    });
}

#[test]
fn bad_arguments_are_refused() {
    on_every_target(|target| {
        let of = |dtype, sizes: &[usize]| Tensor::garbage(target, dtype, sizes);
        let run =
            |a: &Tensor, b: &Tensor, out: &Tensor| matmul(target, a.view(), b.view(), out.view());
        let (a, b) = (of(DType::F32, &[2, 3]), of(DType::F32, &[3, 2]));
        assert!(matches!(run(&a, &a, &b).kind(), Some(ErrorKind::ShapeMismatch { .. })));
        assert!(matches!(run(&a, &b, &b).kind(), Some(ErrorKind::ShapeMismatch { .. })));
        let c = of(DType::F64, &[2, 2]);
        assert!(matches!(run(&a, &b, &c).kind(), Some(ErrorKind::DTypeMismatch { .. })));
        let halves = [of(DType::F16, &[2, 3]), of(DType::F16, &[3, 2])];
        assert!(matches!(run(&halves[0], &b, &c).kind(), Some(ErrorKind::DTypeMismatch { .. })));
        assert!(matches!(
            run(&halves[0], &halves[1], &c).kind(),
            Some(ErrorKind::DTypeMismatch { .. })
        ));
        let bf16 = of(DType::BF16, &[2, 2]);
        assert!(matches!(
            run(&halves[0], &halves[1], &bf16).kind(),
            Some(ErrorKind::DTypeMismatch { .. })
        ));
        let square = of(DType::F32, &[2, 2]);
        assert!(matches!(
            run(&square, &square, &square).kind(),
            Some(ErrorKind::OverlappingOperands)
        ));
        let bools = [of(DType::Bool, &[2, 2]), of(DType::Bool, &[2, 2])];
        assert!(matches!(
            run(&bools[0], &bools[0], &bools[1]).kind(),
            Some(ErrorKind::UnsupportedDType { .. })
        ));
    });
}

#[test]
fn a_product_over_nothing_is_zero() {
    on_every_target(|target| {
        for dtype in DType::ALL.into_iter().filter(|&d| d != DType::Bool) {
            let a = Tensor::new(target, dtype, &[2, 3, 0], &[]);
            let b = Tensor::new(target, dtype, &[2, 0, 5], &[]);
            let out = Tensor::garbage(target, dtype, &[2, 6, 5]);
            let rows = out.with(|l| l.slice(1, 0, 6, 2));
            matmul(target, a.view(), b.view(), rows.view()).unwrap();
            assert_eq!(rows.floats(target), [0.0; 30], "{dtype}");
            let between = out.with(|l| l.slice(1, 1, 6, 2)).floats(target);
            assert_eq!(between, [77.0; 30], "{dtype}");
        }
    });
}

#[test]
fn operands_may_repeat_or_run_backwards() {
    on_every_target(|target| {
        for dtype in [DType::F16, DType::F32, DType::F64, DType::I32] {
            let row = Tensor::new(target, dtype, &[1, 4], &[1.0, 2.0, 3.0, 4.0]);
            let a = row.with(|l| l.expand(&[3, 4]));
            let backwards = Layout::from_parts(smallvec![4, 2], smallvec![-1, 0], 3);
            let b = Tensor { layout: backwards, ..row.clone() };
            let out = Tensor::garbage(target, dtype, &[2, 3]).with(|l| l.transpose(0, 1));
            matmul(target, a.view(), b.view(), out.view()).unwrap();
            assert_eq!(out.floats(target), [20.0; 6], "{dtype}");
        }
    });
}
