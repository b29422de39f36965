//! The element at a rank: `kthvalue`, `median`.

#[cfg(doc)]
use crate::ErrorKind;
use crate::{CallScope, Error, Integer, IntoOptions, OrDefault, Result, Tensor};

impl Tensor {
    /// The `k`-th smallest element along a dimension, and its index (`torch.kthvalue`). `k` counts from 1. Default of
    /// `dim`: -1.
    ///
    /// # Errors
    /// The same as [`Tensor::sort`]. [`ErrorKind::InvalidArgument`] if `k` is 0 or exceeds the size of the
    /// dimension.
    #[track_caller]
    pub fn kthvalue(
        &self,
        k: usize,
        dim: impl IntoOptions<OrDefault<isize>>,
    ) -> Result<(Self, Self)> {
        let _call = CallScope::enter("kthvalue");
        let dim = dim.into_options().or(-1);
        let (values, indices) = self.kthvalue_keepdim(k, dim)?;
        squeeze_both(&values, &indices, dim)
    }

    /// The same as [`Tensor::kthvalue`], but keeps the dimension, with size 1.
    ///
    /// # Errors
    /// The same as [`Tensor::kthvalue`].
    #[track_caller]
    pub fn kthvalue_keepdim(
        &self,
        k: usize,
        dim: impl IntoOptions<OrDefault<isize>>,
    ) -> Result<(Self, Self)> {
        let _call = CallScope::enter("kthvalue_keepdim");
        let dim = dim.into_options().or(-1);
        const OP: &str = "kthvalue_keepdim";
        let d = self.layout().dim(dim)?;
        let size = self.size().get(d).copied().unwrap_or(1);
        if k == 0 || k > size {
            let reason = format!("k is {k}, but must be from 1 to {size}");
            return Err(Error::invalid(OP, reason));
        }
        let (values, indices) = self.sort(dim)?;
        if self.dim() == 0 {
            return Ok((values, indices));
        }
        let pick = |t: &Tensor| t.narrow(dim, k as isize - 1, 1)?.copy();
        Ok((pick(&values)?, pick(&indices)?))
    }

    /// The median along a dimension, and its index (`torch.median` with `dim`). Of two middle elements, the
    /// lower is the median. If there is a NaN, the median is NaN.
    ///
    /// # Errors
    /// The same as [`Tensor::sort`]. [`ErrorKind::InvalidArgument`] if the dimension has size 0.
    #[track_caller]
    pub fn median(&self, dim: impl Integer) -> Result<(Self, Self)> {
        let _call = CallScope::enter("median");
        let dim = dim.into_isize();
        let (values, indices) = self.median_keepdim(dim)?;
        squeeze_both(&values, &indices, dim)
    }

    /// The same as [`Tensor::median`], but keeps the dimension, with size 1.
    ///
    /// # Errors
    /// The same as [`Tensor::median`].
    #[track_caller]
    pub fn median_keepdim(&self, dim: impl Integer) -> Result<(Self, Self)> {
        let _call = CallScope::enter("median_keepdim");
        let dim = dim.into_isize();
        const OP: &str = "median_keepdim";
        let d = self.layout().dim(dim)?;
        let size = self.size().get(d).copied().unwrap_or(1);
        if size == 0 {
            return Err(Error::invalid(OP, format!("dimension {dim} has no elements")));
        }
        let middle = (size - 1) / 2;
        if !self.dtype().is_float() || self.dim() == 0 {
            return self.kthvalue_keepdim(middle + 1, dim);
        }
        let (values, indices) = self.sort(dim)?;
        // NaNs are sorted last, so the number of other elements is the index of the first NaN.
        let numbers = self.detach().isnan()?.logical_not()?;
        let numbers = numbers.sum_keepdim(dim)?;
        let full = numbers.eq(size as i64)?;
        let place = crate::where_cond(&full, middle as i64, &numbers)?;
        Ok((values.gather(dim, &place)?, indices.gather(dim, &place)?))
    }

    /// The median of all elements (`torch.median`). Of two middle elements, the lower is the median. The median
    /// is NaN if there is a NaN, or if a float tensor has no elements.
    ///
    /// # Errors
    /// The same as [`Tensor::sort`]. [`ErrorKind::InvalidArgument`] if an integer tensor has no elements.
    #[track_caller]
    pub fn median_all(&self) -> Result<Self> {
        let _call = CallScope::enter("median_all");
        if self.numel() == 0 && self.dtype().is_float() {
            return self.new_full((), f64::NAN, ());
        }
        Ok(self.reshape([self.numel() as isize])?.median(0)?.0)
    }
}

#[track_caller]
fn squeeze_both(values: &Tensor, indices: &Tensor, dim: isize) -> Result<(Tensor, Tensor)> {
    Ok((values.squeeze(dim)?, indices.squeeze(dim)?))
}
