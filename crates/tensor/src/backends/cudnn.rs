//! Settings of convolutions and recurrent layers (`torch.backends.cudnn`).

use super::precision_functions;
use crate::{Result, runtime};

precision_functions! {
    Cuda "all ops on CUDA that have no setting of their own" "torch.backends.cudnn"
    "`ieee`, `tf32` or `none`"
}

/// Returns whether convolutions and recurrent layers of `float32` may use TF32, the older name of
/// [`conv::fp32_precision`] and [`rnn::fp32_precision`] (`torch.backends.cudnn.allow_tf32`). Default: true.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if [`set_fp32_precision`] says otherwise.
#[track_caller]
pub fn allow_tf32() -> Result<bool> {
    runtime().precision().cudnn_allow_tf32()
}

/// Sets whether convolutions and recurrent layers of `float32` may use TF32 (`torch.backends.cudnn.allow_tf32 = …`).
pub fn set_allow_tf32(allow: bool) {
    runtime().precision().set_cudnn_allow_tf32(allow);
}

/// Settings of convolutions (`torch.backends.cudnn.conv`).
pub mod conv {
    super::precision_functions! {
        Conv "convolutions on CUDA" "torch.backends.cudnn.conv" "`ieee`, `tf32` or `none`"
    }
}

/// Settings of recurrent layers (`torch.backends.cudnn.rnn`).
pub mod rnn {
    super::precision_functions! {
        Rnn "recurrent layers on CUDA" "torch.backends.cudnn.rnn" "`ieee`, `tf32` or `none`"
    }
}
