//! `scatter_reduce`: its reductions, their kernels, and their gradients.

use smallvec::smallvec;
use warpline_kernels::scatter::Reduce;

use super::as_indices;
use super::scatter::pad_gradient;
use crate::autograd::{
    Gradients, NodeInputs, OpBackward, Saved, record, saved, should_record, should_record_in_place,
};
use crate::called::Called;
use crate::{
    CallScope, Integer, IntoOptions, OrDefault, Result, RoundingMode, Scalar, Tensor, where_cond,
};

/// The reduction by which [`Tensor::scatter_reduce`] combines elements with the same position (`reduce` of
/// `torch.scatter_reduce`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterReduce {
    /// The sum.
    Sum,
    /// The product. Limitation: if several factors at a position are 0, the gradient is correct, but the gradient of
    /// the gradient is not.
    Prod,
    /// The mean; rounded down for integers.
    Mean,
    /// The largest element; NaN if there is a NaN.
    Amax,
    /// The smallest element; NaN if there is a NaN.
    Amin,
}

impl Saved for ScatterReduce {}

impl Tensor {
    /// Reduces all elements of `src` that [`Tensor::scatter`] would write to the same position
    /// (`torch.scatter_reduce`). If `include_self` is true, which is the default, the reduction also includes
    /// this tensor's element at the position. Positions without an element of `src` keep their element.
    ///
    /// # Errors
    /// The same as [`Tensor::scatter`].
    #[track_caller]
    pub fn scatter_reduce(
        &self,
        dim: impl Integer,
        index: &Tensor,
        src: &Tensor,
        reduce: ScatterReduce,
        include_self: impl IntoOptions<OrDefault<bool>>,
    ) -> Result<Self> {
        let _call = CallScope::enter("scatter_reduce");
        let (dim, include_self) = (dim.into_isize(), include_self.into_options().or(true));
        const OP: &str = "scatter_reduce";
        let index = &as_indices(OP, self, index)?;
        let out = self.duplicate()?;
        out.reduce_in(OP, dim, index, src, reduce, include_self)?;
        if !self.dtype().is_float() || !should_record(&[self, src]) {
            return Ok(out);
        }
        let saved = ScatterReduced {
            x: self.clone(),
            src: src.clone(),
            index: index.clone(),
            out: out.clone(),
            dim,
            reduce,
            include_self,
        };
        record(OP, out, &[self, src], saved)
    }

    /// [`Tensor::scatter_reduce`] in place.
    ///
    /// # Errors
    /// The same as [`Tensor::scatter_`].
    #[track_caller]
    pub fn scatter_reduce_(
        &self,
        dim: impl Integer,
        index: &Tensor,
        src: &Tensor,
        reduce: ScatterReduce,
        include_self: impl IntoOptions<OrDefault<bool>>,
    ) -> Result<&Self> {
        let _call = CallScope::enter("scatter_reduce_");
        let (dim, include_self) = (dim.into_isize(), include_self.into_options().or(true));
        const OP: &str = "scatter_reduce_";
        if should_record_in_place(self, &[src]) {
            // The gradient may read the elements that the op overwrites.
            let former = self.copy()?;
            let out = former.scatter_reduce(dim, index, src, reduce, include_self)?;
            return self.copy_(&out, ());
        }
        self.reduce_in(OP, dim, index, src, reduce, include_self)?;
        Ok(self)
    }

    #[track_caller]
    fn reduce_in(
        &self,
        op: &'static str,
        dim: isize,
        index: &Tensor,
        src: &Tensor,
        reduce: ScatterReduce,
        include_self: bool,
    ) -> Result<()> {
        let index = &as_indices(op, self, index)?;
        let kind = match reduce {
            ScatterReduce::Sum | ScatterReduce::Mean => Reduce::Sum,
            ScatterReduce::Prod => Reduce::Prod,
            ScatterReduce::Amax => Reduce::Max,
            ScatterReduce::Amin => Reduce::Min,
        };
        if let (false, Some(neutral)) = (include_self, kind.neutral(self.dtype())) {
            // Write the neutral element to the positions in `index` only; all other elements keep their values.
            let neutral = self.expanded_scalar(op, neutral, index.size())?;
            self.scatter_raw(op, dim, index, &neutral, Reduce::Assign)?;
        }
        self.scatter_raw(op, dim, index, src, kind)?;
        if reduce == ScatterReduce::Mean {
            let counts = self.new_full(self.size(), i64::from(include_self), ()).of(op)?;
            let one = self.expanded_scalar(op, Scalar::Int(1), index.size())?;
            counts.scatter_raw(op, dim, index, &one, Reduce::Sum)?;
            let counts = counts.clamp_min(1).of(op)?;
            let mean = if self.dtype().is_float() {
                self.div(&counts)
            } else {
                self.div_rounded(&counts, RoundingMode::Floor)
            };
            self.overwrite(&mean.of(op)?, false).of(op)?;
        }
        Ok(())
    }
}

saved! {
    struct ScatterReduced {
        x: Tensor,
        src: Tensor,
        index: Tensor,
        out: Tensor,
        dim: isize,
        reduce: ScatterReduce,
        include_self: bool,
    }
}

impl OpBackward for ScatterReduced {
    /// Distributes the gradient of a maximum or minimum equally among equal elements, as in PyTorch.
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
    /// Computes the gradients of a product. The derivative with respect to an element is the product divided by
    /// the element. If there is a single zero, its derivative is the product of the other elements. The masks hide
    /// products that have gradients.
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
