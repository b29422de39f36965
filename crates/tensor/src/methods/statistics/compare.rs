//! Whether tensors are the same, on the host.

use crate::called::Called;
use crate::exec::check_together;
use crate::{Result, Tensor};

impl Tensor {
    /// Whether all elements are close to the other's, as [`Tensor::isclose`] has it (`torch.allclose`, which has 1e-5,
    /// 1e-8 and false where nothing is said). The host waits for it.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let (a, b) = (tensor([1f32, 2.0], ())?, tensor([1f32, 2.000_001], ())?);
    /// assert!(a.allclose(&b, 1e-5, 1e-8, false)? && !a.equal(&b)?);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::isclose`], and what the wait fails with.
    #[track_caller]
    pub fn allclose(&self, other: &Tensor, rtol: f64, atol: f64, equal_nan: bool) -> Result<bool> {
        let close = self.isclose(other, rtol, atol, equal_nan).of("allclose")?;
        close.all(()).of("allclose")?.item().of("allclose")
    }

    /// Whether both have the same sizes and elements (`torch.equal`). The host waits for it.
    ///
    /// # Errors
    /// [`crate::ErrorKind::DeviceMismatch`], and what the wait fails with.
    #[track_caller]
    pub fn equal(&self, other: &Tensor) -> Result<bool> {
        check_together("equal", self, other)?;
        if self.size() != other.size() {
            return Ok(false);
        }
        self.eq(other).of("equal")?.all(()).of("equal")?.item().of("equal")
    }
}
