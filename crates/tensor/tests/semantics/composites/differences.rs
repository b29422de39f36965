//! Tests of gradients through views that are written in place, and through overlapping views.

use warpline::autograd::{GradcheckOptions, gradcheck, gradgradcheck};
use warpline::{DType, Result, Tensor, rand, tensor};

use crate::common;

#[test]
fn writes_through_views_agree_with_differences() {
    common::cpu(|_| {
        let written = |x: &[Tensor]| -> Result<Vec<Tensor>> {
            let y = x[0].mul(2.0)?;
            y.tril_(0)?.mul_(&x[0])?;
            y.diagonal(())?.mul_(&x[0].select(0, 0)?)?;
            Ok(vec![y.square()?])
        };
        let inputs = [rand([3, 3], DType::F64)?.add(0.2)?.requires_grad_(true)?];
        gradcheck(written, &inputs, GradcheckOptions::default())?;
        gradgradcheck(written, &inputs, GradcheckOptions::default())
    });
}

#[test]
fn elements_at_the_same_address_share_a_gradient() {
    common::cpu(|_| {
        let x = tensor([1f64, 2.0], ())?.requires_grad_(true)?;
        // As in PyTorch 2.11, the gradient of an element is divided among all positions of the view
        // that refer to it.
        let wide = x.unsqueeze(0)?.expand([3, 2])?;
        wide.as_strided([2], [1], None)?.sum(())?.backward()?;
        assert_eq!(x.grad().expect("a gradient").to_vec::<f64>()?, [1.0, 1.0]);
        Ok(())
    });
}
