//! Tests of calls that a gradient scaler refuses.

use warpline::{DType, Device, ErrorKind, Result, SyncPolicy, full, ones, tensor};
use warpline_nn::amp::{GradScaler, GradScalerOptions};
use warpline_nn::optim::{Adadelta, Adam, GradScaling, Optimizer, ParamGroup, SGD, SGDOptions};

use super::grad_scaler::Toy;
use crate::common::schedules;

#[test]
fn a_scaled_step_that_is_not_capturable_cannot_be_captured() {
    schedules(1, SyncPolicy::Auto, |_| {
        let toy = Toy::new(Device::cuda(0))?;
        let mut adam = Adam::new(vec![toy.weight.clone()], ())?;
        let mut scaler = GradScaler::new(())?;
        let mut step = || {
            toy.backward(&mut scaler, 1.0)?;
            scaler.step(&mut adam)?;
            scaler.update()
        };
        step()?;
        refused(warpline::cuda::graph(step).map(drop), "set `capturable`");
        Ok(())
    });
}

#[test]
fn optimizers_of_the_same_parameters_are_told_apart() -> Result<()> {
    let p = full([1], 1.0, ())?.requires_grad_(true)?;
    let sgd = || SGD::new(vec![p.clone()], SGDOptions::new().lr(0.5));
    let (a, mut b) = (sgd()?, sgd()?);
    assert!(a.id() == a.id() && a.id() != b.id());
    let mut scaler = GradScaler::new(GradScalerOptions::new().init_scale(4.0))?;
    scaler.scale(&p.sum(())?)?.backward()?;
    scaler.unscale_(&a)?;
    p.set_grad(&full([1], 8.0, ())?)?;
    scaler.step(&mut b)?;
    // The gradient was unscaled for `b`, too.
    assert_eq!(p.to_vec::<f32>()?, [0.0]);
    refused(scaler.unscale_(&a), "already unscaled");
    Ok(())
}

/// A gradient that two parameters share would be divided by the scale twice.
#[test]
fn parameters_that_share_a_gradient_are_refused() -> Result<()> {
    for distance in [1, 20] {
        let params = (0..=distance).map(|_| full([2], 1.0, ())?.requires_grad_(true));
        let mut params = params.collect::<Result<Vec<_>>>()?;
        let empty = full([0], 1.0, ())?.requires_grad_(true)?;
        params.push(empty.clone());
        let mut scaler = GradScaler::new(GradScalerOptions::new().init_scale(4.0))?;
        let mut all = scaler.scale(&full([], 0.0, ())?)?;
        for param in &params {
            all = all.add(&scaler.scale(&param.sum(())?)?)?;
        }
        all.backward()?;
        let flat = full([4], 4.0, ())?;
        params[0].set_grad(&flat.narrow(0, 0, 2)?)?;
        params[distance].set_grad(&flat.narrow(0, 1, 2)?)?;
        let (mut sgd, mut adadelta) =
            (SGD::new(params.clone(), ())?, Adadelta::new(params.clone(), ())?);
        refused(scaler.unscale_(&sgd), "share the memory of a gradient");
        refused(scaler.step(&mut sgd), "share the memory of a gradient");
        refused(scaler.step(&mut adadelta), "share the memory of a gradient");
        assert_eq!(flat.to_vec::<f32>()?, [4.0; 4]);
        // Adjacent parts of one tensor share no element, nor do parts without elements.
        params[distance].set_grad(&flat.narrow(0, 2, 2)?)?;
        empty.set_grad(&flat.narrow(0, 1, 0)?)?;
        scaler.step(&mut sgd)?;
        assert_eq!(flat.to_vec::<f32>()?, [1.0; 4]);
    }
    Ok(())
}

#[test]
fn a_group_that_is_added_after_unscale_is_refused() -> Result<()> {
    let (toy, other) = (Toy::new(Device::Cpu)?, Toy::new(Device::Cpu)?);
    let (mut sgd, mut scaler) = (toy.sgd()?, GradScaler::new(())?);
    let backward = |scaler: &mut GradScaler| {
        toy.backward(scaler, 0.5)?;
        other.backward(scaler, 0.25)
    };
    backward(&mut scaler)?;
    scaler.unscale_(&sgd)?;
    sgd.add_param_group(ParamGroup::new(vec![other.weight.clone()]))?;
    for _ in 0..2 {
        refused(scaler.step(&mut sgd), "add groups before `unscale_` or after `update`");
        refused(scaler.unscale_(&sgd), "add groups before `unscale_` or after `update`");
    }
    assert_eq!((toy.values()?, other.values()?), (vec![1.0; 4], vec![1.0; 4]));
    scaler.update()?;
    sgd.zero_grad()?;
    backward(&mut scaler)?;
    scaler.unscale_(&sgd)?;
    scaler.step(&mut sgd)?;
    assert_eq!((toy.values()?, other.values()?), (vec![0.5; 4], vec![0.75; 4]));
    Ok(())
}

/// The first scaled loss creates the scale, so each replay would reset the scale to its initial value.
#[test]
fn the_first_scaled_loss_cannot_be_captured() {
    schedules(1, SyncPolicy::Auto, |_| {
        let toy = Toy::new(Device::cuda(0))?;
        let mut scaler = GradScaler::new(())?;
        let error =
            warpline::cuda::graph(|| toy.backward(&mut scaler, 1.0)).expect_err("a capture");
        assert!(error.to_string().contains("scale a loss before the capture"), "{error}");
        Ok(())
    });
}

pub(super) fn refused(result: Result<()>, text: &str) {
    let error = result.expect_err(text);
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
    assert!(error.to_string().contains(text), "{error}");
    assert!(!error.to_string().contains("src/"), "a line of ours: {error}");
}

#[test]
fn calls_in_a_wrong_order_are_errors() -> Result<()> {
    let toy = Toy::new(Device::Cpu)?;
    let (mut sgd, mut scaler) = (toy.sgd()?, GradScaler::new(())?);
    refused(scaler.unscale_(&sgd), "no loss was scaled yet");
    refused(scaler.step(&mut sgd), "no loss was scaled yet");
    refused(scaler.update(), "no loss was scaled yet");
    refused(scaler.update_with(2.0), "no loss was scaled yet");
    toy.backward(&mut scaler, 1.0)?;
    refused(scaler.update(), "no gradients were checked since the last update");
    scaler.unscale_(&sgd)?;
    refused(scaler.unscale_(&sgd), "already unscaled since the last `update`");
    scaler.step(&mut sgd)?;
    refused(scaler.unscale_(&sgd), "already took its step");
    refused(scaler.step(&mut sgd), "already took its step since the last `update`");
    scaler.update()?;
    sgd.zero_grad()?;
    refused(scaler.step(&mut sgd), "none of its parameters has one");
    Ok(())
}

/// Fused steps convert `float16` gradients to `float32` before they divide them by the scale. A division in
/// `float16` would underflow.
#[test]
fn gradients_in_half_the_width_are_unscaled_only_in_fused_steps() -> Result<()> {
    let weight = ones([2], DType::F16)?.requires_grad_(true)?;
    let all = || vec![weight.clone()];
    let mut scaler = GradScaler::new(GradScalerOptions::new().init_scale(256.0))?;
    let backward = |scaler: &mut GradScaler| {
        weight.set_grad(None)?;
        scaler.scale(&weight.to(DType::F32)?.sum(())?)?.backward()
    };
    backward(&mut scaler)?;
    refused(scaler.unscale_(&SGD::new(all(), ())?), "of f16");
    refused(scaler.step(&mut Adadelta::new(all(), ())?), "of f16");
    scaler.step(&mut SGD::new(all(), SGDOptions::new().lr(0.5))?)?;
    assert_eq!(weight.detach().to(DType::F32)?.to_vec::<f32>()?, [0.5; 2]);
    Ok(())
}

#[test]
fn a_step_that_cannot_read_a_scale_is_refused_and_changes_nothing() -> Result<()> {
    let param = ones([2], ())?.requires_grad_(true)?;
    param.set_grad(&full([2], 4.0, ())?)?;
    let mut adadelta = Adadelta::new(vec![param.clone()], ())?;
    let scaling =
        GradScaling { found_inf: tensor(0.0f32, ())?, grad_scale: Some(tensor(4.0f32, ())?) };
    let error = adadelta.step_scaled(&scaling).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument { .. }), "{error}");
    assert_eq!(param.to_vec::<f32>()?, [1.0, 1.0]);
    Ok(())
}
