//! Tests of parameter groups and gradient clipping.

use warpline::{DType, Device, Result, full, ones};
use warpline_nn::Linear;
use warpline_nn::optim::{
    LBFGS, Optimizer, ParamGroup, SGD, SGDOptions, TotalNormOptions, clip_grad_norm_,
    clip_grad_value_,
};

use super::{close, params, set_grads, values};
use crate::common::{World, worlds};

#[test]
fn groups_have_their_own_settings_and_gradients_come_and_go() {
    worlds(1, |_| {
        let p = params(Device::Cpu, DType::F64)?;
        let slow = SGDOptions::new().lr(0.1);
        let groups = vec![
            ParamGroup::new(p[..1].to_vec()),
            ParamGroup::new(p[1..].to_vec()).options(slow.lr(0.0)),
        ];
        let mut sgd = SGD::new(groups, slow)?;
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
        sgd.add_param_group(ParamGroup::new(vec![full([1], 0.0, ())?]))?;
        assert_eq!((sgd.lr(0), sgd.lr(1), sgd.lr(2)), (0.1, 0.5, 0.1));
        for (group, said) in [
            (ParamGroup::new(vec![]), "empty"),
            (ParamGroup::new(p[..1].to_vec()), "is already in a group"),
            (ParamGroup::new(vec![p[0].mul(2.0)?]), "leaves"),
            (ParamGroup::new(vec![p[0].copy()?]).lr_tensor(&full([2], 0.5, ())?), "one float"),
            (ParamGroup::new(vec![full([1], 0.0, ())?]).options(slow.lr(-1.0)), "lr"),
        ] {
            let error = sgd.add_param_group(group).expect_err(said).to_string();
            assert!(error.contains(said), "{error}");
        }
        Ok(())
    });
}

#[test]
fn an_optimizer_takes_parameters() -> Result<()> {
    let net = Linear::new(2, 1, ())?;
    let before = net.weight.copy()?;
    let mut sgd = SGD::new(vec![net.weight.clone()], SGDOptions::new().lr(0.5))?;
    net.forward(&ones([1, 2], ())?)?.sum(())?.backward()?;
    sgd.step()?;
    assert!(net.weight.allclose(&before.sub(0.5)?, ())?);
    LBFGS::new(vec![net.weight.clone()], ())?;
    Ok(())
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
                // Gradients within the limit do not change.
                clip_grad_norm_(&p, norm, kind)?;
                close(&p[0].grad().unwrap().to_vec::<f64>()?, &expected);
            }
            set_grads(&p, 1)?;
            clip_grad_value_(&p, 0.05)?;
            let expected: Vec<f64> = before.iter().map(|g| g.clamp(-0.05, 0.05)).collect();
            close(&p[0].grad().unwrap().to_vec::<f64>()?, &expected);
        }
        assert_eq!(clip_grad_norm_(&[], 1.0, ())?.item::<f32>()?, 0.0);
        let p = params(Device::Cpu, DType::F64)?;
        p[0].set_grad(&full([3], f64::INFINITY, DType::F64)?)?;
        let strict = TotalNormOptions::new().error_if_nonfinite(true);
        let error = clip_grad_norm_(&p, 1.0, strict).expect_err("an infinite norm").to_string();
        assert!(error.contains("not finite"), "{error}");
        assert_eq!(p[0].grad().unwrap().to_vec::<f64>()?, [f64::INFINITY; 3]);
        assert!(clip_grad_norm_(&p, 1.0, ())?.item::<f64>()?.is_infinite());
        Ok(())
    });
}

#[test]
fn a_step_uses_the_rate_in_a_tensor() {
    worlds(1, |world: &World| {
        for place in world.places() {
            let weight = full([2], 1.0, place)?.requires_grad_(true)?;
            let lr = full([], 0.5, place)?;
            let group = ParamGroup::new(vec![weight.clone()]).lr_tensor(&lr);
            let mut sgd = SGD::new(vec![group], ())?;
            weight.set_grad(&full([2], 1.0, place)?)?;
            sgd.step()?;
            assert_eq!(weight.detach().to_vec::<f32>()?, [0.5; 2]);
            sgd.set_lr(0, 0.25)?;
            sgd.step()?;
            assert_eq!(weight.detach().to_vec::<f32>()?, [0.25; 2]);
        }
        Ok(())
    });
}
