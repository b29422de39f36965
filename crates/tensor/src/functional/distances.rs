//! Lengths and angles of vectors.

use super::options::options;
use crate::amp::autocast_operands;
use crate::{CallScope, DType, Integer, IntoOptions, Result, Tensor, VectorNormOptions};

options! {
    /// Options of [`normalize`].
    #[derive(Clone, Copy, Debug)]
    NormalizeOptions [] [] {
        /// Sets the order of the norm. Default: 2.
        p: f64 = 2.0, f64;
        /// Sets the dimension. Negative: counted from the end. Default: 1.
        dim: isize = 1, impl Integer => Integer::into_isize;
        /// Sets the lower bound of the norms that the input is divided by. Default: 1e-12.
        eps: f64 = 1e-12, f64;
    }
}

options! {
    /// Options of [`cosine_similarity`].
    #[derive(Clone, Copy, Debug)]
    CosineSimilarityOptions [] [] {
        /// Sets the dimension of the vectors. Negative: counted from the end. Default: 1.
        dim: isize = 1, impl Integer => Integer::into_isize;
        /// Sets the lower bound of the lengths that the vectors are divided by. Default: 1e-8.
        eps: f64 = 1e-8, f64;
    }
}

/// Divides by the norm of order `p` along a dimension, or by `eps` where the norm is smaller
/// (`torch.nn.functional.normalize`).
///
/// ```
/// # use warpline::{functional::normalize, tensor};
/// assert_eq!(normalize(&tensor([[0f32, 2.0]], ())?, ())?.to_vec::<f32>()?, [0.0, 1.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// The same as [`Tensor::vector_norm`].
#[track_caller]
pub fn normalize(input: &Tensor, options: impl IntoOptions<NormalizeOptions>) -> Result<Tensor> {
    let _call = CallScope::enter("normalize");
    let NormalizeOptions { p, dim, eps } = options.into_options();
    autocast_operands!(F32, Keep, [input] => normalize(input, NormalizeOptions { p, dim, eps }));
    let x = input.widened()?;
    let norm = x.vector_norm_keepdim(VectorNormOptions::new().ord(p).dim(dim))?.clamp_min(eps)?;
    x.div(&norm)?.to(input.dtype())
}

/// The cosine of the angle between vectors along a dimension (`torch.nn.functional.cosine_similarity`). A vector
/// shorter than `eps` is divided by `eps` instead of its length. Both tensors broadcast.
///
/// ```
/// # use warpline::{functional::cosine_similarity, tensor};
/// let (a, b) = (tensor([[2f32, 0.0], [2.0, 0.0]], ())?, tensor([[3f32, 0.0], [0.0, 3.0]], ())?);
/// assert_eq!(cosine_similarity(&a, &b, ())?.to_vec::<f32>()?, [1.0, 0.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::BroadcastMismatch`](crate::ErrorKind::BroadcastMismatch) if the shapes do not broadcast.
/// Otherwise the same as [`Tensor::vector_norm`].
#[track_caller]
pub fn cosine_similarity(
    x1: &Tensor,
    x2: &Tensor,
    options: impl IntoOptions<CosineSimilarityOptions>,
) -> Result<Tensor> {
    let _call = CallScope::enter("cosine_similarity");
    let CosineSimilarityOptions { dim, eps } = options.into_options();
    autocast_operands!(F32, Keep, [x1, x2] => cosine_similarity(x1, x2, CosineSimilarityOptions { dim, eps }));
    let dtype: DType = crate::result_type(x1, x2);
    let sizes = warpline_runtime::broadcast(x1.size(), x2.size())?;
    // `dim` is a dimension of the broadcast shape, so both tensors are broadcast first.
    let unit = NormalizeOptions::new().dim(dim).eps(eps);
    let a = normalize(&x1.expand(&sizes)?.widened()?, unit)?;
    let b = normalize(&x2.expand(&sizes)?.widened()?, unit)?;
    a.mul(&b)?.sum(dim)?.to(dtype)
}
