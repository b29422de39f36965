//! Elements selected by their position in the flattened tensor or along a dimension: `take` and
//! `take_along_dim`.

use warpline_kernels::scatter::linear_index;
use warpline_runtime::broadcast;

use super::as_indices;
#[cfg(doc)]
use crate::ErrorKind;
use crate::{CallScope, DType, Error, IntoDim, Result, Tensor};

impl Tensor {
    /// Gathers the elements at the row-major positions in `index` (`torch.take`). The result has the sizes of
    /// `index`. Negative positions count from the end.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor(&[[1, 2], [3, 4]], ())?;
    /// assert_eq!(t.take(&tensor(&[2i64, -1], ())?)?.to_vec::<i32>()?, [3, 4]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::IndexCheck`] if a position is out of range, as described at [`Tensor::index_select`].
    /// [`ErrorKind::DTypeMismatch`] if `index` is neither `int64` nor `int32`. Errors of
    /// [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn take(&self, index: &Tensor) -> Result<Self> {
        const OP: &str = "take";
        let _call = CallScope::enter(OP);
        let index = as_indices(OP, self, index)?;
        let exec = self.exec()?;
        let linear = exec.empty(index.size(), DType::I64)?;
        let whole = (0, self.numel());
        linear_index(exec.target(), OP, linear.as_view(), index.as_view(), whole, true)?;
        let sizes: Vec<isize> = index.size().iter().map(|&n| n as isize).collect();
        let linear = linear.reshape(-1isize)?;
        let picked = self.reshape([self.numel() as isize])?.index_select(0, &linear)?;
        picked.reshape(sizes)
    }

    /// [`Tensor::gather`] with broadcasting: tensor and index broadcast in all dimensions but `dim`
    /// (`torch.take_along_dim`). If `dim` is `()`, tensor and index are flattened to vectors first.
    ///
    /// # Errors
    /// The same as [`Tensor::gather`]. [`ErrorKind::BroadcastMismatch`] if the other dimensions do not
    /// broadcast. [`ErrorKind::InvalidArgument`] if `dim` is given and the numbers of dimensions differ.
    #[track_caller]
    pub fn take_along_dim(&self, index: &Tensor, dim: impl IntoDim) -> Result<Self> {
        const OP: &str = "take_along_dim";
        let _call = CallScope::enter(OP);
        let Some(dim) = dim.into_dim() else {
            let flat = |t: &Tensor| t.reshape([t.numel() as isize]);
            return flat(self)?.gather(0, &flat(index)?);
        };
        if self.dim() != index.dim() {
            let reason = format!(
                "the index has {} dimensions and the tensor {}; the two numbers must be equal",
                index.dim(),
                self.dim()
            );
            return Err(Error::invalid(OP, reason));
        }
        let d = self.layout().dim(dim)?;
        let but = |t: &Tensor| {
            let mut sizes = t.size().to_vec();
            if let Some(size) = sizes.get_mut(d) {
                *size = 1;
            }
            sizes
        };
        let common = broadcast(&but(self), &but(index))?;
        let to = |t: &Tensor| {
            let own = |(k, &n): (usize, &usize)| if k == d { t.size()[d] } else { n } as isize;
            t.expand(common.iter().enumerate().map(own).collect::<Vec<_>>())
        };
        to(self)?.gather(dim, &to(index)?)
    }
}
