//! Settings of CUDA's libraries (`torch.backends.cuda`).

/// Settings of matrix products by cuBLAS (`torch.backends.cuda.matmul`). They also apply to the products that attention
/// and convolutions compute by cuBLAS, but not to cuDNN or to attention kernels of one launch.
pub mod matmul {
    use crate::backends::precision_functions;
    use crate::{Result, runtime};

    precision_functions! {
        Matmul "matrix products on CUDA" "torch.backends.cuda.matmul" "`ieee`, `tf32` or `none`"
    }

    /// Returns whether `float32` products may use TF32 (`torch.backends.cuda.matmul.allow_tf32`). This is PyTorch's
    /// older interface to [`fp32_precision`]. Default: false.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if this setting and the current
    /// [`fp32_precision`] differ, because the program also called a `set_fp32_precision`.
    #[track_caller]
    pub fn allow_tf32() -> Result<bool> {
        runtime().precision().matmul_allow_tf32()
    }

    /// Sets whether `float32` products may use TF32 (`torch.backends.cuda.matmul.allow_tf32 = …`).
    pub fn set_allow_tf32(allow: bool) {
        runtime().precision().set_matmul_allow_tf32(allow);
    }

    /// Defines the functions that read and set a switch.
    macro_rules! switches {
        ($($(#[$doc:meta])* $get:ident $set:ident;)*) => {$(
            $(#[$doc])*
            #[must_use]
            pub fn $get() -> bool {
                runtime().precision().$get()
            }

            #[doc = concat!("Sets [`", stringify!($get), "`].")]
            pub fn $set(allow: bool) {
                runtime().precision().$set(allow);
            }
        )*};
    }

    switches! {
        /// Returns whether cuBLAS may round partial sums of `float16` products to `float16` before it adds them
        /// (`torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction`). Default: true.
        allow_fp16_reduced_precision_reduction set_allow_fp16_reduced_precision_reduction;
        /// Returns whether cuBLAS may round partial sums of `bfloat16` products to `bfloat16` before it adds them
        /// (`torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction`). Default: true.
        allow_bf16_reduced_precision_reduction set_allow_bf16_reduced_precision_reduction;
        /// Returns whether cuBLAS may sum `float16` products in `float16`
        /// (`torch.backends.cuda.matmul.allow_fp16_accumulation`). Default: false.
        allow_fp16_accumulation set_allow_fp16_accumulation;
    }
}
