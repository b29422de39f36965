//! Activations with parameters (`torch.nn.functional`).

use warpline_kernels::elementwise as table;

use super::operands::apply;
use crate::{DType, Error, Result, Scalar, Tensor};

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident($($parameter:ident),+) $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`crate::Error::UnsupportedDType`], and what the launch fails with.
            #[track_caller]
            pub fn $name(&self, $($parameter: f64),+) -> Result<Self> {
                let operands = [self.into(), $(Scalar::Float($parameter).into()),+];
                apply(&table::$op, &operands, self.dtype())
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

impl Tensor {
    /// At least `min` and at most `max`; not for bools.
    ///
    /// # Errors
    /// As [`Tensor::clamp`].
    #[track_caller]
    pub fn hardtanh(&self, min: f64, max: f64) -> Result<Self> {
        let number = |v: f64| match self.dtype().category() {
            crate::Category::Int => Scalar::Int(v as i64),
            _ => Scalar::Float(v),
        };
        if self.dtype() == DType::Bool {
            return Err(Error::UnsupportedDType { op: "hardtanh", dtype: DType::Bool });
        }
        self.clamp(number(min), number(max))
    }

    /// At least 0 and at most 6; not for bools.
    ///
    /// # Errors
    /// As [`Tensor::clamp`].
    #[track_caller]
    pub fn relu6(&self) -> Result<Self> {
        self.hardtanh(0.0, 6.0)
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
}
