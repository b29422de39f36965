//! A convolution and its gradients compared with their definition, on every target.

use warpline_cuda_sys_safe::cudnn::Cudnn;
use warpline_kernels::conv::*;
use warpline_kernels::copy::copy;
use warpline_runtime::DType::{self, BF16, F16, F32, F64, I32};
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu};
use warpline_runtime::{Error, ErrorKind, MemoryFormat, Target};

use crate::placed::placed;

struct Case {
    window: Window,
    batch: usize,
    channels: usize,
    outputs: usize,
    groups: usize,
}

fn cases() -> Vec<Case> {
    let one = Window {
        input: [1, 4, 5],
        output: [1, 4, 5],
        kernel: [1; 3],
        stride: [1; 3],
        padding: [0; 3],
        dilation: [1; 3],
    };
    let moved = Window {
        output: [1, 3, 2],
        kernel: [1, 2, 3],
        stride: [1, 2, 3],
        padding: [0, 1, 2],
        dilation: [1, 1, 2],
        ..one
    };
    // On the CPU, the columns of only two images fit the memory bound, so the batch of five images
    // has three chunks.
    let large = Window { input: [1, 1, 40_000], output: [1, 1, 39_998], kernel: [1, 1, 3], ..one };
    let volume = Window {
        input: [3, 4, 5],
        output: [2, 4, 3],
        kernel: [2, 3, 2],
        stride: [1, 1, 2],
        padding: [0, 1, 1],
        dilation: [1; 3],
    };
    let case = |window, [batch, channels, outputs, groups]: [usize; 4]| Case {
        window,
        batch,
        channels,
        outputs,
        groups,
    };
    vec![
        case(one, [2, 3, 2, 1]),
        case(one, [2, 4, 6, 2]),
        case(moved, [3, 2, 3, 1]),
        case(moved, [3, 4, 4, 2]),
        case(volume, [2, 3, 2, 1]),
        case(moved, [0, 2, 3, 1]),
        case(large, [5, 4, 1, 1]),
        case(large, [5, 4, 2, 2]),
    ]
}

impl Case {
    /// Sizes of images, weight and result.
    fn operands(&self) -> [Vec<usize>; 3] {
        let of = |counts: [usize; 2], of: [usize; 3]| -> Vec<usize> {
            let spatial = match self.window.input {
                [1, 1, _] => 1,
                [1, ..] => 2,
                _ => 3,
            };
            counts.iter().chain(&of[3 - spatial..]).copied().collect()
        };
        let w = &self.window;
        [
            of([self.batch, self.channels], w.input),
            of([self.outputs, self.channels / self.groups], w.kernel),
            of([self.batch, self.outputs], w.output),
        ]
    }

    /// Calls `f` with the indices of the image, weight and result elements of each product of the
    /// definition.
    fn each(&self, mut f: impl FnMut(usize, usize, usize)) {
        let w = &self.window;
        let (of_group, outputs) = (self.channels / self.groups, self.outputs / self.groups);
        let [elements, taps, places] =
            [w.input, w.kernel, w.output].map(|sizes| sizes.iter().product::<usize>());
        let at = |i: usize, s: [usize; 3]| [i / (s[1] * s[2]), i / s[2] % s[1], i % s[2]];
        for (n, o, c) in (0..self.batch)
            .flat_map(|n| (0..self.outputs).map(move |o| (n, o)))
            .flat_map(|(n, o)| (0..of_group).map(move |c| (n, o, c)))
        {
            let channel = o / outputs * of_group + c;
            for (tap, place) in (0..taps).flat_map(|k| (0..places).map(move |p| (k, p))) {
                let (k, p) = (at(tap, w.kernel), at(place, w.output));
                let inside = |d: usize| {
                    let i = (p[d] * w.stride[d] + k[d] * w.dilation[d]).checked_sub(w.padding[d]);
                    i.filter(|i| *i < w.input[d])
                };
                if let (Some(a), Some(b), Some(e)) = (inside(0), inside(1), inside(2)) {
                    let element = (a * w.input[1] + b) * w.input[2] + e;
                    f(
                        (n * self.channels + channel) * elements + element,
                        (o * of_group + c) * taps + tap,
                        (n * self.outputs + o) * places + place,
                    );
                }
            }
        }
    }
}

/// Small integers. Half-width floats represent short sums of them exactly.
fn values(sizes: &[usize], by: usize) -> Vec<f64> {
    (0..sizes.iter().product()).map(|i: usize| ((i * by) % 5) as f64 - 2.0).collect()
}

/// Creates a tensor of these values whose last two dimensions are exchanged in memory.
fn turned(target: Target<'_>, dtype: DType, sizes: &[usize], values: &[f64]) -> Tensor {
    let mut lies = sizes.to_vec();
    let n = lies.len();
    lies.swap(n - 1, n - 2);
    let from = Tensor::new(target, dtype, sizes, values);
    let to = Tensor::garbage(target, dtype, &lies).with(|l| l.transpose(-1, -2));
    copy(target, from.view(), to.view()).unwrap();
    to
}

/// Creates a tensor of these values with the channels innermost, if it has at least two spatial
/// dimensions.
fn channels_last(target: Target<'_>, dtype: DType, sizes: &[usize], values: &[f64]) -> Tensor {
    let format = match sizes.len() {
        4 => MemoryFormat::ChannelsLast,
        5 => MemoryFormat::ChannelsLast3d,
        _ => MemoryFormat::Contiguous,
    };
    placed(target, dtype, sizes, values, format)
}

fn convolutions(target: Target<'_>, cases: &[Case]) {
    for case in cases {
        let sizes = case.operands();
        let [x, w, g] = [(0, 7), (1, 3), (2, 11)].map(|(k, by)| values(&sizes[k], by));
        let (mut y, mut dx, mut dw) = (vec![0.0; g.len()], vec![0.0; x.len()], vec![0.0; w.len()]);
        case.each(|i, k, o| {
            y[o] += x[i] * w[k];
            dx[i] += g[o] * w[k];
            dw[k] += g[o] * x[i];
        });
        let dtypes: &[DType] = if x.len() > 10_000 { &[F32] } else { &[F16, BF16, F32, F64] };
        for &dtype in dtypes {
            for make in [Tensor::new, turned, channels_last] {
                let [x, w, g] =
                    [(0, &x), (1, &w), (2, &g)].map(|(k, v)| make(target, dtype, &sizes[k], v));
                let out = |k: usize, zeros: &[f64]| make(target, dtype, &sizes[k], zeros);
                let to_x = out(0, &vec![7.0; dx.len()]);
                let to_w = out(1, &vec![7.0; dw.len()]);
                let to_y = out(2, &vec![7.0; y.len()]);
                let (window, groups) = (&case.window, case.groups);
                let [input, weight, grad] = [x.view(), w.view(), g.view()];
                conv(target, input, weight, window, groups, to_y.view()).unwrap();
                conv_input_backward(target, grad, weight, window, groups, to_x.view()).unwrap();
                conv_weight_backward(target, input, grad, window, groups, to_w.view()).unwrap();
                for (name, found, expected) in
                    [("result", to_y, &y), ("input", to_x, &dx), ("weight", to_w, &dw)]
                {
                    let context = format!("{name} of {dtype}, {window:?}, {groups} groups");
                    assert_close(dtype, &found.floats(target), expected, &context);
                }
            }
        }
    }
}

/// Runs the convolutions with cuDNN (simulated GPUs run its CPU implementation), with plans chosen
/// by trial, and on this crate's kernels.
fn by_every_engine(target: Target<'_>) {
    let (settings, cases) = (target.runtime().cudnn(), cases());
    // Leave out the two large cases at the end, because they only test the memory of this crate's
    // columns.
    convolutions(target, &cases[..cases.len() - 2]);
    settings.set_benchmark(true);
    // cuDNN takes up to a second to make all plans of a convolution.
    convolutions(target, &cases[2..3]);
    settings.set_enabled(false);
    convolutions(target, &cases);
    settings.set_enabled(true);
}

#[test]
fn convolutions_and_gradients_are_those_of_the_definition() {
    on_every_target(by_every_engine);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_convolutions_and_gradients_are_those_of_the_definition() {
    on_gpu(by_every_engine);
}

/// Creates random operands of a convolution with a 3 × 3 window, and returns its result in `dtype`.
fn random_result(target: Target<'_>, dtype: DType, outputs: usize) -> Vec<f64> {
    let window = Window {
        input: [1, 14, 14],
        output: [1, 14, 14],
        kernel: [1, 3, 3],
        stride: [1; 3],
        padding: [0, 1, 1],
        dilation: [1; 3],
    };
    let random = |n: usize| -> Vec<f64> {
        (0..n).map(|i| f64::from(((i as f64 + 0.5) * 0.618_033_988).fract() as f32) - 0.5).collect()
    };
    let new = |sizes: &[usize]| Tensor::new(target, dtype, sizes, &random(sizes.iter().product()));
    let (x, w) = (new(&[2, 64, 14, 14]), new(&[outputs, 64, 3, 3]));
    let y = Tensor::garbage(target, dtype, &[2, outputs, 14, 14]);
    conv(target, x.view(), w.view(), &window, 1, y.view()).unwrap();
    y.floats(target)
}

/// A single test, because all tests of the process share the plans.
#[test]
#[ignore = "needs a GPU"]
fn gpu_cudnn_computes_convolutions_in_the_chosen_precision() {
    let cudnn = Cudnn::load().expect("name cuDNN in WARPLINE_CUDNN");
    assert!(cudnn.version() >= (9, 0, 0));
    on_gpu(|target| {
        clear_plans();
        convolutions(target, &cases()[1..2]);
        // One plan for each kind and dtype; if an operand has the channels innermost, one more.
        assert!(plans_kept() >= 3 * 4, "{} plans", plans_kept());
        clear_plans();
        assert_eq!(plans_kept(), 0);

        let runtime = target.runtime();
        let exact = random_result(target, F64, 32);
        let error = |found: Vec<f64>| {
            let largest = exact.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            found.iter().zip(&exact).fold(0.0f64, |m, (a, b)| m.max((a - b).abs())) / largest
        };
        // TF32 keeps 11 bits of each factor, IEEE floats 24.
        runtime.precision().set_cudnn_allow_tf32(true);
        let rounded = error(random_result(target, F32, 32));
        runtime.precision().set_cudnn_allow_tf32(false);
        let ieee = error(random_result(target, F32, 32));
        runtime.precision().set_cudnn_allow_tf32(true);
        assert!(ieee < 1e-5 && rounded > 1e-5 && rounded < 1e-2, "{ieee} and {rounded}");

        runtime.cudnn().set_deterministic(true);
        let once = random_result(target, F32, 32);
        assert_eq!(random_result(target, F32, 32), once);
        runtime.cudnn().set_deterministic(false);

        // Threads that make plans and run them at the same time.
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for outputs in 1..24 {
                        let found = random_result(target, F32, 4 * outputs + thread);
                        assert!(found.iter().all(|x| x.is_finite()));
                    }
                });
            }
        });
    });
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    on_every_target(|target| {
        let window = cases()[0].window;
        let of = |dtype, sizes: &[usize]| Tensor::garbage(target, dtype, sizes);
        let (x, w, y) = (of(F32, &[2, 4, 4, 5]), of(F32, &[6, 2, 1, 1]), of(F32, &[2, 6, 4, 5]));
        let refused = |x: &Tensor, w: &Tensor, groups, y: &Tensor| {
            conv(target, x.view(), w.view(), &window, groups, y.view()).unwrap_err()
        };
        let invalid = |error: Error| matches!(error.kind(), ErrorKind::InvalidArgument { .. });
        let mismatch = |error: Error| matches!(error.kind(), ErrorKind::ShapeMismatch { .. });
        assert!(invalid(refused(&x, &w, 0, &y)));
        assert!(mismatch(refused(&x, &w, 1, &y)));
        assert!(mismatch(refused(&x, &of(F32, &[5, 2, 1, 1]), 2, &of(F32, &[2, 5, 4, 5]))));
        assert!(mismatch(refused(&x, &w, 2, &of(F32, &[3, 6, 4, 5]))));
        assert!(mismatch(refused(&x, &of(F32, &[6, 2, 1, 2]), 2, &y)));
        let error = refused(&x, &w, 2, &of(F64, &[2, 6, 4, 5]));
        assert!(matches!(error.kind(), ErrorKind::DTypeMismatch { .. }), "{error}");
        let [x, w, y] = [&x, &w, &y].map(|t| of(I32, t.layout.sizes()));
        let error = refused(&x, &w, 2, &y);
        assert!(matches!(error.kind(), ErrorKind::UnsupportedDType { .. }), "{error}");
    });
}
