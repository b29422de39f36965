//! One element by its place in the order: `kthvalue`, `median`.

use crate::called::Called;
use crate::{Error, Result, Tensor};

impl Tensor {
    /// The `k`-th smallest element along a dimension, counted from 1, and where it is (`torch.kthvalue`).
    ///
    /// # Errors
    /// As [`Tensor::sort`]; [`ErrorKind::InvalidArgument`] for a `k` that there is not.
    #[track_caller]
    pub fn kthvalue(&self, k: usize, dim: isize) -> Result<(Self, Self)> {
        let (values, indices) = self.kthvalue_keepdim(k, dim).of("kthvalue")?;
        without(&values, &indices, dim).of("kthvalue")
    }

    /// [`Tensor::kthvalue`] that keeps the dimension, with size 1.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn kthvalue_keepdim(&self, k: usize, dim: isize) -> Result<(Self, Self)> {
        const OP: &str = "kthvalue_keepdim";
        let d = self.layout().dim(dim).of(OP)?;
        let size = self.size().get(d).copied().unwrap_or(1);
        if k == 0 || k > size {
            let reason = format!("k is {k}, but must be from 1 to {size}");
            return Err(Error::invalid(OP, reason));
        }
        let (values, indices) = self.sort(dim, false).of(OP)?;
        if self.dim() == 0 {
            return Ok((values, indices));
        }
        let pick = |t: &Tensor| t.narrow(dim, k as isize - 1, 1)?.copy();
        Ok((pick(&values).of(OP)?, pick(&indices).of(OP)?))
    }

    /// The median along a dimension, of two the lower, and where it is (`torch.median` with `dim`); a NaN if
    /// there is one.
    ///
    /// # Errors
    /// As [`Tensor::sort`]; [`ErrorKind::InvalidArgument`] where there is no element.
    #[track_caller]
    pub fn median(&self, dim: isize) -> Result<(Self, Self)> {
        let (values, indices) = self.median_keepdim(dim).of("median")?;
        without(&values, &indices, dim).of("median")
    }

    /// [`Tensor::median`] that keeps the dimension, with size 1.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn median_keepdim(&self, dim: isize) -> Result<(Self, Self)> {
        const OP: &str = "median_keepdim";
        let d = self.layout().dim(dim).of(OP)?;
        let size = self.size().get(d).copied().unwrap_or(1);
        if size == 0 {
            return Err(Error::invalid(OP, format!("dimension {dim} has no elements")));
        }
        let middle = (size - 1) / 2;
        if !self.dtype().is_float() || self.dim() == 0 {
            return self.kthvalue_keepdim(middle + 1, dim).of(OP);
        }
        let (values, indices) = self.sort(dim, false).of(OP)?;
        // The first NaN, if there is one: they come last.
        let numbers = self.detach().isnan().of(OP)?.logical_not().of(OP)?;
        let numbers = numbers.sum_keepdim(dim).of(OP)?;
        let full = numbers.eq(size as i64).of(OP)?;
        let place = crate::where_cond(&full, middle as i64, &numbers).of(OP)?;
        Ok((values.gather(dim, &place).of(OP)?, indices.gather(dim, &place).of(OP)?))
    }

    /// The median of all elements, of two the lower (`torch.median`); a NaN if there is one, or no element.
    ///
    /// # Errors
    /// As [`Tensor::sort`].
    #[track_caller]
    pub fn median_all(&self) -> Result<Self> {
        const OP: &str = "median_all";
        if self.numel() == 0 && self.dtype().is_float() {
            return self.new_full((), f64::NAN, ()).of(OP);
        }
        Ok(self.reshape([self.numel() as isize]).of(OP)?.median(0).of(OP)?.0)
    }
}

fn without(values: &Tensor, indices: &Tensor, dim: isize) -> Result<(Tensor, Tensor)> {
    Ok((values.squeeze(dim)?, indices.squeeze(dim)?))
}
