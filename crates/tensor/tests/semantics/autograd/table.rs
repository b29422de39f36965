//! Tests of the gradients of elementwise ops. The registry compares their values with finite
//! differences.

use warpline::{ErrorKind, ResultExt, apply_elementwise, tensor};
use warpline_kernels::elementwise::table;

use super::{grad, leaf};
use crate::common;

#[test]
fn a_required_gradient_without_a_formula_fails_in_the_forward_pass() {
    common::cpu(|_| {
        let elu = table().find(|op| op.name() == "elu").expect("an entry");
        let (x, alpha) = (leaf(&[1.0, -2.0])?, leaf(&[0.5, 0.7])?);
        let failed = apply_elementwise(elu, &[(&x).into(), (&alpha).into()]);
        assert!(matches!(failed.kind(), Some(ErrorKind::Gradient { .. })), "{failed:?}");
        apply_elementwise(elu, &[(&x).into(), (&alpha.detach()).into()]).map(drop)
    });
}

#[test]
fn operands_are_saved_only_for_required_gradients() {
    common::cpu(|_| {
        // The gradient of `a` reads `b`, and that of `b` reads `a`.
        let (a, b) = (leaf(&[2.0])?, tensor([3.0f64], ())?);
        let factor = a.mul(1.0)?;
        let product = factor.mul(&b)?;
        factor.add_(1.0)?;
        product.backward()?;
        assert_eq!(grad(&a)?, [3.0]);
        let product = a.mul(1.0)?.mul(&b)?;
        b.add_(1.0)?;
        assert!(matches!(product.backward().kind(), Some(ErrorKind::Gradient { .. })));
        Ok(())
    });
}
