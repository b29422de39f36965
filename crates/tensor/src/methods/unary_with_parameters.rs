//! Elementwise functions with parameters: activations (`torch.nn.functional`) and `torch.logit`.

use warpline_kernels::elementwise as table;

use super::elementwise::{apply, apply_as, apply_in_place, apply_in_place_as, rounded};
use super::inplace::check_filled;
use crate::called::Called;
use crate::functional::{
    CELUOptions, ELUOptions, HardshrinkOptions, HardtanhOptions, LeakyReLUOptions, SoftplusOptions,
    SoftshrinkOptions,
};
use crate::{
    CallScope, Category, DType, Error, ErrorKind, IntoOptions, OrDefault, Result, Scalar, Tensor,
};

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident $options:ident($($parameter:ident),+) $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`crate::ErrorKind::UnsupportedDType`] if the tensor is not floating-point. Errors of
            /// [every op](Tensor#errors-of-every-op).
            #[track_caller]
            pub fn $name(&self, options: impl IntoOptions<$options>) -> Result<Self> {
                let $options { $($parameter),+ } = options.into_options();
                let operands = [self.into(), $(Scalar::Float($parameter).into()),+];
                apply(&table::$op, &operands, self.dtype()).of(stringify!($name))
            }
        )*}
    };
}

methods! {
    /// `log(1 + exp(beta * self)) / beta`, but `self` where `beta * self` is greater than `threshold`. Floats
    /// only.
    softplus SoftplusOptions(beta, threshold) SOFTPLUS;
    /// `self` where it is positive, otherwise `alpha * (exp(self) - 1)`. Floats only.
    elu ELUOptions(alpha) ELU;
    /// `self` where it is positive, otherwise `alpha * (exp(self / alpha) - 1)`. Floats only.
    celu CELUOptions(alpha) CELU;
    /// `self` where it is positive, otherwise `negative_slope * self`. Floats only.
    leaky_relu LeakyReLUOptions(negative_slope) LEAKY_RELU;
}

macro_rules! in_place_methods {
    ($($name:ident $in_place:ident $options:ident($($parameter:ident),+) $op:ident;)*) => {
        impl Tensor {$(
            #[doc = concat!("[`Tensor::", stringify!($name), "`] in place.")]
            ///
            /// # Errors
            /// The same as the method without the underscore. [`crate::ErrorKind::OverlappingWrite`] if
            /// elements of the tensor share an address.
            #[track_caller]
            pub fn $in_place(&self, options: impl IntoOptions<$options>) -> Result<&Self> {
                let $options { $($parameter),+ } = options.into_options();
                let operands = [self.into(), $(Scalar::Float($parameter).into()),+];
                apply_in_place(&table::$op, stringify!($in_place), self, &operands, self.dtype())?;
                Ok(self)
            }
        )*}
    };
}

in_place_methods! {
    elu elu_ ELUOptions(alpha) ELU;
    celu celu_ CELUOptions(alpha) CELU;
    leaky_relu leaky_relu_ LeakyReLUOptions(negative_slope) LEAKY_RELU;
}

impl Tensor {
    /// `self - lambd` where `self > lambd`, `self + lambd` where `self < -lambd`, otherwise 0
    /// (`torch.nn.functional.softshrink`). Floats only.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor(&[-2f32, 0.25, 1.0], ())?;
    /// assert_eq!(t.softshrink(())?.to_vec::<f32>()?, [-1.5, 0.0, 0.5]);
    /// assert_eq!(t.hardshrink(())?.to_vec::<f32>()?, [-2.0, 0.0, 1.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `lambd` is negative or NaN, or if the dtype cannot hold it.
    /// [`ErrorKind::UnsupportedDType`] if the tensor is not floating-point. Errors of
    /// [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn softshrink(&self, options: impl IntoOptions<SoftshrinkOptions>) -> Result<Self> {
        let SoftshrinkOptions { lambd } = options.into_options();
        if lambd.is_nan() || lambd < 0.0 {
            let reason = format!("lambd must be greater than or equal to 0, but is {lambd}");
            return Err(Error::invalid("softshrink", reason));
        }
        let lambd = self.rounded("softshrink", lambd.into())?;
        apply(&table::SOFTSHRINK, &[self.into(), lambd.into()], self.dtype())
    }

    /// 0 where `self` is between `-lambd` and `lambd`, both included, otherwise `self`
    /// (`torch.nn.functional.hardshrink`). Floats only.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the dtype cannot hold `lambd`. [`ErrorKind::UnsupportedDType`] if the
    /// tensor is not floating-point. Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn hardshrink(&self, options: impl IntoOptions<HardshrinkOptions>) -> Result<Self> {
        let HardshrinkOptions { lambd } = options.into_options();
        let lambd = self.rounded("hardshrink", lambd.into())?;
        apply(&table::HARDSHRINK, &[self.into(), lambd.into()], self.dtype())
    }

    /// `self` where it is above `threshold` or NaN, otherwise `value` (`torch.nn.functional.threshold`). Does
    /// not support bools.
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
    /// [`ErrorKind::InvalidArgument`] if the dtype cannot hold `threshold` or `value`.
    /// [`ErrorKind::UnsupportedDType`] if the tensor is boolean. Errors of
    /// [every op](Tensor#errors-of-every-op).
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
    /// The same as [`Tensor::threshold`]. [`ErrorKind::OverlappingWrite`] if elements of the tensor share an
    /// address.
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

    /// Clamps each element to the range from `min_val` to `max_val` (`torch.nn.functional.hardtanh`). Does not
    /// support bools. For integers, the bounds are truncated.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the elements are unsigned and a bound is -1 or less.
    /// [`ErrorKind::UnsupportedDType`] if the tensor is boolean. Errors of
    /// [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn hardtanh(&self, options: impl IntoOptions<HardtanhOptions>) -> Result<Self> {
        let HardtanhOptions { min_val, max_val } = options.into_options();
        let [min, max] = self.bounds("hardtanh", [min_val, max_val])?;
        let operands = [self.into(), min.into(), max.into()];
        apply_as(&table::CLAMP, &table::HARDTANH, &operands, self.dtype())
    }

    /// [`Tensor::hardtanh`] in place.
    ///
    /// # Errors
    /// The same as [`Tensor::hardtanh`]. [`ErrorKind::OverlappingWrite`] if elements of the tensor share an
    /// address.
    #[track_caller]
    pub fn hardtanh_(&self, options: impl IntoOptions<HardtanhOptions>) -> Result<&Self> {
        let name = "hardtanh_";
        let HardtanhOptions { min_val, max_val } = options.into_options();
        let [min, max] = self.bounds(name, [min_val, max_val])?;
        let operands = [self.into(), min.into(), max.into()];
        let (op, backward) = (&table::CLAMP, Some(&table::HARDTANH));
        apply_in_place_as(op, backward, name, self, &operands, self.dtype())?;
        Ok(self)
    }

    /// Converts bounds to this dtype. Truncates them for integer dtypes.
    #[track_caller]
    fn bounds(&self, op: &'static str, bounds: [f64; 2]) -> Result<[Scalar; 2]> {
        match self.dtype() {
            DType::Bool => Err(ErrorKind::UnsupportedDType { dtype: DType::Bool }.of(op)),
            DType::U8 if bounds.iter().any(|v| *v <= -1.0) => {
                Err(Error::invalid(op, "a tensor of torch.uint8 cannot have negative bounds"))
            }
            dtype if dtype.category() == Category::Int => Ok(bounds.map(|v| Scalar::Int(v as i64))),
            _ => Ok(bounds.map(Scalar::Float)),
        }
    }

    /// Clamps each element to the range from 0 to 6 (`torch.nn.functional.relu6`). Does not support bools.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedDType`] if the tensor is boolean. Errors of
    /// [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn relu6(&self) -> Result<Self> {
        let _call = CallScope::enter("relu6");
        self.hardtanh(HardtanhOptions::new().min_val(0.0).max_val(6.0))
    }

    /// [`Tensor::relu6`] in place.
    ///
    /// # Errors
    /// The same as [`Tensor::relu6`]. [`ErrorKind::OverlappingWrite`] if elements of the tensor share an
    /// address.
    #[track_caller]
    pub fn relu6_(&self) -> Result<&Self> {
        let _call = CallScope::enter("relu6_");
        self.hardtanh_(HardtanhOptions::new().min_val(0.0).max_val(6.0))
    }

    /// `log(self / (1 - self))` (`torch.logit`). If `eps` is given, elements are first clamped to the range
    /// from `eps` to `1 - eps`.
    ///
    /// # Errors
    /// Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn logit(&self, eps: impl IntoOptions<OrDefault<f64>>) -> Result<Self> {
        let eps = Scalar::Float(eps.into_options().or(-1.0));
        apply(&table::LOGIT, &[self.into(), eps.into()], self.dtype())
    }

    /// [`Tensor::logit`] in place.
    ///
    /// # Errors
    /// [`ErrorKind::CannotCast`] if the tensor is integer or boolean. Otherwise the same as
    /// [`Tensor::logit`].
    #[track_caller]
    pub fn logit_(&self, eps: impl IntoOptions<OrDefault<f64>>) -> Result<&Self> {
        let operands = [self.into(), Scalar::Float(eps.into_options().or(-1.0)).into()];
        apply_in_place(&table::LOGIT, "logit_", self, &operands, self.dtype())?;
        Ok(self)
    }
}
