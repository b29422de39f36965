//! Tests of backward passes with hooks, checkpoints, and other passes at the same time.

use std::sync::Barrier;

use warpline::autograd::{BackwardOptions, checkpoint, grad, no_grad};
use warpline::functional::dropout;
use warpline::{DType, Result, Tensor, manual_seed, ones, rand};

use super::{grad as own_grad, leaf};
use crate::common;

#[test]
fn a_checkpoint_drops_the_same_elements_again() {
    common::worlds(1, |world| {
        for device in world.places() {
            // Random numbers drawn after a checkpoint must not depend on whether the checkpoint was
            // recomputed (`again`).
            let drawn = |again: bool| {
                manual_seed(3);
                let x = ones([1000], device)?.requires_grad_(true)?;
                let y = checkpoint(|x| Ok(vec![dropout(&x[0], 0.5)?]), &[&x])?.remove(0);
                rand([10], device)?;
                if again {
                    y.sum(())?.backward()?;
                    let kept = y.detach().cpu()?.to_vec::<f32>()?;
                    let slope = x.grad().unwrap().cpu()?.to_vec::<f32>()?;
                    assert_eq!(slope, kept, "another mask on {device}");
                }
                rand([4], device)?.cpu()?.to_vec::<f32>()
            };
            assert_eq!(drawn(true)?, drawn(false)?, "other numbers after it on {device}");
        }
        Ok(())
    });
}

#[test]
fn grad_of_a_part_keeps_the_remaining_graph() {
    common::cpu(|_| {
        let x = leaf(&[1.0, 2.0])?;
        let h = x.exp()?;
        let y = h.mul(&h)?.sum(())?;
        let part = grad(&[&y], &[&h], ())?.remove(0).unwrap();
        h.backward_with(&part)?;
        let full = x.mul(2.0)?.exp()?.mul(2.0)?.to_vec::<f64>()?;
        let own = x.grad().unwrap().to_vec::<f64>()?;
        assert!(own.iter().zip(&full).all(|(a, b)| (a - b).abs() < 1e-9), "{own:?} {full:?}");
        Ok(())
    });
}

#[test]
fn passes_of_several_threads_add_up() {
    common::cpu(|_| {
        for round in 0..300 {
            let x = leaf(&[1.0, 2.0])?;
            let start = Barrier::new(4);
            std::thread::scope(|scope| {
                let run = || -> Result<()> {
                    let y = x.mul(3.0)?.sum(())?;
                    start.wait();
                    y.backward()
                };
                let all: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
                all.into_iter().try_for_each(|thread| thread.join().unwrap())
            })?;
            assert_eq!(x.grad().unwrap().to_vec::<f64>()?, [12.0, 12.0], "round {round}");
        }
        Ok(())
    });
}

#[test]
fn a_hook_must_return_a_tensor_like_the_gradient() {
    common::cpu(|_| {
        for on_leaf in [true, false] {
            let x = leaf(&[1.0, 2.0])?;
            let y = if on_leaf { x.clone() } else { x.mul(2.0)? };
            y.register_hook(|grad| grad.sum(()).map(Some))?;
            let error = y.sum(())?.backward().unwrap_err().to_string();
            assert!(error.contains("hook") && error.contains("[2]"), "{error}");
            let x = leaf(&[1.0, 2.0])?;
            let y = if on_leaf { x.clone() } else { x.mul(2.0)? };
            y.register_hook(|grad| grad.to(DType::F32).map(Some))?;
            let error = y.sum(())?.backward().unwrap_err().to_string();
            assert!(error.contains("hook") && error.contains("float32"), "{error}");
        }
        Ok(())
    });
}

#[test]
fn a_leaf_that_a_function_returns_stays_a_leaf() {
    common::cpu(|_| {
        let (x, weight) = (leaf(&[1.0])?, leaf(&[5.0])?);
        let own = weight.clone();
        let out = checkpoint(move |x| Ok(vec![x[0].mul(2.0)?, own.clone()]), &[&x])?;
        assert!(weight.is_leaf());
        out[0].add(&out[1])?.sum(())?.backward()?;
        let of = |t: &Tensor| t.grad().map(|grad| grad.to_vec::<f64>()).transpose();
        assert_eq!((of(&x)?, of(&weight)?), (Some(vec![2.0]), Some(vec![1.0])));
        Ok(())
    });
}

#[test]
fn a_checkpoint_computes_only_requested_gradients() {
    common::cpu(|_| {
        let (x, weight) = (leaf(&[2.0])?, leaf(&[5.0])?);
        let own = weight.clone();
        let make = move |x: &Tensor| {
            let own = own.clone();
            checkpoint(move |x| Ok(vec![x[0].mul(&x[0])?.mul(&own)?]), &[x])?.remove(0).sum(())
        };
        let slope = grad(&[&make(&x)?], &[&x], ())?.remove(0);
        assert_eq!(slope.unwrap().to_vec::<f64>()?, [20.0]);
        assert!(weight.grad().is_none() && x.grad().is_none(), "a pass for x alone changes leaves");
        // The pass cannot be recorded with `create_graph`, because gradients that a checkpoint
        // computes have no graph.
        let error = make(&x)?
            .backward_with(BackwardOptions::new().create_graph(true))
            .unwrap_err()
            .to_string();
        assert!(error.contains("checkpoint") && error.contains("create_graph"), "{error}");
        Ok(())
    });
}

#[test]
fn each_leaf_has_its_own_gradient_tensor() {
    common::cpu(|_| {
        for create_graph in [false, true] {
            let (x, y) = (leaf(&[1.0, 2.0])?, leaf(&[3.0, 4.0])?);
            x.add(&y)?.sum(())?.backward_with(BackwardOptions::new().create_graph(create_graph))?;
            // Change one gradient in place, as clipping does.
            let own = x.grad().unwrap();
            no_grad(|| own.mul_(5.0).map(drop))?;
            assert_eq!((own_grad(&x)?, own_grad(&y)?), (vec![5.0, 5.0], vec![1.0, 1.0]));
        }
        // With `create_graph`, the gradient has a graph.
        let x = leaf(&[2.0, 3.0])?;
        x.pow(3)?.sum(())?.backward_with(BackwardOptions::new().create_graph(true))?;
        let slope = x.grad().unwrap();
        x.set_grad(None)?;
        slope.sum(())?.backward()?;
        assert_eq!(own_grad(&x)?, [12.0, 18.0]);
        Ok(())
    });
}
