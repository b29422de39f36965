//! Norms and distances.

use smallvec::SmallVec;

use crate::amp::autocast_operands;
use crate::autograd::should_record;
use crate::functional::options::{from_number, options};
use crate::{
    CallScope, DType, Error, ErrorKind, IntoDims, IntoOptions, OrDefault, Result, Tensor, cat,
};

options! {
    /// Options of [`Tensor::norm`]. A number converts into options with that `p`.
    #[derive(Clone, Debug)]
    NormOptions [] [] {
        /// Sets the order of the norm. Default: 2.
        p: f64 = 2.0, f64;
        /// Sets the dimensions. Default: all.
        dim: SmallVec<[isize; 6]> = SmallVec::new(), impl IntoDims => IntoDims::into_dims;
    }
}

options! {
    /// Options of [`Tensor::vector_norm`]. A number converts into options with that `ord`.
    #[derive(Clone, Debug)]
    VectorNormOptions [] [] {
        /// Sets the order of the norm. Default: 2.
        ord: f64 = 2.0, f64;
        /// Sets the dimensions. Default: all.
        dim: SmallVec<[isize; 6]> = SmallVec::new(), impl IntoDims => IntoDims::into_dims;
    }
}

from_number! { NormOptions p; VectorNormOptions ord; }

impl Tensor {
    /// The norm of vectors along dimensions (`torch.linalg.vector_norm`). Order 2 is the
    /// Euclidean length, 1 the sum of absolute values, 0 the number of nonzero elements, infinity the largest
    /// absolute value, and negative infinity the smallest. Floats only; half-width floats are computed in
    /// `f32`. If the norm is 0, its gradient is 0.
    ///
    /// ```
    /// # use warpline::{VectorNormOptions, tensor};
    /// let t = tensor(&[[3f32, -4.0], [0.0, 2.0]], ())?;
    /// assert_eq!(t.vector_norm(VectorNormOptions::new().dim(1))?.to_vec::<f32>()?, [5.0, 2.0]);
    /// assert_eq!(t.vector_norm(f64::INFINITY)?.item::<f32>()?, 4.0);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks a dimension. [`ErrorKind::InvalidArgument`] if a
    /// dimension is named twice, or if there are no elements and `ord` is infinite.
    /// [`ErrorKind::UnsupportedDType`] if the tensor is not floating-point. Errors of [every
    /// op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn vector_norm(&self, options: impl IntoOptions<VectorNormOptions>) -> Result<Self> {
        let _call = CallScope::enter("vector_norm");
        let VectorNormOptions { ord, dim } = options.into_options();
        self.norm_over("vector_norm", ord, &dim, false)
    }

    /// The same as [`Tensor::vector_norm`], but keeps the dimensions, with size 1.
    ///
    /// # Errors
    /// The same as [`Tensor::vector_norm`].
    #[track_caller]
    pub fn vector_norm_keepdim(
        &self,
        options: impl IntoOptions<VectorNormOptions>,
    ) -> Result<Self> {
        let _call = CallScope::enter("vector_norm_keepdim");
        let VectorNormOptions { ord, dim } = options.into_options();
        self.norm_over("vector_norm", ord, &dim, true)
    }

    /// The norm of order `p` (`torch.norm`), the same as [`Tensor::vector_norm`].
    ///
    /// # Errors
    /// The same as [`Tensor::vector_norm`].
    #[track_caller]
    pub fn norm(&self, options: impl IntoOptions<NormOptions>) -> Result<Self> {
        let _call = CallScope::enter("norm");
        let NormOptions { p, dim } = options.into_options();
        self.norm_over("norm", p, &dim, false)
    }

    /// The same as [`Tensor::norm`], but keeps the dimensions, with size 1.
    ///
    /// # Errors
    /// The same as [`Tensor::vector_norm`].
    #[track_caller]
    pub fn norm_keepdim(&self, options: impl IntoOptions<NormOptions>) -> Result<Self> {
        let _call = CallScope::enter("norm_keepdim");
        let NormOptions { p, dim } = options.into_options();
        self.norm_over("norm", p, &dim, true)
    }

    #[track_caller]
    fn norm_over(&self, op: &'static str, p: f64, dims: &[isize], keepdim: bool) -> Result<Self> {
        let this = self;
        autocast_operands!(F32, Keep, [this] => this.norm_over(op, p, dims, keepdim));
        if !self.dtype().is_float() {
            return Err(ErrorKind::UnsupportedDType { dtype: self.dtype() }.of(op));
        }
        let x = self.widened()?;
        let norm = if p == f64::INFINITY {
            let sizes = x.abs()?;
            if keepdim { sizes.amax_keepdim(dims)? } else { sizes.amax(dims)? }
        } else if p == f64::NEG_INFINITY {
            let sizes = x.abs()?;
            if keepdim { sizes.amin_keepdim(dims)? } else { sizes.amin(dims)? }
        } else if p == 0.0 {
            x.ne(0)?.to(x.dtype())?.sum_kept(dims, keepdim)?
        } else if p == 1.0 {
            x.abs()?.sum_kept(dims, keepdim)?
        } else if p == 2.0 {
            x.square()?.sum_kept(dims, keepdim)?.sqrt_zero_grad()?
        } else {
            x.abs()?.pow_zero_grad(p)?.sum_kept(dims, keepdim)?.pow_zero_grad(p.recip())?
        };
        norm.to(self.dtype())
    }

    /// Raises non-negative elements to a power. If the exponent is from 0 to 1, the gradient at zero is 0 instead of
    /// infinite or NaN.
    #[track_caller]
    fn pow_zero_grad(&self, exponent: f64) -> Result<Self> {
        if !(0.0..1.0).contains(&exponent) || !should_record(&[self]) {
            return self.pow(exponent);
        }
        let zero = self.eq(0)?;
        self.masked_fill(&zero, 1)?.pow(exponent)?.masked_fill(&zero, 0)
    }

    /// The distance of each row of these matrices from each row of the matrices `other` (`torch.cdist`). A
    /// distance is the [`Tensor::vector_norm`] of order `p` of the difference. Default of `p`: 2. Shapes `[..,
    /// n, k]` and `[.., m, k]` give `[.., n, m]`; the leading dimensions broadcast.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let (a, b) = (tensor(&[[0f32, 0.0], [3.0, 0.0]], ())?, tensor(&[[3f32, 4.0]], ())?);
    /// assert_eq!(a.cdist(&b, ())?.to_vec::<f32>()?, [5.0, 4.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if the rows differ in length, or a tensor has fewer than two dimensions.
    /// [`ErrorKind::InvalidArgument`] if `p` is negative or NaN. [`ErrorKind::BroadcastMismatch`] if the
    /// leading dimensions do not broadcast. [`ErrorKind::UnsupportedDType`] if the tensors are not floating-point.
    /// Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn cdist(&self, other: &Tensor, p: impl IntoOptions<OrDefault<f64>>) -> Result<Self> {
        let _call = CallScope::enter("cdist");
        let p = p.into_options().or(2.0);
        let op = "cdist";
        let this = self;
        autocast_operands!(F32, F32, [this, other] => this.cdist(other, p));
        let (&[.., rows, width], &[.., others, other_width]) = (self.size(), other.size()) else {
            return Err(Error::shape(
                op,
                format!(
                    "both need at least 2 dimensions, but have {} and {}",
                    self.dim(),
                    other.dim()
                ),
            ));
        };
        if width != other_width {
            return Err(Error::shape(
                op,
                format!(
                    "rows must have equal lengths, but have {width} and {other_width} elements"
                ),
            ));
        }
        if p.is_nan() || p < 0.0 {
            return Err(Error::invalid(op, format!("p must not be negative, but is {p}")));
        }
        let dtype = self.dtype().promote(other.dtype());
        if !dtype.is_float() {
            return Err(ErrorKind::UnsupportedDType { dtype }.of(op));
        }
        // For many rows, use a matrix product, as PyTorch does. This takes less memory and is slightly less
        // accurate.
        if p == 2.0 && (rows > 25 || others > 25) {
            return self.distances_by_product(other);
        }
        let apart = self.unsqueeze(-2)?.sub(&other.unsqueeze(-3)?)?;
        apart.norm_over(op, p, &[-1], false)
    }

    /// Returns the square roots of `|a|² + |b|² - 2ab` for all pairs of rows, computed by one matrix product.
    #[track_caller]
    fn distances_by_product(&self, other: &Tensor) -> Result<Self> {
        let (a, b) = (self.widened()?, other.widened()?);
        let (squares_a, squares_b) = (a.square()?.sum_keepdim(-1)?, b.square()?.sum_keepdim(-1)?);
        let (ones_a, ones_b) = (squares_a.ones_like(())?, squares_b.ones_like(())?);
        let left = cat(&[&a.mul(-2)?, &squares_a, &ones_a], -1)?;
        let right = cat(&[&b, &ones_b, &squares_b], -1)?;
        let squares = left.matmul(&right.transpose(-1, -2)?)?.clamp_min(0)?;
        let dtype: DType = self.dtype().promote(other.dtype());
        squares.sqrt_zero_grad()?.to(dtype)
    }
}
