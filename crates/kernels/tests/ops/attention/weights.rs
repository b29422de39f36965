//! Tests of attention weights that run on every target.

use warpline_kernels::attention::*;
use warpline_runtime::DType::{BF16, F16, F32, F64, I64};
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu};
use warpline_runtime::{DType, ErrorKind, ResultExt, Target};

const SCALE: f64 = 0.375;

/// Values that every floating-point dtype represents exactly.
fn values(n: usize, seed: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 31 + seed) % 97) as f64 / 16.0 - 3.0).collect()
}

/// Sizes of rows for a few lanes, of rows for a block, and of longer rows, with and without whole
/// vectors.
const SIZES: [[usize; 3]; 9] = [
    [2, 3, 1],
    [3, 5, 4],
    [1, 7, 20],
    [2, 6, 131],
    [1, 9, 512],
    [1, 3, 513],
    [1, 2, 1024],
    [2, 2, 1026],
    [1, 2, 4100],
];

fn each(body: impl Fn(DType, DType, [usize; 3], bool, usize)) {
    for dtype in [F16, BF16, F32, F64] {
        let wide = if dtype == F64 { F64 } else { F32 };
        for sizes in SIZES {
            for (is_causal, start) in [(false, 0), (true, 0), (true, 1)] {
                body(dtype, wide, sizes, is_causal, start);
            }
        }
    }
    // More queries than keys: the last queries attend to all keys.
    body(BF16, F32, [2, 40, 24], true, 0);
    body(BF16, F32, [70_000, 1, 2], false, 0);
}

/// Creates a contiguous tensor that begins `start` elements into its memory.
fn made(
    target: Target<'_>,
    dtype: DType,
    sizes: [usize; 3],
    values: &[f64],
    start: usize,
) -> Tensor {
    let mut all = vec![0.0; start];
    all.extend(values);
    let base = Tensor::new(target, dtype, &[all.len()], &all);
    base.with(|l| Ok(l.narrow(0, start as isize, values.len())?.view(&sizes).unwrap()))
}

/// Computes the weights of each row in `f64`.
fn weights_of(scores: &[f64], [_, queries, keys]: [usize; 3], is_causal: bool) -> Vec<f64> {
    let mut out = vec![0.0; scores.len()];
    for (row, scores) in scores.chunks(keys).enumerate() {
        let end = if is_causal { keys.min(row % queries + 1) } else { keys };
        let e: Vec<f64> = scores[..end].iter().map(|s| (s * SCALE).exp()).collect();
        let sum: f64 = e.iter().sum();
        for (i, e) in e.iter().enumerate() {
            out[row * keys + i] = e / sum;
        }
    }
    out
}

fn softmax_of_unmasked_scores(target: Target<'_>) {
    each(|dtype, wide, sizes, is_causal, start| {
        let numbers = values(sizes.iter().product(), 5);
        let scores = made(target, wide, sizes, &numbers, start);
        let out = Tensor::garbage(target, dtype, &sizes);
        attention_weights(target, scores.view(), SCALE, is_causal, out.view()).unwrap();
        let expected = weights_of(&numbers, sizes, is_causal);
        let context = format!("{dtype} {sizes:?}, causal {is_causal}, from {start}");
        assert_close(dtype, &out.floats(target), &expected, &context);
    });
}

#[test]
fn weights_are_the_softmax_of_unmasked_scores() {
    on_every_target(softmax_of_unmasked_scores);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_weights_are_the_softmax_of_unmasked_scores() {
    on_gpu(softmax_of_unmasked_scores);
}

fn gradients(target: Target<'_>) {
    each(|dtype, wide, sizes, is_causal, start| {
        let [n, keys] = [sizes.iter().product(), sizes[2]];
        let weights = weights_of(&values(n, 5), sizes, is_causal);
        let grads = values(n, 11);
        let weights = made(target, dtype, sizes, &weights, start);
        // Gradients of masked weights must not matter, so they are NaN.
        let given: Vec<f64> = (0..n)
            .map(|i| {
                let hidden = is_causal && i % keys > i / keys % sizes[1];
                if hidden { f64::NAN } else { grads[i] }
            })
            .collect();
        let grad = made(target, wide, sizes, &given, 0);
        let result = Tensor::garbage(target, dtype, &sizes);
        let views = [&grad, &weights, &result].map(|t| t.view());
        attention_weights_backward(target, views[0], views[1], SCALE, is_causal, views[2]).unwrap();
        let w = weights.floats(target);
        let mut expected = vec![0.0; n];
        for first in (0..n).step_by(keys) {
            let row = || first..first + keys;
            let sum: f64 = row().map(|i| w[i] * grads[i]).sum();
            for i in row() {
                expected[i] = SCALE * w[i] * (grads[i] - sum);
            }
        }
        let context = format!("{dtype} {sizes:?}, causal {is_causal}, from {start}");
        assert_close(dtype, &result.floats(target), &expected, &context);
    });
}

#[test]
fn gradients_of_scores_are_right() {
    on_every_target(gradients);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_gradients_of_scores_are_right() {
    on_gpu(gradients);
}

pub(super) fn extremes(target: Target<'_>) {
    let (low, high) = (f64::NEG_INFINITY, 1e30);
    for keys in [4, 1500] {
        let mut numbers = vec![low; 3 * keys];
        // The first query attends to its first two keys, the second to one, and the last to none.
        numbers[..2].fill(high);
        numbers[keys + 1] = -high;
        let scores = Tensor::new(target, F32, &[1, 3, keys], &numbers);
        let out = Tensor::garbage(target, F32, &[1, 3, keys]);
        attention_weights(target, scores.view(), 2.0, false, out.view()).unwrap();
        let out = out.floats(target);
        assert_eq!((out[..2].to_vec(), out[2..keys + 1].iter().sum::<f64>()), (vec![0.5; 2], 0.0));
        assert_eq!((out[keys + 1], out[keys + 2..2 * keys].iter().sum::<f64>()), (1.0, 0.0));
        assert!(out[2 * keys..].iter().all(|w| w.is_nan()));
    }
}

pub(super) fn rejected_operands(target: Target<'_>) {
    let of = |dtype, sizes: &[usize]| Tensor::garbage(target, dtype, sizes);
    let run =
        |a: &Tensor, out: &Tensor| attention_weights(target, a.view(), 1.0, false, out.view());
    let scores = of(F32, &[2, 3, 3]);
    assert!(matches!(
        run(&scores, &of(I64, &[2, 3, 3])).kind(),
        Some(ErrorKind::UnsupportedDType { .. })
    ));
    assert!(matches!(
        run(&scores, &of(F64, &[2, 3, 3])).kind(),
        Some(ErrorKind::DTypeMismatch { .. })
    ));
    let halves = of(F16, &[2, 3, 3]);
    assert!(matches!(run(&halves, &halves).kind(), Some(ErrorKind::DTypeMismatch { .. })));
    assert!(matches!(
        run(&scores, &of(F16, &[2, 3, 4])).kind(),
        Some(ErrorKind::ShapeMismatch { .. })
    ));
    let turned = scores.with(|l| l.transpose(1, 2));
    assert!(matches!(run(&turned, &halves).kind(), Some(ErrorKind::ShapeMismatch { .. })));
    assert!(matches!(run(&scores, &scores).kind(), Some(ErrorKind::OverlappingOperands)));
    run(&of(F32, &[2, 0, 3]), &of(F16, &[2, 0, 3])).unwrap();
    let none = of(BF16, &[2, 3, 0]);
    run(&of(F32, &[2, 3, 0]), &none).unwrap();
}
