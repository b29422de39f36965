//! Many tensors in one launch, on the host and simulated, against a step in plain Rust.

use super::*;
use warpline_runtime::DType::{BF16, F16, F32, F64};
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu};

/// More tensors than a launch takes, of sizes that are several chunks and none.
const SIZES: [usize; 30] = {
    let mut sizes = [3; 30];
    (sizes[0], sizes[7], sizes[23], sizes[24], sizes[29]) = (0, CHUNK, 2 * CHUNK + 5, 1, 700);
    sizes
};

fn values(n: usize, seed: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 7 + seed * 13) % 23) as f64 / 8.0 - 1.25).collect()
}

fn tensors(target: Target<'_>, dtype: DType, few: bool, seed: usize) -> Vec<Tensor> {
    let sizes = if few { &SIZES[22..26] } else { &SIZES[..] };
    let tensor = |(i, &n): (usize, &usize)| {
        let of: Vec<f64> = values(n, seed + i);
        // Means of squares are not negative.
        let of = if seed >= 300 { of.iter().map(|v| v.abs()).collect() } else { of };
        Tensor::new(target, dtype, &[n], &of)
    };
    sizes.iter().enumerate().map(tensor).collect()
}

/// Runs a step of tensors with `N` operands each, counted on the host and on the device, and compares with `expected` of
/// each element's operands.
fn check<const N: usize>(
    target: Target<'_>,
    used: [bool; N],
    step: &dyn Fn(&[[Option<View<'_>>; N]], Counted<'_>) -> Result<()>,
    expected: &dyn Fn(&mut [f64; N]),
) {
    for (dtype, few) in [(F32, false), (F64, false), (F64, true), (F16, true), (BF16, true)] {
        for on_device in [false, true] {
            let all: Vec<Vec<Tensor>> =
                (0..N).map(|k| tensors(target, dtype, few, k * 100)).collect();
            let before: Vec<Vec<Vec<f64>>> =
                all.iter().map(|of| of.iter().map(|t| t.floats(target)).collect()).collect();
            let of = |i: usize| std::array::from_fn(|k| used[k].then(|| all[k][i].view()));
            let operands: Vec<[Option<View<'_>>; N]> = (0..all[0].len()).map(of).collect();
            let count = operands.len();
            let steps = Tensor::new(target, F32, &[count], &vec![3.0; count]);
            let lr = Tensor::new(target, F64, &[], &[0.25]);
            let (numbers, places) = (vec![3; count], (0..count as u64).collect::<Vec<_>>());
            let counted = if on_device {
                Counted::Device { steps: steps.view(), places: &places, lr: lr.view() }
            } else {
                Counted::Host { steps: &numbers, lr: 0.25 }
            };
            step(&operands, counted).unwrap();
            for i in 0..count {
                let after: Vec<Vec<f64>> = all.iter().map(|of| of[i].floats(target)).collect();
                let mut wanted = vec![Vec::new(); N];
                for e in 0..after[0].len() {
                    let mut element = std::array::from_fn(|k| before[k][i][e]);
                    expected(&mut element);
                    element.iter().zip(&mut wanted).for_each(|(v, of)| of.push(*v));
                }
                for k in (0..N).filter(|k| used[*k]) {
                    let context = format!("operand {k} of tensor {i} of {dtype}, {on_device}");
                    assert_close(dtype, &after[k], &wanted[k], &context);
                }
            }
        }
    }
}

fn steps(target: Target<'_>) {
    let settings = SgdStep {
        momentum: 0.5,
        dampening: 0.25,
        weight_decay: 0.125,
        nesterov: true,
        maximize: true,
    };
    check(target, [true; 3], &|t, c| sgd(target, t, c, &settings), &|[p, g, b]| {
        let grad = -*g + 0.125 * *p;
        *b = 0.5 * *b + 0.75 * grad;
        *p -= 0.25 * (grad + 0.5 * *b);
    });
    let settings = SgdStep::default();
    check(target, [true, true, false], &|t, c| sgd(target, t, c, &settings), &|[p, g, _]| {
        *p -= 0.25 * *g;
    });
    for (decoupled, amsgrad) in [(true, false), (false, true)] {
        let settings = AdamStep {
            betas: (0.75, 0.5),
            eps: 0.125,
            weight_decay: 0.5,
            decoupled,
            amsgrad,
            maximize: false,
        };
        let used = [true, true, true, true, amsgrad];
        check(target, used, &|t, c| adam(target, t, c, &settings), &|[p, g, m, v, most]| {
            let mut grad = *g;
            if decoupled {
                *p *= 1.0 - 0.25 * 0.5;
            } else {
                grad += 0.5 * *p;
            }
            *m = 0.75 * *m + 0.25 * grad;
            *v = 0.5 * *v + 0.5 * grad * grad;
            *most = most.max(*v);
            let square = if amsgrad { *most } else { *v };
            let (c1, c2) = (1.0 - 0.75f64.powi(3), 1.0 - 0.5f64.powi(3));
            *p -= 0.25 / c1 * *m / (square.sqrt() / c2.sqrt() + 0.125);
        });
    }
    for (centered, momentum) in [(false, 0.0), (false, 0.5)] {
        let settings = RmspropStep {
            alpha: 0.75,
            eps: 0.5,
            weight_decay: 0.25,
            momentum,
            centered,
            maximize: false,
        };
        let used = [true, true, true, centered, momentum > 0.0];
        check(target, used, &|t, c| rmsprop(target, t, c, &settings), &|[p, g, s, _, b]| {
            let grad = *g + 0.25 * *p;
            // These begin as the fourth operand's values do elsewhere, and may be negative.
            *s = 0.75 * *s + 0.25 * grad * grad;
            let change = grad / (s.sqrt() + 0.5);
            *b = momentum * *b + change;
            *p -= 0.25 * if momentum > 0.0 { *b } else { change };
        });
    }
}

#[test]
fn steps_of_many_tensors_are_those_of_each() {
    on_every_target(steps);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_steps_of_many_tensors_are_those_of_each() {
    on_gpu(steps);
}

fn norms(target: Target<'_>) {
    for dtype in [F16, BF16, F32, F64] {
        let all = tensors(target, dtype, false, 0);
        let views: Vec<View<'_>> = all.iter().map(Tensor::view).collect();
        let elements: Vec<f64> = all.iter().flat_map(|t| t.floats(target)).collect();
        let parts = norm_parts(SIZES.into_iter());
        let out = Tensor::garbage(target, F64, &[parts]);
        norm(target, &views, false, out.view()).unwrap();
        let sum: f64 = out.floats(target).iter().sum();
        let expected: f64 = elements.iter().map(|x| x * x).sum();
        assert!((sum - expected).abs() <= 1e-6 * expected, "{sum} {expected}");
        norm(target, &views, true, out.view()).unwrap();
        let most = out.floats(target).into_iter().fold(0.0, f64::max);
        assert_eq!(most, elements.iter().fold(0.0, |a, x| x.abs().max(a)));
        let half = Tensor::new(target, F64, &[], &[0.5]);
        scale(target, &views, half.view()).unwrap();
        let scaled: Vec<f64> = all.iter().flat_map(|t| t.floats(target)).collect();
        assert_eq!(scaled, elements.iter().map(|x| x / 2.0).collect::<Vec<_>>());
    }
}

#[test]
fn norms_and_scales_of_many_tensors() {
    on_every_target(norms);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_norms_and_scales_of_many_tensors() {
    on_gpu(norms);
}

#[test]
fn what_does_not_lie_alike_is_refused() {
    on_every_target(|target| {
        let (a, b) =
            (Tensor::new(target, F32, &[4], &[0.0; 4]), Tensor::new(target, F32, &[2], &[0.0; 2]));
        let counted = Counted::Host { steps: &[1], lr: 0.1 };
        let settings = SgdStep::default();
        let step = |of| sgd(target, &[of], counted, &settings);
        assert!(step([Some(a.view()), Some(b.view()), None]).is_err());
        assert!(step([Some(a.view()), Some(a.view()), None]).is_err(), "one is written");
    });
}
