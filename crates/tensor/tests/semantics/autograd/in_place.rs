//! Tests of in-place ops in a graph.

use warpline::autograd::no_grad;
use warpline::{AddmmOptions, DType, ErrorKind, Result, Tensor, tensor, zeros};

use super::{grad, leaf};
use crate::common;

fn fails(result: warpline::Result<impl Sized>, words: &str) {
    let error = result.map(drop).expect_err(words);
    assert!(matches!(error.kind(), ErrorKind::Gradient { .. }), "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn an_in_place_op_gives_its_tensor_a_new_node() {
    common::cpu(|_| {
        let x = leaf(&[1.0, 2.0])?;
        let y = x.mul(2.0)?;
        y.add_(&x)?.mul_(&x)?;
        assert_eq!(y.grad_fn().as_deref(), Some("MulBackward0"));
        y.sum(())?.backward()?;
        // y = 3x · x
        assert_eq!(grad(&x)?, [6.0, 12.0]);
        Ok(())
    });
}

#[test]
fn an_op_that_saves_its_result_may_be_in_place() {
    common::cpu(|_| {
        let x = leaf(&[0.5, -0.5])?;
        let y = x.mul(2.0)?;
        y.exp_()?;
        y.sum(())?.backward()?;
        let expected = [2.0 * 1f64.exp(), 2.0 * (-1f64).exp()];
        assert!(grad(&x)?.iter().zip(expected).all(|(g, e)| (g - e).abs() < 1e-12));
        Ok(())
    });
}

#[test]
fn a_leaf_can_be_changed_only_in_no_grad() {
    common::cpu(|_| {
        let x = leaf(&[1.0, 2.0])?;
        fails(x.add_(1.0), "a leaf that requires a gradient");
        fails(x.zero_(), "a leaf that requires a gradient");
        fails(x.select(0, 0)?.fill_(3), "a view of a leaf");
        assert_eq!(x.to_vec::<f64>()?, [1.0, 2.0], "and nothing is written");
        no_grad(|| x.add_(1.0).map(drop))?;
        assert_eq!(x.to_vec::<f64>()?, [2.0, 3.0]);
        // A leaf that is a view of a tensor without gradient.
        let x = tensor([1f64, 2.0, 3.0, 4.0], ())?.view([2, 2])?.requires_grad_(true)?;
        fails(x.add_(1.0), "a leaf that requires a gradient");
        fails(x.select(0, 0)?.zero_(), "a view of a leaf");
        x.square()?.sum(())?.backward()?;
        assert_eq!(grad(&x)?, [2.0, 4.0, 6.0, 8.0]);
        Ok(())
    });
}

#[test]
fn operands_that_a_gradient_needs_must_not_change() {
    common::cpu(|_| {
        let x = leaf(&[1.0, 2.0])?;
        let y = x.mul(1.0)?;
        let z = y.square()?.sum(())?;
        y.add_(1.0)?;
        fails(z.backward(), "modified by an in-place operation");
        // The change is made through a view of a detached tensor, which has no graph.
        let y = x.mul(1.0)?;
        let z = y.square()?.sum(())?;
        y.detach().select(0, 0)?.fill_(0)?;
        fails(z.backward(), "modified by an in-place operation");
        // `add` saves no operand, so its operands may change.
        let y = x.mul(3.0)?;
        let z = y.add(1.0)?.sum(())?;
        y.zero_()?;
        z.backward()?;
        assert_eq!(grad(&x)?, [3.0, 3.0]);
        Ok(())
    });
}

#[test]
fn an_in_place_operand_makes_its_tensor_require_a_gradient() {
    common::cpu(|_| {
        let x = leaf(&[1.0, 2.0])?;
        let sum = zeros([2], DType::F64)?;
        let same = sum.clone();
        for _ in 0..3 {
            sum.add_(&x)?;
        }
        assert!(same.requires_grad() && !same.is_leaf());
        // A tensor made from a `Vec` is not a view of another tensor.
        let made = Tensor::from_vec(vec![1f64; 2], [2, 1], ())?;
        assert_eq!(made.mul_(&x.view([2, 1])?)?.grad_fn().as_deref(), Some("MulBackward0"));
        same.sum(())?.backward()?;
        assert_eq!(grad(&x)?, [3.0, 3.0]);
        Ok(())
    });
}

#[test]
fn rows_of_a_buffer_are_written_one_by_one() {
    common::cpu(|_| {
        let x = leaf(&[1.0, 2.0])?;
        let rows = zeros([3, 2], DType::F64)?;
        for i in 0..3 {
            rows.select(0, i)?.copy_(&x.mul(i as f64)?, ())?;
        }
        assert_eq!(rows.grad_fn().as_deref(), Some("CopySlices"));
        rows.mul(&tensor([[1f64], [10.0], [100.0]], ())?)?.sum(())?.backward()?;
        assert_eq!(grad(&x)?, [210.0, 210.0]);
        Ok(())
    });
}

#[test]
fn views_and_their_base_see_each_others_changes() {
    common::cpu(|_| {
        let x = leaf(&[1.0, 2.0, 3.0, 4.0])?;
        let y = x.mul(1.0)?;
        let (row, column) = (y.view([2, 2])?.select(0, 0)?, y.view([2, 2])?.select(1, 0)?);
        row.mul_(10.0)?;
        assert_eq!(column.grad_fn().as_deref(), Some("AsStridedBackward0"));
        column.sum(())?.backward()?;
        assert_eq!(grad(&x)?, [10.0, 0.0, 1.0, 0.0]);
        x.set_grad(None)?;
        let y = x.mul(1.0)?;
        let row = y.view([2, 2])?.select(0, 1)?;
        y.mul_(7.0)?;
        row.sum(())?.backward()?;
        assert_eq!(grad(&x)?, [0.0, 0.0, 7.0, 7.0]);
        Ok(())
    });
}

#[test]
fn a_view_that_repeats_elements_sums_their_gradients() {
    common::cpu(|_| {
        let x = leaf(&[1.0, 2.0])?;
        let y = x.mul(1.0)?;
        let wide = y.unsqueeze(1)?.expand([2, 3])?;
        y.mul_(2.0)?;
        wide.sum(())?.backward()?;
        assert_eq!(grad(&x)?, [6.0, 6.0]);
        Ok(())
    });
}

#[test]
fn a_view_made_in_no_grad_cannot_be_changed_by_recorded_ops() {
    common::cpu(|_| {
        let x = leaf(&[1.0, 2.0])?.mul(1.0)?;
        let view = no_grad(|| x.select(0, 0))?;
        assert!(!view.requires_grad());
        fails(view.mul_(2.0), "made in `no_grad`");
        no_grad(|| view.mul_(2.0).map(drop))?;
        Ok(())
    });
}

#[test]
fn fills_and_random_draws_detach_from_the_graph() {
    common::cpu(|_| {
        let x = leaf(&[1.0, 2.0])?;
        let y = x.mul(5.0)?;
        y.select(0, 0)?.uniform_(())?;
        y.sum(())?.backward()?;
        assert_eq!(grad(&x)?, [0.0, 5.0]);
        // As in PyTorch, the gradient of a leaf is zeros, not `None`.
        for cut in
            [|y: &Tensor| y.zero_().map(drop), |y: &Tensor| y.copy_(&y.detach(), ()).map(drop)]
        {
            x.set_grad(None)?;
            let y = x.mul(5.0)?;
            cut(&y)?;
            y.sum(())?.backward()?;
            assert_eq!(grad(&x)?, [0.0, 0.0]);
        }
        Ok(())
    });
}

/// Both forms of an op with three operands: the function that returns a result, and the in-place
/// function.
type Both = (
    fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>,
    for<'a> fn(&'a Tensor, &Tensor, &Tensor) -> Result<&'a Tensor>,
);

#[test]
fn ops_of_three_operands_have_the_same_gradients_in_place() {
    common::cpu(|_| {
        let ops: [Both; 6] = [
            (|a, b, c| a.clamp_min(b)?.mul(c), |a, b, c| a.clamp_min_(b)?.mul_(c)),
            (|a, b, c| a.clamp_max(b)?.mul(c), |a, b, c| a.clamp_max_(b)?.mul_(c)),
            (
                |a, b, c| a.div(b)?.nan_to_num(())?.mul(c),
                |a, b, c| a.div_(b)?.nan_to_num_(())?.mul_(c),
            ),
            (|a, b, c| a.lerp(b, c), |a, b, c| a.lerp_(b, c)),
            (|a, b, c| a.addcmul(b, c, 0.5), |a, b, c| a.addcmul_(b, c, 0.5)),
            (|a, b, c| a.addcdiv(b, c, 0.5), |a, b, c| a.addcdiv_(b, c, 0.5)),
        ];
        for (apart, in_place) in ops {
            let leaves = [leaf(&[1.0, 2.0])?, leaf(&[-3.0, 0.5])?, leaf(&[0.25, 0.75])?];
            let [a, b, c] = &leaves;
            apart(&a.mul(2.0)?, b, c)?.square()?.sum(())?.backward()?;
            let mut expected = Vec::new();
            for leaf in &leaves {
                expected.push(grad(leaf)?);
                leaf.set_grad(None)?;
            }
            let changed = a.mul(2.0)?;
            in_place(&changed, b, c)?.square()?.sum(())?.backward()?;
            for (leaf, expected) in leaves.iter().zip(expected) {
                assert_eq!(grad(leaf)?, expected);
            }
        }
        Ok(())
    });
}

#[test]
fn products_added_in_place_have_the_gradients_of_separate_ops() {
    common::cpu(|_| {
        for (beta, alpha) in [(1.0, 1.0), (0.5, 2.0), (0.0, 1.0)] {
            let leaves = [leaf(&[1.0, 2.0, 3.0, 4.0])?, leaf(&[-1.0, 0.5])?, leaf(&[2.0, 3.0])?];
            let [a, b, c] = &leaves;
            let operands = || -> Result<[Tensor; 3]> {
                Ok([a.mul(1.0)?.view([2, 2])?, b.view([2, 1])?, c.view([1, 2])?])
            };
            let [own, x, y] = operands()?;
            own.addmm(&x, &y, AddmmOptions::new().beta(beta).alpha(alpha))?
                .square()?
                .sum(())?
                .backward()?;
            let mut expected = Vec::new();
            for leaf in &leaves {
                expected
                    .push(leaf.grad().map_or(vec![0.0; 4], |g| g.to_vec::<f64>().expect("f64")));
                leaf.set_grad(None)?;
            }
            let [own, x, y] = operands()?;
            own.addmm_(&x, &y, AddmmOptions::new().beta(beta).alpha(alpha))?
                .square()?
                .sum(())?
                .backward()?;
            for (leaf, expected) in leaves.iter().zip(expected) {
                assert_eq!(grad(leaf)?, expected, "{beta}, {alpha}");
            }
        }
        Ok(())
    });
}
