//! cuDNN, which computes convolutions on a GPU where it is found (`torch.backends.cudnn`).
//!
//! The library is looked for once per process: where `WARPLINE_CUDNN` names it, otherwise on the
//! loader's path and in the folders of CUDA. Where it is missing, or has no plan for a convolution,
//! Warpline's own kernels run. The settings hold for the current runtime; simulated GPUs follow
//! [`set_enabled`] and compute the same on the host.
//!
//! ```
//! use warpline::backends::cudnn;
//!
//! if let Err(reason) = cudnn::version() {
//!     println!("convolutions run on Warpline's kernels: {reason}");
//! }
//! cudnn::set_deterministic(true);
//! assert!(cudnn::deterministic());
//! # cudnn::set_deterministic(false);
//! ```

use warpline_cuda_sys_safe::cudnn::Cudnn;

use super::precision_functions;
use crate::{Error, Result, runtime};

pub use warpline_kernels::conv::{clear_plans, plans_kept};

/// Returns cuDNN's major, minor and patch version (`cudnn.version()`).
///
/// # Errors
/// [`ErrorKind::Driver`](crate::ErrorKind::Driver) with the reason why cuDNN is not used: no library of cuDNN or cuBLAS
/// was found, cuDNN is older than 9.0, or it is built for another major version of CUDA than cuBLAS.
/// [`ErrorKind::InvalidVariable`](crate::ErrorKind::InvalidVariable) if `WARPLINE_CUDNN` or `WARPLINE_CUBLAS` names a
/// library that cannot be used.
#[track_caller]
pub fn version() -> Result<(u32, u32, u32)> {
    match Cudnn::load() {
        Ok(cudnn) => Ok(cudnn.version()),
        Err(error) => Err(Error::driver("cudnn", error)),
    }
}

/// Returns whether cuDNN is found (`cudnn.is_available()`).
#[must_use]
pub fn is_available() -> bool {
    Cudnn::load().is_ok()
}

macro_rules! switches {
    ($($(#[$doc:meta])* $get:ident $(#[$set_doc:meta])* $set:ident;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $get() -> bool {
            runtime().cudnn().$get()
        }

        $(#[$set_doc])*
        pub fn $set(value: bool) {
            runtime().cudnn().$set(value);
        }
    )*};
}

switches! {
    /// Returns whether cuDNN is used where it is found (`cudnn.enabled`). Default: `true`.
    enabled
    /// Sets whether cuDNN is used where it is found. Otherwise Warpline's own kernels run.
    set_enabled;
    /// Returns whether the plan of a new convolution is chosen by trial (`cudnn.benchmark`). Default: `false`.
    benchmark
    /// Sets whether the plan of a new convolution is chosen by trial: its first call times up to ten plans, and waits
    /// for the GPU. Otherwise cuDNN's heuristics choose. The plans of the 4,096 convolutions that were used last are
    /// kept until [`clear_plans`]. A call that is captured never waits.
    set_benchmark;
    /// Returns whether cuDNN uses only plans that give the same bits in each run (`cudnn.deterministic`). Default:
    /// `false`.
    deterministic
    /// Sets whether cuDNN uses only plans that give the same bits in each run. With `benchmark`, two processes may
    /// still choose different plans.
    set_deterministic;
}

precision_functions! {
    Cuda "all ops on CUDA that have no setting of their own" "torch.backends.cudnn"
    "`ieee`, `tf32` or `none`"
}

/// Returns whether `float32` convolutions and recurrent layers may use TF32 (`torch.backends.cudnn.allow_tf32`). This
/// is PyTorch's older interface to [`conv::fp32_precision`] and [`rnn::fp32_precision`]. Default: true.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if this setting and the current precision of
/// convolutions or of recurrent layers differ, because the program also called a `set_fp32_precision`.
#[track_caller]
pub fn allow_tf32() -> Result<bool> {
    runtime().precision().cudnn_allow_tf32()
}

/// Sets whether `float32` convolutions and recurrent layers may use TF32 (`torch.backends.cudnn.allow_tf32 = …`).
pub fn set_allow_tf32(allow: bool) {
    runtime().precision().set_cudnn_allow_tf32(allow);
}

/// Settings of convolutions (`torch.backends.cudnn.conv`).
pub mod conv {
    super::precision_functions! {
        Conv "convolutions on CUDA" "torch.backends.cudnn.conv" "`ieee`, `tf32` or `none`"
    }
}

/// Settings of recurrent layers (`torch.backends.cudnn.rnn`). They are kept and read back, but change no result: the
/// recurrent layers here are made of matrix products, which follow [`cuda::matmul`](super::cuda::matmul). PyTorch's
/// layers call cuDNN, which rounds to TF32 by default.
pub mod rnn {
    super::precision_functions! {
        Rnn "recurrent layers on CUDA" "torch.backends.cudnn.rnn" "`ieee`, `tf32` or `none`"
    }
}
