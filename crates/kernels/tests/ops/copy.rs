//! Tests of copies and conversions that run on every target.

use warpline_kernels::copy::*;
use warpline_runtime::testing::{
    Tensor, assert_close, on_every_target, on_gpu, samples, shapes, stored,
};
use warpline_runtime::{DType, ErrorKind, ResultExt, Scalar, Target};

fn every_shape_and_pair(target: Target<'_>) {
    for shape in shapes() {
        for from in DType::ALL {
            let n = shape.memory[0].iter().product();
            let values: Vec<f64> = samples(from, n, 7).iter().map(|v| v * 20.0).collect();
            let a = Tensor::new(target, from, shape.memory[0], &values).with(shape.views[0]);
            let x = a.floats(target);
            for to in DType::ALL {
                let out = Tensor::garbage(target, to, shape.memory[2]).with(shape.views[2]);
                copy(target, a.view(), out.view()).unwrap();
                // A NaN of `f64` becomes a different `i32` than a NaN of the other dtypes.
                let zero = |x: f64| x.is_nan() && to == DType::I32 && from != DType::F64;
                let becomes = |&x: &f64| if zero(x) { 0.0 } else { stored(to, x) };
                let expected: Vec<f64> = x.iter().map(becomes).collect();
                let context = format!("{from} to {to}, {}", shape.name);
                assert_close(to, &out.floats(target), &expected, &context);
            }
        }
    }
}

/// Converts enough elements for several threads. The number of elements is not a multiple of a
/// vector.
fn long_copies(target: Target<'_>) {
    for from in DType::ALL {
        let values: Vec<f64> =
            samples(from, 100_003, 11).iter().map(|v| if v.is_nan() { 3.0 } else { *v }).collect();
        let a = Tensor::new(target, from, &[100_003], &values);
        let x = a.floats(target);
        for to in DType::ALL {
            let out = Tensor::garbage(target, to, &[100_003]);
            copy(target, a.view(), out.view()).unwrap();
            let expected: Vec<f64> = x.iter().map(|&x| stored(to, x)).collect();
            assert_close(to, &out.floats(target), &expected, &format!("{from} to {to}"));
        }
    }
}

fn conversions(target: Target<'_>) {
    // A float represents the largest `i64` as the next power of two.
    const LARGEST: f64 = i64::MAX as f64;
    const MAX: f64 = i32::MAX as f64;
    const MIN: f64 = i32::MIN as f64;
    let cases: &[(DType, DType, &[f64], &[f64])] = &[
        (DType::F32, DType::I32, &[2.7, -2.7, -0.5, 1e9], &[2.0, -2.0, 0.0, 1e9]),
        (DType::F32, DType::U8, &[-1.0, 255.9, 256.0], &[255.0, 255.0, 0.0]),
        (DType::F64, DType::I8, &[128.0, -129.5, 127.9], &[-128.0, 127.0, 127.0]),
        (DType::F32, DType::I32, &[3e9, -3e9, f64::INFINITY, f64::NAN], &[MAX, MIN, MAX, 0.0]),
        (DType::F64, DType::I32, &[3e9, -3e9, f64::INFINITY, f64::NAN], &[MAX, MIN, MAX, MIN]),
        (DType::F16, DType::I32, &[f64::INFINITY, f64::NAN], &[MAX, 0.0]),
        (DType::BF16, DType::I32, &[1e38, f64::NEG_INFINITY, f64::NAN], &[MAX, MIN, 0.0]),
        (DType::F32, DType::I64, &[1e19, -1e19, f64::NAN], &[LARGEST, -LARGEST, -LARGEST]),
        (DType::F64, DType::I64, &[1e19, -1e19, f64::NAN], &[LARGEST, -LARGEST, -LARGEST]),
        (DType::F16, DType::I64, &[f64::INFINITY, f64::NAN], &[LARGEST, -LARGEST]),
        (DType::F32, DType::I16, &[70_000.0, 3e9, -3e9, f64::NAN], &[4464.0, -1.0, 0.0, 0.0]),
        (DType::F64, DType::I16, &[70_000.0, 3e9, -3e9, f64::NAN], &[4464.0, -1.0, 0.0, 0.0]),
        (DType::F32, DType::I8, &[300.0, 3e9, -3e9, f64::NAN], &[44.0, -1.0, 0.0, 0.0]),
        (DType::F16, DType::I8, &[300.0, f64::INFINITY, f64::NAN], &[44.0, -1.0, 0.0]),
        (DType::F32, DType::U8, &[3e9, 1e19, -1e19, f64::NAN], &[0.0, 255.0, 0.0, 0.0]),
        (DType::F64, DType::U8, &[3e9, 1e19, -1e19, f64::NAN], &[0.0, 255.0, 0.0, 0.0]),
        (DType::I32, DType::U8, &[-1.0, 300.0], &[255.0, 44.0]),
        (DType::I64, DType::I16, &[65_536.0, 32_768.0], &[0.0, -32_768.0]),
        (DType::F32, DType::Bool, &[0.0, -0.0, 0.3, f64::NAN], &[0.0, 0.0, 1.0, 1.0]),
        (DType::I16, DType::Bool, &[0.0, 256.0, -1.0], &[0.0, 1.0, 1.0]),
        (DType::Bool, DType::F16, &[0.0, 1.0], &[0.0, 1.0]),
        (DType::F32, DType::BF16, &[1.003_906_25, 1.011_718_75], &[1.0, 1.015_625]),
        (DType::F64, DType::F16, &[65_519.0, 65_520.0], &[65_504.0, f64::INFINITY]),
    ];
    for &(from, to, values, expected) in cases {
        let n = values.len();
        let a = Tensor::new(target, from, &[n], values);
        let out = Tensor::garbage(target, to, &[n]);
        copy(target, a.view(), out.view()).unwrap();
        assert_eq!(out.floats(target), expected, "{from} to {to}");
        // Other kernels handle views that are not contiguous.
        let out = Tensor::garbage(target, to, &[2 * n]).with(|l| l.slice(0, 0, 2 * n, 2));
        copy(target, a.view(), out.view()).unwrap();
        assert_eq!(out.floats(target), expected, "{from} to {to}, strided");
    }
    // An integer that no float represents.
    let big = Tensor::garbage(target, DType::I64, &[1]);
    warpline_kernels::fill::fill(target, big.view(), Scalar::Int((1 << 60) + 1)).unwrap();
    let out = Tensor::garbage(target, DType::I32, &[1]);
    copy(target, big.view(), out.view()).unwrap();
    assert_eq!(out.values(target), [Scalar::Int(1)]);
}

#[test]
fn copies_are_right_on_the_cpu_and_on_simulated_devices() {
    on_every_target(every_shape_and_pair);
    on_every_target(conversions);
    on_every_target(long_copies);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_copies_are_right() {
    on_gpu(every_shape_and_pair);
    on_gpu(conversions);
    on_gpu(long_copies);
}

#[test]
fn a_copy_onto_itself_does_nothing_and_onto_a_part_is_an_error() {
    on_every_target(|target| {
        let a = Tensor::new(target, DType::F32, &[2, 2], &[1.0, 2.0, 3.0, 4.0]);
        copy(target, a.view(), a.view()).unwrap();
        assert_eq!(a.floats(target), [1.0, 2.0, 3.0, 4.0]);
        let turned = a.with(|l| l.transpose(0, 1));
        let error = copy(target, a.view(), turned.view());
        assert!(matches!(error.kind(), Some(ErrorKind::OverlappingOperands)));
        let (top, bottom) = (a.with(|l| l.select(0, 0)), a.with(|l| l.select(0, 1)));
        copy(target, top.view(), bottom.view()).unwrap();
        assert_eq!(a.floats(target), [1.0, 2.0, 1.0, 2.0]);
    });
}

/// Tests sizes near those of vectors and tiles, transposed operands, and views that begin inside a
/// vector.
fn runs_and_tiles(target: Target<'_>) {
    use warpline_kernels::elementwise::{ADD, apply};
    for dtype in [DType::U8, DType::BF16, DType::F32, DType::F64] {
        for (rows, columns) in
            [(1, 5), (2, 3), (3, 1000), (65, 67), (64, 128), (200, 4), (33, 1025)]
        {
            for start in [0, 1, 3] {
                // The last two dimensions have 4 more elements than the views.
                let memory = [2, columns + 4, rows + 4];
                let n = memory.iter().product();
                let values: Vec<f64> = (0..n).map(|i| (i * 7 % 101) as f64).collect();
                let a = Tensor::new(target, dtype, &memory, &values);
                let turned = a.with(|l| {
                    let part = l.narrow(1, start, columns)?.narrow(2, start, rows)?;
                    part.permute(&[0, 2, 1])
                });
                let out = Tensor::garbage(target, dtype, &[2, rows, columns + 4]);
                let out = out.with(|l| l.narrow(2, 4 - start, columns));
                let x = turned.floats(target);
                let context = format!("{dtype} {rows} by {columns} from {start}");
                copy(target, turned.view(), out.view()).unwrap();
                assert_eq!(out.floats(target), x, "{context}");
                let row = Tensor::new(
                    target,
                    dtype,
                    &[columns + start as usize],
                    &values[..columns + start as usize],
                );
                let row = row.with(|l| l.narrow(0, start, columns)?.expand(&[2, rows, columns]));
                let column = Tensor::new(target, dtype, &[rows, 1], &values[..rows]);
                let column = column.with(|l| l.expand(&[2, rows, columns]));
                for other in [&row, &column, &out] {
                    let y = other.floats(target);
                    let sums: Vec<f64> =
                        x.iter().zip(&y).map(|(x, y)| stored(dtype, x + y)).collect();
                    let operands = [turned.view().into(), other.view().into()];
                    apply(target, &ADD, dtype, &operands, out.view()).unwrap();
                    assert_eq!(out.floats(target), sums, "{context}");
                }
                // A result with gaps.
                let gaps = Tensor::garbage(target, dtype, &[2, rows, 2 * columns]);
                let gaps = gaps.with(|l| l.slice(2, 0, 2 * columns, 2));
                copy(target, row.view(), gaps.view()).unwrap();
                let (x, y) = (row.floats(target), column.floats(target));
                assert_eq!(gaps.floats(target), x, "{context}");
                let sums: Vec<f64> = x.iter().zip(&y).map(|(x, y)| stored(dtype, x + y)).collect();
                let operands = [gaps.view().into(), column.view().into()];
                apply(target, &ADD, dtype, &operands, gaps.view()).unwrap();
                assert_eq!(gaps.floats(target), sums, "{context}");
                warpline_kernels::fill::fill(target, turned.view(), Scalar::Int(3)).unwrap();
                let threes = a.floats(target).iter().filter(|&&x| x == 3.0).count();
                let before = values
                    .iter()
                    .zip(a.floats(target))
                    .filter(|&(&v, x)| v == 3.0 && x == 3.0)
                    .count();
                assert!(
                    threes >= 2 * rows * columns && threes <= 2 * rows * columns + before,
                    "{context}"
                );
            }
        }
    }
}

#[test]
fn views_of_any_start_and_size() {
    on_every_target(runs_and_tiles);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_views_of_any_start_and_size() {
    on_gpu(runs_and_tiles);
}
