//! Settings of libraries (`torch.backends`): how much precision products and convolutions may lose for speed.
//!
//! The precisions of `float32` form a tree. A part that was never set, or was set to `none`, uses the setting of its
//! parent. The defaults are for parts that were never set:
//!
//! | part | functions | default |
//! |---|---|---|
//! | everything | [`fp32_precision`], [`set_fp32_precision`] | `none` |
//! | CUDA | the same in [`cudnn`] | that of everything |
//! | matrix products on CUDA | the same in [`cuda::matmul`] | that of CUDA; `none` computes as `ieee` |
//! | convolutions on CUDA | the same in [`cudnn::conv`] | that of CUDA, or else `tf32` |
//! | recurrent layers on CUDA | the same in [`cudnn::rnn`] | that of CUDA, or else `tf32` |
//!
//! The setting of recurrent layers [changes no result](cudnn::rnn).
//!
//! `ieee` keeps 24 bits of each factor, `tf32` 11 bits. The settings belong to the process, or to the runtime of
//! [`with_runtime`](crate::with_runtime). A captured product keeps the precision of its capture.
//!
//! [`set_float32_matmul_precision`] and `set_allow_tf32` are PyTorch's older interface to these settings. A program
//! should use either them or `set_fp32_precision`: after a call of `set_fp32_precision`, reading an older setting fails
//! if its value and the precision in the tree differ.
//!
//! ```
//! use warpline::backends;
//!
//! backends::set_fp32_precision("ieee")?;
//! backends::cuda::matmul::set_fp32_precision("tf32")?;
//! assert_eq!(backends::cuda::matmul::fp32_precision(), "tf32");
//! assert_eq!(backends::cudnn::conv::fp32_precision(), "ieee");
//! # Ok::<(), warpline::Error>(())
//! ```

pub mod cuda;
pub mod cudnn;

use crate::{Result, runtime};

/// Defines the functions that read and set the precision of a part.
macro_rules! precision_functions {
    ($part:ident $what:literal $path:literal $words:literal) => {
        #[doc = concat!("Returns the precision of ", $what, " that is in effect: ", $words)]
        #[doc = concat!("([how parts get their precision](crate::backends); `", $path, ".fp32_precision`).")]
        #[must_use]
        pub fn fp32_precision() -> &'static str {
            $crate::runtime().precision().fp32_precision(warpline_runtime::PrecisionOf::$part)
        }

        #[doc = concat!("Sets the precision of ", $what, " to ", $words, " (`", $path, ".fp32_precision = …`).")]
        ///
        /// # Errors
        /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for any other value.
        #[track_caller]
        pub fn set_fp32_precision(precision: &str) -> $crate::Result<()> {
            let of = warpline_runtime::PrecisionOf::$part;
            $crate::runtime().precision().set_fp32_precision(of, precision)
        }
    };
}

pub(crate) use precision_functions;

precision_functions! {
    Generic "everything that has no setting of its own" "torch.backends"
    "`ieee`, `tf32`, `bf16` or `none`"
}

/// Returns the precision of `float32` products in PyTorch's older terms: `highest` (the default), `high` or `medium`
/// (`torch.get_float32_matmul_precision`).
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if this setting and the current precision of
/// products differ, because the program also called a `set_fp32_precision`.
#[track_caller]
pub fn get_float32_matmul_precision() -> Result<&'static str> {
    runtime().precision().float32_matmul_precision()
}

/// Sets the precision of `float32` products on CUDA: `highest` computes as `ieee`, `high` and `medium` as `tf32`
/// (`torch.set_float32_matmul_precision`).
///
/// ```
/// warpline::set_float32_matmul_precision("high")?;
/// assert!(warpline::backends::cuda::matmul::allow_tf32()?);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for any other value.
#[track_caller]
pub fn set_float32_matmul_precision(precision: &str) -> Result<()> {
    runtime().precision().set_float32_matmul_precision(precision)
}
