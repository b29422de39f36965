//! Tests of optimizer steps for many tensors, on every target.

use warpline_kernels::optim::*;
use warpline_runtime::DType::{BF16, F16, F32, F64};
use warpline_runtime::testing::{Tensor, on_every_target, on_gpu, samples};
use warpline_runtime::{DType, ErrorKind, Layout, Target, View};

/// Sizes of more tensors than one launch updates. Some tensors are empty, and some need several
/// blocks.
const SIZES: [usize; 19] = [5, 0, 1, 2048, 2049, 7000, 3, 3, 3, 3, 3, 3, 3, 3, 3, 0, 64, 9, 1];

/// Creates, for each operand of a rule, one tensor per element of [`SIZES`].
fn lists(target: Target<'_>, dtype: DType, lists: usize) -> Vec<Vec<Tensor>> {
    let of = |list: usize| {
        let make = |(i, &n): (usize, &usize)| {
            let values = samples(F32, n, (list * 50 + i) as u64).into_iter();
            // Maps values to [0, 1), where they reveal errors of the arithmetic.
            let values: Vec<f64> =
                values.map(|v| if v.is_finite() { v.abs().fract() } else { 0.5 }).collect();
            // Some tensors begin inside a vector.
            let skipped = usize::from((i + list) % 4 == 1);
            let values = [vec![0.5; skipped], values].concat();
            let all = Tensor::new(target, dtype, &[values.len()], &values);
            all.with(|l| l.narrow(0, skipped as isize, n))
        };
        SIZES.iter().enumerate().map(make).collect()
    };
    (0..lists).map(of).collect()
}

/// Applies the rule to one element of each operand, in double precision.
fn by_hand(rule: &UpdateRule, x: &mut [f64]) {
    let signed = |g: f64, maximize: bool| if maximize { -g } else { g };
    match *rule {
        UpdateRule::SGD { lr, momentum, nesterov, first, weight_decay, maximize } => {
            let mut g = signed(x[1], maximize) + weight_decay * x[0];
            if let Some((momentum, dampening)) = momentum {
                x[2] = if first { g } else { momentum * x[2] + (1.0 - dampening) * g };
                g = if nesterov { g + momentum * x[2] } else { x[2] };
            }
            x[0] -= lr * g;
        }
        UpdateRule::Adam { rate, root, kept, betas, eps, weight_decay, amsgrad, maximize } => {
            let g = signed(x[1], maximize) + weight_decay * x[0];
            x[2] += (1.0 - betas.0) * (g - x[2]);
            x[3] = betas.1 * x[3] + (1.0 - betas.1) * g * g;
            let mut square = x[3];
            if amsgrad {
                x[4] = x[4].max(square);
                square = x[4];
            }
            x[0] = kept * x[0] - rate * x[2] / (square.sqrt() / root + eps);
        }
        UpdateRule::RMSprop { lr, alpha, eps, weight_decay, momentum, centered, maximize } => {
            let g = signed(x[1], maximize) + weight_decay * x[0];
            x[2] = alpha * x[2] + (1.0 - alpha) * g * g;
            let mut square = x[2];
            if centered {
                x[4] += (1.0 - alpha) * (g - x[4]);
                square -= x[4] * x[4];
            }
            let mut by = g / (square.sqrt() + eps);
            if let Some(momentum) = momentum {
                by += momentum * x[3];
                x[3] = by;
            }
            x[0] -= lr * by;
        }
        UpdateRule::Scale => x[0] *= 0.25,
    }
}

fn rules() -> Vec<UpdateRule> {
    let mut all = Vec::new();
    for flag in [false, true] {
        for momentum in [None, Some((0.9, 0.25))] {
            let first = flag && momentum.is_some();
            let (lr, weight_decay) = (0.125, if flag { 0.01 } else { 0.0 });
            all.push(UpdateRule::SGD {
                lr,
                momentum,
                nesterov: !flag,
                first,
                weight_decay,
                maximize: flag,
            });
            // Not centered, because the variance of these unrelated states could be negative.
            all.push(UpdateRule::RMSprop {
                lr,
                alpha: 0.75,
                eps: 1e-3,
                weight_decay,
                momentum: momentum.map(|momentum| momentum.0),
                centered: false,
                maximize: flag,
            });
        }
        all.push(UpdateRule::Adam {
            rate: 0.125,
            root: 0.5,
            kept: 0.875,
            betas: (0.9, 0.95),
            eps: 1e-3,
            weight_decay: if flag { 0.01 } else { 0.0 },
            amsgrad: flag,
            maximize: !flag,
        });
    }
    all.push(UpdateRule::Scale);
    all
}

fn every_rule(target: Target<'_>) {
    for (dtype, tolerance) in [(F64, 1e-13), (F32, 1e-5), (F16, 4e-3), (BF16, 3e-2)] {
        for rule in rules() {
            let all = lists(target, dtype, LISTS);
            let before: Vec<Vec<Vec<f64>>> =
                all.iter().map(|list| list.iter().map(|t| t.floats(target)).collect()).collect();
            let state = |i: usize| [2, 3, 4].map(|list: usize| Some(all[list][i].view()));
            let tensors: Vec<Tensors<'_>> = (0..SIZES.len())
                .map(|i| Tensors {
                    param: all[0][i].view(),
                    grad: Some(all[1][i].view()),
                    state: state(i),
                })
                .collect();
            let rates = Tensor::new(target, F64, &[1], &[0.25]);
            let rates = matches!(rule, UpdateRule::Scale).then_some(rates.view());
            step(target, &rule, &tensors, rates, None).unwrap();
            for (i, &n) in SIZES.iter().enumerate() {
                let after: Vec<Vec<f64>> = all.iter().map(|list| list[i].floats(target)).collect();
                for e in 0..n {
                    let mut x: Vec<f64> = before.iter().map(|list| list[i][e]).collect();
                    by_hand(&rule, &mut x);
                    for (list, expected) in x.iter().enumerate() {
                        let value = after[list][e];
                        let near = (value - expected).abs() <= tolerance * expected.abs().max(1.0);
                        assert!(
                            near,
                            "{rule:?} {dtype}: {value} for {expected}, operand {list} of tensor {i}"
                        );
                    }
                }
            }
        }
    }
}

/// Rates in memory have the same effect as rates in the rule.
fn rates_from_memory(target: Target<'_>) {
    let rule = |rate: f64, root: f64, kept: f64| UpdateRule::Adam {
        rate,
        root,
        kept,
        betas: (0.9, 0.95),
        eps: 1e-3,
        weight_decay: 0.0,
        amsgrad: false,
        maximize: false,
    };
    let run = |rule: UpdateRule, rates: Option<&[f64]>| {
        let all = lists(target, F32, LISTS);
        let of = |i: usize| Tensors {
            param: all[0][i].view(),
            grad: Some(all[1][i].view()),
            state: [Some(all[2][i].view()), Some(all[3][i].view()), None],
        };
        let tensors: Vec<Tensors<'_>> = (0..SIZES.len()).map(of).collect();
        let rates = rates.map(|rates| Tensor::new(target, F64, &[rates.len()], rates));
        step(target, &rule, &tensors, rates.as_ref().map(Tensor::view), None).unwrap();
        all[0].iter().map(|t| t.floats(target)).collect::<Vec<_>>()
    };
    let told = run(rule(0.3, 0.7, 0.9), None);
    assert_eq!(told, run(rule(9.0, 9.0, 9.0), Some(&[0.3, 0.7, 0.9])));
    assert_ne!(told, run(rule(9.0, 9.0, 9.0), None));
}

/// A step with a `grad_scale` gives the result of a step with unscaled gradients, and unscales the
/// gradients in place. A step whose `found_inf` is set changes nothing.
fn scaled_steps(target: Target<'_>) {
    let number = |value: f64| Tensor::new(target, F32, &[], &[value]);
    for dtype in [F64, F32, F16, BF16] {
        for rule in rules() {
            if matches!(rule, UpdateRule::Scale | UpdateRule::SGD { first: true, .. }) {
                continue;
            }
            let run = |factor: f64, found_inf: f64, scale: Option<f64>| {
                let mut all = lists(target, dtype, LISTS);
                for grad in &mut all[1] {
                    let scaled: Vec<f64> =
                        grad.floats(target).into_iter().map(|g| g * factor).collect();
                    *grad = Tensor::new(target, dtype, &[scaled.len()], &scaled);
                }
                let of = |i: usize| Tensors {
                    param: all[0][i].view(),
                    grad: Some(all[1][i].view()),
                    state: [2, 3, 4].map(|list: usize| Some(all[list][i].view())),
                };
                let tensors: Vec<Tensors<'_>> = (0..SIZES.len()).map(of).collect();
                let (found_inf, scale) = (number(found_inf), scale.map(number));
                let grad_scale = scale.as_ref().map(Tensor::view);
                let scaling = GradScaling { found_inf: found_inf.view(), grad_scale };
                step(target, &rule, &tensors, None, Some(scaling)).unwrap();
                let values = |list: &Vec<Tensor>| -> Vec<Vec<f64>> {
                    list.iter().map(|t| t.floats(target)).collect()
                };
                all.iter().map(values).collect::<Vec<_>>()
            };
            let plain = run(1.0, 0.0, None);
            assert_eq!(run(8.0, 0.0, Some(8.0)), plain, "{rule:?} {dtype}");
            let skipped = run(8.0, 1.0, Some(8.0));
            assert_ne!(skipped[0], plain[0], "{rule:?} {dtype}");
            let before = lists(target, dtype, LISTS);
            for list in [0, 2, 3, 4] {
                for (after, before) in skipped[list].iter().zip(&before[list]) {
                    assert_eq!(*after, before.floats(target), "{rule:?} {dtype}, list {list}");
                }
            }
        }
    }
}

fn gradients_are_checked_and_unscaled(target: Target<'_>) {
    let (scale, all) = (Tensor::new(target, F32, &[], &[8.0]), [F64, F32, F16, BF16]);
    for dtype in all {
        // More gradients than one launch checks.
        let grads: Vec<Tensor> = (0..4).flat_map(|_| lists(target, dtype, 1).remove(0)).collect();
        let views: Vec<View<'_>> = grads.iter().map(Tensor::view).collect();
        let before: Vec<Vec<f64>> = grads.iter().map(|t| t.floats(target)).collect();
        let found_inf = || Tensor::new(target, F32, &[1], &[0.0]);
        let is_found = |found_inf: &Tensor| found_inf.floats(target)[0];
        let found = found_inf();
        check_and_unscale(target, &views, None, found.view()).unwrap();
        assert_eq!(is_found(&found), 0.0);
        let values = || grads.iter().map(|t| t.floats(target)).collect::<Vec<_>>();
        assert_eq!(values(), before, "a check changes nothing");
        check_and_unscale(target, &views, Some(scale.view()), found.view()).unwrap();
        assert_eq!(is_found(&found), 0.0);
        for (after, before) in values().iter().flatten().zip(before.iter().flatten()) {
            // The division of small `f16` numbers loses digits.
            assert!((after - before / 8.0).abs() < 1e-7, "{dtype}: {after} of {before}");
        }
        for (which, bad) in [(5, f64::INFINITY), (24, f64::NEG_INFINITY), (70, f64::NAN)] {
            let mut values = grads[which].floats(target);
            *values.last_mut().unwrap() = bad;
            let bad = Tensor::new(target, dtype, &[values.len()], &values);
            let mut views = views.clone();
            views[which] = bad.view();
            for scale in [None, Some(scale.view())] {
                let found = found_inf();
                check_and_unscale(target, &views, scale, found.view()).unwrap();
                assert_eq!(is_found(&found), 1.0, "{dtype}, gradient {which}");
                check_and_unscale(target, &views[..2], scale, found.view()).unwrap();
                assert_eq!(is_found(&found), 1.0, "a later check keeps `found_inf` set");
            }
        }
    }
}

fn scales_grow_and_shrink(target: Target<'_>) {
    let cases = [
        // Scale, growth tracker and `found_inf`; then the next scale and tracker.
        ((8.0, 1, 0.0), (8.0, 2)),
        ((8.0, 2, 0.0), (16.0, 0)),
        ((8.0, 2, 1.0), (2.0, 0)),
        ((3e38, 2, 0.0), (3e38, 0)),
        ((8.0, 7, 0.0), (8.0, 8)),
    ];
    for ((scale, tracker, found_inf), (new_scale, new_tracker)) in cases {
        let number = |dtype, value: f64| Tensor::new(target, dtype, &[], &[value]);
        let (scale, tracker) = (number(F32, scale), number(DType::I32, f64::from(tracker)));
        let found = number(F32, found_inf);
        let tensors = [scale.view(), tracker.view(), found.view()];
        update_scale(target, tensors, (2.0, 0.25), 3).unwrap();
        let after = (scale.floats(target)[0], tracker.floats(target)[0]);
        assert_eq!(after, (f64::from(new_scale as f32), f64::from(new_tracker)));
    }
}

fn sums_of_squares_are_right(target: Target<'_>) {
    for (dtype, tolerance) in [(F64, 1e-13), (F32, 1e-5), (F16, 1e-5), (BF16, 1e-5)] {
        let tensors = lists(target, dtype, 1).remove(0);
        let views: Vec<View<'_>> = tensors.iter().map(Tensor::view).collect();
        let count = partial_sums(&views);
        let out = Tensor::garbage(target, sum_dtype(dtype), &[count]);
        sum_squares(target, &views, out.view()).unwrap();
        let sum: f64 = out.floats(target).into_iter().sum();
        let values = tensors.iter().flat_map(|t| t.floats(target));
        let expected: f64 = values.map(|x| x * x).sum();
        assert!((sum - expected).abs() <= tolerance * expected, "{dtype}: {sum} for {expected}");
    }
}

fn every_op(target: Target<'_>) {
    every_rule(target);
    sums_of_squares_are_right(target);
    rates_from_memory(target);
    scaled_steps(target);
    gradients_are_checked_and_unscaled(target);
    scales_grow_and_shrink(target);
}

#[test]
fn steps_are_right_on_the_cpu_and_on_simulated_devices() {
    on_every_target(every_op);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_steps_are_right() {
    on_gpu(every_op);
}

#[test]
fn bad_input_is_an_error() {
    on_every_target(|target| {
        let t = |dtype, sizes: &[usize]| Tensor::garbage(target, dtype, sizes);
        let (p, g, wide, long) = (t(F32, &[3]), t(F32, &[3]), t(F64, &[3]), t(F32, &[4]));
        let rule = UpdateRule::SGD {
            lr: 0.1,
            momentum: None,
            nesterov: false,
            first: false,
            weight_decay: 0.0,
            maximize: false,
        };
        let wrong = |grad: Option<View<'_>>, rates: Option<View<'_>>| {
            let tensors = Tensors { param: p.view(), grad, state: [None; 3] };
            step(target, &rule, &[tensors], rates, None).unwrap_err()
        };
        assert!(matches!(wrong(Some(wide.view()), None).kind(), ErrorKind::DTypeMismatch { .. }));
        assert!(matches!(wrong(Some(long.view()), None).kind(), ErrorKind::ShapeMismatch { .. }));
        assert!(matches!(wrong(Some(p.view()), None).kind(), ErrorKind::OverlappingOperands));
        assert!(wrong(None, None).to_string().contains("operand 1 of a parameter is missing"));
        assert!(wrong(Some(g.view()), Some(p.view())).to_string().contains("`float64` elements"));
        // A launch takes 16 parameters. The last one here is in the second launch.
        let many: Vec<_> = (0..32).map(|_| t(F32, &[3])).collect();
        let mut tensors: Vec<_> = many
            .chunks(2)
            .map(|pair| Tensors {
                param: pair[0].view(),
                grad: Some(pair[1].view()),
                state: [None; 3],
            })
            .collect();
        let other = t(F64, &[3]);
        tensors.push(Tensors { param: wide.view(), grad: Some(other.view()), state: [None; 3] });
        let mixed = step(target, &rule, &tensors, None, None).unwrap_err();
        assert!(matches!(mixed.kind(), ErrorKind::DTypeMismatch { .. }), "{mixed}");
        let repeated = Layout::contiguous(&[1]).unwrap().expand(&[3]).unwrap();
        let repeated = View { layout: &repeated, ..g.view() };
        assert!(wrong(Some(repeated), None).to_string().contains("contiguous"));
    });
}
