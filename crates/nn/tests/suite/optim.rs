//! Optimizers, schedules, clipping, and states that training goes on from.

use warpline::{DType, Device, Result, Tensor, full, tensor};
use warpline_nn::StateDict;
use warpline_nn::optim::{
    Adam, AdamOptions, AdamW, AdamWOptions, Anneal, ConstantLR, CosineAnnealingLR,
    CosineAnnealingWarmRestarts, ExponentialLR, LinearLR, MultiStepLR, OneCycleLR, OneCycleOptions,
    OptimizerState, ParamGroup, PlateauOptions, ReduceLROnPlateau, RmsProp, RmsPropOptions,
    Scheduler, SchedulerState, SequentialLR, Sgd, SgdOptions, StepLR, clip_grad_norm_,
    clip_grad_value_,
};
use warpline_nn::optim::{Optim, Optimizer, Rule};

use crate::common::{World, worlds};

fn params(device: Device, dtype: DType) -> Result<Vec<Tensor>> {
    let make = |n: usize| {
        let values: Vec<f64> = (0..n).map(|i| (i as f64 * 0.7).sin()).collect();
        tensor(values, device)?.to(dtype)?.requires_grad_(true)
    };
    [3, 1, 2000].map(make).into_iter().collect()
}

/// Gradients of step `i`, none for the second parameter in every third.
fn set_grads(params: &[Tensor], i: usize) -> Result<()> {
    for (k, param) in params.iter().enumerate() {
        let none = k == 1 && i % 3 == 1;
        let grad = param.detach().mul(0.1 * (i as f64 + 1.0))?.sin()?.add(0.01 * k as f64)?;
        param.set_grad((!none).then_some(grad))?;
    }
    Ok(())
}

fn values(params: &[Tensor]) -> Result<Vec<Vec<f64>>> {
    params.iter().map(|p| p.detach().to(DType::F64)?.to_vec::<f64>()).collect()
}

/// What an optimizer makes of numbers one by one.
fn by_hand(step: impl Fn(f64, f64, &mut [f64; 4]) -> f64, steps: usize) -> Vec<f64> {
    let mut p: Vec<f64> = (0..3).map(|i| (i as f64 * 0.7).sin()).collect();
    let mut state = vec![[0.0; 4]; 3];
    for i in 0..steps {
        for (p, state) in p.iter_mut().zip(&mut state) {
            state[3] += 1.0;
            *p = step(*p, (*p * (0.1 * (i as f64 + 1.0))).sin(), state);
        }
    }
    p
}

fn stepped<R: Rule>(options: R, steps: usize, device: Device) -> Result<Vec<Vec<f64>>> {
    let params = params(device, DType::F64)?;
    let mut optimizer = Optim::new(params.clone(), options)?;
    for i in 0..steps {
        set_grads(&params, i)?;
        optimizer.step()?;
    }
    values(&params)
}

fn close(values: &[f64], expected: &[f64]) {
    for (value, expected) in values.iter().zip(expected) {
        assert!(
            (value - expected).abs() <= 1e-12 * expected.abs().max(1.0),
            "{values:?} {expected:?}"
        );
    }
}

#[test]
fn formulas_are_pytorchs() {
    worlds(1, |world: &World| {
        for place in world.places() {
            let sgd = SgdOptions {
                lr: 0.1,
                momentum: 0.9,
                dampening: 0.3,
                weight_decay: 0.01,
                ..SgdOptions::default()
            };
            let expected = by_hand(
                |p, g, s| {
                    let g = g + 0.01 * p;
                    s[0] = if s[3] == 1.0 { g } else { 0.9 * s[0] + 0.7 * g };
                    p - 0.1 * s[0]
                },
                4,
            );
            close(&stepped(sgd, 4, place)?[0], &expected);
            let adam = |amsgrad: bool, decoupled: bool| {
                by_hand(
                    move |p, g, s| {
                        let (g, p) =
                            if decoupled { (g, p * (1.0 - 0.1 * 0.01)) } else { (g + 0.01 * p, p) };
                        let g = if decoupled { g } else { g };
                        s[0] += 0.1 * (g - s[0]);
                        s[1] = 0.95 * s[1] + 0.05 * g * g;
                        s[2] = s[2].max(s[1]);
                        let v = if amsgrad { s[2] } else { s[1] };
                        let (c1, c2) = (1.0 - 0.9f64.powf(s[3]), 1.0 - 0.95f64.powf(s[3]));
                        p - 0.1 / c1 * (s[0] / (v.sqrt() / c2.sqrt() + 1e-6))
                    },
                    5,
                )
            };
            for amsgrad in [false, true] {
                let options = AdamOptions {
                    lr: 0.1,
                    betas: (0.9, 0.95),
                    eps: 1e-6,
                    weight_decay: 0.01,
                    amsgrad,
                    ..AdamOptions::default()
                };
                close(&stepped(options, 5, place)?[0], &adam(amsgrad, false));
                let on_device = AdamOptions { capturable: true, ..options };
                close(&stepped(on_device, 5, place)?[0], &adam(amsgrad, false));
                let options = AdamWOptions {
                    lr: 0.1,
                    betas: (0.9, 0.95),
                    eps: 1e-6,
                    weight_decay: 0.01,
                    amsgrad,
                    ..AdamWOptions::default()
                };
                close(&stepped(options, 5, place)?[0], &adam(amsgrad, true));
            }
            for centered in [false, true] {
                let options = RmsPropOptions {
                    alpha: 0.9,
                    momentum: 0.5,
                    weight_decay: 0.01,
                    centered,
                    ..RmsPropOptions::default()
                };
                let expected = by_hand(
                    |p, g, s| {
                        let g = g + 0.01 * p;
                        s[0] = 0.9 * s[0] + 0.1 * g * g;
                        s[2] += 0.1 * (g - s[2]);
                        let size = if centered { (s[0] - s[2] * s[2]).sqrt() } else { s[0].sqrt() };
                        s[1] = 0.5 * s[1] + g / (size + 1e-8);
                        p - 0.01 * s[1]
                    },
                    4,
                );
                close(&stepped(options, 4, place)?[0], &expected);
            }
        }
        Ok(())
    });
}

#[test]
fn maximizing_is_minimizing_the_negative() {
    worlds(1, |_| {
        let run = |maximize: bool| {
            let weight = tensor([1f64, -2.0], ())?.requires_grad_(true)?;
            let options = AdamWOptions { maximize, ..AdamWOptions::default() };
            let mut adam = AdamW::new(vec![weight.clone()], options)?;
            for _ in 0..3 {
                let grad = weight.detach().square()?;
                weight.set_grad(Some(if maximize { grad.neg()? } else { grad }))?;
                adam.step()?;
            }
            weight.detach().to_vec::<f64>()
        };
        assert_eq!(run(true)?, run(false)?);
        Ok(())
    });
}

/// A run that is saved as a file's tensors and goes on gives what one gives that was not interrupted, to the bit.
fn resumes<R: Rule>(options: R, other: R, device: Device) -> Result<()> {
    let (one, two) = (params(device, DType::F32)?, params(device, DType::F32)?);
    let mut whole = Optim::new(one.clone(), options.clone())?;
    for i in 0..3 {
        set_grads(&one, i)?;
        whole.step()?;
    }
    let saved: StateDict = whole.state_dict()?.to_tensors()?;
    for (one, two) in one.iter().zip(&two) {
        two.detach().copy_(one, false)?;
    }
    let mut again = Optim::new(two.clone(), other)?;
    again.load_state_dict(&OptimizerState::from_tensors(&saved)?)?;
    assert_eq!(again.param_groups()[0].options.settings(), options.settings());
    for i in 3..6 {
        set_grads(&one, i)?;
        whole.step()?;
        set_grads(&two, i)?;
        again.step()?;
    }
    assert_eq!(values(&one)?, values(&two)?);
    // What was saved is a copy for who goes on.
    let (one, two) = (whole.state_dict()?.to_tensors()?, again.state_dict()?.to_tensors()?);
    assert!(one.names().eq(two.names()), "{one:?} {two:?}");
    for ((name, one), (_, two)) in one.iter().zip(two.iter()) {
        let of = |t: &Tensor| t.to(DType::F64)?.to_vec::<f64>();
        assert_eq!(of(one)?, of(two)?, "{name}");
    }
    Ok(())
}

#[test]
fn runs_resume_to_the_bit() {
    worlds(1, |world: &World| {
        for place in world.places() {
            let momentum = SgdOptions { momentum: 0.9, nesterov: true, ..SgdOptions::default() };
            resumes(momentum, SgdOptions::default(), place)?;
            let amsgrad = AdamOptions { amsgrad: true, lr: 0.3, ..AdamOptions::default() };
            resumes(amsgrad, AdamOptions::default(), place)?;
            let on_device = AdamWOptions { capturable: true, ..AdamWOptions::default() };
            resumes(on_device, AdamWOptions::default(), place)?;
            let rms = RmsPropOptions { momentum: 0.1, centered: true, ..RmsPropOptions::default() };
            resumes(rms, RmsPropOptions::default(), place)?;
        }
        Ok(())
    });
}

#[test]
fn states_have_pytorchs_names_and_what_does_not_fit_changes_nothing() {
    worlds(1, |_| {
        let params = params(Device::Cpu, DType::F32)?;
        let mut adam = Adam::new(params.clone(), AdamOptions::default())?;
        set_grads(&params, 1)?;
        adam.step()?;
        let state = adam.state_dict()?;
        assert_eq!(state.state.keys().collect::<Vec<_>>(), [&0, &2], "the second had no gradient");
        let names: Vec<&str> = state.state[&0].keys().map(String::as_str).collect();
        assert_eq!(names, ["exp_avg", "exp_avg_sq", "step"]);
        let tensors = state.to_tensors()?;
        assert!(
            tensors.get("state.2.exp_avg").is_some() && tensors.get("param_groups.0.lr").is_some()
        );
        let mut wrong = state.clone();
        wrong.param_groups[0].settings.insert("lr".into(), 5.0);
        wrong.state.get_mut(&2).unwrap().insert("exp_avg".into(), full([4], 1.0, ())?);
        let error = adam.load_state_dict(&wrong).expect_err("a shape is wrong").to_string();
        assert!(error.contains("exp_avg of parameter 2") && error.contains("[4]"), "{error}");
        assert_eq!(adam.lr(0), 1e-3);
        let mut sgd = Sgd::new(params, SgdOptions::default())?;
        let error = sgd.load_state_dict(&state).expect_err("another optimizer's").to_string();
        assert!(error.contains("Sgd has no setting amsgrad"), "{error}");
        Ok(())
    });
}

#[test]
fn groups_have_their_own_settings_and_gradients_come_and_go() {
    worlds(1, |_| {
        let p = params(Device::Cpu, DType::F64)?;
        let slow = SgdOptions { lr: 0.1, ..SgdOptions::default() };
        let groups = vec![
            ParamGroup::new(p[..1].to_vec(), slow),
            ParamGroup::new(p[1..].to_vec(), SgdOptions { lr: 0.0, ..slow }),
        ];
        let mut sgd = Sgd::with_groups(groups)?;
        let before = values(&p)?;
        set_grads(&p, 0)?;
        sgd.step()?;
        let after = values(&p)?;
        assert!(before[0] != after[0] && before[1..] == after[1..]);
        sgd.zero_grad_in_place()?;
        assert_eq!(p[2].grad().unwrap().to_vec::<f64>()?, [0.0; 2000]);
        sgd.zero_grad()?;
        assert!(p.iter().all(|p| p.grad().is_none()));
        sgd.param_groups_mut()[1].options.lr = 0.5;
        assert_eq!((sgd.lr(0), sgd.lr(1)), (0.1, 0.5));
        for (group, said) in [
            (ParamGroup::new(vec![], slow), "empty"),
            (ParamGroup::new(p[..1].to_vec(), slow), "given before"),
            (ParamGroup::new(vec![p[0].mul(2.0)?], slow), "leaves"),
            (ParamGroup::new(vec![full([1], 0.0, ())?], SgdOptions { lr: -1.0, ..slow }), "lr"),
        ] {
            let error = sgd.add_param_group(group).expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
        }
        Ok(())
    });
}

#[test]
fn clipping_scales_all_gradients_together() {
    worlds(1, |world: &World| {
        for place in world.places() {
            let p = params(place, DType::F64)?;
            set_grads(&p, 1)?;
            let before = p[0].grad().unwrap().to_vec::<f64>()?;
            let all = [&p[0], &p[2]].map(|p| p.grad().unwrap().to_vec::<f64>()).into_iter();
            let all: Vec<f64> = all.collect::<Result<Vec<_>>>()?.concat();
            for (kind, norm) in [
                (2.0, all.iter().map(|g| g * g).sum::<f64>().sqrt()),
                (1.0, all.iter().map(|g| g.abs()).sum()),
                (f64::INFINITY, all.iter().fold(0.0, |m: f64, g| m.max(g.abs()))),
            ] {
                set_grads(&p, 1)?;
                let total = clip_grad_norm_(&p, norm / 2.0, kind)?;
                close(&[total.item()?], &[norm]);
                let scale = norm / 2.0 / (norm + 1e-6);
                let expected: Vec<f64> = before.iter().map(|g| g * scale).collect();
                close(&p[0].grad().unwrap().to_vec::<f64>()?, &expected);
                // What is small enough stays.
                clip_grad_norm_(&p, norm, kind)?;
                close(&p[0].grad().unwrap().to_vec::<f64>()?, &expected);
            }
            set_grads(&p, 1)?;
            clip_grad_value_(&p, 0.05)?;
            let expected: Vec<f64> = before.iter().map(|g| g.clamp(-0.05, 0.05)).collect();
            close(&p[0].grad().unwrap().to_vec::<f64>()?, &expected);
        }
        assert_eq!(clip_grad_norm_(&[], 1.0, 2.0)?.item::<f32>()?, 0.0);
        Ok(())
    });
}

fn sgd_of(lr: f64) -> Result<Sgd> {
    let weight = full([1], 0.0, ())?.requires_grad_(true)?;
    Sgd::new(vec![weight], SgdOptions { lr, momentum: 0.9, ..SgdOptions::default() })
}

/// The rates of epochs 0 to `epochs`.
fn rates(
    lr: f64,
    epochs: usize,
    make: impl Fn(&mut Sgd) -> Result<Box<dyn Scheduler>>,
) -> Result<Vec<f64>> {
    let mut sgd = sgd_of(lr)?;
    let mut scheduler = make(&mut sgd)?;
    let mut all = vec![sgd.lr(0)];
    let mut saved: Option<(SchedulerState, OptimizerState)> = None;
    for epoch in 0..epochs {
        scheduler.step(&mut sgd)?;
        assert_eq!(scheduler.last_lr(), [sgd.lr(0)]);
        all.push(sgd.lr(0));
        if epoch == epochs / 2 {
            saved = Some((scheduler.state_dict(), sgd.state_dict()?));
        }
    }
    // From the middle on again, with others.
    let (state, of_sgd) = saved.expect("a middle");
    let mut sgd = sgd_of(lr)?;
    let mut scheduler = make(&mut sgd)?;
    sgd.load_state_dict(&of_sgd)?;
    scheduler.load_state_dict(&SchedulerState::from_tensors(&state.to_tensors()?)?)?;
    for epoch in epochs / 2 + 1..epochs {
        scheduler.step(&mut sgd)?;
        assert_eq!(sgd.lr(0), all[epoch + 1], "epoch {epoch}");
    }
    Ok(all)
}

macro_rules! boxed {
    ($scheduler:ident($($argument:expr),*)) => {
        |sgd: &mut Sgd| Ok(Box::new($scheduler::new(sgd, $($argument),*)?) as Box<dyn Scheduler>)
    };
}

#[test]
fn schedules_have_pytorchs_values() {
    let check = |expected: &[f64], values: Result<Vec<f64>>| close(&values.unwrap(), expected);
    check(&[1.0, 1.0, 0.1, 0.1, 0.01, 0.01], rates(1.0, 5, boxed!(StepLR(2, 0.1))));
    check(&[1.0, 0.5, 0.5, 0.125, 0.125], rates(1.0, 4, boxed!(MultiStepLR(&[1, 3, 3], 0.5))));
    check(&[1.0, 0.5, 0.25, 0.125], rates(1.0, 3, boxed!(ExponentialLR(0.5))));
    check(&[0.5, 0.5, 1.0, 1.0], rates(1.0, 3, boxed!(ConstantLR(0.5, 2))));
    check(&[0.5, 0.625, 0.75, 0.875, 1.0, 1.0], rates(1.0, 5, boxed!(LinearLR(0.5, 1.0, 4))));
    let cosine = |i: f64| 0.1 + 0.45 * (1.0 + (std::f64::consts::PI * i / 4.0).cos());
    // Beyond the least rate it goes up again.
    let expected: Vec<f64> = (0..10).map(|i| cosine(f64::from(i))).collect();
    check(&expected, rates(1.0, 9, boxed!(CosineAnnealingLR(4, 0.1))));
    let expected = [0.0, 1.0, 2.0, 3.0, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 0.0].map(cosine);
    check(&expected, rates(1.0, 12, boxed!(CosineAnnealingWarmRestarts(4, 2, 0.1))));
    check(
        &[0.25, 0.5, 1.0, 1.0, 0.5, 0.25],
        rates(1.0, 5, |sgd| {
            let warm = Box::new(LinearLR::new(sgd, 0.25, 1.0, 3)?);
            let down = Box::new(ExponentialLR::new(sgd, 0.5)?);
            let all = SequentialLR::new(sgd, vec![warm, down], &[3])?;
            Ok(Box::new(all) as Box<dyn Scheduler>)
        })
        .map(|mut rates| {
            // A quarter, a half, three quarters, and from there the other one.
            close(&rates[..3], &[0.25, 0.5, 0.75]);
            rates[2] = 1.0;
            rates
        }),
    );
}

#[test]
fn one_cycle_goes_up_and_down_and_momentum_the_other_way() {
    let mut sgd = sgd_of(1.0).unwrap();
    let options = OneCycleOptions {
        pct_start: 0.4,
        anneal_strategy: Anneal::Linear,
        div_factor: 10.0,
        final_div_factor: 100.0,
        ..OneCycleOptions::default()
    };
    let mut scheduler = OneCycleLR::new(&mut sgd, 1.0, 10, options).unwrap();
    let mut all = vec![(sgd.lr(0), sgd.setting(0, "momentum").unwrap())];
    for _ in 1..10 {
        scheduler.step(&mut sgd).unwrap();
        all.push((sgd.lr(0), sgd.setting(0, "momentum").unwrap()));
    }
    let (rates, momenta): (Vec<f64>, Vec<f64>) = all.into_iter().unzip();
    let up = |i: f64| 0.1 + 0.9 * i / 3.0;
    let down = |i: f64| 1.0 + (0.001 - 1.0) * i / 6.0;
    let expected: Vec<f64> = (0..4).map(|i| up(f64::from(i))).collect();
    close(&rates[..4], &expected);
    let expected: Vec<f64> = (0..7).map(|i| down(f64::from(i))).collect();
    close(&rates[3..], &expected);
    close(&[momenta[0], momenta[3], momenta[9]], &[0.95, 0.85, 0.95]);
    scheduler.step(&mut sgd).unwrap();
    let error = scheduler.step(&mut sgd).expect_err("beyond the end").to_string();
    assert!(error.contains("step 11 is beyond the 10 steps"), "{error}");
}

#[test]
fn rates_go_down_on_a_plateau() {
    let mut sgd = sgd_of(1.0).unwrap();
    let options =
        PlateauOptions { patience: 1, cooldown: 1, factor: 0.5, ..PlateauOptions::default() };
    let mut scheduler = ReduceLROnPlateau::new(&sgd, options).unwrap();
    let mut all = Vec::new();
    for loss in [1.0, 0.5, 0.5, 0.6, 0.7, 0.7, 0.7, 0.1] {
        scheduler.step(&mut sgd, loss).unwrap();
        all.push(sgd.lr(0));
    }
    assert_eq!(all, [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25]);
}

#[test]
fn a_rate_in_a_tensor_is_what_is_stepped_by() {
    worlds(1, |world: &World| {
        for place in world.places() {
            let weight = full([2], 1.0, place)?.requires_grad_(true)?;
            let lr = full([], 0.5, place)?;
            let group = ParamGroup::new(vec![weight.clone()], SgdOptions::default());
            let mut sgd = Sgd::with_groups(vec![group.with_lr_tensor(lr)?])?;
            weight.set_grad(Some(full([2], 1.0, place)?))?;
            sgd.step()?;
            assert_eq!(weight.detach().to_vec::<f32>()?, [0.5; 2]);
            sgd.set_lr(0, 0.25)?;
            sgd.step()?;
            assert_eq!(weight.detach().to_vec::<f32>()?, [0.25; 2]);
        }
        let _ = RmsProp::new(params(Device::Cpu, DType::F32)?, RmsPropOptions::default())?;
        Ok(())
    });
}

/// A parameter that does not lie row by row is stepped by ops of its own, and comes to the same.
fn alone_and_together<R: Rule>(options: R, device: Device) -> Result<()> {
    let make = || -> Result<Tensor> {
        let values: Vec<f64> = (0..600).map(|i| (f64::from(i) * 0.3).sin()).collect();
        tensor(values, device)?.view([20, 30])
    };
    let row = make()?.requires_grad_(true)?;
    let column = make()?.t()?.contiguous()?.t()?.detach().requires_grad_(true)?;
    assert!(row.is_contiguous() && !column.is_contiguous());
    let both = [row.clone(), column.clone()];
    let mut optimizer = Optim::new(both.to_vec(), options.clone())?;
    for i in 0..4 {
        set_grads(&both, 3 * i)?;
        let grad = row.grad().expect("just set").sub(0.01 * i as f64)?;
        row.set_grad(Some(grad.clone()))?;
        column.set_grad(Some(grad))?;
        optimizer.step()?;
    }
    let values = values(&both)?;
    for (row, column) in values[0].iter().zip(&values[1]) {
        assert!((row - column).abs() < 1e-12, "{options:?}: {row} and {column}");
    }
    Ok(())
}

#[test]
fn steps_of_many_are_those_of_each() {
    worlds(1, |world: &World| {
        for place in world.places() {
            for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
                let sgd = SgdOptions { lr: 0.1, momentum, nesterov, ..SgdOptions::default() };
                alone_and_together(sgd, place)?;
                alone_and_together(SgdOptions { weight_decay: 0.1, maximize: true, ..sgd }, place)?;
                let rms = RmsPropOptions { momentum, centered: nesterov, ..Default::default() };
                alone_and_together(rms, place)?;
            }
            for (amsgrad, capturable) in [(false, false), (true, false), (false, true)] {
                let adam = AdamOptions { amsgrad, capturable, ..AdamOptions::default() };
                alone_and_together(adam, place)?;
                alone_and_together(
                    AdamOptions { weight_decay: 0.1, maximize: true, ..adam },
                    place,
                )?;
                let adamw = AdamWOptions { lr: 0.1, amsgrad, capturable, ..Default::default() };
                alone_and_together(adamw, place)?;
            }
        }
        Ok(())
    });
}

/// A step that was captured, with its clipping, is replayed as it would be taken, with another rate each time.
fn replays<R: Rule>(options: R) -> Result<()> {
    let device = Device::cuda(0);
    let (one, two) = (params(device, DType::F32)?, params(device, DType::F32)?);
    let optimizer = |params: &[Tensor]| {
        let group = ParamGroup::new(params.to_vec(), options.clone());
        Optim::with_groups(vec![group.with_lr_tensor(full([], 0.1, device)?)?])
    };
    let (mut eager, mut captured) = (optimizer(&one)?, optimizer(&two)?);
    let step = |params: &[Tensor], optimizer: &mut Optim<R>| {
        clip_grad_norm_(params, 0.5, 2.0)?;
        optimizer.step()
    };
    set_grads(&one, 0)?;
    set_grads(&two, 0)?;
    step(&one, &mut eager)?;
    step(&two, &mut captured)?;
    let (graph, ()) = warpline::cuda::graph(|| step(&two, &mut captured))?;
    for i in 1..5 {
        for (one, two) in one.iter().zip(&two) {
            let grad = one.detach().mul(0.1 * f64::from(i))?.cos()?;
            two.grad().expect("there since the first step").copy_(&grad, false)?;
            one.set_grad(Some(grad))?;
        }
        for optimizer in [&mut eager, &mut captured] {
            optimizer.set_lr(0, 0.1 / f64::from(i))?;
        }
        step(&one, &mut eager)?;
        graph.replay()?;
        assert_eq!(values(&one)?, values(&two)?, "{options:?}, step {i}");
    }
    Ok(())
}

#[test]
fn captured_steps_are_replayed() {
    worlds(1, |_| all_replay());
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_captured_steps_are_replayed() {
    crate::common::gpu(1, warpline::SyncPolicy::Auto, |_| all_replay());
}

fn all_replay() -> Result<()> {
    replays(SgdOptions { momentum: 0.9, nesterov: true, ..SgdOptions::default() })?;
    replays(AdamOptions { capturable: true, ..AdamOptions::default() })?;
    replays(AdamWOptions { capturable: true, amsgrad: true, ..AdamWOptions::default() })?;
    replays(RmsPropOptions { momentum: 0.9, centered: true, ..RmsPropOptions::default() })
}

#[test]
fn what_cannot_be_captured_says_so() {
    worlds(1, |_| {
        let params = params(Device::cuda(0), DType::F32)?;
        set_grads(&params, 0)?;
        let mut adam = Adam::new(params.clone(), AdamOptions::default())?;
        adam.step()?;
        let error = warpline::cuda::graph(|| adam.step()).expect_err("the host counts").to_string();
        assert!(error.contains("capturable"), "{error}");
        let mut rms = RmsProp::new(params, RmsPropOptions::default())?;
        let error = warpline::cuda::graph(|| rms.step()).expect_err("the first step").to_string();
        assert!(error.contains("take a step before"), "{error}");
        Ok(())
    });
}

/// Parameters that stay behind are counted for themselves.
#[test]
fn counters_part_where_gradients_are_missing() {
    worlds(1, |world: &World| {
        for place in world.places() {
            let run = |capturable: bool| -> Result<(Vec<Vec<f64>>, Vec<f64>)> {
                let params = params(place, DType::F64)?;
                let options = AdamOptions { lr: 0.1, capturable, ..AdamOptions::default() };
                let mut adam = Adam::new(params.clone(), options)?;
                for i in 0..5 {
                    set_grads(&params, i)?;
                    adam.step()?;
                }
                let state = adam.state_dict()?.state;
                let steps = state.values().map(|of| Ok(of["step"].to_scalar()?.to_f64()));
                Ok((values(&params)?, steps.collect::<Result<Vec<_>>>()?))
            };
            let (host, device) = (run(false)?, run(true)?);
            assert_eq!((&host.1[..], &device.1[..]), (&[5.0, 3.0, 5.0][..], &[5.0, 3.0, 5.0][..]));
            for (host, device) in host.0.iter().zip(&device.0) {
                close(host, device);
            }
        }
        Ok(())
    });
}

/// What a step costs in launches does not grow with every parameter.
#[test]
fn sixteen_parameters_take_one_launch() {
    let sim = crate::boxes::SimBox::lazy(1);
    sim.enter(|| {
        let device = Device::cuda(0);
        let params: Result<Vec<Tensor>> =
            (0..32).map(|i| full([10 + i], 1.0, device)?.requires_grad_(true)).collect();
        let params = params?;
        let mut adam = AdamW::new(params.clone(), AdamWOptions::default())?;
        set_grads(&params, 0)?;
        adam.step()?;
        let before = sim.count(warpline_cuda_sys_safe::sim::CallKind::Launch);
        adam.step()?;
        assert_eq!(sim.count(warpline_cuda_sys_safe::sim::CallKind::Launch) - before, 2);
        clip_grad_norm_(&params, 1.0, 2.0)?;
        let clip = sim.count(warpline_cuda_sys_safe::sim::CallKind::Launch) - before - 2;
        assert!(clip <= 12, "{clip} launches");
        Ok(())
    });
}
