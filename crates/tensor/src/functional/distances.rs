//! Lengths and angles of vectors.

use crate::called::Called;
use crate::{DType, Result, Tensor};

/// Divides by the norm of order `p` along a dimension, or by `eps` where the norm is smaller
/// (`torch.nn.functional.normalize`). PyTorch's defaults are 2 for `p`, 1 for `dim` and 1e-12 for `eps`.
///
/// # Errors
/// The same as [`Tensor::vector_norm`].
#[track_caller]
pub fn normalize(input: &Tensor, p: f64, dim: isize, eps: f64) -> Result<Tensor> {
    let op = "normalize";
    let x = input.widened().of(op)?;
    let norm = x.vector_norm_keepdim(p, dim).of(op)?.clamp_min(eps).of(op)?;
    x.div(&norm).of(op)?.to(input.dtype()).of(op)
}

/// The cosine of the angle between vectors along a dimension (`torch.nn.functional.cosine_similarity`). Lengths
/// count as at least `eps`. Both tensors broadcast. PyTorch's defaults are 1 for `dim` and 1e-8 for `eps`.
///
/// ```
/// # use warpline::{functional::cosine_similarity, tensor};
/// let (a, b) = (tensor([[2f32, 0.0], [2.0, 0.0]], ())?, tensor([[3f32, 0.0], [0.0, 3.0]], ())?);
/// assert_eq!(cosine_similarity(&a, &b, 1, 1e-8)?.to_vec::<f32>()?, [1.0, 0.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::BroadcastMismatch`](crate::ErrorKind::BroadcastMismatch) if the shapes do not broadcast.
/// Otherwise the same as [`Tensor::vector_norm`].
#[track_caller]
pub fn cosine_similarity(x1: &Tensor, x2: &Tensor, dim: isize, eps: f64) -> Result<Tensor> {
    let op = "cosine_similarity";
    let dtype: DType = crate::result_type(x1, x2);
    let sizes = warpline_runtime::broadcast(x1.size(), x2.size()).of(op)?;
    // `dim` is a dimension of the broadcast shape, so both tensors are broadcast first.
    let a = normalize(&x1.expand(&sizes).of(op)?.widened().of(op)?, 2.0, dim, eps).of(op)?;
    let b = normalize(&x2.expand(&sizes).of(op)?.widened().of(op)?, 2.0, dim, eps).of(op)?;
    a.mul(&b).of(op)?.sum(dim).of(op)?.to(dtype).of(op)
}
