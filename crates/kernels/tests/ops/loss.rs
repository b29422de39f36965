//! Tests of losses that run on every target.

use warpline_kernels::loss::*;
use warpline_runtime::DType::{BF16, F16, F32, F64, I32, I64};
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu};
use warpline_runtime::{DType, ErrorKind, IndexCheck, ResultExt as _, Target};

const IGNORED: i64 = -7;

/// Values in the range of log-probabilities.
fn logs(target: Target<'_>, dtype: DType, sizes: &[usize]) -> Tensor {
    let n: usize = sizes.iter().product();
    let values: Vec<f64> = (0..n).map(|i| -0.25 - (i * 7 % 13) as f64 / 8.0).collect();
    Tensor::new(target, dtype, sizes, &values)
}

/// Computes the loss, the total weight, and the gradient for an incoming gradient of 2, with plain
/// loops.
fn expected(
    log: &[f64],
    classes: &[f64],
    size: usize,
    weight: Option<&[f64]>,
    mean: bool,
) -> (f64, f64, Vec<f64>) {
    let own = |class: f64| match weight {
        _ if class == IGNORED as f64 => 0.0,
        Some(weight) => weight[class as usize],
        None => 1.0,
    };
    let total: f64 = classes.iter().map(|&class| own(class)).sum();
    let over = if mean { total } else { 1.0 };
    let (mut loss, mut slopes) = (0.0, Vec::new());
    for (row, &class) in log.chunks(size).zip(classes) {
        for (c, x) in row.iter().enumerate() {
            let is_own = c as f64 == class;
            loss -= if is_own { own(class) * x / over } else { 0.0 };
            slopes.push(2.0 * own(class) / over * (x.exp() - f64::from(u8::from(is_own))));
        }
    }
    (loss, total, slopes)
}

fn every_float_and_size(target: Target<'_>) {
    for dtype in [F16, BF16, F32, F64] {
        for (rows, size) in [(1, 1), (5, 3), (70, 10), (1300, 40), (3, 700)] {
            for (weighted, mean) in [(false, true), (true, true), (false, false), (true, false)] {
                // The logarithms are contiguous, or have rows and classes exchanged in memory.
                for turned in [false, true] {
                    let log = match turned {
                        false => logs(target, dtype, &[rows, size]),
                        true => logs(target, dtype, &[size, rows]).with(|l| l.transpose(0, 1)),
                    };
                    let classes: Vec<f64> = (0..rows)
                        .map(|i| if i % 4 == 1 { IGNORED as f64 } else { (i * 5 % size) as f64 })
                        .collect();
                    let classes = Tensor::new(target, I64, &[rows], &classes);
                    let weight: Vec<f64> = (0..size).map(|c| 0.5 + (c % 3) as f64).collect();
                    let weight = Tensor::new(target, dtype, &[size], &weight);
                    let nll = Nll {
                        log: log.view(),
                        classes: classes.view(),
                        weight: weighted.then(|| weight.view()),
                        ignore_index: IGNORED,
                        mean,
                    };
                    let of_weight = weighted.then(|| weight.floats(target));
                    let (loss, total, slopes) = expected(
                        &log.floats(target),
                        &classes.floats(target),
                        size,
                        of_weight.as_deref(),
                        mean,
                    );
                    let wide = Nll::total_dtype(nll.log.dtype);
                    let out = Tensor::garbage(target, dtype, &[]);
                    let weights = Tensor::garbage(target, wide, &[]);
                    nll_loss(target, "nll_loss", &nll, out.view(), weights.view()).unwrap();
                    let context = format!("{dtype} {rows} by {size}, {weighted}, {mean}, {turned}");
                    assert_close(dtype, &out.floats(target), &[loss], &context);
                    assert_close(F32, &weights.floats(target), &[total], &context);
                    let grad = Tensor::new(target, dtype, &[], &[2.0]);
                    let of_input = Tensor::garbage(target, dtype, &[rows, size]);
                    let total = weights.view();
                    nll_loss_backward(target, grad.view(), &nll, total, of_input.view()).unwrap();
                    assert_close(dtype, &of_input.floats(target), &slopes, &context);
                }
            }
        }
    }
}

#[test]
fn losses_and_gradients_of_every_float() {
    on_every_target(every_float_and_size);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_losses_and_gradients_of_every_float() {
    on_gpu(every_float_and_size);
}

/// A mean without weights.
fn plain<'a>(log: &'a Tensor, classes: &'a Tensor) -> Nll<'a> {
    let (log, classes) = (log.view(), classes.view());
    Nll { log, classes, weight: None, ignore_index: IGNORED, mean: true }
}

fn bad_indices(target: Target<'_>) {
    let log = logs(target, F32, &[3, 4]);
    for bad in [4, -1] {
        let classes = Tensor::new(target, I64, &[3], &[1.0, bad as f64, 2.0]);
        let nll = plain(&log, &classes);
        let [loss, total] = [(); 2].map(|()| Tensor::garbage(target, F32, &[]));
        let at_once = nll_loss(target, "cross_entropy", &nll, loss.view(), total.view());
        let error = match target {
            Target::Cpu(_) => at_once.unwrap_err(),
            Target::Cuda(_, _, stream) => {
                at_once.unwrap();
                stream.synchronize().unwrap_err()
            }
        };
        let text = error.to_string();
        let failed = IndexCheck::of(&error).expect(&text);
        assert_eq!(
            (failed.op, failed.index, failed.dim, failed.size),
            ("cross_entropy", bad, 1, 4)
        );
        // The row with the invalid class is left out of the written results.
        assert_eq!(total.unmarked().floats(target), [2.0]);
        loss.unmarked();
        let grad = Tensor::new(target, F32, &[], &[1.0]);
        let out = Tensor::garbage(target, F32, &[3, 4]);
        nll_loss_backward(target, grad.view(), &nll, total.view(), out.view()).unwrap();
        assert_eq!(out.floats(target)[4..8], [0.0; 4]);
    }
}

#[test]
fn a_class_out_of_range_is_reported() {
    on_every_target(bad_indices);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_a_class_out_of_range_is_reported() {
    on_gpu(bad_indices);
}

#[test]
fn nothing_that_counts_and_bad_arguments() {
    on_every_target(|target| {
        let log = logs(target, F32, &[2, 3]);
        let classes = Tensor::new(target, I64, &[2], &[IGNORED as f64; 2]);
        let nll = plain(&log, &classes);
        let [loss, total] = [(); 2].map(|()| Tensor::garbage(target, F32, &[]));
        nll_loss(target, "nll_loss", &nll, loss.view(), total.view()).unwrap();
        assert!(loss.floats(target)[0].is_nan());
        assert_eq!(total.floats(target), [0.0]);
        let narrow = Tensor::new(target, I32, &[2], &[0.0; 2]);
        let refused = Nll { classes: narrow.view(), ..nll };
        assert!(matches!(
            nll_loss(target, "nll_loss", &refused, loss.view(), total.view()).kind(),
            Some(ErrorKind::DTypeMismatch { .. })
        ));
        let few = Tensor::new(target, I64, &[1], &[0.0]);
        let refused = Nll { classes: few.view(), ..nll };
        assert!(matches!(
            nll_loss(target, "nll_loss", &refused, loss.view(), total.view()).kind(),
            Some(ErrorKind::ShapeMismatch { .. })
        ));
    });
}
