//! Tests of `im2col` and `col2im` that run on every target.

use warpline_kernels::conv::*;
use warpline_runtime::DType::{self, BF16, F16, F32, F64, I32, U8};
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu};
use warpline_runtime::{Error, ErrorKind, Target};

/// Windows of one to three dimensions with strides, paddings and dilations.
fn windows() -> Vec<Window> {
    let one = |n: usize| [1, 1, n];
    let mut windows = vec![
        Window {
            input: one(9),
            output: one(4),
            kernel: one(3),
            stride: one(2),
            padding: [0, 0, 0],
            dilation: one(1),
        },
        Window {
            input: [1, 5, 6],
            output: [1, 5, 6],
            kernel: [1, 3, 3],
            stride: [1; 3],
            padding: [0, 1, 1],
            dilation: [1; 3],
        },
        Window {
            input: [1, 7, 40],
            output: [1, 3, 20],
            kernel: [1, 3, 2],
            stride: [1, 2, 3],
            padding: [0, 2, 11],
            dilation: [1, 2, 3],
        },
        Window {
            input: [4, 3, 5],
            output: [2, 3, 4],
            kernel: [2, 3, 2],
            stride: [2, 1, 1],
            padding: [0, 1, 0],
            dilation: [1; 3],
        },
    ];
    // A window that is mostly outside of the image.
    windows.push(Window { padding: [0, 0, 30], output: one(30), ..windows[0] });
    windows
}

/// Computes the columns by the definition of `im2col`.
fn reference(image: &[f64], [batch, channels]: [usize; 2], w: &Window) -> Vec<f64> {
    let mut columns = Vec::new();
    let plane: usize = w.input.iter().product();
    for nc in 0..batch * channels {
        for tap in 0..w.taps() {
            for place in 0..w.positions() {
                let of = |i: usize, s: [usize; 3]| [i / (s[1] * s[2]), i / s[2] % s[1], i % s[2]];
                let (k, o) = (of(tap, w.kernel), of(place, w.output));
                let at = |d: usize| {
                    let at = o[d] * w.stride[d] + k[d] * w.dilation[d];
                    at.checked_sub(w.padding[d]).filter(|at| *at < w.input[d])
                };
                columns.push(match (at(0), at(1), at(2)) {
                    (Some(d), Some(h), Some(x)) => {
                        image[nc * plane + (d * w.input[1] + h) * w.input[2] + x]
                    }
                    _ => 0.0,
                });
            }
        }
    }
    columns
}

fn spatial(w: &Window) -> &[usize] {
    match w.input {
        [1, 1, _] => &w.input[2..],
        [1, ..] => &w.input[1..],
        _ => &w.input,
    }
}

fn images_to_columns_and_back(target: Target<'_>) {
    for w in windows() {
        for dtype in [F16, BF16, F32, F64, I32, U8] {
            let [batch, channels] = [2, 3];
            let sizes: Vec<usize> = [batch, channels].iter().chain(spatial(&w)).copied().collect();
            let values: Vec<f64> =
                (0..sizes.iter().product()).map(|i| (i * 7 % 13 + 1) as f64).collect();
            let image = Tensor::new(target, dtype, &sizes, &values);
            let rows = channels * w.taps();
            let columns = Tensor::garbage(target, dtype, &[batch, rows, w.positions()]);
            im2col(target, image.view(), &w, columns.view()).unwrap();
            let expected = reference(&values, [batch, channels], &w);
            assert_eq!(columns.floats(target), expected, "{dtype} {w:?}");
            // The same columns, with batch and rows exchanged in memory.
            let base = Tensor::garbage(target, dtype, &[rows, batch, w.positions()]);
            let swapped = base.with(|l| l.transpose(0, 1));
            im2col(target, image.view(), &w, swapped.view()).unwrap();
            assert_eq!(swapped.floats(target), expected, "{dtype} {w:?}, the other way round");
            if !dtype.is_float() {
                continue;
            }
            // `col2im` of the columns multiplies each element by the number of windows that contain
            // it.
            let ones = vec![1.0; values.len()];
            let mut counts = vec![0.0; values.len()];
            let places: Vec<f64> = (0..values.len()).map(|i| i as f64 + 1.0).collect();
            for at in reference(&places, [batch, channels], &w) {
                if at > 0.0 {
                    counts[at as usize - 1] += ones[0];
                }
            }
            let expected: Vec<f64> = counts.iter().zip(&values).map(|(n, v)| n * v).collect();
            for columns in [columns, swapped] {
                let sums = Tensor::garbage(target, dtype, &sizes);
                col2im(target, columns.view(), &w, sums.view()).unwrap();
                assert_close(dtype, &sums.floats(target), &expected, &format!("{dtype} {w:?}"));
                let last = sizes.len() as isize - 1;
                let mut turned = sizes.clone();
                turned.swap(1, last as usize);
                let sums = Tensor::garbage(target, dtype, &turned).with(|l| l.transpose(1, last));
                col2im(target, columns.view(), &w, sums.view()).unwrap();
                assert_close(dtype, &sums.floats(target), &expected, "turned");
            }
        }
    }
}

#[test]
fn columns_take_every_window_and_dtype() {
    on_every_target(images_to_columns_and_back);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_columns_take_every_window_and_dtype() {
    on_gpu(images_to_columns_and_back);
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    on_every_target(|target| {
        let w = windows()[0];
        let image = Tensor::garbage(target, F32, &[2, 3, 9]);
        let refuses = |image: &Tensor, w: &Window, columns: &[usize], dtype: DType| {
            let columns = Tensor::garbage(target, dtype, columns);
            im2col(target, image.view(), w, columns.view()).unwrap_err()
        };
        let mismatch = |error: Error| matches!(error.kind(), ErrorKind::ShapeMismatch { .. });
        assert!(mismatch(refuses(&image, &w, &[2, 9, 5], F32)));
        assert!(mismatch(refuses(&image, &w, &[2, 8, 4], F32)));
        assert!(mismatch(refuses(&image, &Window { input: [1, 1, 8], ..w }, &[2, 9, 4], F32)));
        assert!(mismatch(refuses(
            &image,
            &Window { padding: [0, 0, 1 << 31], ..w },
            &[2, 9, 4],
            F32
        )));
        let error = refuses(&image, &Window { stride: [1, 1, 0], ..w }, &[2, 9, 4], F32);
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
        let error = refuses(&image, &w, &[2, 9, 4], F64);
        assert!(matches!(error.kind(), ErrorKind::DTypeMismatch { .. }), "{error}");
        let numbers = Tensor::garbage(target, I32, &[2, 3, 9]);
        let columns = Tensor::garbage(target, I32, &[2, 9, 4]);
        let error = col2im(target, columns.view(), &w, numbers.view()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::UnsupportedDType { .. }), "{error}");
    });
}
