//! Gradients of reductions.

use smallvec::{SmallVec, smallvec};

use crate::autograd::{Gradients, NodeInputs, OpBackward, Saved, saved};
use crate::{Result, Tensor, cat, where_cond};

/// The reduced dimensions.
#[derive(Clone)]
pub(super) struct ReducedDims(pub(super) SmallVec<[usize; 6]>);

impl Saved for ReducedDims {}

impl ReducedDims {
    /// Reshapes the result of a reduction, or its gradient, so that it broadcasts to an input of sizes `sizes`.
    fn kept(&self, t: &Tensor, sizes: &[usize]) -> Result<Tensor> {
        let size = |(d, &n): (usize, &usize)| if self.0.contains(&d) { 1 } else { n as isize };
        t.reshape(&sizes.iter().enumerate().map(size).collect::<SmallVec<[isize; 6]>>()[..])
    }

    /// Applies `reduce` over the reduced dimensions.
    fn over(&self, t: &Tensor, reduce: fn(&Tensor, &[isize]) -> Result<Tensor>) -> Result<Tensor> {
        let dims: SmallVec<[isize; 6]> = self.0.iter().map(|&d| d as isize).collect();
        if dims.is_empty() { Ok(t.clone()) } else { reduce(t, &dims) }
    }

    fn sum(&self, t: &Tensor) -> Result<Tensor> {
        self.over(t, |t, dims| t.sum_keepdim(dims))
    }

    fn product(&self, t: &Tensor) -> Result<Tensor> {
        self.over(t, |t, dims| t.prod_keepdim(dims))
    }
}

saved! {
    pub(super) struct Sum { pub(super) reduced: ReducedDims }
}

impl OpBackward for Sum {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let sizes = inputs.sizes(0);
        Ok(smallvec![Some(expand(&self.reduced.kept(grad, sizes)?, sizes)?)])
    }
}

saved! {
    pub(super) struct Mean { pub(super) count: f64, pub(super) reduced: ReducedDims }
}

impl OpBackward for Mean {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let sizes = inputs.sizes(0);
        let share = self.reduced.kept(&grad.div(self.count)?, sizes)?;
        Ok(smallvec![Some(expand(&share, sizes)?)])
    }
}

saved! {
    /// The largest or smallest element, `out`, of `x`.
    pub(super) struct Extreme { pub(super) x: Tensor, pub(super) out: Tensor, pub(super) reduced: ReducedDims }
}

impl OpBackward for Extreme {
    /// Distributes the gradient equally among all elements that equal the extreme.
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let (reduced, sizes) = (&self.reduced, inputs.sizes(0));
        let equal = self.x.eq(&reduced.kept(&self.out, sizes)?)?.to(grad.dtype())?;
        let share = reduced.kept(grad, sizes)?.div(&reduced.sum(&equal)?)?;
        Ok(smallvec![Some(equal.mul(&share)?)])
    }
}

saved! {
    pub(super) struct Product { pub(super) x: Tensor, pub(super) reduced: ReducedDims }
}

impl OpBackward for Product {
    /// Multiplies the gradient by the product of the other elements.
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let slope = match self.x.numel() {
            0 => self.x.clone(),
            _ => product_of_others(&self.x, &self.reduced.0)?,
        };
        Ok(smallvec![Some(slope.mul(&self.reduced.kept(grad, inputs.sizes(0))?)?)])
    }

    /// Multiplies the gradient by the product of all elements, divided by the element. If exactly one
    /// element is zero, its factor is the product of the other elements, and all other gradients are 0. This formula is
    /// not differentiable where an element is zero; the formula of `backward` is.
    fn fused(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Option<Gradients>> {
        let (x, reduced) = (&self.x, &self.reduced);
        let zero = x.eq(0.0)?;
        let others = reduced.product(&where_cond(&zero, 1.0, x)?)?;
        let zeros = reduced.sum(&zero.to(x.dtype())?)?;
        let whole = where_cond(&zeros.eq(0.0)?, &others, 0.0)?.div(x)?;
        let alone = where_cond(&zeros.eq(1.0)?, &others, 0.0)?;
        let slope = where_cond(&zero, &alone, &whole)?;
        Ok(Some(smallvec![Some(slope.mul(&reduced.kept(grad, inputs.sizes(0))?)?)]))
    }
}

/// Returns, for each element, the product of the other elements along the dimensions `which`. Multiplies the
/// cumulative products before and after the element.
#[track_caller]
fn product_of_others(x: &Tensor, which: &[usize]) -> Result<Tensor> {
    let kept = (0..x.dim()).filter(|d| !which.contains(d));
    let order: SmallVec<[usize; 6]> = kept.chain(which.iter().copied()).collect();
    let dims = |order: &[usize]| order.iter().map(|&d| d as isize).collect::<SmallVec<[_; 6]>>();
    let last = x.permute(&dims(&order)[..])?;
    let flat = last.reshape([-1, which.iter().map(|&d| x.size()[d] as isize).product()])?;
    let (one, count) = (flat.narrow(1, 0, 1)?.ones_like(())?, flat.size()[1] - 1);
    let before = cat(&[&one, &flat.narrow(1, 0, count)?], 1)?.cumprod(1)?;
    let behind = cat(&[&flat.narrow(1, 1, count)?, &one], 1)?.flip(1)?.cumprod(1)?.flip(1)?;
    let mut back = order.clone();
    order.iter().enumerate().for_each(|(place, &d)| back[d] = place);
    let sizes: SmallVec<[isize; 6]> = last.size().iter().map(|&n| n as isize).collect();
    before.mul(&behind)?.reshape(&sizes[..])?.permute(&dims(&back)[..])
}

#[track_caller]
fn expand(t: &Tensor, sizes: &[usize]) -> Result<Tensor> {
    t.expand(&sizes.iter().map(|&n| n as isize).collect::<SmallVec<[isize; 6]>>()[..])
}
