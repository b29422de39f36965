//! Lengths and angles of vectors.

use crate::called::Called;
use crate::{DType, Result, Tensor};

/// Divided by the norm of order `p` along a dimension, or by `eps` where that is larger
/// (`torch.nn.functional.normalize`, which has 2, 1 and 1e-12 where nothing is said).
///
/// # Errors
/// As [`Tensor::vector_norm`].
#[track_caller]
pub fn normalize(input: &Tensor, p: f64, dim: isize, eps: f64) -> Result<Tensor> {
    let op = "normalize";
    let x = input.widened().of(op)?;
    let norm = x.vector_norm_keepdim(p, dim).of(op)?.clamp_min(eps).of(op)?;
    x.div(&norm).of(op)?.to(input.dtype()).of(op)
}

/// The cosine of the angle between vectors along a dimension, whose lengths count as at least `eps`
/// (`torch.nn.functional.cosine_similarity`, which has 1 and 1e-8 where nothing is said). Both broadcast.
///
/// ```
/// # use warpline::{functional::cosine_similarity, tensor};
/// let (a, b) = (tensor([[2f32, 0.0], [2.0, 0.0]], ())?, tensor([[3f32, 0.0], [0.0, 3.0]], ())?);
/// assert_eq!(cosine_similarity(&a, &b, 1, 1e-8)?.to_vec::<f32>()?, [1.0, 0.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// As [`Tensor::vector_norm`] and [`Tensor::mul`].
#[track_caller]
pub fn cosine_similarity(x1: &Tensor, x2: &Tensor, dim: isize, eps: f64) -> Result<Tensor> {
    let op = "cosine_similarity";
    let dtype: DType = crate::result_type(x1, x2);
    let sizes = warpline_runtime::broadcast(x1.size(), x2.size()).of(op)?;
    // The dimension is the result's, which both have once they are broadcast.
    let a = normalize(&x1.expand(&sizes).of(op)?.widened().of(op)?, 2.0, dim, eps).of(op)?;
    let b = normalize(&x2.expand(&sizes).of(op)?.widened().of(op)?, 2.0, dim, eps).of(op)?;
    a.mul(&b).of(op)?.sum(dim).of(op)?.to(dtype).of(op)
}
