//! Tests that graphs are dropped entirely, without recursion, and while no lock is held.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::thread;
use std::time::Duration;

use warpline::autograd::{BackwardOptions, Context, Function, Gradients, ToSave, checkpoint};
use warpline::{Result, Tensor, tensor};

use super::leaf;
use crate::common;

/// Fails if `f` does not return within a time limit.
fn returns(f: impl FnOnce() -> Result<()> + Send + 'static) {
    let (sender, done) = mpsc::channel();
    thread::spawn(move || {
        f().expect("no error");
        let _ = sender.send(());
    });
    done.recv_timeout(Duration::from_secs(30)).expect("hangs or fails");
}

/// Locks its tensor's autograd state when dropped.
struct LockOnDrop(Tensor);

impl Drop for LockOnDrop {
    fn drop(&mut self) {
        let _ = self.0.set_grad(None);
        let _ = self.0.register_hook(|_| Ok(None));
    }
}

/// Returns a value that a hook will own, and a weak reference that tells whether the value is
/// alive.
fn watched() -> (Arc<()>, Weak<()>) {
    let value = Arc::new(());
    let weak = Arc::downgrade(&value);
    (value, weak)
}

/// Lets a hook of `tensor` own `value`, so that `value` lives as long as the tensor's node.
fn hold<T: Send + Sync + 'static>(tensor: &Tensor, value: T) -> Result<()> {
    tensor.register_hook(move |_| {
        let _ = &value;
        Ok(None)
    })?;
    Ok(())
}

#[test]
fn a_removed_hook_is_dropped_outside_the_lock_of_its_tensor() {
    returns(|| {
        let x = leaf(&[1.0])?;
        for tensor in [x.clone(), x.mul(2.0)?] {
            let value = LockOnDrop(tensor.clone());
            tensor
                .register_hook(move |_| {
                    let _ = &value;
                    Ok(None)
                })?
                .remove();
        }
        let value = LockOnDrop(x.clone());
        let hook = x.register_post_accumulate_grad_hook(move |_| {
            let _ = &value;
            Ok(())
        })?;
        hook.remove();
        Ok(())
    });
}

/// Saves the tensor that it owns.
struct TensorSaver(Tensor);

impl Function for TensorSaver {
    const NAME: &'static str = "saves";

    fn forward(&self, save: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        save.tensor(&self.0);
        Ok(vec![inputs[0].add(1.0)?])
    }

    fn backward(&self, _: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        Ok(grads.iter().cloned().collect())
    }
}

/// Saves its input. When dropped, runs a backward pass from the tensor in its field, if there is one.
struct PassFromResultOnDrop(Arc<Mutex<Option<Tensor>>>);

impl Function for PassFromResultOnDrop {
    const NAME: &'static str = "runs_a_pass_on_drop";

    fn forward(&self, save: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        save.tensor(inputs[0]);
        Ok(vec![inputs[0].add(1.0)?])
    }

    fn backward(&self, _: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        Ok(grads.iter().cloned().collect())
    }
}

impl Drop for PassFromResultOnDrop {
    fn drop(&mut self) {
        let result = self.0.lock().unwrap().take();
        assert!(result.is_none_or(|result| result.backward().is_err()));
    }
}

#[test]
fn a_function_that_a_pass_frees_is_dropped_outside_the_lock_of_its_node() {
    returns(|| {
        let x = leaf(&[1.0])?;
        let result = Arc::new(Mutex::new(None));
        let y = PassFromResultOnDrop(Arc::clone(&result)).apply(&[&x])?.remove(0);
        *result.lock().unwrap() = Some(y.clone());
        y.backward()?;
        assert!(result.lock().unwrap().is_none(), "the pass has freed the function");
        assert_eq!(super::grad(&x)?, [1.0]);
        Ok(())
    });
}

#[test]
fn a_replaced_gradient_is_dropped_outside_the_lock_of_its_leaf() {
    returns(|| {
        let x = leaf(&[1.0])?;
        let former = leaf(&[0.0])?;
        // Runs a backward pass that adds to the same leaf.
        struct PassOnDrop(Tensor);
        impl Drop for PassOnDrop {
            fn drop(&mut self) {
                let _ = self.0.mul(2.0).and_then(|y| y.sum(())?.backward());
            }
        }
        hold(&former, PassOnDrop(x.clone()))?;
        // Keep the accumulated sum out of the graph of `former`.
        former.requires_grad_(false)?;
        x.set_grad(&former)?;
        x.mul(3.0)?.sum(())?.backward_with(BackwardOptions::new().create_graph(true))?;
        x.set_grad(None)
    });
}

#[test]
fn graphs_are_freed_after_a_panic_in_the_drop_of_a_captured_value() {
    struct PanicOnDrop;
    impl Drop for PanicOnDrop {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }
    common::cpu(|_| {
        let x = leaf(&[1.0])?;
        let (y, other) = (x.mul(2.0)?, x.mul(3.0)?);
        hold(&y, PanicOnDrop)?;
        let (value, beside) = watched();
        hold(&other, value)?;
        let sum = y.add(&other)?;
        drop((y, other));
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(sum)));
        assert!(dropped.is_err() && beside.upgrade().is_none());

        let (value, later) = watched();
        let z = x.exp()?;
        hold(&z, value)?;
        drop(z.mul(2.0)?);
        assert!(later.upgrade().is_some());
        drop(z);
        assert!(later.upgrade().is_none());
        Ok(())
    });
}

#[test]
fn a_second_panic_in_a_drop_does_not_abort_the_process() {
    struct PanicOnDrop;
    impl Drop for PanicOnDrop {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }
    let outcome = catch_unwind(|| {
        let x = leaf(&[1.0]).expect("a leaf");
        let (y, z) = (x.mul(2.0).expect("y"), x.mul(2.0).expect("z"));
        hold(&y, PanicOnDrop).expect("a hook");
        hold(&z, PanicOnDrop).expect("a hook");
        let _sum = y.add(&z).expect("a sum");
        drop((y, z));
        panic!("first");
    });
    assert_eq!(outcome.unwrap_err().downcast_ref(), Some(&"first"));
}

/// Owns a tensor in a field.
struct TensorOwner(#[expect(dead_code, reason = "owned only to be dropped")] Tensor);

impl Function for TensorOwner {
    const NAME: &'static str = "owns";

    fn forward(&self, _: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![inputs[0].add(1.0)?])
    }

    fn backward(&self, _: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        Ok(grads.iter().cloned().collect())
    }
}

/// A function that adds a link to a chain: it returns a tensor that owns its argument.
type Link = fn(Tensor) -> Result<Tensor>;

fn fresh() -> Result<Tensor> {
    tensor([1f32], ())?.requires_grad_(true)
}

const LINKS: &[(&str, Link)] = &[
    ("op", |former| former.mul(1.0)),
    ("in-place op", |former| {
        let y = former.mul(1.0)?;
        y.view([1])?.add_(&former)?;
        Ok(y)
    }),
    ("function field", |former| Ok(TensorOwner(former).apply(&[&fresh()?])?.remove(0))),
    ("saved tensor", |former| Ok(TensorSaver(former).apply(&[&fresh()?])?.remove(0))),
    ("checkpoint capture", |former| {
        let f = move |x: &[Tensor]| Ok(vec![x[0].mul(&former)?]);
        Ok(checkpoint(f, &[&fresh()?])?.remove(0))
    }),
    ("hook capture", |former| {
        let y = fresh()?.add(1.0)?;
        hold(&y, former)?;
        Ok(y)
    }),
    ("hook capture of a leaf", |former| {
        let y = fresh()?;
        hold(&y, former)?;
        Ok(y)
    }),
    ("hook capture of an accumulator", |former| {
        let y = fresh()?;
        y.register_post_accumulate_grad_hook(move |_| {
            let _ = &former;
            Ok(())
        })?;
        Ok(y)
    }),
    ("gradient", |former| {
        let y = fresh()?;
        y.set_grad(&former.view([1])?)?;
        Ok(y)
    }),
    ("boxed value in a hook of a gradient", |former| {
        let (y, gradient) = (fresh()?, fresh()?);
        let value: Box<dyn std::any::Any + Send + Sync> = Box::new(former);
        hold(&gradient, value)?;
        y.set_grad(&gradient)?;
        Ok(y)
    }),
];

/// Runs `f` in a thread with a small stack, which would overflow with one frame per link of a
/// chain.
fn on_a_small_stack<R: Send + 'static>(f: impl FnOnce() -> R + Send + 'static) -> R {
    let thread = thread::Builder::new().stack_size(256 << 10).spawn(f).expect("a thread");
    thread.join().expect("no panic")
}

#[test]
fn chains_of_every_kind_are_dropped_without_recursion() {
    for &(kind, link) in LINKS {
        let dropped = on_a_small_stack(move || -> Result<bool> {
            let mut end = fresh()?.mul(1.0)?;
            let (value, weak) = watched();
            hold(&end, value)?;
            for _ in 0..8_000 {
                end = link(end)?;
            }
            drop(end);
            Ok(weak.upgrade().is_none())
        });
        assert!(dropped.expect("no error"), "{kind}");
    }
}

/// Makes a chain that mixes ownership by closures, fields and gradients. Returns the last tensor
/// and a weak reference to a value that a hook of the first tensor owns.
fn mixed_chain(length: usize) -> Result<(Tensor, Weak<()>)> {
    let others = ["op", "in-place op", "saved tensor"];
    let links: Vec<_> = LINKS.iter().filter(|(kind, _)| !others.contains(kind)).collect();
    let mut end = fresh()?.mul(1.0)?;
    let (value, weak) = watched();
    hold(&end, value)?;
    for i in 0..length {
        end = links[i % links.len()].1(end)?;
    }
    Ok((end, weak))
}

#[test]
fn a_chain_of_mixed_kinds_is_dropped_without_recursion() {
    let dropped = on_a_small_stack(|| -> Result<bool> {
        let (end, weak) = mixed_chain(20_000)?;
        drop(end);
        Ok(weak.upgrade().is_none())
    });
    assert!(dropped.expect("no error"));
}

#[test]
fn a_chain_in_a_thread_local_is_dropped_without_recursion_as_its_thread_ends() {
    thread_local! {
        static KEPT: RefCell<Option<Tensor>> = const { RefCell::new(None) };
    }
    let weak = on_a_small_stack(|| -> Result<Weak<()>> {
        let (end, weak) = mixed_chain(10_000)?;
        KEPT.set(Some(end));
        Ok(weak)
    });
    assert!(weak.expect("no error").upgrade().is_none());
}

/// Saves a view of its result, and a view of that view.
struct ViewSaver;

impl Function for ViewSaver {
    const NAME: &'static str = "saves_view";

    fn forward(&self, save: &mut ToSave, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let y = inputs[0].exp()?;
        let view = y.i(..1)?;
        save.tensor(&view).tensor(&view.view([1])?);
        Ok(vec![y])
    }

    fn backward(&self, context: &Context<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
        let first = context.saved(0)?;
        grads.iter().map(|grad| grad.as_ref().map(|grad| grad.mul(&first)).transpose()).collect()
    }
}

#[test]
fn saving_a_view_of_a_result_does_not_keep_the_graph() {
    common::cpu(|_| {
        let x = leaf(&[0.0, 1.0])?;
        let y = ViewSaver.apply(&[&x])?.remove(0);
        let (value, weak) = watched();
        hold(&y, value)?;
        y.sum(())?.backward_with(BackwardOptions::new().retain_graph(true))?;
        assert_eq!(super::grad(&x)?, [1.0, 1.0]);
        drop(y);
        assert!(weak.upgrade().is_none());
        Ok(())
    });
}

#[test]
fn changing_a_saved_tensor_in_place_does_not_keep_the_graph() {
    common::cpu(|_| {
        let x = leaf(&[2.0])?;
        type Pair = fn(&Tensor) -> Result<(Tensor, Tensor)>;
        let pairs: [Pair; 3] = [
            |x| x.mul(1.0).map(|computed| (computed.clone(), computed)),
            |_| tensor([3.0], ()).map(|constant| (constant.clone(), constant)),
            |_| tensor([4.0, 5.0], ()).and_then(|base| Ok((base.i(..1)?, base))),
        ];
        for pair in pairs {
            let (saved, changed) = pair(&x)?;
            let y = x.mul(&saved)?;
            let (value, weak) = watched();
            hold(&y, value)?;
            changed.mul_(&y)?;
            drop((saved, changed, y));
            assert!(weak.upgrade().is_none());
        }
        Ok(())
    });
}
