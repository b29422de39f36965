//! Tests of fused steps, which update many parameters in one launch, and of captured steps.

use warpline::{DType, Device, Result, Tensor, full, tensor};
use warpline_nn::optim::{
    Adam, AdamOptions, AdamW, AdamWOptions, Optim, Optimizer, ParamGroup, RMSprop, RMSpropOptions,
    Rule, SGDOptions, clip_grad_norm_,
};

use super::{close, params, set_grads, values};
use crate::common::{World, worlds};

/// A parameter that is not contiguous is updated with tensor ops, with the same result.
fn alone_and_together<R: Rule>(options: R, device: Device) -> Result<()> {
    let make = || -> Result<Tensor> {
        let values: Vec<f64> = (0..600).map(|i| (f64::from(i) * 0.3).sin()).collect();
        tensor(values, device)?.view([20, 30])
    };
    let row = make()?.requires_grad_(true)?;
    let column = make()?.t()?.contiguous()?.t()?.detach().requires_grad_(true)?;
    assert!(row.is_contiguous() && !column.is_contiguous());
    let both = [row.clone(), column.clone()];
    let mut optimizer = Optim::<R>::new(both.to_vec(), options.clone())?;
    for i in 0..4 {
        set_grads(&both, 3 * i)?;
        let grad = row.grad().expect("just set").sub(0.01 * i as f64)?;
        row.set_grad(&grad.clone())?;
        column.set_grad(&grad)?;
        optimizer.step()?;
    }
    let values = values(&both)?;
    for (row, column) in values[0].iter().zip(&values[1]) {
        assert!((row - column).abs() < 1e-12, "{options:?}: {row} and {column}");
    }
    Ok(())
}

#[test]
fn a_fused_step_equals_the_steps_of_single_parameters() {
    worlds(1, |world: &World| {
        for place in world.places() {
            for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
                let sgd = SGDOptions::new().lr(0.1).momentum(momentum).nesterov(nesterov);
                alone_and_together(sgd, place)?;
                alone_and_together(sgd.weight_decay(0.1).maximize(true), place)?;
                let rms = RMSpropOptions::new().momentum(momentum).centered(nesterov);
                alone_and_together(rms, place)?;
            }
            for (amsgrad, capturable) in [(false, false), (true, false), (false, true)] {
                let adam = AdamOptions::new().amsgrad(amsgrad).capturable(capturable);
                alone_and_together(adam, place)?;
                alone_and_together(adam.weight_decay(0.1).maximize(true), place)?;
                let adamw = AdamWOptions::new().lr(0.1).amsgrad(amsgrad).capturable(capturable);
                alone_and_together(adamw, place)?;
            }
        }
        Ok(())
    });
}

/// Checks that replays of a captured step with clipping equal eager steps. Each step has another learning rate.
fn replays<R: Rule>(options: R) -> Result<()> {
    let device = Device::cuda(0);
    let (one, two) = (params(device, DType::F32)?, params(device, DType::F32)?);
    let optimizer = |params: &[Tensor]| {
        let group = ParamGroup::new(params.to_vec()).lr_tensor(&full([], 0.1, device)?);
        Optim::new(vec![group], options.clone())
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
            two.grad().expect("there since the first step").copy_(&grad, ())?;
            one.set_grad(&grad)?;
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
    replays(SGDOptions::new().momentum(0.9).nesterov(true))?;
    replays(AdamOptions::new().capturable(true))?;
    replays(AdamWOptions::new().capturable(true).amsgrad(true))?;
    replays(RMSpropOptions::new().momentum(0.9).centered(true))
}

#[test]
fn a_step_that_cannot_be_captured_is_an_error() {
    worlds(1, |_| {
        let params = params(Device::cuda(0), DType::F32)?;
        set_grads(&params, 0)?;
        let mut adam = Adam::new(params.clone(), ())?;
        adam.step()?;
        let error = warpline::cuda::graph(|| adam.step()).expect_err("the host counts").to_string();
        assert!(error.contains("capturable"), "{error}");
        let mut rms = RMSprop::new(params, ())?;
        let error = warpline::cuda::graph(|| rms.step()).expect_err("the first step").to_string();
        assert!(error.contains("take a step before"), "{error}");
        Ok(())
    });
}

/// After a step without a gradient, a parameter has its own step counter.
#[test]
fn a_parameter_without_a_gradient_gets_its_own_step_counter() {
    worlds(1, |world: &World| {
        for place in world.places() {
            let run = |capturable: bool| -> Result<(Vec<Vec<f64>>, Vec<f64>)> {
                let params = params(place, DType::F64)?;
                let options = AdamOptions::new().lr(0.1).capturable(capturable);
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

/// One launch updates up to sixteen parameters.
#[test]
fn sixteen_parameters_take_one_launch() {
    let sim = crate::boxes::SimBox::lazy(1);
    sim.enter(|| {
        let device = Device::cuda(0);
        let params: Result<Vec<Tensor>> =
            (0..32).map(|i| full([10 + i], 1.0, device)?.requires_grad_(true)).collect();
        let params = params?;
        let mut adam = AdamW::new(params.clone(), ())?;
        set_grads(&params, 0)?;
        adam.step()?;
        let before = sim.count(warpline_cuda_sys_safe::sim::CallKind::Launch);
        adam.step()?;
        assert_eq!(sim.count(warpline_cuda_sys_safe::sim::CallKind::Launch) - before, 2);
        clip_grad_norm_(&params, 1.0, ())?;
        let clip = sim.count(warpline_cuda_sys_safe::sim::CallKind::Launch) - before - 2;
        assert!(clip <= 12, "{clip} launches");
        Ok(())
    });
}
