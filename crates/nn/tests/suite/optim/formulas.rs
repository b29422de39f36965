//! Tests of the formulas of optimizer steps.

use warpline::{DType, Device, Result, tensor};
use warpline_nn::optim::{
    AdadeltaOptions, AdamOptions, AdamW, AdamWOptions, Optim, Optimizer, RMSpropOptions, Rule,
    SGDOptions,
};

use super::{close, params, set_grads, values};
use crate::common::{World, worlds};

/// Runs an optimizer's formula on scalars, as the reference.
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
    let mut optimizer = Optim::<R>::new(params.clone(), options)?;
    for i in 0..steps {
        set_grads(&params, i)?;
        optimizer.step()?;
    }
    values(&params)
}

#[test]
fn formulas_are_pytorchs() {
    worlds(1, |world: &World| {
        for place in world.places() {
            let sgd = SGDOptions::new().lr(0.1).momentum(0.9).dampening(0.3).weight_decay(0.01);
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
                let options = AdamOptions::new()
                    .lr(0.1)
                    .betas((0.9, 0.95))
                    .eps(1e-6)
                    .weight_decay(0.01)
                    .amsgrad(amsgrad);
                close(&stepped(options, 5, place)?[0], &adam(amsgrad, false));
                let on_device = options.capturable(true);
                close(&stepped(on_device, 5, place)?[0], &adam(amsgrad, false));
                let options = AdamWOptions::new()
                    .lr(0.1)
                    .betas((0.9, 0.95))
                    .eps(1e-6)
                    .weight_decay(0.01)
                    .amsgrad(amsgrad);
                close(&stepped(options, 5, place)?[0], &adam(amsgrad, true));
            }
            for centered in [false, true] {
                let options = RMSpropOptions::new()
                    .alpha(0.9)
                    .momentum(0.5)
                    .weight_decay(0.01)
                    .centered(centered);
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
            let adadelta = AdadeltaOptions::new().lr(0.5).rho(0.8).eps(1e-4).weight_decay(0.01);
            let expected = by_hand(
                |p, g, s| {
                    let g = g + 0.01 * p;
                    s[0] = 0.8 * s[0] + 0.2 * g * g;
                    let delta = (s[1] + 1e-4).sqrt() / (s[0] + 1e-4).sqrt() * g;
                    s[1] = 0.8 * s[1] + 0.2 * delta * delta;
                    p - 0.5 * delta
                },
                4,
            );
            close(&stepped(adadelta, 4, place)?[0], &expected);
        }
        Ok(())
    });
}

#[test]
fn maximizing_is_minimizing_the_negative() {
    worlds(1, |_| {
        let run = |maximize: bool| {
            let weight = tensor([1f64, -2.0], ())?.requires_grad_(true)?;
            let options = AdamWOptions::new().maximize(maximize);
            let mut adam = AdamW::new(vec![weight.clone()], options)?;
            for _ in 0..3 {
                let grad = weight.detach().square()?;
                weight.set_grad(&if maximize { grad.neg()? } else { grad })?;
                adam.step()?;
            }
            weight.detach().to_vec::<f64>()
        };
        assert_eq!(run(true)?, run(false)?);
        Ok(())
    });
}
