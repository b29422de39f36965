//! Rotary position embeddings.

use smallvec::smallvec;
use warpline_kernels::rotary::{self as kernel, Rotation};
use warpline_runtime::{Layout, View};

use super::options::options;
#[cfg(doc)]
use crate::ErrorKind;
use crate::autograd::{
    Gradients, NodeInputs, OpBackward, record, refuse_gradient, saved, should_record,
};
use crate::exec::check_together;
use crate::{CallScope, Error, IntoOptions, Result, Tensor};

const OP: &str = "rotary_embedding";

options! {
    /// Options of [`rotary_embedding`].
    #[derive(Clone, Copy, Debug)]
    RotaryEmbeddingOptions [] [] {
        /// Sets whether a pair consists of neighbours (elements 0 and 1, 2 and 3, …), as in the RoFormer paper.
        /// Otherwise the first half of the rotated elements pairs with the second half, as in Hugging Face's
        /// `rotate_half`. Default: `false`.
        interleaved: bool = false, bool;
        /// Sets the number of elements at the start of each row that are rotated. It must be even. The remaining
        /// elements are copied. Default: the whole row.
        rotary_dim: Option<usize> = None, impl Into<Option<usize>> => Into::into;
    }
}

/// Rotates pairs of elements of queries or keys by the angles of their positions, in one launch. A pair `(a, b)`
/// becomes `(a cos - b sin, b cos + a sin)`. PyTorch has no such function; its counterpart is
/// `apply_rotary_pos_emb` of `transformers`, for one of its two tensors.
///
/// The input has shape `[.., positions, width]`. It need not be contiguous: `[batch, heads, positions, width]` may be a
/// transposed view of `[batch, positions, heads, width]`. The result has the input's memory order.
///
/// `cos` and `sin` have shape `[.., positions, n]`, where `n` is the number of pairs in a row. The shape may also be
/// `[.., positions, 2 * n]` with each angle twice, as in `transformers`; only the first value of each angle is read.
/// The dimensions of `cos` and `sin` before the positions correspond to the first dimensions of the input: `[positions,
/// n]` serves all batches and heads, and `[batch, positions, n]` all heads of an input with shape `[batch, heads,
/// positions, width]`. Sizes of 1 broadcast. `cos` and `sin` have the dtype of the input. For an input of half-width
/// floats both may also be `float32`. Half-width floats are computed in `float32` and rounded once.
///
/// Only the input may require a gradient. The backward pass also takes one launch.
///
/// ```
/// # use warpline::functional::{RotaryEmbeddingOptions, rotary_embedding};
/// # use warpline::tensor;
/// let x = tensor([[1f32, 2.0, 3.0, 4.0]], ())?;
/// let (cos, sin) = (tensor([[0f32, 1.0]], ())?, tensor([[1f32, 0.0]], ())?);
/// assert_eq!(rotary_embedding(&x, &cos, &sin, ())?.to_vec::<f32>()?, [-3.0, 2.0, 1.0, 4.0]);
/// let pairs = RotaryEmbeddingOptions::new().interleaved(true);
/// assert_eq!(rotary_embedding(&x, &cos, &sin, pairs)?.to_vec::<f32>()?, [-2.0, 1.0, 3.0, 4.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if the number of rotated elements is odd or exceeds the size of a row.
/// [`ErrorKind::ShapeMismatch`] if the input, `cos` or `sin` has fewer than two dimensions, or `cos` or `sin` does not
/// fit the input. [`ErrorKind::DTypeMismatch`] if `cos` or `sin` has a different dtype than described.
/// [`ErrorKind::UnsupportedDType`] if the input is not floating point. [`ErrorKind::Gradient`] if `cos` or `sin`
/// requires a gradient. Errors of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn rotary_embedding(
    input: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    options: impl IntoOptions<RotaryEmbeddingOptions>,
) -> Result<Tensor> {
    let _call = CallScope::enter(OP);
    let RotaryEmbeddingOptions { interleaved, rotary_dim } = options.into_options();
    let width = input.size().last().copied().unwrap_or(0);
    let rotated = rotary_dim.unwrap_or(width);
    if rotated > width || !rotated.is_multiple_of(2) {
        let reason = format!(
            "rotary_dim must be even and at most {width}, the input's last size, not {rotated}"
        );
        return Err(Error::invalid(OP, reason));
    }
    refuse_gradient(OP, &[cos, sin])?;
    let (cos, sin) = (cos.detach(), sin.detach());
    Rotary { cos, sin, rotated, interleaved, inverse: false }.of(input)
}

saved! {
    /// The rotation of an input, and the saved state of its gradient.
    struct Rotary {
        cos: Tensor,
        sin: Tensor,
        /// Number of rotated elements of a row.
        rotated: usize,
        interleaved: bool,
        /// Whether to rotate by the negated angles.
        inverse: bool,
    }
}

impl Rotary {
    /// Rotates `input`, and records the op.
    #[track_caller]
    fn of(self, input: &Tensor) -> Result<Tensor> {
        let angles = [self.layout(input, &self.cos)?, self.layout(input, &self.sin)?];
        check_together(OP, input, &self.cos)?;
        check_together(OP, input, &self.sin)?;
        let exec = input.exec()?;
        let out = exec.empty_for(&[input.layout()], input.dtype())?;
        let rotation = Rotation { is_interleaved: self.interleaved, is_inverse: self.inverse };
        let cos = View { layout: &angles[0], ..self.cos.as_view() };
        let sin = View { layout: &angles[1], ..self.sin.as_view() };
        let (x, to) = (input.as_view(), out.as_view());
        kernel::rotary_embedding(exec.target(), x, cos, sin, to, rotation)?;
        if !should_record(&[input]) {
            return Ok(out);
        }
        record(OP, out, &[input], self)
    }

    /// Returns the layout of `table`, the cosines or sines, with one angle for each pair of the input.
    #[track_caller]
    fn layout(&self, input: &Tensor, table: &Tensor) -> Result<Layout> {
        let (pairs, columns) = (self.rotated / 2, table.size().last().copied());
        let mut layout = match columns {
            Some(n) if table.dim() >= 2 && n == pairs => table.layout().clone(),
            // Each angle is in the table twice: in the second half of the row, or, for interleaved pairs, directly
            // after the first copy.
            Some(n) if table.dim() >= 2 && n == self.rotated => match self.interleaved {
                false => table.layout().slice(-1, 0, pairs, 1)?,
                true => table.layout().slice(-1, 0, n, 2)?,
            },
            _ => return Err(self.no_fit(input, table)),
        };
        while layout.ndim() < input.dim() {
            layout = layout.unsqueeze(layout.ndim() as isize - 2)?;
        }
        let mut sizes = input.size().to_vec();
        if let Some(last) = sizes.last_mut() {
            *last = pairs;
        }
        layout.expand(&sizes).map_err(|_| self.no_fit(input, table))
    }

    #[cold]
    #[track_caller]
    fn no_fit(&self, input: &Tensor, table: &Tensor) -> Error {
        let reason = format!(
            "cosines or sines of sizes {:?} do not fit an input of sizes {:?}; their last size \
             must be {} or {}, and the sizes before it must broadcast to [.., positions]",
            table.size(),
            input.size(),
            self.rotated / 2,
            self.rotated
        );
        Error::shape(OP, reason)
    }
}

impl OpBackward for Rotary {
    fn backward(&self, grad: &Tensor, _: &NodeInputs<'_>) -> Result<Gradients> {
        let back = Self { inverse: !self.inverse, ..self.clone() };
        Ok(smallvec![Some(back.of(grad)?)])
    }
}
