//! Tests of normalization that run on every target.

use warpline_kernels::normalization::*;
use warpline_runtime::DType::{BF16, F16, F32, F64};
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu};
use warpline_runtime::{DType, ErrorKind, ResultExt, Target};

const EPS: f64 = 0.125;

fn numbers(target: Target<'_>, dtype: DType, n: usize, salt: usize) -> Tensor {
    let values: Vec<f64> = (0..n).map(|i| ((i * 7 + salt) % 13) as f64 / 8.0 - 0.75).collect();
    Tensor::new(target, dtype, &[n], &values)
}

/// Computes one normalized row, its mean and its scale.
fn standardized(row: &[f64], centred: bool) -> (Vec<f64>, f64, f64) {
    let size = row.len() as f64;
    let mean = if centred { row.iter().sum::<f64>() / size } else { 0.0 };
    let squares: f64 = row.iter().map(|x| (x - mean) * (x - mean)).sum();
    let scale = 1.0 / (squares / size + EPS).sqrt();
    (row.iter().map(|x| (x - mean) * scale).collect(), mean, scale)
}

fn every_float_and_size(target: Target<'_>) {
    for dtype in [F16, BF16, F32, F64] {
        let wide = LayerNorm::moment_dtype(dtype);
        // In the last two cases, blocks share columns, because there are many rows. One case has
        // vectors of columns, the other single columns.
        for (rows, size) in [(1, 1), (5, 3), (40, 70), (3, 1500), (3000, 8), (3000, 5)] {
            for (centred, weighted, biased) in [
                (true, true, true),
                (true, false, false),
                (false, true, false),
                (true, true, false),
            ] {
                let context = format!("{dtype} {rows} by {size}, {centred}, {weighted}, {biased}");
                let input = numbers(target, dtype, rows * size, 1);
                let weight = numbers(target, dtype, size, 5);
                let bias = numbers(target, dtype, size, 2);
                let grad = numbers(target, dtype, rows * size, 8);
                let [mean, scale] = [(); 2].map(|()| Tensor::garbage(target, wide, &[rows]));
                let norm = LayerNorm {
                    input: input.view(),
                    weight: weighted.then(|| weight.view()),
                    mean: mean.view(),
                    scale: scale.view(),
                    eps: EPS,
                    centred,
                };
                let out = Tensor::garbage(target, dtype, &[rows * size]);
                let of_bias = biased.then(|| bias.view());
                layer_norm(target, &norm, None, of_bias, out.view()).unwrap();
                let of_input = Tensor::garbage(target, dtype, &[rows * size]);
                layer_norm_backward(target, &norm, grad.view(), None, of_input.view()).unwrap();
                let [dw, db] = [(); 2].map(|()| Tensor::garbage(target, dtype, &[size]));
                let of_bias = biased.then(|| db.view());
                layer_norm_parameters_backward(target, &norm, grad.view(), dw.view(), of_bias)
                    .unwrap();
                let [x, w, b, g] =
                    [&input, &weight, &bias, &grad].map(|tensor| tensor.floats(target));
                let mut expected = [vec![], vec![], vec![], vec![]];
                let mut sums = [vec![0.0; size], vec![0.0; size]];
                for (row, g) in x.chunks(size).zip(g.chunks(size)) {
                    let (y, mean, scale) = standardized(row, centred);
                    expected[0].push(mean);
                    expected[1].push(scale);
                    let own: Vec<f64> =
                        (0..size).map(|i| if weighted { g[i] * w[i] } else { g[i] }).collect();
                    let plain = own.iter().sum::<f64>() / size as f64;
                    let plain = if centred { plain } else { 0.0 };
                    let along = own.iter().zip(&y).map(|(g, y)| g * y).sum::<f64>() / size as f64;
                    for i in 0..size {
                        let value = if weighted { y[i] * w[i] } else { y[i] };
                        expected[2].push(if biased { value + b[i] } else { value });
                        expected[3].push((own[i] - plain - y[i] * along) * scale);
                        sums[0][i] += g[i] * y[i];
                        sums[1][i] += g[i];
                    }
                }
                assert_close(wide, &mean.floats(target), &expected[0], &context);
                assert_close(wide, &scale.floats(target), &expected[1], &context);
                assert_close(dtype, &out.floats(target), &expected[2], &context);
                assert_close(dtype, &of_input.floats(target), &expected[3], &context);
                assert_close(dtype, &dw.floats(target), &sums[0], &context);
                let bias = if biased { sums[1].clone() } else { vec![77.0; size] };
                assert_close(dtype, &db.floats(target), &bias, &context);
            }
        }
    }
}

/// Compares the kernels that add an operand with the other kernels and a separate addition.
fn sums_of_every_float(target: Target<'_>) {
    for dtype in [F16, BF16, F32, F64] {
        let wide = LayerNorm::moment_dtype(dtype);
        for (rows, size) in [(1, 1), (5, 3), (40, 70), (3, 1500)] {
            for (centred, weighted) in [(true, true), (false, true), (true, false)] {
                let context = format!("{dtype} {rows} by {size}, {centred}, {weighted}");
                let [a, b, grad, other] =
                    [1, 6, 8, 3].map(|salt| numbers(target, dtype, rows * size, salt));
                let [weight, bias] = [5, 2].map(|salt| numbers(target, dtype, size, salt));
                let [mean, scale] = [(); 2].map(|()| Tensor::garbage(target, wide, &[rows]));
                let garbage = || Tensor::garbage(target, dtype, &[rows * size]);
                let added = |a: &Tensor, b: &Tensor| {
                    let pairs = a.floats(target).into_iter().zip(b.floats(target));
                    let values: Vec<f64> = pairs.map(|(a, b)| a + b).collect();
                    Tensor::new(target, dtype, &[rows * size], &values)
                };
                let norm = LayerNorm {
                    input: a.view(),
                    weight: weighted.then(|| weight.view()),
                    mean: mean.view(),
                    scale: scale.view(),
                    eps: EPS,
                    centred,
                };
                let of_bias = weighted.then(|| bias.view());
                let (out, sum) = (garbage(), garbage());
                let views = Some([b.view(), sum.view()]);
                layer_norm(target, &norm, views, of_bias, out.view()).unwrap();
                let moments = [mean.floats(target), scale.floats(target)];
                let expected_sum = added(&a, &b);
                let of_sum = LayerNorm { input: expected_sum.view(), ..norm };
                let expected = garbage();
                layer_norm(target, &of_sum, None, of_bias, expected.view()).unwrap();
                assert_eq!(sum.floats(target), expected_sum.floats(target), "{context}");
                assert_close(dtype, &out.floats(target), &expected.floats(target), &context);
                assert_close(wide, &moments[0], &mean.floats(target), &context);
                assert_close(wide, &moments[1], &scale.floats(target), &context);

                let (with, without) = (garbage(), garbage());
                let grad = grad.view();
                layer_norm_backward(target, &of_sum, grad, Some(other.view()), with.view())
                    .unwrap();
                layer_norm_backward(target, &of_sum, grad, None, without.view()).unwrap();
                let expected = added(&without, &other);
                assert_close(dtype, &with.floats(target), &expected.floats(target), &context);
            }
        }
    }
}

#[test]
fn sums_with_a_residual_are_normalized_as_their_result_would_be() {
    on_every_target(sums_of_every_float);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_sums_with_a_residual_are_normalized_as_their_result_would_be() {
    on_gpu(sums_of_every_float);
}

#[test]
fn rows_and_gradients_of_every_float() {
    on_every_target(every_float_and_size);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_rows_and_gradients_of_every_float() {
    on_gpu(every_float_and_size);
}

/// Returns the bits of both gradients.
fn gradients(target: Target<'_>, rows: usize, size: usize, offset: usize) -> [Vec<u64>; 2] {
    let all = |salt| {
        let tensor = numbers(target, F32, rows * size + offset, salt);
        tensor.with(|l| l.narrow(0, offset as isize, rows * size))
    };
    let (input, grad) = (all(1), all(8));
    let [mean, scale] = [2, 3].map(|salt| numbers(target, F32, rows, salt));
    let norm = LayerNorm {
        input: input.view(),
        weight: None,
        mean: mean.view(),
        scale: scale.view(),
        eps: EPS,
        centred: true,
    };
    let [dw, db] = [(); 2].map(|()| Tensor::garbage(target, F32, &[size]));
    layer_norm_parameters_backward(target, &norm, grad.view(), dw.view(), Some(db.view())).unwrap();
    let [x, g, mean, scale] = [&input, &grad, &mean, &scale].map(|tensor| tensor.floats(target));
    let mut sums = [vec![0.0; size], vec![0.0; size]];
    for at in 0..rows * size {
        let (row, column) = (at / size, at % size);
        sums[0][column] += g[at] * ((x[at] - mean[row]) * scale[row]);
        sums[1][column] += g[at];
    }
    let results = [dw.floats(target), db.floats(target)];
    for (result, sums) in results.iter().zip(&sums) {
        assert_close(F32, result, sums, &format!("{rows} by {size}, from {offset}"));
    }
    results.map(|of| of.iter().map(|x| x.to_bits()).collect())
}

fn the_same_each_time(target: Target<'_>) {
    for (rows, size) in [(1024, 256), (5000, 36), (9, 4096), (700, 1), (4097, 130)] {
        for offset in [0, 1] {
            let first = gradients(target, rows, size, offset);
            for _ in 0..3 {
                assert_eq!(gradients(target, rows, size, offset), first);
            }
        }
    }
}

/// Includes views that begin inside a vector.
#[test]
#[ignore = "needs a GPU"]
fn gpu_gradients_of_parameters_are_the_same_each_time() {
    on_gpu(the_same_each_time);
}

#[test]
fn gradients_of_parameters_are_the_same_each_time() {
    on_every_target(the_same_each_time);
}

#[test]
fn operands_of_other_sizes_or_layouts_are_refused() {
    on_every_target(|target| {
        let square = Tensor::garbage(target, F32, &[3, 3]);
        let moments = [(); 2].map(|()| Tensor::garbage(target, F32, &[3]));
        let norm = LayerNorm {
            input: square.view(),
            weight: None,
            mean: moments[0].view(),
            scale: moments[1].view(),
            eps: EPS,
            centred: true,
        };
        let turned = Tensor::garbage(target, F32, &[3, 3]).with(|l| l.transpose(0, 1));
        let refused = layer_norm(target, &norm, None, None, turned.view());
        assert!(matches!(refused.kind(), Some(ErrorKind::ShapeMismatch { .. })));
        let few = Tensor::garbage(target, F32, &[2]);
        let refused = layer_norm(target, &norm, None, Some(few.view()), square.view());
        assert!(matches!(refused.kind(), Some(ErrorKind::ShapeMismatch { .. })));
        let wide = Tensor::garbage(target, F64, &[3]);
        let other = LayerNorm { weight: Some(wide.view()), ..norm };
        let out = Tensor::garbage(target, F32, &[3, 3]);
        let refused = layer_norm(target, &other, None, None, out.view());
        assert!(matches!(refused.kind(), Some(ErrorKind::DTypeMismatch { .. })));
        let (view, sum) = (out.view(), square.view());
        let refused = layer_norm(target, &norm, Some([few.view(), sum]), None, view);
        assert!(matches!(refused.kind(), Some(ErrorKind::ShapeMismatch { .. })));
        let refused = layer_norm(target, &norm, Some([square.view(), sum]), None, view);
        assert!(matches!(refused.kind(), Some(ErrorKind::OverlappingOperands)));
    });
}
