//! Reductions that ignore NaN, pairs of the smallest and the largest element, counts of nonzero elements, and
//! differences of neighbours.

use crate::amp::keep_operands;
use crate::functional::options::options;
use crate::{CallScope, DType, Integer, IntoDim, IntoDims, IntoOptions, Result, Tensor};

options! {
    /// Options of [`Tensor::diff`]. A `usize` converts into options with that `n`.
    #[derive(Clone, Copy, Debug)]
    DiffOptions [] [] {
        /// Sets how many times differences are computed. Default: 1.
        n: usize = 1, usize;
        /// Sets the dimension. Negative: counted from the end. Default: -1.
        dim: isize = -1, impl Integer => Integer::into_isize;
    }
}

impl From<usize> for DiffOptions {
    fn from(n: usize) -> Self {
        Self::new().n(n)
    }
}

impl Tensor {
    /// [`Tensor::sum`] of the elements that are not NaN (`torch.nansum`).
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor([1f32, f32::NAN, 4.0], ())?;
    /// assert_eq!((t.nansum(0)?.item::<f32>()?, t.nanmean(0)?.item::<f32>()?), (5.0, 2.5));
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`Tensor::sum`].
    #[track_caller]
    pub fn nansum(&self, dims: impl IntoDims) -> Result<Self> {
        let _call = CallScope::enter("nansum");
        let _region = keep_operands();
        self.nan_as_zero()?.sum(dims)
    }

    /// The same as [`Tensor::nansum`], but keeps the dimensions, with size 1.
    ///
    /// # Errors
    /// The same as [`Tensor::sum`].
    #[track_caller]
    pub fn nansum_keepdim(&self, dims: impl IntoDims) -> Result<Self> {
        let _call = CallScope::enter("nansum_keepdim");
        let _region = keep_operands();
        self.nan_as_zero()?.sum_keepdim(dims)
    }

    /// [`Tensor::mean`] of the elements that are not NaN (`torch.nanmean`). Floats only.
    ///
    /// # Errors
    /// The same as [`Tensor::mean`].
    #[track_caller]
    pub fn nanmean(&self, dims: impl IntoDims) -> Result<Self> {
        let _call = CallScope::enter("nanmean");
        self.mean_of_numbers(&dims.into_dims(), false)
    }

    /// The same as [`Tensor::nanmean`], but keeps the dimensions, with size 1.
    ///
    /// # Errors
    /// The same as [`Tensor::mean`].
    #[track_caller]
    pub fn nanmean_keepdim(&self, dims: impl IntoDims) -> Result<Self> {
        let _call = CallScope::enter("nanmean_keepdim");
        self.mean_of_numbers(&dims.into_dims(), true)
    }

    #[track_caller]
    fn mean_of_numbers(&self, dims: &[isize], keepdim: bool) -> Result<Self> {
        if !self.dtype().is_float() {
            let dtype = self.dtype();
            return Err(crate::ErrorKind::UnsupportedDType { dtype }.of("nanmean"));
        }
        let nan = self.isnan()?;
        // Sum in a wider dtype, because the sum of half-width floats may overflow even if the mean does not.
        let (numbers, counted) = (self.masked_fill(&nan, 0)?.widened()?, nan.logical_not()?);
        let count = counted.sum_kept(dims, keepdim)?;
        numbers.sum_kept(dims, keepdim)?.div(&count)?.to(self.dtype())
    }

    /// Replaces NaN with 0.
    #[track_caller]
    fn nan_as_zero(&self) -> Result<Self> {
        if self.dtype().is_float() { self.masked_fill(&self.isnan()?, 0) } else { Ok(self.clone()) }
    }

    /// The smallest and the largest element along a dimension (`torch.aminmax`). If `dim` is `None` or `()`,
    /// the smallest and the largest of all elements. If there is a NaN, both results are NaN.
    ///
    /// # Errors
    /// The same as [`Tensor::amin`].
    #[track_caller]
    pub fn aminmax(&self, dim: impl IntoDim) -> Result<(Self, Self)> {
        let _call = CallScope::enter("aminmax");
        let dim = dim.into_dim();
        Ok((self.amin(dim)?, self.amax(dim)?))
    }

    /// The same as [`Tensor::aminmax`], but keeps the dimension, with size 1.
    ///
    /// # Errors
    /// The same as [`Tensor::amin`].
    #[track_caller]
    pub fn aminmax_keepdim(&self, dim: impl IntoDim) -> Result<(Self, Self)> {
        let _call = CallScope::enter("aminmax_keepdim");
        let dim = dim.into_dim();
        Ok((self.amin_keepdim(dim)?, self.amax_keepdim(dim)?))
    }

    /// The number of nonzero elements over dimensions, as `int64` (`torch.count_nonzero`).
    ///
    /// # Errors
    /// The same as [`Tensor::sum`].
    #[track_caller]
    pub fn count_nonzero(&self, dims: impl IntoDims) -> Result<Self> {
        let _call = CallScope::enter("count_nonzero");
        let counted = if self.dtype() == DType::Bool { self.clone() } else { self.ne(0)? };
        counted.sum(dims)
    }

    /// The differences of neighbours along a dimension (`torch.diff`). If `n` is greater than 1,
    /// this is repeated on the result, `n` times in all. For bools, the result says whether
    /// neighbours differ.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor([1i64, 4, 9], ())?;
    /// assert_eq!(t.diff(())?.to_vec::<i64>()?, [3, 5]);
    /// assert_eq!(t.diff(2)?.to_vec::<i64>()?, [2]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`crate::ErrorKind::DimOutOfRange`] if the tensor lacks the dimension.
    /// [`crate::ErrorKind::ShapeMismatch`] if the tensor has no dimensions. Errors of
    /// [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn diff(&self, options: impl IntoOptions<DiffOptions>) -> Result<Self> {
        let _call = CallScope::enter("diff");
        let DiffOptions { n, dim } = options.into_options();
        let d = self.layout().dim(dim)?;
        let mut out = self.clone();
        let all = self.size().get(d).copied().unwrap_or_default();
        if all > 0 && n >= all {
            // The result is empty. One difference of an empty slice gives the same shape and dtype.
            return out.narrow(dim, 0, 0)?.diff(DiffOptions::new().dim(dim));
        }
        for _ in 0..n.min(all.max(1)) {
            let length = out.size().get(d).copied().unwrap_or_default();
            let rest = length.saturating_sub(1);
            let first = out.narrow(dim, 0, rest)?;
            let second = out.narrow(dim, length.min(1) as isize, rest)?;
            out = if self.dtype() == DType::Bool {
                second.logical_xor(&first)?
            } else {
                second.sub(&first)?
            };
        }
        Ok(out)
    }
}
