//! Activations with parameters (`torch.nn.functional`).

use warpline_kernels::elementwise as table;

use super::elementwise::{apply, apply_as, apply_in_place, apply_in_place_as, rounded};
use super::inplace::check_filled;
use crate::called::Called;
use crate::{Category, DType, Error, ErrorKind, Result, Scalar, Tensor};

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident($($parameter:ident),+) $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`crate::ErrorKind::UnsupportedDType`], and what the launch fails with.
            #[track_caller]
            pub fn $name(&self, $($parameter: f64),+) -> Result<Self> {
                let operands = [self.into(), $(Scalar::Float($parameter).into()),+];
                apply(&table::$op, &operands, self.dtype()).of(stringify!($name))
            }
        )*}
    };
}

methods! {
    /// `log(1 + exp(beta * self)) / beta`, and `self` where `beta * self` is above `threshold`; PyTorch has 1
    /// and 20 for them. Floats only.
    softplus(beta, threshold) SOFTPLUS;
    /// `self` where positive, else `alpha * (exp(self) - 1)`. Floats only.
    elu(alpha) ELU;
    /// `self` where positive, else `alpha * (exp(self / alpha) - 1)`. Floats only.
    celu(alpha) CELU;
    /// `self` where positive, else `negative_slope * self`; PyTorch has 0.01 for it. Floats only.
    leaky_relu(negative_slope) LEAKY_RELU;
}

macro_rules! in_place_methods {
    ($($name:ident $in_place:ident($($parameter:ident),+) $op:ident;)*) => {
        impl Tensor {$(
            #[doc = concat!("[`Tensor::", stringify!($name), "`] in place.")]
            ///
            /// # Errors
            /// As without the underscore; [`crate::ErrorKind::OverlappingWrite`].
            #[track_caller]
            pub fn $in_place(&self, $($parameter: f64),+) -> Result<&Self> {
                let operands = [self.into(), $(Scalar::Float($parameter).into()),+];
                apply_in_place(&table::$op, stringify!($in_place), self, &operands, self.dtype())?;
                Ok(self)
            }
        )*}
    };
}

in_place_methods! {
    elu elu_(alpha) ELU;
    celu celu_(alpha) CELU;
    leaky_relu leaky_relu_(negative_slope) LEAKY_RELU;
}

impl Tensor {
    /// `self` less `lambda` where above it, plus `lambda` where below its negative, else 0; PyTorch has 0.5 for
    /// it. Floats only (`torch.nn.functional.softshrink`).
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor(&[-2f32, 0.25, 1.0], ())?;
    /// assert_eq!(t.softshrink(0.5)?.to_vec::<f32>()?, [-1.5, 0.0, 0.5]);
    /// assert_eq!(t.hardshrink(0.5)?.to_vec::<f32>()?, [-2.0, 0.0, 1.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a `lambda` that is negative or that the dtype cannot hold;
    /// [`ErrorKind::UnsupportedDType`], and what the launch fails with.
    #[track_caller]
    pub fn softshrink(&self, lambda: f64) -> Result<Self> {
        if lambda.is_nan() || lambda < 0.0 {
            let reason = format!("lambda must be greater than or equal to 0, but is {lambda}");
            return Err(Error::invalid("softshrink", reason));
        }
        let lambda = self.rounded("softshrink", lambda.into())?;
        apply(&table::SOFTSHRINK, &[self.into(), lambda.into()], self.dtype())
    }

    /// 0 from `-lambda` to `lambda`, else `self`; PyTorch has 0.5 for it. Floats only
    /// (`torch.nn.functional.hardshrink`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a `lambda` that the dtype cannot hold; [`ErrorKind::UnsupportedDType`], and what
    /// the launch fails with.
    #[track_caller]
    pub fn hardshrink(&self, lambda: f64) -> Result<Self> {
        let lambda = self.rounded("hardshrink", lambda.into())?;
        apply(&table::HARDSHRINK, &[self.into(), lambda.into()], self.dtype())
    }

    /// `self` where above `threshold`, else `value`; not for bools (`torch.nn.functional.threshold`).
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor(&[-2i64, 1, 4], ())?;
    /// assert_eq!(t.threshold(1, 9)?.to_vec::<i64>()?, [9, 9, 4]);
    /// t.threshold_(3, 0)?;
    /// assert_eq!(t.to_vec::<i64>()?, [0, 0, 4]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for numbers that the dtype cannot hold; [`ErrorKind::UnsupportedDType`], and what the
    /// launch fails with.
    #[track_caller]
    pub fn threshold(
        &self,
        threshold: impl Into<Scalar>,
        value: impl Into<Scalar>,
    ) -> Result<Self> {
        let threshold = self.rounded("threshold", threshold.into())?;
        let value = self.rounded("threshold", value.into())?;
        apply(&table::THRESHOLD, &[self.into(), threshold.into(), value.into()], self.dtype())
    }

    /// [`Tensor::threshold`] in place.
    ///
    /// # Errors
    /// As [`Tensor::threshold`]; [`ErrorKind::OverlappingWrite`].
    #[track_caller]
    pub fn threshold_(
        &self,
        threshold: impl Into<Scalar>,
        value: impl Into<Scalar>,
    ) -> Result<&Self> {
        let threshold = self.rounded("threshold_", threshold.into())?;
        let value = self.rounded("threshold_", value.into())?;
        let operands = [self.into(), threshold.into(), value.into()];
        apply_in_place(&table::THRESHOLD, "threshold_", self, &operands, self.dtype())?;
        Ok(self)
    }

    /// Rounds a number to this dtype, as PyTorch does before it compares elements with the number.
    #[track_caller]
    fn rounded(&self, op: &'static str, number: Scalar) -> Result<Scalar> {
        check_filled(op, number, self.dtype())?;
        Ok(rounded(number, self.dtype()))
    }

    /// At least `min` and at most `max`; not for bools.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a negative bound of unsigned elements, otherwise as [`Tensor::clamp`].
    #[track_caller]
    pub fn hardtanh(&self, min: f64, max: f64) -> Result<Self> {
        let [min, max] = self.bounds("hardtanh", [min, max])?;
        let operands = [self.into(), min.into(), max.into()];
        apply_as(&table::CLAMP, &table::HARDTANH, &operands, self.dtype())
    }

    /// [`Tensor::hardtanh`] in place.
    ///
    /// # Errors
    /// As [`Tensor::hardtanh`]; [`ErrorKind::OverlappingWrite`].
    #[track_caller]
    pub fn hardtanh_(&self, min: f64, max: f64) -> Result<&Self> {
        self.hardtanh_as("hardtanh_", [min, max])
    }

    #[track_caller]
    fn hardtanh_as(&self, name: &'static str, bounds: [f64; 2]) -> Result<&Self> {
        let [min, max] = self.bounds(name, bounds)?;
        let operands = [self.into(), min.into(), max.into()];
        let (op, backward) = (&table::CLAMP, Some(&table::HARDTANH));
        apply_in_place_as(op, backward, name, self, &operands, self.dtype())?;
        Ok(self)
    }

    /// Numbers between which elements are put, for integers without their fractions.
    #[track_caller]
    fn bounds(&self, op: &'static str, bounds: [f64; 2]) -> Result<[Scalar; 2]> {
        match self.dtype() {
            DType::Bool => Err(ErrorKind::UnsupportedDType { dtype: DType::Bool }.of(op)),
            DType::U8 if bounds.iter().any(|v| *v <= -1.0) => {
                Err(Error::invalid(op, "unsigned elements have no negative bounds"))
            }
            dtype if dtype.category() == Category::Int => Ok(bounds.map(|v| Scalar::Int(v as i64))),
            _ => Ok(bounds.map(Scalar::Float)),
        }
    }

    /// At least 0 and at most 6; not for bools.
    ///
    /// # Errors
    /// As [`Tensor::clamp`].
    #[track_caller]
    pub fn relu6(&self) -> Result<Self> {
        self.hardtanh(0.0, 6.0)
    }

    /// [`Tensor::relu6`] in place.
    ///
    /// # Errors
    /// As [`Tensor::clamp_`].
    #[track_caller]
    pub fn relu6_(&self) -> Result<&Self> {
        self.hardtanh_as("relu6_", [0.0, 6.0])
    }

    /// `log(self / (1 - self))`; given `eps`, the elements are first put between that and `1 - eps`
    /// (`torch.logit`).
    ///
    /// # Errors
    /// What the launch fails with.
    #[track_caller]
    pub fn logit(&self, eps: Option<f64>) -> Result<Self> {
        let eps = Scalar::Float(eps.unwrap_or(-1.0));
        apply(&table::LOGIT, &[self.into(), eps.into()], self.dtype())
    }

    /// [`Tensor::logit`] in place.
    ///
    /// # Errors
    /// [`ErrorKind::CannotCast`] for integers and bools, otherwise as [`Tensor::logit`].
    #[track_caller]
    pub fn logit_(&self, eps: Option<f64>) -> Result<&Self> {
        let operands = [self.into(), Scalar::Float(eps.unwrap_or(-1.0)).into()];
        apply_in_place(&table::LOGIT, "logit_", self, &operands, self.dtype())?;
        Ok(self)
    }
}
