//! Tests of rotary position embeddings, on every target.

use warpline_kernels::rotary::*;
use warpline_runtime::DType::{BF16, F16, F32, F64};
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu};
use warpline_runtime::{DType, ErrorKind, ResultExt, Target};

const HEADS: usize = 3;
const POSITIONS: usize = 5;

fn numbers(target: Target<'_>, dtype: DType, sizes: &[usize], salt: usize) -> Tensor {
    let numel: usize = sizes.iter().product();
    let values: Vec<f64> = (0..numel).map(|i| ((i * 7 + salt) % 13) as f64 / 8.0 - 0.75).collect();
    Tensor::new(target, dtype, sizes, &values)
}

/// Rotates rows with plain loops.
fn expected(x: &[f64], cos: &[f64], sin: &[f64], width: usize, rotation: Rotation) -> Vec<f64> {
    let pairs = cos.len() / (x.len() / width);
    let mut out = x.to_vec();
    for row in 0..x.len() / width {
        for i in 0..pairs {
            let (a, b) = if rotation.is_interleaved { (2 * i, 2 * i + 1) } else { (i, i + pairs) };
            let (a, b) = (row * width + a, row * width + b);
            let (c, s) = (cos[row * pairs + i], sin[row * pairs + i]);
            let s = if rotation.is_inverse { -s } else { s };
            out[a] = x[a] * c - x[b] * s;
            out[b] = x[b] * c + x[a] * s;
        }
    }
    out
}

/// Tests both kinds of pairs, rows with elements after the last pair, operands with and without
/// vector alignment, and cosines and sines of both dtypes.
fn every_dtype_and_layout(target: Target<'_>) {
    for dtype in [F16, BF16, F32, F64] {
        let of_angles = if dtype == F64 { F64 } else { F32 };
        for angles in [dtype, of_angles] {
            for (width, pairs) in [(8, 4), (16, 4), (6, 3), (7, 2), (4, 0), (24, 12), (300, 100)] {
                for offset in [0, 1] {
                    for kind in 0..4 {
                        let rotation =
                            Rotation { is_interleaved: kind % 2 == 1, is_inverse: kind / 2 == 1 };
                        let sizes = [2, HEADS, POSITIONS, width];
                        let context =
                            format!("{dtype}, angles of {angles}, {pairs} of {width}, {offset}");
                        let context = format!("{context}, {rotation:?}");
                        // In memory, the positions come before the heads, and the elements begin at
                        // an offset.
                        let numel: usize = sizes.iter().product();
                        let from_offset = |of: Tensor| {
                            of.with(|l| {
                                let l = l.narrow(0, offset as isize, numel)?;
                                let l = l.view(&[2, POSITIONS, HEADS, width]);
                                l.expect("contiguous").transpose(1, 2)
                            })
                        };
                        let x = from_offset(numbers(target, dtype, &[numel + offset], 1));
                        let out = from_offset(Tensor::garbage(target, dtype, &[numel + offset]));
                        let [cos, sin] = [4, 9].map(|salt| {
                            let table = numbers(target, angles, &[POSITIONS, pairs], salt);
                            table.with(|l| l.expand(&[2, HEADS, POSITIONS, pairs]))
                        });
                        let views = [&x, &cos, &sin, &out].map(Tensor::view);
                        let [a, b, c, d] = views;
                        rotary_embedding(target, a, b, c, d, rotation).unwrap();
                        let [x, cos, sin] = [&x, &cos, &sin].map(|of| of.floats(target));
                        let expected = expected(&x, &cos, &sin, width, rotation);
                        assert_close(dtype, &out.floats(target), &expected, &context);
                    }
                }
            }
        }
    }
}

#[test]
fn every_dtype_and_layout_is_rotated() {
    on_every_target(every_dtype_and_layout);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_every_dtype_and_layout_is_rotated() {
    on_gpu(every_dtype_and_layout);
}

/// Tests rows whose elements are not adjacent in memory: transposed rows, and every second column
/// of a table.
fn columns_with_gaps(target: Target<'_>) {
    let rotation = Rotation { is_interleaved: true, is_inverse: false };
    let x = numbers(target, F32, &[8, 6], 1).with(|l| l.transpose(0, 1));
    let [cos, sin] = [4, 9].map(|salt| {
        let table = numbers(target, F32, &[6, 8], salt);
        table.with(|l| l.slice(1, 0, 8, 2))
    });
    let out = Tensor::garbage(target, F32, &[6, 8]);
    rotary_embedding(target, x.view(), cos.view(), sin.view(), out.view(), rotation).unwrap();
    let [x, cos, sin] = [&x, &cos, &sin].map(|of| of.floats(target));
    assert_close(F32, &out.floats(target), &expected(&x, &cos, &sin, 8, rotation), "gaps");
}

#[test]
fn elements_of_a_row_need_not_be_adjacent() {
    on_every_target(columns_with_gaps);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_elements_of_a_row_need_not_be_adjacent() {
    on_gpu(columns_with_gaps);
}

#[test]
fn operands_of_other_sizes_or_dtypes_are_refused() {
    on_every_target(|target| {
        let rotation = Rotation { is_interleaved: false, is_inverse: false };
        let make = |dtype, sizes: &[usize]| Tensor::garbage(target, dtype, sizes);
        let (x, out) = (make(F16, &[2, 8]), make(F16, &[2, 8]));
        let run = |x: &Tensor, cos: &Tensor, sin: &Tensor, out: &Tensor| {
            rotary_embedding(target, x.view(), cos.view(), sin.view(), out.view(), rotation)
        };
        let (narrow, wide, double) = (make(F16, &[2, 4]), make(F32, &[2, 4]), make(F64, &[2, 4]));
        let refused = run(&x, &narrow, &wide, &out);
        assert!(matches!(refused.kind(), Some(ErrorKind::DTypeMismatch { .. })));
        let refused = run(&x, &double, &double, &out);
        assert!(matches!(refused.kind(), Some(ErrorKind::DTypeMismatch { .. })));
        let refused = run(&x, &narrow, &narrow, &make(F32, &[2, 8]));
        assert!(matches!(refused.kind(), Some(ErrorKind::DTypeMismatch { .. })));
        for sizes in [[3, 4], [2, 5]] {
            let angles = make(F16, &sizes);
            let refused = run(&x, &angles, &angles, &out);
            assert!(matches!(refused.kind(), Some(ErrorKind::ShapeMismatch { .. })));
        }
        let refused = run(&x, &narrow, &narrow, &x);
        assert!(matches!(refused.kind(), Some(ErrorKind::OverlappingOperands)));
        let integers = make(DType::I64, &[2, 8]);
        let refused = run(&integers, &narrow, &narrow, &integers);
        assert!(matches!(refused.kind(), Some(ErrorKind::UnsupportedDType { .. })));
    });
}
