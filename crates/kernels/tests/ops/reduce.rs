//! Tests of reductions that run on every target.

use warpline_kernels::reduce::*;
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu, samples};
use warpline_runtime::{DType, ErrorKind, ResultExt, Target};

/// Computes one result from its elements. Integers do not wrap here; they wrap when the result is
/// stored.
fn reference(op: ReduceOp, values: &[f64]) -> f64 {
    let nan = values.iter().position(|v| v.is_nan());
    let extreme = |max: bool| {
        let best = |best: usize, i: usize| {
            let (a, b) = (values[best], values[i]);
            if if max { b > a } else { b < a } { i } else { best }
        };
        nan.unwrap_or_else(|| (0..values.len()).reduce(best).unwrap())
    };
    match op {
        ReduceOp::Sum => values.iter().sum(),
        ReduceOp::Prod => values.iter().product(),
        ReduceOp::Mean => values.iter().sum::<f64>() / values.len() as f64,
        ReduceOp::Max => values[extreme(true)],
        ReduceOp::Min => values[extreme(false)],
        ReduceOp::ArgMax => extreme(true) as f64,
        ReduceOp::ArgMin => extreme(false) as f64,
        ReduceOp::Any => f64::from(u8::from(values.iter().any(|&v| v != 0.0))),
        ReduceOp::All => f64::from(u8::from(values.iter().all(|&v| v != 0.0))),
    }
}

/// Groups values in row-major order by the result that they belong to.
fn groups(sizes: &[usize], dims: &[usize], values: &[f64]) -> Vec<Vec<f64>> {
    let reduced = |d: &usize| dims.is_empty() || dims.contains(d);
    let outputs = (0..sizes.len()).filter(|d| !reduced(d)).map(|d| sizes[d]).product();
    let mut groups = vec![Vec::new(); outputs];
    for (i, &v) in values.iter().enumerate() {
        let (mut rest, mut output, mut step) = (i, 0, 1);
        for d in (0..sizes.len()).rev() {
            if !reduced(&d) {
                output += rest % sizes[d] * step;
                step *= sizes[d];
            }
            rest /= sizes[d];
        }
        groups[output].push(v);
    }
    groups
}

pub(crate) fn result_sizes(sizes: &[usize], dims: &[usize], keepdim: bool) -> Vec<usize> {
    let reduced = |d: usize| dims.is_empty() || dims.contains(&d);
    (0..sizes.len())
        .filter(|&d| keepdim || !reduced(d))
        .map(|d| if reduced(d) { 1 } else { sizes[d] })
        .collect()
}

#[track_caller]
pub(crate) fn check(target: Target<'_>, op: ReduceOp, a: &Tensor, dims: &[usize], keepdim: bool) {
    let Ok(dtype) = op.result_dtype(a.dtype) else { return };
    let sizes = a.view().sizes();
    let expected: Vec<f64> =
        groups(sizes, dims, &a.floats(target)).iter().map(|g| reference(op, g)).collect();
    let out = Tensor::garbage(target, dtype, &result_sizes(sizes, dims, keepdim));
    reduce(target, op, a.view(), dims, out.view()).unwrap();
    let context = format!("{} of {} {sizes:?} over {dims:?}", op.name(), a.dtype);
    assert_close(dtype, &out.floats(target), &expected, &context);
}

/// Returns values whose sums have small rounding errors, with a NaN if `nan` is true.
fn moderate(dtype: DType, n: usize, nan: bool) -> Vec<f64> {
    let mut values: Vec<f64> = samples(dtype, n, 5)
        .into_iter()
        .map(|v| {
            if v.is_finite() {
                (v % 4.0).clamp(-4.0, 4.0).round() / if dtype.is_float() { 4.0 } else { 1.0 }
            } else {
                0.5
            }
        })
        .collect();
    if nan && dtype.is_float() && n > 3 {
        values[n / 2] = f64::NAN;
    }
    values
}

fn every_op_dtype_and_view(target: Target<'_>) {
    for dtype in DType::ALL {
        for nan in [false, true] {
            let base = Tensor::new(target, dtype, &[4, 3, 7], &moderate(dtype, 84, nan));
            let views = [
                base.clone(),
                base.with(|l| l.transpose(0, 2)),
                base.with(|l| l.narrow(2, 1, 4)?.permute(&[1, 0, 2])),
                base.with(|l| l.select(1, 1)?.unsqueeze(1)?.expand(&[4, 5, 7])),
            ];
            for a in &views {
                for &op in ReduceOp::ALL {
                    for dims in [&[][..], &[0], &[1], &[2]] {
                        check(target, op, a, dims, false);
                    }
                    if !matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) {
                        check(target, op, a, &[0, 2], true);
                        check(target, op, a, &[1, 2], false);
                    }
                }
            }
        }
    }
}

#[test]
fn reductions_support_every_dtype_and_view() {
    on_every_target(every_op_dtype_and_view);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_reductions_support_every_dtype_and_view() {
    on_gpu(every_op_dtype_and_view);
}

fn large(target: Target<'_>) {
    for dtype in [DType::F32, DType::BF16, DType::I32] {
        for sizes in [&[70_001][..], &[3, 20_000], &[9_000, 3], &[2, 300, 130]] {
            let n = sizes.iter().product();
            let a = Tensor::new(target, dtype, sizes, &moderate(dtype, n, false));
            for op in
                [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::ArgMin, ReduceOp::All]
            {
                check(target, op, &a, &[], false);
                check(target, op, &a, &[0], false);
                check(target, op, &a, &[sizes.len() - 1], true);
            }
        }
    }
}

#[test]
fn threads_share_large_results() {
    on_every_target(large);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_threads_share_large_results() {
    on_gpu(large);
}

/// Tests views that begin inside a vector, rows that do not consist of whole vectors, elements with
/// gaps, and several dimensions at a time.
fn alignments(target: Target<'_>) {
    for dtype in [DType::Bool, DType::I8, DType::I64, DType::F16, DType::F32, DType::F64] {
        let n = 5 * 37 * 131;
        let base = Tensor::new(target, dtype, &[5, 37, 131], &moderate(dtype, n, false));
        let views = [
            base.clone(),
            base.with(|l| l.narrow(2, 1, 130)),
            base.with(|l| l.narrow(2, 3, 64)?.narrow(1, 1, 36)),
            base.with(|l| l.slice(2, 1, 131, 2)),
            base.with(|l| l.slice(1, 2, 37, 5)?.permute(&[2, 0, 1])),
            base.with(|l| l.narrow(2, 5, 1)?.expand(&[5, 37, 9])),
            base.with(|l| l.narrow(0, 1, 4)?.narrow(2, 0, 128)),
        ];
        for a in &views {
            for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::ArgMin, ReduceOp::All] {
                for dims in [&[][..], &[0], &[1], &[2]] {
                    check(target, op, a, dims, false);
                }
                if op != ReduceOp::ArgMin {
                    check(target, op, a, &[0, 2], false);
                    check(target, op, a, &[0, 1], true);
                }
            }
        }
    }
}

#[test]
fn reductions_support_any_offset_and_stride() {
    on_every_target(alignments);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_reductions_support_any_offset_and_stride() {
    on_gpu(alignments);
}

/// Reductions for which each kernel uses several blocks per result.
#[test]
#[ignore = "needs a GPU"]
fn gpu_results_that_blocks_share_are_right() {
    on_gpu(|target| {
        for dtype in [DType::I8, DType::BF16, DType::F32, DType::I64] {
            let n = 3 * 700_000;
            let a = Tensor::new(target, dtype, &[3, 700_000], &moderate(dtype, n, false));
            let columns = a.with(|l| Ok(l.view(&[262_500, 8]).unwrap()));
            let runs = a.with(|l| Ok(l.view(&[3000, 700]).unwrap()));
            let views = [
                a.clone(),
                a.with(|l| l.narrow(1, 1, 699_990)),
                a.with(|l| l.slice(1, 0, 700_000, 3)),
                columns.clone(),
                columns.with(|l| l.narrow(1, 1, 5)),
                runs.with(|l| l.narrow(1, 3, 601)),
                runs.with(|l| l.narrow(1, 3, 3)),
            ];
            for a in &views {
                for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::ArgMax, ReduceOp::Any] {
                    for dims in [&[][..], &[0], &[1]] {
                        check(target, op, a, dims, false);
                    }
                }
            }
        }
    });
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_sums_are_the_same_in_each_run() {
    on_gpu(|target| {
        let n = 1 << 22;
        let values: Vec<f64> = (0..n).map(|i| f64::from(i % 1009) / 1009.0 - 0.3).collect();
        let a = Tensor::new(target, DType::F32, &[n as usize / 64, 64], &values);
        for dims in [&[][..], &[0], &[1]] {
            let sum = || {
                let sizes = result_sizes(a.view().sizes(), dims, false);
                let out = Tensor::garbage(target, DType::F32, &sizes);
                reduce(target, ReduceOp::Sum, a.view(), dims, out.view()).unwrap();
                out.floats(target)
            };
            let first = sum();
            for _ in 0..20 {
                assert_eq!(sum(), first);
            }
        }
    });
}

/// Tests extremes of elements that all equal the initial value of the threads' partial results.
fn extremes_of_the_initial_value(target: Target<'_>) {
    for (dtype, value) in [(DType::F32, f64::NEG_INFINITY), (DType::U8, 0.0), (DType::I8, -128.0)] {
        let a = Tensor::new(target, dtype, &[2, 300], &[value; 600]);
        for op in [ReduceOp::ArgMax, ReduceOp::ArgMin, ReduceOp::Max, ReduceOp::Min] {
            check(target, op, &a, &[], false);
            check(target, op, &a, &[0], false);
            check(target, op, &a, &[1], false);
        }
    }
}

#[test]
fn extremes_of_the_initial_value_are_found() {
    on_every_target(extremes_of_the_initial_value);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_extremes_of_the_initial_value_are_found() {
    on_gpu(extremes_of_the_initial_value);
}

#[test]
fn a_reduction_of_no_elements_gives_the_identity_nan_or_an_error() {
    on_every_target(|target| {
        let a = Tensor::new(target, DType::F32, &[0, 2], &[]);
        for (op, expected) in [
            (ReduceOp::Sum, 0.0),
            (ReduceOp::Prod, 1.0),
            (ReduceOp::Mean, f64::NAN),
            (ReduceOp::Any, 0.0),
            (ReduceOp::All, 1.0),
        ] {
            let out = Tensor::garbage(target, op.result_dtype(DType::F32).unwrap(), &[2]);
            reduce(target, op, a.view(), &[0], out.view()).unwrap();
            assert_close(out.dtype, &out.floats(target), &[expected; 2], op.name());
        }
        let out = Tensor::garbage(target, DType::F32, &[2]);
        let error = reduce(target, ReduceOp::Max, a.view(), &[0], out.view()).unwrap_err();
        assert!(error.to_string().contains("at least one element"), "{error}");
        let none = Tensor::new(target, DType::F32, &[0], &[]);
        reduce(target, ReduceOp::Max, a.view(), &[1], none.view()).unwrap();
    });
}

#[test]
fn bad_arguments_are_refused() {
    on_every_target(|target| {
        let a = Tensor::garbage(target, DType::I32, &[2, 3, 4]);
        let out = |dtype, sizes: &[usize]| Tensor::garbage(target, dtype, sizes);
        let run = |op, dims: &[usize], out: Tensor| reduce(target, op, a.view(), dims, out.view());
        assert!(matches!(
            run(ReduceOp::Mean, &[0], out(DType::F32, &[3, 4])).kind(),
            Some(ErrorKind::UnsupportedDType { .. })
        ));
        assert!(matches!(
            run(ReduceOp::Sum, &[0], out(DType::I32, &[3, 4])).kind(),
            Some(ErrorKind::DTypeMismatch { .. })
        ));
        assert!(matches!(
            run(ReduceOp::Sum, &[0], out(DType::I64, &[2, 4])).kind(),
            Some(ErrorKind::ShapeMismatch { .. })
        ));
        assert!(matches!(
            run(ReduceOp::Sum, &[3], out(DType::I64, &[2, 3, 4])).kind(),
            Some(ErrorKind::DimOutOfRange { .. })
        ));
        assert!(run(ReduceOp::ArgMax, &[0, 1], out(DType::I64, &[4])).is_err());
    });
}

#[test]
fn a_result_inside_the_input_is_refused() {
    on_every_target(|target| {
        let a = Tensor::garbage(target, DType::F32, &[64, 64]);
        let row = a.with(|l| l.select(0, 3));
        let error = reduce(target, ReduceOp::Sum, a.view(), &[1], row.view());
        assert!(matches!(error.kind(), Some(ErrorKind::OverlappingOperands)), "{error:?}");
        // Source and result may share a storage if they are separate elements, or if each result
        // reduces only the element at its own address.
        let (left, right) = (a.with(|l| l.narrow(1, 0, 32)), a.with(|l| l.select(1, 40)));
        reduce(target, ReduceOp::Max, left.view(), &[1], right.view()).unwrap();
        let column = a.with(|l| l.narrow(1, 1, 1));
        reduce(target, ReduceOp::Max, column.view(), &[1], column.view()).unwrap();
    });
}

#[test]
fn an_extreme_of_no_elements_is_refused_even_without_results() {
    on_every_target(|target| {
        let a = Tensor::new(target, DType::F32, &[0, 0], &[]);
        for op in [ReduceOp::Max, ReduceOp::Min, ReduceOp::ArgMax, ReduceOp::ArgMin] {
            let dtype = op.result_dtype(DType::F32).unwrap();
            let out = Tensor::new(target, dtype, &[0], &[]);
            let error = reduce(target, op, a.view(), &[1], out.view()).unwrap_err();
            assert!(error.to_string().contains("at least one element"), "{error}");
        }
    });
}

/// Compares bit patterns, because kernels read the neutral element as bits.
#[test]
fn neutral_elements_are_repeated_to_eight_bytes() {
    for (op, dtype, pattern) in [
        (ReduceOp::Sum, DType::F16, 0),
        (ReduceOp::Prod, DType::F16, 0x3c00_3c00_3c00_3c00),
        (ReduceOp::Prod, DType::BF16, 0x3f80_3f80_3f80_3f80),
        (ReduceOp::Prod, DType::F32, 0x3f80_0000_3f80_0000),
        (ReduceOp::Prod, DType::F64, 0x3ff0 << 48),
        (ReduceOp::All, DType::Bool, 0x0101_0101_0101_0101),
        (ReduceOp::Prod, DType::I32, 0x0000_0001_0000_0001),
        (ReduceOp::Max, DType::F16, 0xfc00_fc00_fc00_fc00),
        (ReduceOp::Min, DType::BF16, 0x7f80_7f80_7f80_7f80),
        (ReduceOp::ArgMax, DType::F32, 0xff80_0000_ff80_0000),
        (ReduceOp::ArgMin, DType::F64, 0x7ff0 << 48),
        (ReduceOp::Max, DType::U8, 0),
        (ReduceOp::Min, DType::U8, u64::MAX),
        (ReduceOp::Max, DType::I8, 0x8080_8080_8080_8080),
        (ReduceOp::Min, DType::I64, i64::MAX as u64),
    ] {
        assert_eq!(op.neutral(dtype), pattern, "{op:?} of {dtype}");
    }
}
