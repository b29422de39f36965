//! Helpers for ops that are composed of other ops.

use warpline_kernels::fill;

use crate::autograd::should_record;
use crate::{DType, Result, Scalar, Tensor};

impl Tensor {
    /// Converts half-width floats to `f32`, in which their sums are computed. Returns a tensor of another dtype itself.
    #[track_caller]
    pub(crate) fn widened(&self) -> Result<Self> {
        match self.dtype() {
            DType::F16 | DType::BF16 => self.to(DType::F32),
            _ => Ok(self.clone()),
        }
    }

    /// Returns the sum over dimensions. If `keepdim` is true, the result keeps the dimensions, with size 1.
    #[track_caller]
    pub(crate) fn sum_kept(&self, dims: &[isize], keepdim: bool) -> Result<Self> {
        if keepdim { self.sum_keepdim(dims) } else { self.sum(dims) }
    }

    /// Returns `length` consecutive integers from `start` on, as `int64` on this tensor's device.
    #[track_caller]
    pub(crate) fn arange_on_device(&self, start: isize, length: usize) -> Result<Self> {
        let out = self.new_empty([length], DType::I64)?;
        let exec = out.exec()?;
        fill::arange(exec.target(), out.as_view(), Scalar::Int(start as i64), Scalar::Int(1))?;
        Ok(out)
    }

    /// Returns the square root. The gradient at zero is 0.
    #[track_caller]
    pub(crate) fn sqrt_zero_grad(&self) -> Result<Self> {
        if !should_record(&[self]) {
            return self.sqrt();
        }
        let zero = self.eq(0)?;
        self.masked_fill(&zero, 1)?.sqrt()?.masked_fill(&zero, 0)
    }
}

/// Converts sizes to `isize`, the type that views accept.
pub(crate) fn signed(sizes: &[usize]) -> Vec<isize> {
    sizes.iter().map(|&n| n as isize).collect()
}
