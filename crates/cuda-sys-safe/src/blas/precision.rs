//! Reduced precision that products may use for speed.

use cudarc::cublas::sys::{cublasComputeType_t, cublasMath_t};

use super::{BlasType, GemmArgs};

/// Reduced precision that a product may use for speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GemmPrecision {
    /// Whether factors of `f32` may be rounded to TF32, which has 10 bits of mantissa.
    pub tf32: bool,
    /// Whether partial sums of `f16` and `bf16` products may be rounded to that type before they are added.
    pub reduced_precision_reduction: bool,
    /// Whether products of `f16` with a result of `f16` may be summed in `f16`.
    pub fp16_accumulation: bool,
}

impl GemmPrecision {
    /// PyTorch's defaults: reductions in reduced precision, but neither TF32 nor sums in `f16`.
    pub const DEFAULT: Self =
        Self { tf32: false, reduced_precision_reduction: true, fp16_accumulation: false };
}

impl GemmArgs {
    /// Returns whether the sums are computed in `f16`. This is the case only if `alpha` and `beta` are 0 or 1.
    pub(super) fn sums_in_f16(&self) -> bool {
        let is_exact = |factor: f64| factor == 0.0 || factor == 1.0;
        self.precision.fp16_accumulation
            && (self.dtype, self.result) == (BlasType::F16, BlasType::F16)
            && is_exact(self.alpha)
            && is_exact(self.beta)
    }

    pub(super) fn compute_type(&self) -> cublasComputeType_t {
        use cublasComputeType_t::{
            CUBLAS_COMPUTE_16F, CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32,
            CUBLAS_COMPUTE_64F,
        };
        match self.dtype {
            BlasType::F16 if self.sums_in_f16() => CUBLAS_COMPUTE_16F,
            BlasType::F32 if self.precision.tf32 => CUBLAS_COMPUTE_32F_FAST_TF32,
            BlasType::F64 => CUBLAS_COMPUTE_64F,
            _ => CUBLAS_COMPUTE_32F,
        }
    }

    pub(super) fn math_mode(&self) -> cublasMath_t {
        use cublasMath_t::{CUBLAS_DEFAULT_MATH, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION};
        let is_half = matches!(self.dtype, BlasType::F16 | BlasType::BF16);
        if is_half && !self.precision.reduced_precision_reduction {
            CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
        } else {
            CUBLAS_DEFAULT_MATH
        }
    }
}
