//! Tests of hooks on gradients, of callbacks at the end of a pass, and of the leaves that a pass reaches.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{grad, leaf};
use crate::common;
use warpline::autograd::{BackwardOptions, queue_callback, reachable_leaves};
use warpline::{DType, full};

#[test]
fn hooks_read_and_change_gradients_in_order_of_registration() {
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
fn a_hook_of_a_leaf_receives_the_summed_gradient() {
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
fn a_gradient_is_retained_only_on_request() {
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
fn a_retained_gradient_includes_the_changes_of_hooks() {
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
fn a_retained_gradient_has_memory_of_its_own() {
    common::cpu(|_| {
        let x = leaf(&[2.0, 2.0])?;
        let (y, seed) = (x.mul(3.0)?, full([2], 5.0, DType::F64)?);
        y.retain_grad()?;
        y.backward_with(BackwardOptions::new().gradient(&seed))?;
        seed.fill_(100)?;
        assert_eq!(grad(&y)?, [5.0; 2], "the seed is the program's");

        // The gradient of a sum is expanded.
        let y = x.mul(3.0)?;
        y.retain_grad()?;
        y.sum(())?.backward()?;
        y.grad().unwrap().mul_(4)?;
        assert_eq!(grad(&y)?, [4.0; 2]);

        let y = x.mul(&full([3, 2], 1.0, DType::F64)?)?;
        y.retain_grad()?;
        y.t()?.square()?.sum(())?.backward()?;
        assert!(y.grad().unwrap().is_contiguous());
        Ok(())
    });
}

#[test]
fn a_retained_gradient_of_create_graph_is_differentiable() {
    common::cpu(|_| {
        let x = leaf(&[2.0])?;
        let y = x.mul(3.0)?;
        y.retain_grad()?;
        y.square()?.sum(())?.backward_with(BackwardOptions::new().create_graph(true))?;
        let kept = y.grad().unwrap();
        assert_eq!(kept.item::<f64>()?, 12.0);
        x.set_grad(None)?;
        kept.sum(())?.backward()?;
        assert_eq!(grad(&x)?, [6.0]);
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
fn only_tensors_that_require_a_gradient_accept_hooks() {
    common::cpu(|_| {
        let plain = warpline::ones([1], ())?;
        assert!(plain.register_hook(|_| Ok(None)).is_err());
        assert!(plain.retain_grad().is_err());
        let computed = leaf(&[1.0])?.mul(1.0)?;
        assert!(computed.register_post_accumulate_grad_hook(|_| Ok(())).is_err());
        Ok(())
    });
}

#[test]
fn queued_callbacks_run_once_at_the_end_of_their_own_pass() {
    common::cpu(|_| {
        let (x, y, inner) = (leaf(&[1.0])?, leaf(&[2.0])?, leaf(&[3.0])?);
        let events = Arc::new(Mutex::new(Vec::new()));
        let note = |name: &'static str| {
            let events = events.clone();
            move || {
                events.lock().unwrap().push(name);
                if name == "inner callback" {
                    let events = events.clone();
                    queue_callback(move || {
                        events.lock().unwrap().push("callback of the callback");
                        Ok(())
                    })?;
                }
                Ok(())
            }
        };
        for (tensor, hook, callback) in
            [(&x, "x", "x callback"), (&y, "y", "y callback"), (&inner, "inner", "inner callback")]
        {
            let (note_hook, note_callback) = (note(hook), note(callback));
            tensor.register_post_accumulate_grad_hook(move |_| {
                note_hook()?;
                queue_callback(note_callback.clone())
            })?;
        }
        // The hook runs the backward pass of `loss` within the outer pass, before the gradients of
        // `x` and `y` arrive.
        let sum = x.mul(&y)?;
        let (loss, product) = (inner.square()?.sum(())?, sum.clone());
        product.register_hook(move |_| loss.backward().map(|()| None))?;
        sum.sum(())?.backward()?;
        let wanted = [
            "inner",
            "inner callback",
            "callback of the callback",
            "x",
            "y",
            "x callback",
            "y callback",
        ];
        assert_eq!(*events.lock().unwrap(), wanted);
        assert!(queue_callback(|| Ok(())).is_err(), "no pass is running");
        Ok(())
    });
}

#[test]
fn a_failed_pass_drops_its_callbacks_and_a_failed_callback_fails_the_pass() {
    common::cpu(|_| {
        let x = leaf(&[1.0])?;
        let calls = Arc::new(AtomicUsize::new(0));
        let count = calls.clone();
        let hook = x.register_post_accumulate_grad_hook(move |_| {
            let count = count.clone();
            queue_callback(move || {
                count.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })?;
            Err(warpline::Error::invalid("hook", "it fails".to_owned()))
        })?;
        assert!(x.square()?.sum(())?.backward().is_err());
        hook.remove();
        x.square()?.sum(())?.backward()?;
        assert_eq!(calls.load(Ordering::Relaxed), 0);
        x.register_post_accumulate_grad_hook(|_| {
            queue_callback(|| Err(warpline::Error::invalid("callback", "it fails".to_owned())))
        })?;
        let error = x.square()?.sum(())?.backward().unwrap_err();
        assert!(error.to_string().contains("it fails"), "{error}");
        Ok(())
    });
}

/// Runs a function when it is dropped.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[test]
fn a_callback_outside_of_a_pass_is_dropped_where_its_drop_can_run_a_pass() {
    common::cpu(|_| {
        let y = leaf(&[3.0])?;
        let inner = y.clone();
        let owned = OnDrop(move || {
            let run = || inner.square()?.sum(())?.backward();
            run().expect("a pass");
            assert!(queue_callback(|| Ok(())).is_err(), "no pass is running");
        });
        let outside = queue_callback(move || {
            let _owned = &owned;
            Ok(())
        });
        assert!(outside.is_err());
        assert_eq!(grad(&y)?, [6.0]);
        Ok(())
    });
}

#[test]
fn callbacks_whose_drops_panic_do_not_abort_the_process() {
    common::cpu(|_| {
        for hook_panics in [false, true] {
            let x = leaf(&[1.0])?;
            x.register_post_accumulate_grad_hook(move |_| {
                for _ in 0..3 {
                    let owned = OnDrop(|| panic!("the drop of a callback"));
                    queue_callback(move || {
                        let _owned = &owned;
                        Ok(())
                    })?;
                }
                assert!(!hook_panics, "the hook");
                Err(warpline::Error::invalid("hook", "it fails"))
            })?;
            let pass = || x.square()?.sum(())?.backward();
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(pass)).unwrap_err();
            let expected = if hook_panics { "the hook" } else { "the drop of a callback" };
            assert_eq!(panic.downcast_ref::<&str>(), Some(&expected));
            // The next pass has no callbacks left.
            leaf(&[1.0])?.square()?.sum(())?.backward()?;
        }
        Ok(())
    });
}

#[test]
fn reachable_leaves_are_the_leaves_that_get_a_gradient() {
    common::cpu(|_| {
        let all = [leaf(&[1.0])?, leaf(&[2.0])?, leaf(&[3.0])?, leaf(&[4.0])?];
        let [a, b, c, d] = &all;
        let (first, second) = (a.mul(b)?.add(a)?, b.detach().mul(c)?);
        let found = reachable_leaves([&first, &second, &warpline::ones([1], ())?]);
        assert_eq!(found.len(), 3);
        first.add(&second)?.sum(())?.backward()?;
        for leaf in [a, b, c, d] {
            assert_eq!(found.iter().any(|other| other.is_same(leaf)), leaf.grad().is_some());
        }
        // A leaf reaches itself.
        assert!(reachable_leaves([d])[0].is_same(d));
        Ok(())
    });
}
