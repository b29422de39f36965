//! Tests that compare the pools, on every target, with plain loops over the elements of each
//! window.

use warpline_kernels::pool::*;
use warpline_runtime::DType::{BF16, F16, F32, F64};
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu};
use warpline_runtime::{DType, ErrorKind, MemoryFormat, Target};

use crate::placed::placed;

const PLANES: [usize; 2] = [2, 3];

fn windows() -> Vec<(Window, Regions)> {
    let plain = Window {
        input: [1, 6, 8],
        output: [1, 3, 4],
        kernel: [1, 2, 2],
        stride: [1, 2, 2],
        padding: [0; 3],
        dilation: [1; 3],
    };
    // Windows that overlap and are padded. The last window reaches beyond the end of the image.
    let padded = Window {
        input: [1, 7, 6],
        output: [1, 4, 4],
        kernel: [1, 3, 3],
        stride: [1, 2, 2],
        padding: [0, 1, 1],
        ..plain
    };
    let volume = Window {
        input: [4, 5, 6],
        output: [2, 4, 3],
        kernel: [3, 2, 2],
        stride: [1, 1, 2],
        ..plain
    };
    let row = Window {
        input: [1, 1, 40],
        output: [1, 1, 38],
        kernel: [1, 1, 5],
        stride: [1; 3],
        padding: [0, 0, 1],
        dilation: [1; 3],
    };
    // Rows of more results than are computed together.
    let wide = Window { input: [1, 3, 45], output: [1, 1, 23], kernel: [1, 2, 3], ..plain };
    let wide = Window { padding: [0, 0, 1], ..wide };
    let spread = Window { output: [1, 1, 15], kernel: [1, 2, 2], stride: [1, 2, 3], ..wide };
    let parts = |input, output| Window { input, output, kernel: [1; 3], stride: [1; 3], ..plain };
    vec![
        (plain, Regions::Moving),
        (padded, Regions::Moving),
        (volume, Regions::Moving),
        (row, Regions::Moving),
        (wide, Regions::Moving),
        (spread, Regions::Moving),
        (parts([1, 7, 5], [1, 4, 3]), Regions::Adaptive),
        (parts([1, 3, 5], [1, 5, 1]), Regions::Adaptive),
        (parts([5, 4, 6], [2, 4, 4]), Regions::Adaptive),
    ]
}

/// Returns, for each result, the indices of its image elements, and their number including the
/// padding.
fn places(w: &Window, places: Regions) -> Vec<(Vec<usize>, usize)> {
    let along = |d: usize, o: usize| -> (Vec<usize>, usize) {
        if places == Regions::Adaptive {
            let (n, m) = (w.input[d], w.output[d]);
            let all: Vec<usize> = (o * n / m..((o + 1) * n).div_ceil(m)).collect();
            let count = all.len();
            return (all, count);
        }
        let own = (0..w.kernel[d]).map(|k| o * w.stride[d] + k * w.dilation[d]);
        let counted = own.clone().filter(|at| *at < w.input[d] + 2 * w.padding[d]).count();
        let inside =
            own.filter_map(|at| at.checked_sub(w.padding[d]).filter(|at| *at < w.input[d]));
        (inside.collect(), counted)
    };
    let mut all = Vec::new();
    for i in 0..w.output[0] {
        for j in 0..w.output[1] {
            for k in 0..w.output[2] {
                let [d, h, x] = [along(0, i), along(1, j), along(2, k)];
                let mut own = Vec::new();
                for &a in &d.0 {
                    for &b in &h.0 {
                        own.extend(x.0.iter().map(|c| (a * w.input[1] + b) * w.input[2] + c));
                    }
                }
                all.push((own, d.1 * h.1 * x.1));
            }
        }
    }
    all
}

fn sizes(spatial: [usize; 3]) -> Vec<usize> {
    PLANES.iter().chain(&spatial).copied().collect()
}

fn numbers(n: usize) -> Vec<f64> {
    (0..n).map(|i| (i * 37 % 101) as f64 / 8.0 - 6.0).collect()
}

/// Creates a tensor for a result, filled with 7.
fn result(target: Target<'_>, dtype: DType, sizes: &[usize], format: MemoryFormat) -> Tensor {
    placed(target, dtype, sizes, &vec![7.0; sizes.iter().product()], format)
}

const FORMATS: [MemoryFormat; 2] = [MemoryFormat::Contiguous, MemoryFormat::ChannelsLast3d];

fn maxima(target: Target<'_>, format: MemoryFormat) {
    let mut all = windows();
    let dilated = Window { dilation: [1, 2, 1], output: [1, 2, 4], ..all[1].0 };
    all.push((dilated, Regions::Moving));
    for (w, kind) in all {
        for dtype in [F16, BF16, F32, F64] {
            let plane: usize = w.input.iter().product();
            let values = numbers(6 * plane);
            let image = placed(target, dtype, &sizes(w.input), &values, format);
            let out = result(target, dtype, &sizes(w.output), format);
            let indices = result(target, DType::I64, &sizes(w.output), format);
            max_pool(target, image.view(), &w, kind, out.view(), indices.view()).unwrap();
            let own = places(&w, kind);
            let (mut expected, mut at) = (Vec::new(), Vec::new());
            for p in 0..6 {
                for (elements, _) in &own {
                    let value = |i: &usize| values[p * plane + i];
                    // Chooses the first of equal elements.
                    let largest = elements
                        .iter()
                        .copied()
                        .reduce(|a, b| if value(&b) > value(&a) { b } else { a });
                    expected.push(value(&largest.unwrap()));
                    at.push(largest.unwrap());
                }
            }
            assert_eq!(out.floats(target), expected, "{dtype} {w:?}");
            let found: Vec<usize> = indices.floats(target).iter().map(|i| *i as usize).collect();
            assert_eq!(found, at, "{dtype} {w:?}");
            let count = expected.len();
            let upstream: Vec<f64> = (0..count).map(|i| (i % 7) as f64 + 1.0).collect();
            let grad = placed(target, dtype, &sizes(w.output), &upstream, format);
            let back = result(target, dtype, &sizes(w.input), format);
            let (view, index) = (grad.view(), indices.view());
            max_pool_backward(target, view, index, &w, kind, back.view()).unwrap();
            let mut sums = vec![0.0; 6 * plane];
            for (i, g) in upstream.iter().enumerate() {
                sums[i / own.len() * plane + at[i]] += g;
            }
            assert_close(dtype, &back.floats(target), &sums, &format!("{w:?}"));
        }
    }
}

fn averages(target: Target<'_>, format: MemoryFormat) {
    for (w, kind) in windows() {
        for dtype in [F16, BF16, F32, F64] {
            for divisor in [Divisor::Padded, Divisor::Inside, Divisor::Number(-3)] {
                let plane: usize = w.input.iter().product();
                let values = numbers(6 * plane);
                let image = placed(target, dtype, &sizes(w.input), &values, format);
                let out = result(target, dtype, &sizes(w.output), format);
                avg_pool(target, image.view(), &w, kind, divisor, out.view()).unwrap();
                let own = places(&w, kind);
                let by = |(elements, padded): &(Vec<usize>, usize)| match divisor {
                    Divisor::Padded => *padded as f64,
                    Divisor::Inside => elements.len() as f64,
                    Divisor::Number(n) => n as f64,
                };
                let sum = |p: usize, elements: &[usize]| -> f64 {
                    elements.iter().map(|i| values[p * plane + i]).sum()
                };
                let results = (0..6).flat_map(|p| own.iter().map(move |o| (p, o)));
                let expected: Vec<f64> =
                    results.clone().map(|(p, o)| sum(p, &o.0) / by(o)).collect();
                let context = format!("{divisor:?} {w:?}");
                assert_close(dtype, &out.floats(target), &expected, &context);
                let upstream: Vec<f64> =
                    (0..expected.len()).map(|i| (i % 7) as f64 + 1.0).collect();
                let grad = placed(target, dtype, &sizes(w.output), &upstream, format);
                let back = result(target, dtype, &sizes(w.input), format);
                avg_pool_backward(target, grad.view(), &w, kind, divisor, back.view()).unwrap();
                let mut sums = vec![0.0; 6 * plane];
                for ((p, o), g) in results.zip(&upstream) {
                    for i in &o.0 {
                        sums[p * plane + i] += g / by(o);
                    }
                }
                assert_close(dtype, &back.floats(target), &sums, &context);
            }
        }
    }
}

#[test]
fn max_pools_and_their_gradients_are_right() {
    on_every_target(|target| FORMATS.iter().for_each(|format| maxima(target, *format)));
}

#[test]
fn average_pools_and_their_gradients_are_right() {
    on_every_target(|target| FORMATS.iter().for_each(|format| averages(target, *format)));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_pools_and_their_gradients_are_right() {
    on_gpu(|target| {
        for format in FORMATS {
            maxima(target, format);
            averages(target, format);
        }
    });
}

#[test]
fn nan_is_the_largest_and_negative_infinity_is_an_element() {
    on_every_target(|target| {
        // Rows of few results, and of more results than are computed together.
        for repeats in [1, 8] {
            let row = [1.0, f64::NAN, f64::NEG_INFINITY, f64::NEG_INFINITY].repeat(repeats);
            let results = 2 * repeats;
            let image = Tensor::new(target, F32, &[1, 1, 2 * results], &row);
            let w = Window {
                input: [1, 1, 2 * results],
                output: [1, 1, results],
                kernel: [1, 1, 2],
                stride: [1, 1, 2],
                padding: [0; 3],
                dilation: [1; 3],
            };
            let out = Tensor::garbage(target, F32, &[1, 1, results]);
            let indices = Tensor::garbage(target, DType::I64, &[1, 1, results]);
            let (values, places) = (out.view(), indices.view());
            max_pool(target, image.view(), &w, Regions::Moving, values, places).unwrap();
            let largest = [f64::NAN, f64::NEG_INFINITY].repeat(repeats);
            assert_eq!(format!("{:?}", out.floats(target)), format!("{largest:?}"));
            let expected: Vec<f64> = (0..results).map(|o| (2 * o + (o + 1) % 2) as f64).collect();
            assert_eq!(indices.floats(target), expected);
        }
    });
}

#[test]
fn operands_with_wrong_sizes_or_strides_are_refused() {
    on_every_target(|target| {
        let (w, kind) = windows()[0];
        let image = Tensor::garbage(target, F32, &sizes(w.input));
        let refused = |dtype, of: &[usize], w: &Window, divisor| {
            let out = Tensor::garbage(target, dtype, of);
            avg_pool(target, image.view(), w, kind, divisor, out.view()).unwrap_err()
        };
        let error = refused(F64, &sizes(w.output), &w, Divisor::Inside);
        assert!(matches!(error.kind(), ErrorKind::DTypeMismatch { .. }), "{error}");
        let error = refused(F32, &sizes(w.input), &w, Divisor::Inside);
        assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { .. }), "{error}");
        let error = refused(F32, &sizes(w.output), &w, Divisor::Number(0));
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
        let dilated = Window { dilation: [1, 1, 2], ..w };
        let error = refused(F32, &sizes(w.output), &dilated, Divisor::Inside);
        assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
        // `values` and `indices` must have equal strides.
        let values = Tensor::garbage(target, F32, &sizes(w.output));
        let indices = result(target, DType::I64, &sizes(w.output), MemoryFormat::ChannelsLast3d);
        let error =
            max_pool(target, image.view(), &w, kind, values.view(), indices.view()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ShapeMismatch { .. }), "{error}");
    });
}
