//! The gradients of `scatter_reduce`.

use smallvec::smallvec;

use super::ScatterReduce;
use super::scatter::pad_gradient;
use crate::autograd::{Gradients, NodeInputs, OpBackward, saved};
use crate::{Result, Tensor, where_cond};

saved! {
    pub(super) struct ScatterReduced {
        pub(super) x: Tensor,
        pub(super) src: Tensor,
        pub(super) index: Tensor,
        pub(super) out: Tensor,
        pub(super) dim: isize,
        pub(super) reduce: ScatterReduce,
        pub(super) include_self: bool,
    }
}

impl OpBackward for ScatterReduced {
    /// Distributes the gradient of an extreme equally among equal elements, as in PyTorch.
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let Self { x, index, out, dim, .. } = self;
        let dim = *dim;
        let narrowed = |t: Tensor, (d, &n): (usize, &usize)| t.narrow(d as isize, 0, n);
        let src = &index.size().iter().enumerate().try_fold(self.src.clone(), narrowed)?;
        let (of_x, of_src) = match self.reduce {
            ScatterReduce::Sum => (grad.clone(), grad.gather(dim, index)?),
            ScatterReduce::Prod => self.of_products(grad, src)?,
            ScatterReduce::Mean => {
                let own = grad.new_full(grad.size(), i64::from(self.include_self), ())?;
                let count = own.scatter_add(dim, index, &src.ones_like(())?)?.clamp_min(1.0)?;
                (grad.div(&count)?, grad.gather(dim, index)?.div(&count.gather(dim, index)?)?)
            }
            ScatterReduce::Amax | ScatterReduce::Amin => {
                let own = x.eq(out)?.to(grad.dtype())?;
                let others = src.eq(&out.gather(dim, index)?)?.to(grad.dtype())?;
                let share = grad.div(&own.scatter_add(dim, index, &others)?)?;
                (own.mul(&share)?, others.mul(&share.gather(dim, index)?)?)
            }
        };
        let of_x = if self.include_self { of_x } else { of_x.scatter(dim, index, 0)? };
        Ok(smallvec![Some(of_x), Some(pad_gradient(&of_src, inputs.sizes(1))?)])
    }
}

impl ScatterReduced {
    /// Computes the gradients of a product. The factor of an element is the product divided by the element.
    /// For a single zero, the factor is the product without the zero.
    fn of_products(&self, grad: &Tensor, src: &Tensor) -> Result<(Tensor, Tensor)> {
        let Self { x, index, out, dim, .. } = self;
        let dim = *dim;
        let product = |x: &Tensor, src: &Tensor| {
            x.scatter_reduce(dim, index, src, ScatterReduce::Prod, self.include_self)
        };
        let other_x = x.masked_fill(&x.eq(0.0)?, 1)?;
        let of_x = grad.mul(&product(&other_x, src)?)?.div(&other_x)?;
        let zero = src.eq(0.0)?;
        let none = x.zeros_like(())?.detach();
        let zeros = none.scatter_add(dim, index, &zero.to(x.dtype())?)?.gather(dim, index)?;
        let alone = zero.logical_and(&zeros.eq(1.0)?)?;
        let others = product(x, &src.masked_fill(&alone, 1)?)?;
        let of_src = where_cond(
            &alone,
            &grad.mul(&others)?.gather(dim, index)?,
            &grad.mul(out)?.gather(dim, index)?.div(&src.masked_fill(&zero, 1)?)?,
        )?;
        Ok((of_x, of_src))
    }
}
