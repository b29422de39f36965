//! Variance and standard deviation.

use smallvec::SmallVec;

use crate::functional::options::options;
use crate::{CallScope, DType, ErrorKind, IntoDims, IntoOptions, Result, Tensor};

options! {
    @without_unit
    /// Options of [`Tensor::var`] and [`Tensor::std`]. Dimensions convert into options with that `dim`.
    #[derive(Clone, Debug)]
    VarOptions [] [] {
        /// Sets the dimensions. Default: all.
        dim: SmallVec<[isize; 6]> = SmallVec::new(), impl IntoDims => IntoDims::into_dims;
        /// Sets the correction, which is subtracted from the number of elements. Default: 1.
        correction: usize = 1, usize;
    }
}

impl<D: IntoDims> From<D> for VarOptions {
    fn from(dim: D) -> Self {
        Self::new().dim(dim)
    }
}

impl Tensor {
    /// The variance over dimensions (`torch.var`): the sum of squared distances from the mean, divided by the
    /// number of elements minus the correction. Floats only. The CPU computes in
    /// `f64`, and a GPU computes half-width floats in `f32`.
    ///
    /// ```
    /// # use warpline::{VarOptions, tensor};
    /// let t = tensor(&[[1f32, 3.0], [2.0, 2.0]], ())?;
    /// assert_eq!(t.var(1)?.to_vec::<f32>()?, [2.0, 0.0]);
    /// assert_eq!(t.var(VarOptions::new().correction(0))?.item::<f32>()?, 0.5);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks a dimension. [`ErrorKind::InvalidArgument`] if a
    /// dimension is named twice. [`ErrorKind::UnsupportedDType`] if the tensor is not floating-point. Errors of
    /// [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn var(&self, options: impl IntoOptions<VarOptions>) -> Result<Self> {
        let _call = CallScope::enter("var");
        Ok(self.variance(options.into_options(), false, false)?.0)
    }

    /// The same as [`Tensor::var`], but keeps the dimensions, with size 1.
    ///
    /// # Errors
    /// The same as [`Tensor::var`].
    #[track_caller]
    pub fn var_keepdim(&self, options: impl IntoOptions<VarOptions>) -> Result<Self> {
        let _call = CallScope::enter("var_keepdim");
        Ok(self.variance(options.into_options(), true, false)?.0)
    }

    /// The standard deviation over dimensions, which is the square root of [`Tensor::var`] (`torch.std`). If
    /// the deviation is 0, its gradient is 0.
    ///
    /// # Errors
    /// The same as [`Tensor::var`].
    #[track_caller]
    pub fn std(&self, options: impl IntoOptions<VarOptions>) -> Result<Self> {
        let _call = CallScope::enter("std");
        Ok(self.variance(options.into_options(), false, true)?.0)
    }

    /// The same as [`Tensor::std`], but keeps the dimensions, with size 1.
    ///
    /// # Errors
    /// The same as [`Tensor::var`].
    #[track_caller]
    pub fn std_keepdim(&self, options: impl IntoOptions<VarOptions>) -> Result<Self> {
        let _call = CallScope::enter("std_keepdim");
        Ok(self.variance(options.into_options(), true, true)?.0)
    }

    /// [`Tensor::var`] and the mean (`torch.var_mean`).
    ///
    /// # Errors
    /// The same as [`Tensor::var`].
    #[track_caller]
    pub fn var_mean(&self, options: impl IntoOptions<VarOptions>) -> Result<(Self, Self)> {
        let _call = CallScope::enter("var_mean");
        self.variance(options.into_options(), false, false)
    }

    /// The same as [`Tensor::var_mean`], but keeps the dimensions, with size 1.
    ///
    /// # Errors
    /// The same as [`Tensor::var`].
    #[track_caller]
    pub fn var_mean_keepdim(&self, options: impl IntoOptions<VarOptions>) -> Result<(Self, Self)> {
        let _call = CallScope::enter("var_mean_keepdim");
        self.variance(options.into_options(), true, false)
    }

    /// [`Tensor::std`] and the mean (`torch.std_mean`).
    ///
    /// # Errors
    /// The same as [`Tensor::var`].
    #[track_caller]
    pub fn std_mean(&self, options: impl IntoOptions<VarOptions>) -> Result<(Self, Self)> {
        let _call = CallScope::enter("std_mean");
        self.variance(options.into_options(), false, true)
    }

    /// The same as [`Tensor::std_mean`], but keeps the dimensions, with size 1.
    ///
    /// # Errors
    /// The same as [`Tensor::var`].
    #[track_caller]
    pub fn std_mean_keepdim(&self, options: impl IntoOptions<VarOptions>) -> Result<(Self, Self)> {
        let _call = CallScope::enter("std_mean_keepdim");
        self.variance(options.into_options(), true, true)
    }

    /// Returns the variance and the mean. If `root` is true, returns the standard deviation instead of the
    /// variance.
    #[track_caller]
    fn variance(
        &self,
        VarOptions { dim, correction }: VarOptions,
        keepdim: bool,
        root: bool,
    ) -> Result<(Self, Self)> {
        let dims = &dim[..];
        if !self.dtype().is_float() {
            return Err(ErrorKind::UnsupportedDType { dtype: self.dtype() }.of("var"));
        }
        // As in PyTorch, the CPU computes in `f64`, so squares of `f32` neither overflow nor underflow.
        let x = if self.is_cuda() { self.widened()? } else { self.to(DType::F64)? };
        let Moments { mut mean, squares, count, .. } = x.moments(dims)?;
        let mut spread = squares.sum_keepdim(dims)?.div(count.saturating_sub(correction) as f64)?;
        if !keepdim {
            (spread, mean) = (spread.drop_reduced_dims(dims)?, mean.drop_reduced_dims(dims)?);
        }
        if root {
            spread = spread.sqrt_zero_grad()?;
        }
        Ok((spread.to(self.dtype())?, mean.to(self.dtype())?))
    }

    /// Returns the mean over dimensions, the differences from the mean, and their squares. The mean keeps the
    /// dimensions, with size 1.
    #[track_caller]
    pub(crate) fn moments(&self, dims: &[isize]) -> Result<Moments> {
        let mean = self.mean_keepdim(dims)?;
        let centred = self.sub(&mean)?;
        let squares = centred.square()?;
        let reduced = |d: &usize| self.size()[*d] != mean.size()[*d];
        let count = (0..self.dim()).filter(reduced).map(|d| self.size()[d]).product();
        Ok(Moments { mean, centred, squares, count })
    }
}

/// Intermediate results of the variance.
pub(crate) struct Moments {
    pub(crate) mean: Tensor,
    pub(crate) centred: Tensor,
    pub(crate) squares: Tensor,
    /// Number of elements per mean.
    count: usize,
}
