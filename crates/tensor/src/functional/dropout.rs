//! Dropout.

use smallvec::smallvec;
use warpline_kernels::random;
use warpline_runtime::CudaDevice;

#[cfg(doc)]
use crate::ErrorKind;
use crate::autograd::{self, Gradients, NodeInputs, OpBackward, saved};
use crate::exec::Exec;
use crate::functional::options::{from_number, options};
use crate::{CallScope, DType, Error, IntoOptions, Result, Tensor};

options! {
    /// Options of [`dropout`] and of the dropouts of channels. A number converts into options with that `p`.
    #[derive(Clone, Copy, Debug)]
    DropoutOptions [] [] {
        /// Sets the probability that an element or channel is set to zero, from 0 to 1. Default: 0.5.
        p: f64 = 0.5, f64;
        /// Sets whether anything is dropped. Default: `true`.
        training: bool = true, bool;
    }
}

from_number! { DropoutOptions p; }

/// In training, sets each element to zero with probability `p`, and multiplies the others by `1 / (1 - p)`
/// (`torch.nn.functional.dropout`). Otherwise returns `input` itself.
///
/// ```
/// # use warpline::functional::{DropoutOptions, dropout};
/// # use warpline::ones;
/// let t = dropout(&ones([100], ())?, ())?;
/// assert!(t.to_vec::<f32>()?.iter().all(|x| [0.0, 2.0].contains(x)));
/// let evaluated = dropout(&t, DropoutOptions::new().p(0.1).training(false))?;
/// assert!(evaluated.is_same(&t));
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `p` is not from 0 to 1. [`ErrorKind::CannotCast`] in training, if `p` is
/// neither 0 nor 1 and the tensor has elements but is not floating point. Errors of
/// [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn dropout(input: &Tensor, options: impl IntoOptions<DropoutOptions>) -> Result<Tensor> {
    let _call = CallScope::enter("dropout");
    drop_elements("dropout", input, options.into_options(), input.dim())
}

/// [`dropout`] of whole channels (`torch.nn.functional.dropout1d`). A channel consists of all elements with the same
/// indices in the first two dimensions.
///
/// # Errors
/// The same as [`dropout`].
#[track_caller]
pub fn dropout1d(input: &Tensor, options: impl IntoOptions<DropoutOptions>) -> Result<Tensor> {
    let _call = CallScope::enter("dropout1d");
    drop_elements("dropout1d", input, options.into_options(), 2)
}

/// [`dropout`] of whole channels (`torch.nn.functional.dropout2d`). A channel consists of all elements with the same
/// indices in the first two dimensions.
///
/// # Errors
/// The same as [`dropout`].
#[track_caller]
pub fn dropout2d(input: &Tensor, options: impl IntoOptions<DropoutOptions>) -> Result<Tensor> {
    let _call = CallScope::enter("dropout2d");
    drop_elements("dropout2d", input, options.into_options(), 2)
}

/// [`dropout`] of whole channels (`torch.nn.functional.dropout3d`). A channel consists of all elements with the same
/// indices in the first two dimensions.
///
/// # Errors
/// The same as [`dropout`].
#[track_caller]
pub fn dropout3d(input: &Tensor, options: impl IntoOptions<DropoutOptions>) -> Result<Tensor> {
    let _call = CallScope::enter("dropout3d");
    drop_elements("dropout3d", input, options.into_options(), 2)
}

/// Drops elements in one launch, with the same random numbers as PyTorch's kernel. Keeps each element with
/// probability `p`.
#[track_caller]
fn launched(input: &Tensor, p: f64, device: &CudaDevice) -> Result<Tensor> {
    let x = input.detach().contiguous()?;
    let exec = x.exec()?;
    let out = exec.empty(x.size(), x.dtype())?;
    let kept = exec.empty(x.size(), DType::Bool)?;
    let results = (out.as_view(), kept.as_view());
    random::dropout((exec.target(), device), x.as_view(), results, p)?;
    if !autograd::should_record(&[input]) {
        return Ok(out);
    }
    autograd::record("native_dropout", out, &[input], Dropout { kept, p })
}

saved! {
    /// The mask of kept elements, and the probability of keeping an element.
    struct Dropout { kept: Tensor, p: f64 }
}

impl OpBackward for Dropout {
    fn backward(&self, grad: &Tensor, _: &NodeInputs<'_>) -> Result<Gradients> {
        let kept = self.kept.to(grad.dtype())?;
        Ok(smallvec![Some(grad.mul(&kept.mul(1.0 / self.p)?)?)])
    }
}

/// Drops elements with probability `p`. The mask has the first `own` sizes of the input, and broadcasts over
/// the other dimensions.
#[track_caller]
fn drop_elements(
    op: &'static str,
    input: &Tensor,
    DropoutOptions { p, training }: DropoutOptions,
    own: usize,
) -> Result<Tensor> {
    if !(0.0..=1.0).contains(&p) {
        let reason = format!("p must be a probability, from 0 to 1, but is {p}");
        return Err(Error::invalid(op, reason));
    }
    if !training || p == 0.0 || input.numel() == 0 {
        return Ok(input.clone());
    }
    if p == 1.0 {
        return input.mul(&input.new_zeros((), ())?);
    }
    if own == input.dim()
        && input.dtype().is_float()
        && let Exec::Cuda(_, device, _) = &input.exec()?
    {
        return launched(input, 1.0 - p, device);
    }
    let kept = if own == input.dim() {
        input.empty_like(())?
    } else {
        let mut sizes = vec![1; input.dim()];
        let own = own.min(input.dim());
        sizes[..own].copy_from_slice(&input.size()[..own]);
        input.new_empty(sizes, ())?
    };
    kept.bernoulli_(1.0 - p)?.div_(1.0 - p)?;
    input.mul(&kept)
}
