//! Losses.

use warpline::functional::{
    self, CrossEntropyOptions, NllLossOptions, Reduction, binary_cross_entropy,
    binary_cross_entropy_with_logits, huber_loss, kl_div, l1_loss, mse_loss, nll_loss,
    smooth_l1_loss,
};
use warpline::{Result, Tensor};

use crate::{Buffer, Forward, Module, place};

/// A loss of an input and a target: its settings with PyTorch's defaults, and what is computed.
macro_rules! losses {
    ($($doc:literal $name:ident { $($field:ident: $ty:ty = $default:expr),* } ($this:ident, $x:ident, $target:ident) => $body:expr;)*) => {$(
        #[doc = concat!($doc, " (`torch.nn.", stringify!($name), "`). `Default` has PyTorch's settings.")]
        #[derive(Clone, Debug, Module)]
        #[allow(missing_docs)] // PyTorch's names
        pub struct $name {
            $(#[module(skip)] pub $field: $ty,)*
            #[module(skip)]
            /// What becomes of the losses of single elements.
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
            /// The loss of an input and a target.
            ///
            /// # Errors
            /// What the function of that name fails with.
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
    "The squared error near zero, beyond that the absolute one" SmoothL1Loss { beta: f64 = 1.0 }
        (s, x, t) => smooth_l1_loss(x, t, s.reduction, s.beta);
    "The squared error up to `delta`, beyond that the absolute one" HuberLoss { delta: f64 = 1.0 }
        (s, x, t) => huber_loss(x, t, s.reduction, s.delta);
    "The cross entropy of probabilities" BCELoss {} (s, x, t) => binary_cross_entropy(x, t, None, s.reduction);
    "The cross entropy of logits of two classes" BCEWithLogitsLoss {}
        (s, x, t) => binary_cross_entropy_with_logits(x, t, None, s.reduction, None);
    "The divergence of logarithms of probabilities from a target" KLDivLoss { log_target: bool = false }
        (s, x, t) => kl_div(x, t, s.reduction, s.log_target);
}

/// The cross entropy of logits and class indices, or probabilities (`torch.nn.CrossEntropyLoss`). `Default` has PyTorch's
/// settings.
#[derive(Clone, Debug, Module)]
pub struct CrossEntropyLoss {
    /// How much each class weighs.
    pub weight: Option<Buffer>,
    /// The class index of what does not count.
    pub ignore_index: i64,
    /// How much of the target is spread over all classes.
    pub label_smoothing: f64,
    /// What becomes of the losses of single elements.
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
        place::check("CrossEntropyLoss", x, "weight", weight)?;
    }
    let weight = s.weight.as_deref();
    let (ignore_index, reduction, label_smoothing) = (s.ignore_index, s.reduction, s.label_smoothing);
    functional::cross_entropy(x, t, &CrossEntropyOptions { weight, ignore_index, reduction, label_smoothing })
});

/// The loss of logarithms of probabilities and class indices (`torch.nn.NLLLoss`). `Default` has PyTorch's settings.
#[derive(Clone, Debug, Module)]
pub struct NLLLoss {
    /// How much each class weighs.
    pub weight: Option<Buffer>,
    /// The class index of what does not count.
    pub ignore_index: i64,
    /// What becomes of the losses of single elements.
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
        place::check("NLLLoss", x, "weight", weight)?;
    }
    let (weight, ignore_index, reduction) = (s.weight.as_deref(), s.ignore_index, s.reduction);
    nll_loss(x, t, &NllLossOptions { weight, ignore_index, reduction })
});
