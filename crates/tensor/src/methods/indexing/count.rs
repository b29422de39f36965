//! Counts of values: `bincount`, `histc`.

use super::as_indices;
use crate::functional::options::options;
use crate::{CallScope, DType, Error, ErrorKind, IntoOptionalTensor, IntoOptions, Result, Tensor};

options! {
    /// Options of [`Tensor::bincount`].
    #[derive(Clone, Copy, Debug)]
    BincountOptions ['a] ['a] {
        /// Sets the weight of each element. Default: 1 each.
        weights: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets the minimum length of the result. Default: 0.
        minlength: usize = 0, usize;
    }
}

options! {
    /// Options of [`Tensor::histc`].
    #[derive(Clone, Copy, Debug)]
    HistcOptions [] [] {
        /// Sets the number of bins. Default: 100.
        bins: usize = 100, usize;
        /// Sets the lower end of the first bin. If both ends are 0, they are the least and the greatest element.
        /// Default: 0.
        min: f64 = 0.0, f64;
        /// Sets the upper end of the last bin. Default: 0.
        max: f64 = 0.0, f64;
    }
}

impl From<usize> for HistcOptions {
    fn from(bins: usize) -> Self {
        Self::new().bins(bins)
    }
}

impl Tensor {
    /// Counts how often each number occurs in a vector of non-negative integers, or sums the weights of its
    /// occurrences (`torch.bincount`). The result has at least `minlength` elements. Its dtype is `int64` for
    /// counts, `float32` for `float32` weights, and `float64` for all other weights. The host waits for the
    /// largest number. Weights are added in the order of [`Tensor::index_add`].
    ///
    /// ```
    /// # use warpline::tensor;
    /// assert_eq!(tensor(&[1i64, 3, 1], ())?.bincount(())?.to_vec::<i64>()?, [0, 2, 0, 1]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the tensor is not an integer vector, or has a negative element.
    /// [`ErrorKind::ShapeMismatch`] if there is not one weight per element. [`ErrorKind::Gradient`] if the
    /// weights require a gradient and gradients are recorded. [`ErrorKind::Capture`] if the stream is being
    /// captured. Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn bincount<'a>(&self, options: impl IntoOptions<BincountOptions<'a>>) -> Result<Self> {
        const OP: &str = "bincount";
        let _call = CallScope::enter(OP);
        let BincountOptions { weights, minlength } = options.into_options();
        if self.dim() != 1 || self.dtype().is_float() || self.dtype() == DType::Bool {
            let reason = format!(
                "needs a vector of integers, but the tensor has dtype {} and sizes {:?}",
                self.dtype(),
                self.size()
            );
            return Err(Error::invalid(OP, reason));
        }
        let index = self.in_dtype(DType::I64)?;
        self.exec()?.refuse_capture(OP)?;
        let mut length = minlength;
        if self.numel() > 0 {
            let (least, most) = (index.amin(())?, index.amax(())?);
            let (least, most) = (least.item::<i64>()?, most.item::<i64>()?);
            if least < 0 {
                return Err(Error::invalid(
                    OP,
                    format!("no element may be negative, but one is {least}"),
                ));
            }
            length = length.max(most as usize + 1);
        }
        let weights = match weights {
            None => index.ones_like(())?,
            Some(weights) if weights.dtype() == DType::F32 => weights.clone(),
            Some(weights) => weights.in_dtype(DType::F64)?,
        };
        crate::autograd::refuse_gradient(OP, &[&weights])?;
        let index = as_indices(OP, &weights, &index)?;
        let counts = weights.new_zeros([length], ())?;
        counts.index_add_(0, &index, &weights)?;
        Ok(counts)
    }
    /// Counts the elements in each of `bins` intervals of equal width from `min` to `max` (`torch.histc`). If
    /// both bounds are 0, they are the smallest and the largest element, and the host waits for these. Equal bounds
    /// are moved apart by 1 each. Elements outside the bounds, and NaNs, are not counted. Floats only; the result has
    /// this tensor's dtype.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `bins` is 0, a bound is not finite, or `min` is greater than `max`.
    /// [`ErrorKind::UnsupportedDType`] if the tensor is not floating-point. [`ErrorKind::Gradient`] if the
    /// tensor requires a gradient and gradients are recorded. [`ErrorKind::Capture`] if both bounds are 0 and the
    /// stream is being captured. Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn histc(&self, options: impl IntoOptions<HistcOptions>) -> Result<Self> {
        const OP: &str = "histc";
        let _call = CallScope::enter(OP);
        let HistcOptions { bins, min, max } = options.into_options();
        crate::autograd::refuse_gradient(OP, &[self])?;
        if !self.dtype().is_float() {
            return Err(ErrorKind::UnsupportedDType { dtype: self.dtype() }.of(OP));
        }
        let (mut min, mut max) = (min, max);
        if (min, max) == (0.0, 0.0) && self.numel() > 0 {
            min = self.amin(())?.to_scalar()?.to_f64();
            max = self.amax(())?.to_scalar()?.to_f64();
        }
        if min == max {
            (min, max) = (min - 1.0, max + 1.0);
        }
        if bins == 0 || !min.is_finite() || !max.is_finite() || min > max {
            let reason = format!("cannot divide the range from {min} to {max} into {bins} bins");
            return Err(Error::invalid(OP, reason));
        }
        // The allocation fails if there is no memory for this many bins.
        let counts = self.new_zeros([bins], DType::I64)?;
        let x = self.reshape([self.numel() as isize])?;
        let counted = x.ge(min)?.logical_and(&x.le(max)?)?;
        let place = x.sub(min)?.mul(bins as f64)?.div(max - min)?;
        // Elements outside the bounds get bin 0 and add 0 to it. `clamp_max` puts `max` itself into the
        // last bin.
        let place = crate::where_cond(&counted, &place, 0.0)?;
        let place = place.to(DType::I64)?.clamp_max(bins as i64 - 1)?;
        counts.index_add_(0, &place, &counted.to(DType::I64)?)?;
        counts.to(self.dtype())
    }
}
