//! Loss functions as modules.

use warpline::functional::{
    self, BCELossOptions, BCEWithLogitsLossOptions, CrossEntropyLossOptions, HuberLossOptions,
    KLDivLossOptions, NLLLossOptions, Reduction, SmoothL1LossOptions,
};
use warpline::{IntoOptions, Result, Tensor};

use crate::{Buffer, Forward, Module, input_device};

/// Defines losses whose options contain no tensors.
macro_rules! losses {
    ($($doc:literal $name:ident $function:ident $options:ident;)*) => {$(
        #[doc = concat!($doc, " (`torch.nn.", stringify!($name), "`): [`functional::", stringify!($function), "`].")]
        #[derive(Clone, Debug, Module)]
        pub struct $name {
            #[module(skip)]
            options: $options,
        }

        impl $name {
            /// Creates the loss.
            #[must_use]
            pub fn new(options: impl IntoOptions<$options>) -> Self {
                Self { options: options.into_options() }
            }
        }

        loss!($name, this, x, target => functional::$function(x, target, this.options));
    )*};
}

/// Defines losses with optional weights, which are buffers.
macro_rules! weighted_losses {
    ($($doc:literal $name:ident $function:ident $options:ident {
        $($(#[$weight_doc:meta])* $weight:ident),*; $($field:ident: $ty:ty),*
    })*) => {$(
        #[doc = concat!($doc, " (`torch.nn.", stringify!($name), "`): [`functional::", stringify!($function), "`].")]
        #[derive(Clone, Debug, Module)]
        pub struct $name {
            $($(#[$weight_doc])* pub $weight: Option<Buffer>,)*
            $(#[module(skip)] $field: $ty,)*
        }

        impl $name {
            /// Creates the loss. Weights share their memory with the given tensors.
            #[must_use]
            pub fn new<'a>(options: impl IntoOptions<$options<'a>>) -> Self {
                let options = options.into_options();
                Self {
                    $($weight: options.$weight.map(|weight| Buffer::new(weight.clone())),)*
                    $($field: options.$field,)*
                }
            }
        }

        loss!($name, this, x, target => {
            $(if let Some(weight) = &this.$weight {
                input_device::check(stringify!($name), x, stringify!($weight), weight)?;
            })*
            let options = $options::new()$(.$weight(this.$weight.as_deref()))*$(.$field(this.$field))*;
            functional::$function(x, target, options)
        });
    )*};
}

macro_rules! loss {
    ($name:ident, $this:ident, $x:ident, $target:ident => $body:expr) => {
        impl $name {
            /// Computes the loss of an input and a target.
            ///
            /// # Errors
            /// Errors of the corresponding function in [`functional`], such as [`functional::mse_loss`];
            /// [`ErrorKind::DeviceMismatch`](warpline::ErrorKind::DeviceMismatch) if the loss has a weight that the
            /// input's device cannot access.
            #[track_caller]
            pub fn forward(&self, $x: &Tensor, $target: &Tensor) -> Result<Tensor> {
                let $this = self;
                $body
            }
        }

        impl Forward<(Tensor, Tensor)> for $name {
            type Output = Tensor;

            #[track_caller]
            fn forward(&self, (input, target): (Tensor, Tensor)) -> Result<Tensor> {
                self.forward(&input, &target)
            }
        }
    };
}

losses! {
    "The squared error" MSELoss mse_loss Reduction;
    "The absolute error" L1Loss l1_loss Reduction;
    "The squared error up to `beta`, and the absolute error above" SmoothL1Loss smooth_l1_loss SmoothL1LossOptions;
    "The squared error up to `delta`, and the absolute error above" HuberLoss huber_loss HuberLossOptions;
    "The Kullback-Leibler divergence of log-probabilities from a target" KLDivLoss kl_div KLDivLossOptions;
}

weighted_losses! {
    "The binary cross entropy of probabilities" BCELoss binary_cross_entropy BCELossOptions {
        /// Factor of each loss. Default: `None`.
        weight;
        reduction: Reduction
    }
    "The binary cross entropy of logits"
    BCEWithLogitsLoss binary_cross_entropy_with_logits BCEWithLogitsLossOptions {
        /// Factor of each loss. Default: `None`.
        weight,
        /// Factor of the losses of positive targets. Default: `None`.
        pos_weight;
        reduction: Reduction
    }
    "The cross entropy of logits with class indices or class probabilities"
    CrossEntropyLoss cross_entropy CrossEntropyLossOptions {
        /// Weight of each class, `[classes]`. Default: `None`, equal weights.
        weight;
        ignore_index: i64, reduction: Reduction, label_smoothing: f64
    }
    "The negative log-likelihood of log-probabilities with class indices" NLLLoss nll_loss NLLLossOptions {
        /// Weight of each class, `[classes]`. Default: `None`, equal weights.
        weight;
        ignore_index: i64, reduction: Reduction
    }
}
