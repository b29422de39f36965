//! Softmax and its gradient.

use smallvec::smallvec;
use warpline_kernels::softmax as kernel;

#[cfg(doc)]
use crate::ErrorKind;
use crate::amp::autocast_operands;
use crate::autograd::{Gradients, NodeInputs, OpBackward, record, saved, should_record};
use crate::called::Called;
use crate::{Integer, Result, Tensor};

impl Tensor {
    /// `exp(self)`, divided by its sum along a dimension (`torch.softmax`). Floats only.
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension. [`ErrorKind::UnsupportedDType`] if the
    /// tensor is not floating-point. Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn softmax(&self, dim: impl Integer) -> Result<Self> {
        self.softmax_or_log(dim.into_isize(), false)
    }

    /// The logarithm of [`Tensor::softmax`] (`torch.log_softmax`). It is more accurate than `softmax` followed
    /// by `log`.
    ///
    /// # Errors
    /// The same as [`Tensor::softmax`].
    #[track_caller]
    pub fn log_softmax(&self, dim: impl Integer) -> Result<Self> {
        self.softmax_or_log(dim.into_isize(), true)
    }

    #[track_caller]
    fn softmax_or_log(&self, dim: isize, log: bool) -> Result<Self> {
        let name = if log { "log_softmax" } else { "softmax" };
        let this = self;
        autocast_operands!(F32, Keep, [this] => this.softmax_or_log(dim, log));
        let d = self.layout().dim(dim).of(name)?;
        if self.dim() == 0 {
            return self.unsqueeze(0)?.softmax_or_log(0, log)?.squeeze(0);
        }
        let exec = self.exec()?;
        let out = exec.empty(self.size(), self.dtype()).of(name)?;
        kernel::softmax(exec.target(), self.as_view(), d, out.as_view(), log)?;
        if !should_record(&[self]) {
            return Ok(out);
        }
        let saved = out.clone();
        record(name, out, &[self], Softmax { out: saved, dim: d, log })
    }
}

saved! {
    /// The result of softmax over dimension `dim`, or of log-softmax if `log` is true.
    pub(crate) struct Softmax {
        pub(crate) out: Tensor,
        pub(crate) dim: usize,
        pub(crate) log: bool,
    }
}

impl Softmax {
    /// Computes the gradient of the input in one launch.
    pub(crate) fn fused_gradient(&self, grad: &Tensor) -> Result<Tensor> {
        let exec = self.out.exec()?;
        let result = exec.empty(self.out.size(), self.out.dtype())?;
        let views = [grad, &self.out, &result].map(Tensor::as_view);
        kernel::softmax_backward(exec.target(), views[0], views[1], self.dim, views[2], self.log)?;
        Ok(result)
    }

    /// Computes the gradient of the input with differentiable ops.
    pub(crate) fn differentiable_gradient(&self, grad: &Tensor) -> Result<Tensor> {
        let (out, dim) = (&self.out, self.dim as isize);
        if self.log {
            grad.sub(&out.exp()?.mul(&grad.sum_keepdim(dim)?)?)
        } else {
            out.mul(&grad.sub(&grad.mul(out)?.sum_keepdim(dim)?)?)
        }
    }
}

impl OpBackward for Softmax {
    fn backward(&self, grad: &Tensor, _: &NodeInputs<'_>) -> Result<Gradients> {
        Ok(smallvec![Some(self.differentiable_gradient(grad)?)])
    }

    fn fused(&self, grad: &Tensor, _: &NodeInputs<'_>) -> Result<Option<Gradients>> {
        Ok(Some(smallvec![Some(self.fused_gradient(grad)?)]))
    }
}
