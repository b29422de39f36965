//! Comparisons of whole tensors, with the result on the host.

use crate::called::Called;
use crate::exec::check_together;
use crate::methods::IsCloseOptions;
use crate::{IntoOptions, Result, Tensor};

impl Tensor {
    /// Returns whether [`Tensor::isclose`] is true for all elements (`torch.allclose`). The host waits for the
    /// result.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let (a, b) = (tensor([1f32, 2.0], ())?, tensor([1f32, 2.000_001], ())?);
    /// assert!(a.allclose(&b, ())? && !a.equal(&b)?);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The same as [`Tensor::isclose`]. [`crate::ErrorKind::Capture`] if the stream is being captured.
    #[track_caller]
    pub fn allclose(
        &self,
        other: &Tensor,
        options: impl IntoOptions<IsCloseOptions>,
    ) -> Result<bool> {
        let close = self.isclose(other, options.into_options()).of("allclose")?;
        close.all(()).of("allclose")?.item().of("allclose")
    }

    /// Returns whether both tensors have the same sizes and equal elements (`torch.equal`). The host waits for
    /// the result.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Capture`] if the stream is being captured. Errors of [every
    /// op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn equal(&self, other: &Tensor) -> Result<bool> {
        check_together("equal", self, other)?;
        if self.size() != other.size() {
            return Ok(false);
        }
        self.eq(other).of("equal")?.all(()).of("equal")?.item().of("equal")
    }
}
