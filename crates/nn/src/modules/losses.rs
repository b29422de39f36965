//! Loss functions as modules.

use warpline::functional::{
    self, CrossEntropyOptions, NllLossOptions, Reduction, binary_cross_entropy,
    binary_cross_entropy_with_logits, huber_loss, kl_div, l1_loss, mse_loss, nll_loss,
    smooth_l1_loss,
};
use warpline::{Result, Tensor};

use crate::{Buffer, Forward, Module, input_device};

/// Defines losses of an input and a target: fields with PyTorch's defaults, and the computation.
macro_rules! losses {
    ($($doc:literal $name:ident { $($field:ident: $ty:ty = $default:expr),* } ($this:ident, $x:ident, $target:ident) => $body:expr;)*) => {$(
        #[doc = concat!($doc, " (`torch.nn.", stringify!($name), "`). The defaults of the fields are PyTorch's.")]
        #[derive(Clone, Debug, Module)]
        #[allow(missing_docs)] // PyTorch's names
        pub struct $name {
            $(#[module(skip)] pub $field: $ty,)*
            #[module(skip)]
            /// Reduction of the losses of all elements. Default: their mean.
            pub reduction: Reduction,
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* reduction: Reduction::default() }
            }
        }

        loss!($name, $this, $x, $target => $body);
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
    "The squared error" MSELoss {} (s, x, t) => mse_loss(x, t, s.reduction);
    "The absolute error" L1Loss {} (s, x, t) => l1_loss(x, t, s.reduction);
    "The squared error up to `beta`, and the absolute error above" SmoothL1Loss { beta: f64 = 1.0 }
        (s, x, t) => smooth_l1_loss(x, t, s.reduction, s.beta);
    "The squared error up to `delta`, and the absolute error above" HuberLoss { delta: f64 = 1.0 }
        (s, x, t) => huber_loss(x, t, s.reduction, s.delta);
    "The binary cross entropy of probabilities" BCELoss {} (s, x, t) => binary_cross_entropy(x, t, None, s.reduction);
    "The binary cross entropy of logits" BCEWithLogitsLoss {}
        (s, x, t) => binary_cross_entropy_with_logits(x, t, None, s.reduction, None);
    "The Kullback-Leibler divergence of log-probabilities from a target" KLDivLoss { log_target: bool = false }
        (s, x, t) => kl_div(x, t, s.reduction, s.log_target);
}

/// The cross entropy of logits with class indices or class probabilities (`torch.nn.CrossEntropyLoss`).
#[derive(Clone, Debug, Module)]
pub struct CrossEntropyLoss {
    /// Weight of each class, `[classes]`. Default: `None`, equal weights.
    pub weight: Option<Buffer>,
    /// Class index of targets that are ignored. Default: -100.
    pub ignore_index: i64,
    /// Fraction of the target's probability that is spread evenly over all classes, from 0 to 1. Default: 0.
    pub label_smoothing: f64,
    /// Reduction of the losses of all elements. Default: their mean.
    #[module(skip)]
    pub reduction: Reduction,
}

impl Default for CrossEntropyLoss {
    fn default() -> Self {
        let reduction = Reduction::default();
        Self { weight: None, ignore_index: -100, label_smoothing: 0.0, reduction }
    }
}

loss!(CrossEntropyLoss, s, x, t => {
    if let Some(weight) = &s.weight {
        input_device::check("CrossEntropyLoss", x, "weight", weight)?;
    }
    let weight = s.weight.as_deref();
    let (ignore_index, reduction, label_smoothing) = (s.ignore_index, s.reduction, s.label_smoothing);
    functional::cross_entropy(x, t, &CrossEntropyOptions { weight, ignore_index, reduction, label_smoothing })
});

/// The negative log-likelihood of log-probabilities with class indices (`torch.nn.NLLLoss`).
#[derive(Clone, Debug, Module)]
pub struct NLLLoss {
    /// Weight of each class, `[classes]`. Default: `None`, equal weights.
    pub weight: Option<Buffer>,
    /// Class index of targets that are ignored. Default: -100.
    pub ignore_index: i64,
    /// Reduction of the losses of all elements. Default: their mean.
    #[module(skip)]
    pub reduction: Reduction,
}

impl Default for NLLLoss {
    fn default() -> Self {
        Self { weight: None, ignore_index: -100, reduction: Reduction::default() }
    }
}

loss!(NLLLoss, s, x, t => {
    if let Some(weight) = &s.weight {
        input_device::check("NLLLoss", x, "weight", weight)?;
    }
    let (weight, ignore_index, reduction) = (s.weight.as_deref(), s.ignore_index, s.reduction);
    nll_loss(x, t, &NllLossOptions { weight, ignore_index, reduction })
});
