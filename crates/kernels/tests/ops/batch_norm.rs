//! Batch norm and its gradients compared with their definition, on every target.

use warpline_kernels::normalization::*;
use warpline_runtime::DType::{BF16, F16, F32, F64};
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu};
use warpline_runtime::{DType, Error, ErrorKind, MemoryFormat, Target};

use crate::placed::placed;

const EPS: f64 = 0.125;
const MOMENTUM: f64 = 0.25;

/// Creates a tensor in a memory format. The values are exact in every dtype.
fn numbers(
    target: Target<'_>,
    dtype: DType,
    sizes: &[usize],
    format: MemoryFormat,
    salt: usize,
) -> Tensor {
    let n: usize = sizes.iter().product();
    let values: Vec<f64> = (0..n).map(|i| ((i * 7 + salt) % 13) as f64 / 8.0 - 0.75).collect();
    placed(target, dtype, sizes, &values, format)
}

/// The expected values.
#[derive(Default)]
struct Expected {
    mean: Vec<f64>,
    scale: Vec<f64>,
    running_mean: Vec<f64>,
    running_var: Vec<f64>,
    out: Vec<f64>,
    inference: Vec<f64>,
    of_input: Vec<f64>,
    of_weight: Vec<f64>,
    of_bias: Vec<f64>,
}

/// `values` are elements and gradient, then weight, bias, running mean and variance.
fn expected(sizes: &[usize], values: [&[f64]; 6]) -> Expected {
    let [x, g, weight, bias, old_mean, old_var] = values;
    let (channels, area) = (sizes[1], sizes[2..].iter().product::<usize>());
    let of = |c: usize| (0..x.len()).filter(move |i| i / area % channels == c);
    let count = (x.len() / channels) as f64;
    let mut e = Expected { of_input: vec![0.0; x.len()], ..Default::default() };
    (e.out, e.inference) = (e.of_input.clone(), e.of_input.clone());
    for c in 0..channels {
        let mean = of(c).map(|i| x[i]).sum::<f64>() / count;
        let squares: f64 = of(c).map(|i| (x[i] - mean).powi(2)).sum();
        let scale = 1.0 / (squares / count + EPS).sqrt();
        let plain: f64 = of(c).map(|i| g[i]).sum();
        let along: f64 = of(c).map(|i| g[i] * (x[i] - mean) * scale).sum();
        for i in of(c) {
            let y = (x[i] - mean) * scale;
            e.out[i] = y * weight[c] + bias[c];
            e.inference[i] = (x[i] - old_mean[c]) / (old_var[c] + EPS).sqrt() * weight[c] + bias[c];
            e.of_input[i] = (g[i] - plain / count - y * along / count) * scale * weight[c];
        }
        let merged = |old: f64, new: f64| (1.0 - MOMENTUM) * old + MOMENTUM * new;
        e.running_mean.push(merged(old_mean[c], mean));
        e.running_var.push(merged(old_var[c], squares / (count - 1.0)));
        e.mean.push(mean);
        e.scale.push(scale);
        e.of_weight.push(along);
        e.of_bias.push(plain);
    }
    e
}

fn every_float_and_order(target: Target<'_>) {
    use MemoryFormat::{ChannelsLast, ChannelsLast3d, Contiguous};
    // In the large cases, blocks share channels. In some cases, the sizes of planes and rows are
    // multiples of a vector.
    let cases: [(&[usize], MemoryFormat); 13] = [
        (&[5, 3], Contiguous),
        (&[40, 64], Contiguous),
        (&[4, 3, 7], Contiguous),
        (&[2, 8, 4, 4], Contiguous),
        (&[3, 5, 7, 7], Contiguous),
        (&[2, 8, 3, 5], ChannelsLast),
        (&[2, 5, 3, 3], ChannelsLast),
        (&[2, 8, 2, 3, 2], ChannelsLast3d),
        (&[32, 24, 16, 16], Contiguous),
        (&[64, 3, 7, 7], Contiguous),
        (&[600, 2, 7, 9], Contiguous),
        (&[32, 24, 16, 16], ChannelsLast),
        (&[33, 3, 15, 15], ChannelsLast),
    ];
    for (sizes, format) in cases {
        for dtype in [F16, BF16, F32, F64] {
            let wide = LayerNorm::moment_dtype(dtype);
            for (of_channels, weighted) in [(dtype, true), (wide, true), (dtype, false)] {
                let context = format!("{dtype} {sizes:?} {format:?}, {of_channels} {weighted}");
                let channels = &sizes[1..2];
                let x = numbers(target, dtype, sizes, format, 1);
                let g = numbers(target, dtype, sizes, format, 8);
                let [w, b, mean, var] = [5, 2, 3, 9]
                    .map(|salt| numbers(target, of_channels, channels, Contiguous, salt));
                let square: Vec<f64> = var.floats(target).iter().map(|v| v * v).collect();
                let var = Tensor::new(target, of_channels, channels, &square);
                let ones = vec![1.0; channels[0]];
                let zeros = vec![0.0; channels[0]];
                let [vx, vg, vw, vb, vm, vv] =
                    [&x, &g, &w, &b, &mean, &var].map(|t| t.floats(target));
                let (vw, vb) = if weighted { (&vw, &vb) } else { (&ones, &zeros) };
                let expected = expected(sizes, [&vx, &vg, vw, vb, &vm, &vv]);

                let [m, s] = [(); 2].map(|()| Tensor::garbage(target, wide, channels));
                let norm = BatchNorm {
                    input: x.view(),
                    weight: weighted.then(|| w.view()),
                    bias: weighted.then(|| b.view()),
                    mean: m.view(),
                    scale: s.view(),
                    eps: EPS,
                };
                let out = || numbers(target, dtype, sizes, format, 0);
                let (y, z, dx) = (out(), out(), out());
                let old = BatchNorm { mean: mean.view(), scale: var.view(), ..norm };
                batch_norm_inference(target, &old, z.view()).unwrap();
                let running =
                    RunningStatistics { mean: mean.view(), var: var.view(), momentum: MOMENTUM };
                batch_norm(target, &norm, Some(running), y.view()).unwrap();
                let [dw, db] = [(); 2].map(|()| Tensor::garbage(target, of_channels, channels));
                let of_parameters = [weighted.then(|| dw.view()), weighted.then(|| db.view())];
                let of_input = Some(dx.view());
                batch_norm_backward(target, &norm, g.view(), of_input, of_parameters).unwrap();

                let check = |name, dtype, found: &Tensor, expected: &[f64]| {
                    let context = format!("{name}, {context}");
                    assert_close(dtype, &found.floats(target), expected, &context);
                };
                check("mean", wide, &m, &expected.mean);
                check("scale", wide, &s, &expected.scale);
                check("result", dtype, &y, &expected.out);
                check("running mean", of_channels, &mean, &expected.running_mean);
                check("running variance", of_channels, &var, &expected.running_var);
                check("inference", dtype, &z, &expected.inference);
                check("input", dtype, &dx, &expected.of_input);
                if weighted {
                    check("weight", of_channels, &dw, &expected.of_weight);
                    check("bias", of_channels, &db, &expected.of_bias);
                }
            }
        }
    }
}

#[test]
fn batch_norm_and_gradients_are_those_of_the_definition() {
    on_every_target(every_float_and_order);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_batch_norm_and_gradients_are_those_of_the_definition() {
    on_gpu(every_float_and_order);
}

/// The mean of these values is more than a million times their deviation. A difference of squares
/// would lose the variance, and so would a mean that is rounded to `float32` on the way.
fn variance_beside_a_large_mean(target: Target<'_>) {
    for format in [MemoryFormat::Contiguous, MemoryFormat::ChannelsLast] {
        let sizes = [16, 8, 32, 32];
        let n: usize = sizes.iter().product();
        let values: Vec<f64> = (0..n).map(|i| 4096.0 + (i % 3) as f64 / 512.0).collect();
        let x = placed(target, F32, &sizes, &values, format);
        let out = numbers(target, F32, &sizes, format, 0);
        let [mean, scale] = [(); 2].map(|()| Tensor::garbage(target, F32, &[8]));
        let norm = BatchNorm {
            input: x.view(),
            weight: None,
            bias: None,
            mean: mean.view(),
            scale: scale.view(),
            eps: 0.0,
        };
        batch_norm(target, &norm, None, out.view()).unwrap();
        let deviation = (2.0f64 / 3.0).sqrt() / 512.0;
        for found in scale.floats(target) {
            let relative = (1.0 / found / deviation - 1.0).abs();
            assert!(relative < 1e-4, "{format:?}: {found} instead of {}", 1.0 / deviation);
        }
    }
}

#[test]
fn a_variance_far_below_the_squared_mean_is_kept() {
    on_every_target(variance_beside_a_large_mean);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_a_variance_far_below_the_squared_mean_is_kept() {
    on_gpu(variance_beside_a_large_mean);
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    on_every_target(|target| {
        let of = |dtype, sizes: &[usize]| Tensor::garbage(target, dtype, sizes);
        let (x, channel) = (of(F32, &[2, 3, 4]), of(F32, &[3]));
        let [mean, scale, out] = [of(F32, &[3]), of(F32, &[3]), of(F32, &[2, 3, 4])];
        let norm = BatchNorm {
            input: x.view(),
            weight: Some(channel.view()),
            bias: None,
            mean: mean.view(),
            scale: scale.view(),
            eps: EPS,
        };
        let refused = |norm: &BatchNorm<'_>, out: &Tensor| {
            batch_norm(target, norm, None, out.view()).unwrap_err()
        };
        let is_shape = |error: Error| matches!(error.kind(), ErrorKind::ShapeMismatch { .. });
        let is_dtype = |error: Error| matches!(error.kind(), ErrorKind::DTypeMismatch { .. });
        let (short, double) = (of(F32, &[2]), of(F64, &[3]));
        assert!(is_shape(refused(&norm, &of(F32, &[2, 4, 3]))));
        assert!(is_shape(refused(&BatchNorm { weight: Some(short.view()), ..norm }, &out)));
        assert!(is_shape(refused(&BatchNorm { input: short.view(), ..norm }, &out)));
        assert!(is_shape(refused(&BatchNorm { mean: short.view(), ..norm }, &out)));
        assert!(is_dtype(refused(&BatchNorm { weight: Some(double.view()), ..norm }, &out)));
        assert!(is_dtype(refused(&norm, &of(F64, &[2, 3, 4]))));
        let swapped = of(F32, &[2, 4, 3]).with(|l| l.transpose(1, 2));
        assert!(is_shape(refused(&norm, &swapped)));
        let error = refused(&norm, &x);
        assert!(matches!(error.kind(), ErrorKind::OverlappingOperands), "{error}");
    });
}
