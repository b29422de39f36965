//! Tests of graphs and backward passes: accumulation, freed graphs, gradients of gradients, deep
//! graphs.

use warpline::autograd::{self, BackwardOptions, GradOptions};
use warpline::{DType, ErrorKind, Tensor, arange, cat, ones, tensor, zeros};

use super::{grad, leaf};
use crate::common;

fn fails(result: warpline::Result<impl Sized>, words: &str) {
    let error = result.map(drop).expect_err(words);
    assert!(matches!(error.kind(), ErrorKind::Gradient { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(words) && text.contains("autograd/graph.rs"), "{text}");
}

#[test]
fn gradients_accumulate_in_leaves_until_they_are_taken() {
    common::cpu(|_| {
        let x = leaf(&[1.0, 2.0])?;
        for times in 1..=3 {
            x.square()?.sum(())?.backward()?;
            assert_eq!(grad(&x)?, [2.0 * f64::from(times), 4.0 * f64::from(times)]);
        }
        x.set_grad(None)?;
        assert!(x.grad().is_none());
        Ok(())
    });
}

#[test]
fn gradients_of_several_uses_of_a_tensor_are_summed() {
    common::cpu(|_| {
        let x = leaf(&[3.0])?;
        let y = x.mul(&x)?.add(&x)?;
        y.mul(&y)?.sum(())?.backward()?;
        assert_eq!(grad(&x)?, [2.0 * 12.0 * 7.0]);
        Ok(())
    });
}

#[test]
fn broadcast_operands_get_their_own_sizes_and_dtypes() {
    common::cpu(|_| {
        let row = leaf(&[1.0, 2.0, 3.0])?;
        let single = tensor(2f32, ())?.requires_grad_(true)?;
        let whole = ones([4, 3], DType::F64)?;
        whole.mul(&row)?.mul(&single)?.sum(())?.backward()?;
        assert_eq!(grad(&row)?, [8.0; 3]);
        assert_eq!(single.grad().unwrap().to_vec::<f32>()?, [24.0]);
        Ok(())
    });
}

#[test]
fn a_second_pass_needs_the_graph_to_be_retained() {
    common::cpu(|_| {
        let x = leaf(&[1.0, 2.0])?;
        let y = x.exp()?.sum(())?;
        y.backward_with(BackwardOptions::new().retain_graph(true))?;
        y.backward()?;
        fails(y.backward(), "freed");
        // A graph without saved tensors has nothing to free, so a second pass succeeds.
        let z = x.add(1.0)?.sum(())?;
        z.backward()?;
        z.backward()
    });
}

#[test]
fn roots_are_scalars_unless_a_gradient_is_given() {
    common::cpu(|_| {
        let x = leaf(&[1.0, 2.0])?;
        let y = x.mul(2.0)?;
        fails(y.backward(), "one element");
        fails(y.backward_with(&ones([3], DType::F64)?), "shape [3]");
        y.backward_with(&tensor([1f64, 10.0], ())?)?;
        assert_eq!(grad(&x)?, [2.0, 20.0]);
        fails(ones((), ())?.backward(), "does not require a gradient");
        Ok(())
    });
}

#[test]
fn grad_returns_gradients_and_does_not_change_leaves() {
    common::cpu(|_| {
        let (x, y, unused) = (leaf(&[2.0])?, leaf(&[5.0])?, leaf(&[1.0])?);
        let product = x.mul(&y)?;
        let options = GradOptions::new().retain_graph(true);
        let total = product.square()?.sum(())?;
        let grads = autograd::grad(&[&total], &[&y, &product], options)?;
        let values: Vec<f64> =
            grads.iter().map(|g| g.as_ref().unwrap().item()).collect::<warpline::Result<_>>()?;
        assert_eq!(values, [40.0, 20.0]);
        assert!(x.grad().is_none() && y.grad().is_none());
        fails(autograd::grad(&[&total], &[&unused], options), "input 0");
        let options = GradOptions::new().allow_unused(true);
        let grads = autograd::grad(&[&total], &[&unused, &x], options)?;
        assert!(grads[0].is_none() && grads[1].is_some());
        fails(
            autograd::grad(&[&total], &[&ones([1], ())?], options),
            "does not require a gradient",
        );
        Ok(())
    });
}

#[test]
fn gradients_have_gradients() {
    common::cpu(|_| {
        let x = leaf(&[0.5, -1.5])?;
        let options = GradOptions::new().create_graph(true);
        let mut y = x.sin()?.mul(&x.exp()?)?.sum(())?;
        for _ in 0..3 {
            y = autograd::grad(&[&y], &[&x], options)?.remove(0).unwrap().sum(())?;
        }
        y.backward()?;
        // The fourth derivative of eˣ sin x is −4 eˣ sin x.
        for (g, x) in grad(&x)?.iter().zip([0.5f64, -1.5]) {
            assert!((g + 4.0 * x.exp() * x.sin()).abs() < 1e-12, "{g}");
        }
        Ok(())
    });
}

#[test]
fn a_long_graph_runs_and_is_dropped() {
    common::cpu(|_| {
        let x = leaf(&[1.0])?;
        let mut y = x.clone();
        for _ in 0..1_000_000 {
            y = y.mul(1.0)?;
        }
        let kept = y.add(1.0)?;
        y.sum(())?.backward()?;
        assert_eq!(grad(&x)?, [1.0]);
        drop((y, kept));
        // A deep graph in which each node saves a tensor.
        let mut y = x.clone();
        for _ in 0..200_000 {
            y = y.mul(&x)?;
        }
        drop(y);
        Ok(())
    });
}

#[test]
fn an_op_without_a_gradient_is_refused_if_one_is_required() {
    common::cpu(|_| {
        let x = leaf(&[1.0, 2.0])?;
        fails(x.nextafter(3.0), "nextafter: it has no gradient");
        autograd::no_grad(|| x.nextafter(3.0)).map(drop)?;
        x.detach().nextafter(3.0).map(drop)
    });
}

#[test]
fn integers_and_bools_have_no_gradient() {
    common::cpu(|_| {
        fails(arange(3, ())?.requires_grad_(true), "only floating-point tensors");
        let x = leaf(&[1.0, 2.0])?;
        assert!(!x.gt(1.0)?.requires_grad());
        assert!(!x.argmax(())?.requires_grad());
        assert!(!x.to(DType::I64)?.requires_grad());
        assert!(x.to(DType::F32)?.requires_grad());
        Ok(())
    });
}

#[test]
fn a_computed_tensor_is_not_a_leaf() {
    common::cpu(|_| {
        let x = leaf(&[1.0])?;
        assert!(x.is_leaf() && x.requires_grad() && x.grad_fn().is_none());
        let y = x.mul(2.0)?;
        assert!(!y.is_leaf() && y.grad_fn().as_deref() == Some("MulBackward0"));
        fails(y.requires_grad_(false), "detach");
        assert!(y.detach().is_leaf() && !y.detach().requires_grad());
        assert!(format!("{x:?}").ends_with("requires_grad: true }"), "{x:?}");
        assert_eq!(x.to_string(), "tensor([1.], dtype=torch.float64, requires_grad=True)");
        assert_eq!(y.to_string(), "tensor([2.], dtype=torch.float64, grad_fn=<MulBackward0>)");
        Ok(())
    });
}

#[test]
fn clones_of_a_handle_are_the_same_tensor() {
    common::cpu(|_| {
        let x = zeros([2], DType::F64)?;
        let same = x.clone();
        x.requires_grad_(true)?;
        assert!(same.requires_grad() && same.is_same(&x) && !same.is_same(&x.detach()));
        same.mul(3.0)?.sum(())?.backward()?;
        assert_eq!(grad(&x)?, [3.0, 3.0]);
        same.requires_grad_(false)?;
        assert!(!x.requires_grad());
        Ok(())
    });
}

#[test]
fn a_first_gradient_has_its_own_memory() {
    common::cpu(|_| {
        let (x, y) = (leaf(&[1.0, 2.0])?, leaf(&[1.0, 2.0])?);
        // Both nodes receive the same gradient tensor.
        x.add(&y)?.backward_with(&ones([2], DType::F64)?)?;
        let (a, b) = (x.grad().unwrap(), y.grad().unwrap());
        a.add_(5.0)?;
        assert_eq!(b.to_vec::<f64>()?, [1.0, 1.0]);
        let t = leaf(&[1.0, 2.0, 3.0])?;
        t.sum(())?.backward()?;
        assert!(t.grad().unwrap().is_contiguous(), "not an expanded one");
        Ok(())
    });
}

#[test]
fn gradients_pass_through_joins_and_splits() {
    common::cpu(|_| {
        let (x, y) = (leaf(&[1.0, 2.0])?, leaf(&[3.0])?);
        let parts: Vec<Tensor> = cat(&[&x, &y, &x], 0)?.split(2, 0)?;
        parts[1].mul(10.0)?.sum(())?.add(&parts[2].sum(())?)?.backward()?;
        assert_eq!((grad(&x)?, grad(&y)?), (vec![10.0, 1.0], vec![10.0]));
        Ok(())
    });
}
