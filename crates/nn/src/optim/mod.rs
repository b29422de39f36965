//! Optimizers, learning-rate schedulers and gradient clipping (`torch.optim`).
//!
//! ```
//! use warpline_nn::optim::{Optimizer, SGD, SGDOptions};
//! use warpline_nn::{Linear, Module};
//!
//! let net = Linear::new(2, 1, ())?;
//! for parameter in net.parameters() {
//!     parameter.requires_grad_(true)?;
//! }
//! let mut sgd = SGD::new(net.parameters(), SGDOptions::new().lr(0.1))?;
//! let x = warpline::ones([4, 2], ())?;
//! for _ in 0..3 {
//!     sgd.zero_grad()?;
//!     net.forward(&x)?.square()?.mean(())?.backward()?;
//!     sgd.step()?;
//! }
//! # Ok::<(), warpline::Error>(())
//! ```

mod adadelta;
mod adam;
mod clip;
mod fused_step;
mod group;
mod lbfgs;
mod optimizer;
mod rmsprop;
mod rule;
mod schedulers;
mod sgd;
mod state;
mod step_count;

pub use adadelta::{Adadelta, AdadeltaOptions};
pub use adam::{Adam, AdamOptions, AdamW, AdamWOptions};
pub use clip::{TotalNormOptions, clip_grad_norm_, clip_grad_value_, get_total_norm};
pub use fused_step::GradScaling;
pub use group::{IntoParamGroups, ParamGroup};
pub use lbfgs::{LBFGS, LBFGSOptions, LineSearch};
pub(crate) use optimizer::is_capturing;
pub use optimizer::{Optim, Optimizer, OptimizerId};
pub use rmsprop::{RMSprop, RMSpropOptions};
pub use rule::{Rule, Settings};
pub use schedulers::{
    Anneal, Chained, ConstantLR, ConstantLROptions, CosineAnnealingLR, CosineAnnealingLROptions,
    CosineAnnealingWarmRestarts, CosineAnnealingWarmRestartsOptions, ExponentialLR, LambdaLR,
    LambdaLROptions, LinearLR, LinearLROptions, MultiStepLR, MultiStepLROptions, OneCycleLR,
    OneCycleLROptions, PlateauMode, ReduceLROnPlateau, ReduceLROnPlateauOptions, Scheduler,
    SchedulerState, SequentialLR, StepLR, StepLROptions, ThresholdMode,
};
pub use sgd::{SGD, SGDOptions};
pub use state::{GroupState, OptimizerState};
