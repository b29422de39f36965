//! Tests of gradients at points where a formula is not differentiable. They must have PyTorch's
//! value, or be zero.

use warpline::functional::{
    AttentionOptions, NormalizeOptions, Reduction, binary_cross_entropy, normalize,
    scaled_dot_product_attention,
};
use warpline::{DType, DiffOptions, Result, Tensor, VarOptions, VectorNormOptions, tensor};

use super::{grad, leaf};
use crate::common;

#[track_caller]
fn slope(at: &[f64], f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Vec<f64>> {
    let x = leaf(at)?;
    f(&x)?.sum(())?.backward()?;
    grad(&x)
}

#[test]
fn norms_of_zero_have_a_gradient_of_zero() {
    common::cpu(|_| {
        for p in [0.5, 1.0, 1.5, 2.0, 3.0] {
            assert_eq!(
                slope(&[0.0, 0.0], |x| x.vector_norm(VectorNormOptions::new().ord(p).dim(0)))?,
                [0.0, 0.0],
                "{p}"
            );
        }
        assert_eq!(
            slope(&[0.0, 3.0], |x| x.vector_norm(VectorNormOptions::new().dim(0)))?,
            [0.0, 1.0]
        );
        assert_eq!(slope(&[2.0, 2.0], |x| x.std(0))?, [0.0, 0.0]);
        assert_eq!(slope(&[2.0, 2.0], |x| x.cdist_of_itself())?, [0.0, 0.0]);
        assert_eq!(
            slope(&[0.0, 0.0], |x| normalize(x, NormalizeOptions::new().dim(0).eps(0.5)))?,
            [2.0, 2.0]
        );
        Ok(())
    });
}

trait Distances {
    fn cdist_of_itself(&self) -> Result<Tensor>;
}

impl Distances for Tensor {
    fn cdist_of_itself(&self) -> Result<Tensor> {
        let points = self.unsqueeze(1)?;
        points.cdist(&points, ())
    }
}

#[test]
fn logsumexp_of_infinities_is_that_of_a_limit() {
    common::cpu(|_| {
        let (inf, none) = (f64::INFINITY, f64::NEG_INFINITY);
        let t = tensor([[none, none], [none, 1.0], [inf, 1.0], [inf, none]], ())?;
        assert_eq!(t.logsumexp(1)?.to_vec::<f64>()?, [none, 1.0, inf, inf]);
        assert_eq!(slope(&[none, none], |x| x.logsumexp(0))?, [0.0, 0.0]);
        assert_eq!(slope(&[none, 1.0], |x| x.logsumexp(0))?, [0.0, 1.0]);
        let nothing = tensor([[0f64; 0]; 2], ())?.reshape([2, 0])?;
        assert_eq!(nothing.logsumexp(1)?.to_vec::<f64>()?, [none, none]);
        assert_eq!(tensor([1i64, 1], ())?.logsumexp(0)?.dtype(), DType::F32);
        Ok(())
    });
}

#[test]
fn certain_probabilities_have_finite_losses_and_gradients() {
    common::cpu(|_| {
        let (p, t) = (leaf(&[0.0, 1.0, 0.0])?, tensor([1f64, 1.0, 0.0], ())?);
        let losses = binary_cross_entropy(&p, &t, Reduction::None)?;
        assert_eq!(losses.to_vec::<f64>()?, [100.0, 0.0, 0.0]);
        losses.sum(())?.backward()?;
        // As in PyTorch, the denominator is at least 1e-12.
        assert_eq!(grad(&p)?, [-1e12, 0.0, 0.0]);
        Ok(())
    });
}

#[test]
fn queries_that_see_no_key_get_zeros_and_finite_gradients() {
    common::cpu(|_| {
        let none = f64::NEG_INFINITY;
        let seen = tensor([[true, false], [false, false]], ())?;
        let added = tensor([[0.0, none], [none, none]], ())?;
        for mask in [seen, added] {
            let q = leaf(&[1.0, 2.0])?;
            let k = tensor([3f64, 4.0], ())?.unsqueeze(1)?;
            let v = tensor([5f64, 6.0], ())?.unsqueeze(1)?;
            let options = AttentionOptions::new().attn_mask(&mask);
            let out = scaled_dot_product_attention(&q.unsqueeze(1)?, &k, &v, options)?;
            assert_eq!(out.to_vec::<f64>()?, [5.0, 0.0]);
            out.sum(())?.backward()?;
            assert_eq!(grad(&q)?, [0.0, 0.0]);
        }
        Ok(())
    });
}

#[test]
fn statistics_of_no_elements_are_pytorchs() {
    common::cpu(|_| {
        let one = tensor([[3f32]], ())?;
        assert!(one.var(1)?.item::<f32>()?.is_nan());
        assert_eq!(one.var(VarOptions::new().dim(1).correction(0))?.item::<f32>()?, 0.0);
        assert!(tensor([f32::NAN], ())?.nanmean(0)?.item::<f32>()?.is_nan());
        assert_eq!(tensor([f32::NAN], ())?.nansum(0)?.item::<f32>()?, 0.0);
        assert_eq!(tensor([0i64, 3, 0], ())?.count_nonzero(0)?.item::<i64>()?, 1);
        assert_eq!(
            tensor([true, false], ())?.diff(DiffOptions::new().dim(0))?.to_vec::<bool>()?,
            [true]
        );
        Ok(())
    });
}
