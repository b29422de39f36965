//! How often numbers come: `bincount`.

use super::as_indices;
use crate::called::Called;
use crate::{DType, Error, Result, Tensor};

impl Tensor {
    /// How often each number comes in a vector of integers that are not negative, or the sum of the weights
    /// that go with it; at least for the numbers below `minlength` (`torch.bincount`). The host waits for the
    /// largest. Sums are the same each time.
    ///
    /// ```
    /// # use warpline::tensor;
    /// assert_eq!(tensor(&[1i64, 3, 1], ())?.bincount(None, 0)?.to_vec::<i64>()?, [0, 2, 0, 1]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what is no vector of integers, or has negative ones;
    /// [`Error::ShapeMismatch`] for other than a weight each; [`Error::Capture`] while a graph is captured.
    #[track_caller]
    pub fn bincount(&self, weights: Option<&Tensor>, minlength: usize) -> Result<Self> {
        const OP: &str = "bincount";
        if self.dim() != 1 || self.dtype().is_float() || self.dtype() == DType::Bool {
            let reason = format!(
                "needs a vector of integers, but has {} of sizes {:?}",
                self.dtype(),
                self.size()
            );
            return Err(Error::invalid(OP, reason));
        }
        let index = self.in_dtype(DType::I64).of(OP)?;
        self.exec()?.refuse_capture(OP)?;
        let mut length = minlength;
        if self.numel() > 0 {
            let [least, most] = [index.amin(()), index.amax(())];
            let (least, most) = (least.of(OP)?.item::<i64>().of(OP)?, most.of(OP)?.item::<i64>()?);
            if least < 0 {
                return Err(Error::invalid(OP, format!("{least} is negative")));
            }
            length = length.max(most as usize + 1);
        }
        let weights = match weights {
            None => index.ones_like(()).of(OP)?,
            Some(weights) if weights.dtype() == DType::F32 => weights.clone(),
            Some(weights) => weights.in_dtype(DType::F64).of(OP)?,
        };
        crate::autograd::refuse(OP, &[&weights])?;
        let index = as_indices(OP, &weights, &index)?;
        let counts = weights.new_zeros([length], ()).of(OP)?;
        counts.index_add_(0, &index, &weights).of(OP)?;
        Ok(counts)
    }
}
