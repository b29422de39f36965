//! Rows of gradients, hooks and checkpoints.

use warpline::autograd::{
    BackwardOptions, BackwardTensorsOptions, GradOptions, checkpoint, grad, no_grad,
};
use warpline::{Tensor, runtime, with_runtime};

use crate::generate::Draw;
use crate::model::{Kinds, Out, Predict, Track, UNKNOWN, Value};
use crate::row::{Effect, Row, row};

/// Draws a tensor that may require a gradient, or any tensor of floats if there is none.
fn tracked(d: &mut Draw<'_>) {
    if !d.model.values.values().any(Value::tracked) {
        d.float();
        return;
    }
    let live: Vec<(usize, usize)> =
        d.model.values.iter().filter(|(_, v)| v.tracked()).map(|(at, _)| *at).collect();
    let at = d.random.pick(&live);
    d.tensors.push(at);
}

fn on_floats(t: &[Value]) -> Predict {
    if t[0].is_float() { Ok(vec![]) } else { Err(UNKNOWN) }
}

/// Predicts the registration of a hook, which needs a tensor that requires a gradient.
fn hooked(t: &[Value]) -> Predict {
    match t[0].track {
        Track::No => Err(&["Gradient"]),
        Track::Maybe => Err(UNKNOWN),
        _ => Ok(vec![]),
    }
}

/// Predicts a call that succeeds if its operand is a leaf with elements. Otherwise the outcome is
/// unknown.
fn of_leaf(t: &[Value]) -> Predict {
    if t[0].track == Track::Leaf && t[0].numel() > 0 { Ok(vec![]) } else { Err(UNKNOWN) }
}

pub(crate) fn rows() -> Vec<Row> {
    let rows = vec![
        row!(
            "Tensor::requires_grad_",
            |d| d.float(),
            |t, _| match t[0].is_float() {
                false => Err(&["Gradient"]),
                true if t[0].track == Track::Maybe => Err(UNKNOWN),
                true => Ok(vec![Out::Same(0)]),
            },
            |t, _| t[0].requires_grad_(true)?
        )
        .effect(Effect::Leaf)
        .weight(12),
        row!("Tensor::backward_with(retain)", tracked, |t, _| on_floats(t), |t, _| t[0]
            .sum(())?
            .backward_with(
            BackwardOptions::new().retain_graph(true)
        )?)
        .effect(Effect::Backward { retains: true })
        .weight(8),
        row!("Tensor::backward", tracked, |t, _| on_floats(t), |t, _| t[0].sum(())?.backward()?)
            .effect(Effect::Backward { retains: false })
            .weight(10),
        row!(
            "autograd::no_grad",
            |d| {
                tracked(d);
            },
            |t, _| if t[0].is_float() {
                crate::model::new(&t[0], t[0].dtype, &t[0].sizes)
            } else {
                Err(UNKNOWN)
            },
            |t, _| no_grad(|| t[0].mul(2))?
        )
        .constant(),
        row!(
            "Tensor::set_grad",
            |d| d.leaf(),
            |t, _| if t[0].track == Track::Leaf { Ok(vec![]) } else { Err(UNKNOWN) },
            |t, _| t[0].set_grad(None)?
        ),
        row!("Tensor::register_hook", tracked, |t, _| hooked(t), |t, _| drop(
            t[0].register_hook(|grad| Ok(Some(grad.mul(2)?)))?
        )),
        row!("HookHandle::remove", tracked, |t, _| hooked(t), |t, _| {
            let own = t[0].clone();
            t[0].register_hook(move |_| {
                let _ = own.size();
                Ok(None)
            })?
            .remove();
        }),
        row!(
            "HookHandle::remove(closure that touches its tensor when dropped)",
            |d| d.leaf(),
            |t, _| of_leaf(t),
            |t, _| {
                struct Touches(Tensor);
                impl Drop for Touches {
                    fn drop(&mut self) {
                        self.0.set_grad(None).unwrap();
                        self.0.register_hook(|_| Ok(None)).unwrap().remove();
                        let _ = (self.0.grad(), self.0.requires_grad_(true));
                    }
                }
                let own = Touches(t[0].clone());
                t[0].register_hook(move |_| {
                    let _ = own.0.size();
                    Ok(None)
                })?
                .remove();
            }
        )
        .weight(5),
        row!("a hook fails", |d| d.leaf(), |t, _| of_leaf(t), |t, _| {
            let y = t[0].mul(2)?;
            y.register_hook(|_| Err(crate::prelude::own_error()))?;
            let failed = y.sum(())?.backward();
            assert!(failed.unwrap_err().to_string().contains("the program's own error"));
        })
        .weight(5),
        row!("a hook panics", |d| d.leaf(), |t, _| of_leaf(t), |t, _| {
            let y = t[0].mul(2)?;
            y.register_hook(|_| std::panic::resume_unwind(Box::new("the program's own panic")))?;
            let sum = y.sum(())?;
            let panicked =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sum.backward()));
            assert!(panicked.is_err());
        })
        .weight(5),
        row!("a captured value panics when dropped", |d| d.leaf(), |t, _| of_leaf(t), |t, _| {
            struct Bomb;
            impl Drop for Bomb {
                fn drop(&mut self) {
                    std::panic::resume_unwind(Box::new("the program's own panic"));
                }
            }
            let y = t[0].mul(2)?;
            let bomb = Bomb;
            y.register_hook(move |_| {
                let _ = &bomb;
                Ok(None)
            })?;
            let z = y.exp()?;
            drop(y);
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(z)));
            assert!(panicked.is_err());
        })
        .weight(5),
        row!(
            "hooks of leaves run in the order of their gradients",
            |d| d.leaf(),
            |t, _| of_leaf(t),
            |t, _| {
                let leaf = |_| t[0].detach().copy()?.reshape([-1])?.requires_grad_(true);
                let leaves = (0..6).map(leaf).collect::<warpline::Result<Vec<_>>>()?;
                let order = std::sync::Arc::new(std::sync::Mutex::new(vec![]));
                for (k, leaf) in leaves.iter().enumerate() {
                    let order = order.clone();
                    leaf.register_hook(move |_| {
                        order.lock().unwrap().push(k);
                        Ok(None)
                    })?;
                }
                warpline::cat(&leaves, 0)?.sum(())?.backward()?;
                assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4, 5]);
            }
        )
        .weight(5),
        row!("autograd::grad(create_graph)", |d| d.leaf(), |t, _| of_leaf(t), |t, _| {
            let y = t[0].mul(&t[0])?.sum(())?;
            let first =
                grad(&[&y], &[&t[0]], GradOptions::new().create_graph(true))?.remove(0).unwrap();
            let second = grad(&[&first.sum(())?], &[&t[0]], ())?.remove(0).unwrap();
            assert_eq!(second.size(), t[0].size());
        })
        .weight(5),
        row!(
            "autograd::checkpoint",
            tracked,
            |t, _| {
                if t[0].is_float() && t[0].track != Track::Maybe {
                    crate::model::new(&t[0], t[0].dtype, &t[0].sizes)
                } else {
                    Err(UNKNOWN)
                }
            },
            |t, _| checkpoint(|t| Ok(vec![t[0].mul(2)?.tanh()?]), &[&t[0]])?
        )
        .rounded(),
        row!(
            "a long chain of checkpoints is dropped",
            |d| {
                d.leaf();
                d.number(4000);
            },
            |t, n| {
                if !(0..=4000).contains(&n[0]) {
                    return Err(UNKNOWN as Kinds);
                }
                if t[0].numel() > 4 {
                    return Err(UNKNOWN);
                }
                of_leaf(t)
            },
            |t, n| {
                let world = runtime();
                let chain = || -> warpline::Result<()> {
                    let mut y = t[0].mul(1)?;
                    for _ in 0..n[0] {
                        let owned = y.clone();
                        y = checkpoint(move |t| Ok(vec![t[0].mul(&owned)?]), &[&y])?.remove(0);
                    }
                    Ok(())
                };
                // A recursive drop of the chain would overflow this small stack.
                let small = std::thread::Builder::new().stack_size(512 << 10);
                let ended = std::thread::scope(|s| {
                    let thread = small.spawn_scoped(s, || with_runtime(&world, chain)).unwrap();
                    thread.join().unwrap()
                });
                ended?
            }
        )
        .weight(2),
        row!(
            "autograd::backward(lists of other lengths)",
            |d| d.leaf(),
            |t, _| match t[0].track {
                Track::Leaf => Err(&["Gradient"]),
                _ => Err(UNKNOWN),
            },
            |t, _| warpline::autograd::backward(
                &[&t[0], &t[0]],
                BackwardTensorsOptions::new().grad_tensors(&[None])
            )?
        )
        .weight(5),
        row!(
            "Tensor::backward_with(a gradient of other sizes)",
            |d| {
                d.leaf();
                d.any();
            },
            |t, _| {
                if t[0].track != Track::Leaf || t[1].sizes == t[0].sizes {
                    return Err(UNKNOWN);
                }
                Err(&["Gradient"])
            },
            |t, _| t[0].backward_with(&t[1])?
        )
        .weight(5),
    ];
    // Passes and hooks affect tensors that are not arguments, so these rows run exclusively.
    rows.into_iter().map(Row::exclusive).collect()
}
