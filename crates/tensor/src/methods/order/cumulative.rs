//! Cumulative sums, products and extremes: `cumsum` and similar methods.

use smallvec::smallvec;
use warpline_kernels::scan::{ScanOp, scan};

use crate::amp::{autocast_operands, keep_operands};
use crate::autograd::{Gradients, NodeInputs, OpBackward, linear, record, saved, should_record};
use crate::called::Called;
use crate::{CallScope, DType, Integer, Result, Tensor, cat, where_cond};

impl Tensor {
    /// The cumulative sum along a dimension (`torch.cumsum`). Integers and bools give `int64`.
    ///
    /// ```
    /// # use warpline::tensor;
    /// assert_eq!(tensor(&[1f32, 2.0, 3.0], ())?.cumsum(0)?.to_vec::<f32>()?, [1.0, 3.0, 6.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`](crate::ErrorKind::DimOutOfRange) if the tensor lacks the dimension. Errors
    /// of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn cumsum(&self, dim: impl Integer) -> Result<Self> {
        let dim = dim.into_isize();
        let this = self;
        autocast_operands!(F32, Keep, [this] => this.cumsum(dim));
        Ok(self.scanned(ScanOp::Sum, dim)?.0)
    }

    /// [`Tensor::cumsum`] in place. Keeps the dtype.
    ///
    /// # Errors
    /// The same as [`Tensor::cumsum`]. [`ErrorKind::OverlappingWrite`](crate::ErrorKind::OverlappingWrite) if
    /// elements of the tensor share an address.
    #[track_caller]
    pub fn cumsum_(&self, dim: impl Integer) -> Result<&Self> {
        let _call = CallScope::enter("cumsum_");
        let (_region, dim) = (keep_operands(), dim.into_isize());
        let all = self.cumsum(dim)?;
        self.copy_(&all, ())
    }

    /// The cumulative product along a dimension (`torch.cumprod`). Integers and bools give `int64`. With `create_graph`,
    /// a gradient takes time and memory that grow with the square of the dimension's size, as in PyTorch.
    ///
    /// # Errors
    /// The same as [`Tensor::cumsum`].
    #[track_caller]
    pub fn cumprod(&self, dim: impl Integer) -> Result<Self> {
        let dim = dim.into_isize();
        let this = self;
        autocast_operands!(F32, Keep, [this] => this.cumprod(dim));
        Ok(self.scanned(ScanOp::Prod, dim)?.0)
    }

    /// [`Tensor::cumprod`] in place. Keeps the dtype.
    ///
    /// # Errors
    /// The same as [`Tensor::cumsum_`].
    #[track_caller]
    pub fn cumprod_(&self, dim: impl Integer) -> Result<&Self> {
        let _call = CallScope::enter("cumprod_");
        let (_region, dim) = (keep_operands(), dim.into_isize());
        // The gradient reads the elements that this op overwrites.
        let former = if should_record(&[self]) { self.copy()? } else { self.clone() };
        let all = former.cumprod(dim)?;
        self.copy_(&all, ())
    }

    /// The cumulative maximum along a dimension, and the index of each maximum (`torch.cummax`). Among equal elements,
    /// the index of the last is chosen. A NaN is larger than any number.
    ///
    /// # Errors
    /// The same as [`Tensor::cumsum`].
    #[track_caller]
    pub fn cummax(&self, dim: impl Integer) -> Result<(Self, Self)> {
        self.scanned(ScanOp::Max, dim.into_isize())
    }

    /// The cumulative minimum along a dimension, and the index of each minimum (`torch.cummin`). Among equal elements,
    /// the index of the last is chosen. A NaN is smaller than any number.
    ///
    /// # Errors
    /// The same as [`Tensor::cumsum`].
    #[track_caller]
    pub fn cummin(&self, dim: impl Integer) -> Result<(Self, Self)> {
        self.scanned(ScanOp::Min, dim.into_isize())
    }

    /// Runs a scan and records it. Returns the values and the indices, or the values twice if the scan has no
    /// indices.
    #[track_caller]
    fn scanned(&self, by: ScanOp, dim: isize) -> Result<(Self, Self)> {
        let (op, has_indices) = (by.name(), by.has_indices());
        let d = self.layout().dim(dim).of(op)?;
        let keeps_dtype = has_indices || self.dtype().is_float();
        let a = self.in_dtype(if keeps_dtype { self.dtype() } else { DType::I64 }).of(op)?;
        let exec = a.exec()?;
        let out = exec.empty(a.size(), a.dtype()).of(op)?;
        let indices =
            if has_indices { exec.empty(a.size(), DType::I64).of(op)? } else { out.clone() };
        let places = has_indices.then(|| indices.as_view());
        scan(exec.target(), by, a.as_view(), d, out.as_view(), places)?;
        if !out.dtype().is_float() || !should_record(&[self]) {
            return Ok((out, indices));
        }
        Ok((record_scan(by, self, out, &indices, dim)?, indices))
    }
}

/// Records a scan of `x`. A scan without an arm here does not compile.
#[track_caller]
fn record_scan(
    by: ScanOp,
    x: &Tensor,
    out: Tensor,
    indices: &Tensor,
    dim: isize,
) -> Result<Tensor> {
    let op = by.name();
    match by {
        ScanOp::Sum => record(op, out, &[x], linear(move |grad, _| reverse_cumsum(grad, dim))),
        ScanOp::Prod => {
            let saved = CumProd { x: x.clone(), out: out.clone(), dim };
            record(op, out, &[x], saved)
        }
        ScanOp::Max | ScanOp::Min => {
            record(op, out, &[x], Extremes { dim, indices: indices.clone() })
        }
    }
}

/// Returns the sum of each element and all later elements.
fn reverse_cumsum(t: &Tensor, dim: isize) -> Result<Tensor> {
    t.flip(dim)?.cumsum(dim)?.flip(dim)
}

saved! {
    struct CumProd { x: Tensor, out: Tensor, dim: isize }

    /// The indices of cumulative extremes.
    struct Extremes { dim: isize, indices: Tensor }
}

impl OpBackward for CumProd {
    /// Multiplies, for each element, the elements before it with the cumulative products of those behind it. Never
    /// divides, so zeros need no special case.
    fn backward(&self, grad: &Tensor, _: &NodeInputs<'_>) -> Result<Gradients> {
        let Self { x, dim, .. } = self;
        if x.dim() == 0 {
            return Ok(smallvec![Some(grad.clone())]);
        }
        let d = x.layout().dim(*dim)? as isize;
        let n = x.size()[d as usize];
        let gradient_of = |k: usize| {
            let before = x.narrow(d, 0, k)?.prod_keepdim(d)?;
            let behind = x.narrow(d, k + 1, n - k - 1)?.cumprod(d)?;
            let products = cat(&[&before, &behind.mul(&before)?], d)?;
            grad.narrow(d, k, n - k)?.mul(&products)?.sum_keepdim(d)
        };
        let gradients = (0..n).map(gradient_of).collect::<Result<Vec<_>>>()?;
        let of_x = if n == 0 { grad.clone() } else { cat(&gradients, d)? };
        Ok(smallvec![Some(of_x)])
    }

    /// Before the first zero of a row, divides by the element. At the first zero, adds up the products without
    /// this zero, up to the second zero. After the first zero, the gradient is 0. The masks hide products that have
    /// gradients, so this form must not be recorded.
    fn fused(&self, grad: &Tensor, _: &NodeInputs<'_>) -> Result<Option<Gradients>> {
        let Self { x, out, dim } = self;
        let zero = x.eq(0.0)?;
        let zeros = zero.cumsum(*dim)?;
        let (none, one) = (zeros.eq(0)?, zeros.eq(1)?);
        let divided = reverse_cumsum(&where_cond(&none, &out.mul(grad)?, 0.0)?, *dim)?;
        let before = divided.div(&where_cond(&none, x, 1.0)?)?;
        let first = zero.logical_and(&one)?;
        // The products with the first zero, and all elements from the second zero on, replaced by 1.
        // Only the products before the second zero are used, which `one` selects.
        let without = where_cond(&first.logical_or(&zeros.gt(1)?)?, 1.0, x)?.cumprod(*dim)?;
        let behind = where_cond(&one, &without.mul(grad)?, 0.0)?.sum_keepdim(*dim)?;
        let of_x = where_cond(&none, &before, &where_cond(&first, &behind, 0.0)?)?;
        Ok(Some(smallvec![Some(of_x)]))
    }
}

impl OpBackward for Extremes {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let whole = grad.new_zeros(inputs.sizes(0), ())?;
        Ok(smallvec![Some(whole.scatter_add_(self.dim, &self.indices, grad)?.clone())])
    }
}
