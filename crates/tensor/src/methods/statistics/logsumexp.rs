//! The logarithm of a sum of exponentials.

use crate::amp::autocast_operands;
use crate::autograd::should_record;
use crate::{CallScope, DType, IntoDims, Result, Tensor};

impl Tensor {
    /// `log(sum(exp(self)))` over dimensions, without overflow (`torch.logsumexp`). Integers and bools give
    /// `float32`. Half-width floats are computed in `f32`.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor(&[[1000f32, 0.0], [f32::NEG_INFINITY, 1.0]], ())?;
    /// assert_eq!(t.logsumexp(1)?.to_vec::<f32>()?, [1000.0, 1.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`crate::ErrorKind::DimOutOfRange`] if the tensor lacks a dimension.
    /// [`crate::ErrorKind::InvalidArgument`] if a dimension is named twice. Errors of
    /// [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn logsumexp(&self, dims: impl IntoDims) -> Result<Self> {
        let _call = CallScope::enter("logsumexp");
        self.log_of_sum(&dims.into_dims(), false)
    }

    /// The same as [`Tensor::logsumexp`], but keeps the dimensions, with size 1.
    ///
    /// # Errors
    /// The same as [`Tensor::logsumexp`].
    #[track_caller]
    pub fn logsumexp_keepdim(&self, dims: impl IntoDims) -> Result<Self> {
        let _call = CallScope::enter("logsumexp_keepdim");
        self.log_of_sum(&dims.into_dims(), true)
    }

    #[track_caller]
    fn log_of_sum(&self, dims: &[isize], keepdim: bool) -> Result<Self> {
        let this = self;
        autocast_operands!(F32, Keep, [this] => this.log_of_sum(dims, keepdim));
        let dtype = if self.dtype().is_float() { self.dtype() } else { DType::F32 };
        let x = self.to(dtype)?.widened()?;
        if x.numel() == 0 {
            // Without elements, there is no maximum to subtract. The sum is 0.
            return x.exp()?.sum_kept(dims, keepdim)?.log()?.to(dtype);
        }
        // Do not subtract an infinite maximum, because the difference would be NaN.
        let most = x.detach().amax_keepdim(dims)?;
        let most = most.masked_fill(&most.isinf()?, 0)?;
        let sum = x.sub(&most)?.exp()?.sum_keepdim(dims)?;
        let log = if should_record(&[&sum]) {
            // If all elements are -inf, this makes the gradient 0 instead of NaN.
            let none = sum.eq(0)?;
            sum.masked_fill(&none, 1)?.log()?.masked_fill(&none, f64::NEG_INFINITY)?
        } else {
            sum.log()?
        };
        let out = log.add(&most)?;
        let out = if keepdim { out } else { out.drop_reduced_dims(dims)? };
        out.to(dtype)
    }

    /// Removes the dimensions that a reduction kept with size 1.
    #[track_caller]
    pub(crate) fn drop_reduced_dims(&self, dims: &[isize]) -> Result<Self> {
        if dims.is_empty() {
            return self.reshape(());
        }
        let reduced =
            |d: usize| dims.iter().any(|&dim| self.layout().dim(dim).is_ok_and(|n| n == d));
        let kept: Vec<isize> =
            (0..self.dim()).filter(|&d| !reduced(d)).map(|d| self.size()[d] as isize).collect();
        self.reshape(&kept)
    }
}
