//! Options of losses.

use super::Reduction;
#[cfg(doc)]
use super::{
    binary_cross_entropy, binary_cross_entropy_with_logits, cross_entropy, huber_loss, kl_div,
    nll_loss, smooth_l1_loss,
};
use crate::functional::options::options;
use crate::{IntoOptionalTensor, Tensor};

options! {
    /// Options of [`cross_entropy`]. A [`Reduction`] converts into options with that `reduction`.
    #[derive(Clone, Copy, Debug)]
    CrossEntropyLossOptions ['a] ['a] {
        /// Sets the weight of each class, `[classes]`. Default: 1 for each.
        weight: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets the class index that marks ignored targets. Default: -100.
        ignore_index: i64 = -100, i64;
        /// Sets the reduction of the losses of single elements. Default: mean.
        reduction: Reduction = Reduction::Mean, Reduction;
        /// Sets the share of the target that is spread evenly over all classes, from 0 to 1. Default: 0.
        label_smoothing: f64 = 0.0, f64;
    }
}

options! {
    /// Options of [`nll_loss`]. A [`Reduction`] converts into options with that `reduction`.
    #[derive(Clone, Copy, Debug)]
    NLLLossOptions ['a] ['a] {
        /// Sets the weight of each class, `[classes]`. Default: 1 for each.
        weight: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets the class index that marks ignored targets. Default: -100.
        ignore_index: i64 = -100, i64;
        /// Sets the reduction of the losses of single elements. Default: mean.
        reduction: Reduction = Reduction::Mean, Reduction;
    }
}

options! {
    /// Options of [`smooth_l1_loss`]. A [`Reduction`] converts into options with that `reduction`.
    #[derive(Clone, Copy, Debug)]
    SmoothL1LossOptions [] [] {
        /// Sets the reduction of the losses of single elements. Default: mean.
        reduction: Reduction = Reduction::Mean, Reduction;
        /// Sets the absolute difference below which the loss is quadratic. It must not be negative. Default: 1.
        beta: f64 = 1.0, f64;
    }
}

options! {
    /// Options of [`huber_loss`]. A [`Reduction`] converts into options with that `reduction`.
    #[derive(Clone, Copy, Debug)]
    HuberLossOptions [] [] {
        /// Sets the reduction of the losses of single elements. Default: mean.
        reduction: Reduction = Reduction::Mean, Reduction;
        /// Sets the absolute difference up to which the loss is quadratic. It must be above zero.
        /// Default: 1.
        delta: f64 = 1.0, f64;
    }
}

options! {
    /// Options of [`binary_cross_entropy`]. A [`Reduction`] converts into options with that `reduction`.
    #[derive(Clone, Copy, Debug)]
    BCELossOptions ['a] ['a] {
        /// Sets the factor of each loss, which broadcasts. Default: none.
        weight: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets the reduction of the losses of single elements. Default: mean.
        reduction: Reduction = Reduction::Mean, Reduction;
    }
}

options! {
    /// Options of [`binary_cross_entropy_with_logits`]. A [`Reduction`] converts into options with that `reduction`.
    #[derive(Clone, Copy, Debug)]
    BCEWithLogitsLossOptions ['a] ['a] {
        /// Sets the factor of each loss, which broadcasts. Default: none.
        weight: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
        /// Sets the reduction of the losses of single elements. Default: mean.
        reduction: Reduction = Reduction::Mean, Reduction;
        /// Sets the factor of the losses of positive targets, which broadcasts. Default: none.
        pos_weight: Option<&'a Tensor> = None, impl IntoOptionalTensor<'a> => IntoOptionalTensor::into_optional;
    }
}

options! {
    /// Options of [`kl_div`]. A [`Reduction`] converts into options with that `reduction`.
    #[derive(Clone, Copy, Debug)]
    KLDivLossOptions [] [] {
        /// Sets the reduction of the losses of single elements. Default: mean.
        reduction: Reduction = Reduction::Mean, Reduction;
        /// Sets whether the target, like the input, consists of logarithms. Default: `false`.
        log_target: bool = false, bool;
    }
}

/// Implements the conversion of a [`Reduction`] into options.
macro_rules! reduces {
    ($($options:ty)*) => {$(
        impl From<Reduction> for $options {
            fn from(reduction: Reduction) -> Self {
                Self::new().reduction(reduction)
            }
        }
    )*};
}

reduces! {
    CrossEntropyLossOptions<'_>
    NLLLossOptions<'_>
    SmoothL1LossOptions
    HuberLossOptions
    BCELossOptions<'_>
    BCEWithLogitsLossOptions<'_>
    KLDivLossOptions
}
