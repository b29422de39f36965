//! The gradients of `scatter_reduce`.

use super::ScatterReduce;
use crate::{Result, Tensor, where_cond};

/// A call, by its arguments.
pub(super) struct Reduced {
    pub(super) dim: isize,
    pub(super) reduce: ScatterReduce,
    pub(super) include_self: bool,
}

impl Reduced {
    /// Of `x` and `src`, as PyTorch has them: of equal extremes each has its share.
    pub(super) fn gradients(
        &self,
        grad: &Tensor,
        x: &Tensor,
        src: &Tensor,
        index: &Tensor,
        out: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let dim = self.dim;
        let src = &first(src, index.size())?;
        let (of_x, of_src) = match self.reduce {
            ScatterReduce::Sum => (grad.clone(), grad.gather(dim, index)?),
            ScatterReduce::Prod => self.of_products(grad, x, src, index, out)?,
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
        Ok((of_x, of_src))
    }

    /// The product of the others: where a single one is zero it is taken without it.
    fn of_products(
        &self,
        grad: &Tensor,
        x: &Tensor,
        src: &Tensor,
        index: &Tensor,
        out: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let dim = self.dim;
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

/// What of a source an index of these sizes takes.
fn first(src: &Tensor, sizes: &[usize]) -> Result<Tensor> {
    let narrowed = |t: Tensor, (d, &n): (usize, &usize)| t.narrow(d as isize, 0, n);
    sizes.iter().enumerate().try_fold(src.clone(), narrowed)
}
