//! Hooks on gradients.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{grad, leaf};
use crate::common;

#[test]
fn hooks_see_and_change_gradients_in_their_order() {
    common::cpu(|_| {
        let x = leaf(&[1.0])?;
        let y = x.mul(3.0)?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let note = |name: &'static str, times: f64| {
            let seen = seen.clone();
            move |grad: &warpline::Tensor| {
                seen.lock().unwrap().push((name, grad.item::<f64>()?));
                grad.mul(times).map(Some)
            }
        };
        y.register_hook(note("first", 10.0))?;
        let removed = y.register_hook(note("removed", 0.0))?;
        y.register_hook(note("second", 2.0))?;
        x.register_hook(note("leaf", 1.0))?;
        removed.remove();
        y.sum(())?.backward()?;
        assert_eq!(*seen.lock().unwrap(), [("first", 1.0), ("second", 10.0), ("leaf", 60.0)]);
        assert_eq!(grad(&x)?, [60.0]);
        Ok(())
    });
}

#[test]
fn a_leaf_hook_sees_the_sum() {
    common::cpu(|_| {
        let x = leaf(&[2.0])?;
        let calls = Arc::new(AtomicUsize::new(0));
        let count = calls.clone();
        let hook = x.register_post_accumulate_grad_hook(move |leaf| {
            count.fetch_add(leaf.grad().unwrap().item::<f64>()? as usize, Ordering::Relaxed);
            leaf.set_grad(None)
        })?;
        x.square()?.sum(())?.backward()?;
        x.square()?.sum(())?.backward()?;
        assert!(x.grad().is_none());
        assert_eq!(calls.load(Ordering::Relaxed), 8);
        hook.remove();
        x.square()?.sum(())?.backward()?;
        assert_eq!(grad(&x)?, [4.0]);
        Ok(())
    });
}

#[test]
fn a_gradient_is_kept_where_it_was_asked_for() {
    common::cpu(|_| {
        let x = leaf(&[2.0])?;
        let (y, z) = (x.mul(3.0)?, x.mul(5.0)?);
        y.retain_grad()?;
        y.retain_grad()?;
        y.mul(&z)?.sum(())?.backward()?;
        assert_eq!(grad(&y)?, [10.0]);
        assert!(z.grad().is_none());
        Ok(())
    });
}

#[test]
fn a_kept_gradient_is_the_one_that_hooks_leave() {
    common::cpu(|_| {
        let x = leaf(&[2.0])?;
        let y = x.mul(3.0)?;
        y.retain_grad()?;
        y.register_hook(|grad| grad.mul(10).map(Some))?;
        y.sum(())?.backward()?;
        assert_eq!((grad(&y)?, grad(&x)?), (vec![10.0], vec![30.0]));
        Ok(())
    });
}

#[test]
fn a_retained_gradient_is_that_of_the_tensor_after_in_place_ops() {
    common::cpu(|_| {
        let x = leaf(&[1.0, 2.0])?;
        let y = x.mul(2.0)?;
        y.retain_grad()?;
        y.mul_(5.0)?;
        y.square()?.sum(())?.backward()?;
        assert_eq!((grad(&y)?, grad(&x)?), (vec![20.0, 40.0], vec![200.0, 400.0]));

        // Change `y` through a view, after another view of `y` was taken.
        x.set_grad(None)?;
        let y = x.mul(2.0)?;
        let view = y.i(1..)?;
        y.retain_grad()?;
        view.retain_grad()?;
        y.i(1..)?.mul_(5.0)?;
        y.mul(&y)?.sum(())?.add(&view)?.backward()?;
        assert_eq!((grad(&y)?, grad(&view)?), (vec![4.0, 41.0], vec![1.0]));
        assert_eq!(grad(&x)?, [8.0, 410.0]);
        Ok(())
    });
}

#[test]
fn only_tensors_that_want_a_gradient_are_hooked() {
    common::cpu(|_| {
        let plain = warpline::ones([1], ())?;
        assert!(plain.register_hook(|_| Ok(None)).is_err());
        assert!(plain.retain_grad().is_err());
        let computed = leaf(&[1.0])?.mul(1.0)?;
        assert!(computed.register_post_accumulate_grad_hook(|_| Ok(())).is_err());
        Ok(())
    });
}
