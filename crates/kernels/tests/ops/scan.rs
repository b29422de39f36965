//! Tests of running sums, products and extremes, on every target.

use warpline_kernels::scan::*;
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu, samples, stored};
use warpline_runtime::{DType, ErrorKind, Target};

/// Scans each row along the middle dimension with plain loops. Returns the results and the indices.
fn expected(scan: ScanOp, dtype: DType, values: &[f64], [a, b, c]: [usize; 3]) -> [Vec<f64>; 2] {
    let (mut out, mut index) = (values.to_vec(), vec![0.0; values.len()]);
    for (i, k) in (0..a).flat_map(|i| (0..c).map(move |k| (i, k))) {
        let at = |j: usize| (i * b + j) * c + k;
        for j in 1..b {
            let (held, new, place) = (out[at(j - 1)], values[at(j)], index[at(j - 1)]);
            (out[at(j)], index[at(j)]) = match scan {
                ScanOp::Sum => (held + new, 0.0),
                ScanOp::Prod => (held * new, 0.0),
                ScanOp::Max if new.is_nan() || !held.is_nan() && new >= held => (new, j as f64),
                ScanOp::Min if new.is_nan() || !held.is_nan() && new <= held => (new, j as f64),
                ScanOp::Max | ScanOp::Min => (held, place),
            };
            if !dtype.is_float() {
                out[at(j)] = stored(dtype, out[at(j)]);
            }
        }
    }
    [out, index]
}

fn every_dtype_and_shape(target: Target<'_>) {
    // Rows that a block scans, rows longer than a tile, rows that a thread scans, rows of one
    // element, and empty rows.
    for sizes in [[3, 40, 5], [1, 1500, 1], [50, 6, 70], [2, 1, 3], [2, 0, 3]] {
        for (dtype, scan_op) in DType::ALL.into_iter().flat_map(|d| ScanOp::ALL.map(|op| (d, op))) {
            let n: usize = sizes.iter().product();
            let values = match scan_op {
                // With these values, sums of half-width floats are exact and products stay finite.
                ScanOp::Sum => (0..n).map(|i| stored(dtype, (i % 3 == 0) as u8 as f64)).collect(),
                ScanOp::Prod => {
                    (0..n).map(|i| stored(dtype, 1.0 - 2.0 * (i % 7 == 0) as u8 as f64)).collect()
                }
                ScanOp::Max | ScanOp::Min => samples(dtype, n, 3),
            };
            let a = Tensor::new(target, dtype, &sizes, &values);
            let out = Tensor::garbage(target, dtype, &sizes);
            let index = Tensor::garbage(target, DType::I64, &sizes);
            let is_indexed = matches!(scan_op, ScanOp::Max | ScanOp::Min);
            let places = is_indexed.then(|| index.view());
            scan(target, scan_op, a.view(), 1, out.view(), places).unwrap();
            let [values, places] = expected(scan_op, dtype, &values, sizes);
            let context = format!("{scan_op:?} of {dtype}, {sizes:?}");
            assert_close(dtype, &out.floats(target), &values, &context);
            if is_indexed {
                assert_eq!(index.floats(target), places, "{context}");
            }
        }
    }
}

fn views(target: Target<'_>) {
    let a = Tensor::new(target, DType::F32, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let a = a.with(|l| l.transpose(0, 1));
    let out = Tensor::garbage(target, DType::F32, &[3, 4]).with(|l| l.slice(1, 0, 4, 2));
    scan(target, ScanOp::Sum, a.view(), 0, out.view(), None).unwrap();
    assert_eq!(out.floats(target), [1.0, 4.0, 3.0, 9.0, 6.0, 15.0]);
    let scalar = Tensor::new(target, DType::I64, &[], &[5.0]);
    let out = Tensor::garbage(target, DType::I64, &[]);
    scan(target, ScanOp::Prod, scalar.view(), 0, out.view(), None).unwrap();
    assert_eq!(out.floats(target), [5.0]);
}

#[test]
fn scans_are_right_on_the_cpu_and_on_simulated_devices() {
    on_every_target(every_dtype_and_shape);
    on_every_target(views);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_scans_are_right() {
    on_gpu(every_dtype_and_shape);
    on_gpu(views);
}

#[test]
fn bad_arguments_are_refused() {
    on_every_target(|target| {
        let a = Tensor::garbage(target, DType::F32, &[2]);
        let out = |dtype, sizes: &[usize]| Tensor::garbage(target, dtype, sizes);
        let run = |out: &Tensor, dim| scan(target, ScanOp::Sum, a.view(), dim, out.view(), None);
        let results = [
            run(&out(DType::F64, &[2]), 0),
            run(&out(DType::F32, &[3]), 0),
            run(&out(DType::F32, &[2]), 1),
            run(&a, 0),
            scan(target, ScanOp::Max, a.view(), 0, out(DType::F32, &[2]).view(), None),
        ];
        assert!(
            matches!(
                results.each_ref().map(|r| r.as_ref().err().map(|e| (e.op(), e.kind()))),
                [
                    Some(("cumsum", ErrorKind::DTypeMismatch { .. })),
                    Some((_, ErrorKind::ShapeMismatch { .. })),
                    Some((_, ErrorKind::DimOutOfRange { .. })),
                    Some((_, ErrorKind::OverlappingOperands)),
                    Some((_, ErrorKind::InvalidArgument { .. })),
                ]
            ),
            "{results:?}"
        );
    });
}
