//! Random indices with given weights.

use super::searchsorted;
use crate::amp::keep_operands;
use crate::{CallScope, DType, Error, ErrorKind, IntoOptions, OrDefault, Result, Tensor};

/// Number of threads per block in PyTorch's kernel, where each thread draws one index.
const BLOCK: usize = 128;

impl Tensor {
    /// Draws indices with probabilities proportional to weights: the elements of a vector, or of each row of a
    /// matrix (`torch.multinomial`). With the same seed, PyTorch draws the same indices. Default of
    /// `replacement`: `false`, so that no index is drawn twice from a row. On a GPU, weights are not checked:
    /// they must be finite and not negative, and enough of them must be nonzero.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let drawn = tensor([0f32, 3.0, 0.0], ())?.multinomial(5, true)?;
    /// assert_eq!(drawn.to_vec::<i64>()?, [1; 5]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the tensor is not a vector or a matrix, if there are no weights, if
    /// `num_samples` is 0, or, without `replacement`, if it exceeds the number of weights. On the CPU also if a weight
    /// is negative, infinite or NaN, or all weights of a row are zero. [`ErrorKind::UnsupportedDType`] if the tensor is
    /// not floating-point. Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn multinomial(
        &self,
        num_samples: usize,
        replacement: impl IntoOptions<OrDefault<bool>>,
    ) -> Result<Self> {
        const OP: &str = "multinomial";
        let _call = CallScope::enter(OP);
        let replacement = replacement.into_options().or(false);
        let _region = keep_operands();
        let refused = |reason: String| Err(Error::invalid(OP, reason));
        if !self.dtype().is_float() {
            let dtype = self.dtype();
            return Err(ErrorKind::UnsupportedDType { dtype }.of(OP));
        }
        let (rows, weights) = match *self.size() {
            [weights] => (1, weights),
            [rows, weights] => (rows, weights),
            _ => {
                return refused(format!(
                    "the weights must have one or two dimensions, not sizes {:?}",
                    self.size()
                ));
            }
        };
        if num_samples == 0 || weights == 0 {
            return refused("at least one sample and one weight are needed".into());
        }
        if !replacement && num_samples > weights {
            return refused(format!(
                "{num_samples} samples cannot be drawn from {weights} weights without replacement"
            ));
        }
        let own = self.detach();
        if !own.is_cuda() {
            let all = own.to(DType::F64)?.to_vec::<f64>()?;
            if all.iter().any(|weight| !weight.is_finite() || *weight < 0.0) {
                return refused("a weight is negative, infinite or NaN".into());
            }
            if all.chunks(weights).any(|row| row.iter().all(|weight| *weight == 0.0)) {
                return refused("all weights of a row are zero".into());
            }
        }
        if !replacement || num_samples == 1 {
            // The index with the largest ratio of weight to exponential sample has the distribution that the
            // weights describe.
            let waits = own.empty_like(())?;
            waits.exponential_(1.0)?;
            let order = own.div(&waits)?;
            if num_samples == 1 {
                return order.argmax_keepdim(-1);
            }
            return Ok(order.topk(num_samples, ())?.1);
        }
        let own = own.reshape([rows, weights])?;
        let (sums, drawn) = if own.is_cuda() {
            let shares = own.div(&own.sum_keepdim(-1)?)?;
            // Each thread of PyTorch's kernel draws four numbers and uses the first. Idle threads of the last block
            // also draw.
            let threads = num_samples.div_ceil(BLOCK).saturating_mul(BLOCK);
            let drawn = own.new_empty([rows, threads], DType::F32)?;
            drawn.uniform_(())?;
            let drawn = drawn.narrow(1, 0, num_samples)?.to(own.dtype())?;
            (shares.cumsum(-1)?, drawn)
        } else {
            let sums = own.cumsum(-1)?;
            let sums = sums.div(&sums.narrow(-1, (weights - 1) as isize, 1)?)?;
            let drawn = own.new_empty([rows, num_samples], DType::F64)?;
            drawn.uniform_(())?;
            (sums.to(DType::F64)?, drawn)
        };
        let found = searchsorted(&sums.contiguous()?, &drawn.contiguous()?, ())?;
        let found = found.clamp_max((weights - 1) as i64)?;
        if self.dim() == 1 { found.squeeze(0) } else { Ok(found) }
    }
}
