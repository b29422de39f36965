//! Elements selected by masks: `nonzero`, `masked_select`, `masked_scatter`.

use warpline_runtime::broadcast;

#[cfg(doc)]
use crate::ErrorKind;
use crate::methods::order::searchsorted;
use crate::{CallScope, DType, Error, Result, Tensor, arange_start, where_cond};

impl Tensor {
    /// Returns the indices of the nonzero elements, one row per element, in row-major order (`torch.nonzero`).
    /// The result is `int64` of shape `[count, dimensions]`. The host waits for the count.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor(&[[0, 7], [8, 0]], ())?;
    /// assert_eq!(t.nonzero()?.to_vec::<i64>()?, [0, 1, 1, 0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Capture`] if the stream is being captured. Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn nonzero(&self) -> Result<Self> {
        let _call = CallScope::enter("nonzero");
        let which = self.nonzero_positions()?;
        if self.dim() == 0 {
            return which.new_empty([which.numel(), 0], ());
        }
        let mut columns = Vec::with_capacity(self.dim());
        let mut step = self.numel();
        for &size in self.size() {
            step /= size.max(1);
            let at = which.floor_divide(step.max(1) as i64)?;
            columns.push(at.remainder(size.max(1) as i64)?);
        }
        crate::stack(&columns, 1)
    }

    /// The result of [`Tensor::nonzero`] as one vector of indices per dimension (`torch.nonzero` with
    /// `as_tuple=True`).
    ///
    /// # Errors
    /// The same as [`Tensor::nonzero`].
    #[track_caller]
    pub fn nonzero_as_tuple(&self) -> Result<Vec<Self>> {
        let _call = CallScope::enter("nonzero_as_tuple");
        let rows = self.nonzero()?;
        (0..self.dim()).map(|d| rows.select(1, d as isize)).collect()
    }

    /// Gathers the elements where a boolean mask is true, as a vector in row-major order
    /// (`torch.masked_select`). Tensor and mask broadcast. The host waits for the number of elements.
    ///
    /// # Errors
    /// [`ErrorKind::DTypeMismatch`] if the mask is not boolean. [`ErrorKind::BroadcastMismatch`] if the
    /// shapes do not broadcast. [`ErrorKind::Capture`] if the stream is being captured. Errors of [every
    /// op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn masked_select(&self, mask: &Tensor) -> Result<Self> {
        const OP: &str = "masked_select";
        let _call = CallScope::enter(OP);
        check_mask(OP, self, mask)?;
        let sizes = broadcast(self.size(), mask.size())?;
        let sizes: Vec<isize> = sizes.iter().map(|&n| n as isize).collect();
        let which = mask.expand(&sizes)?.nonzero_positions()?;
        let all = self.expand(&sizes)?;
        all.reshape([all.numel() as isize])?.index_select(0, &which)
    }

    /// Replaces the elements where a boolean mask is true with consecutive elements of `source`
    /// (`torch.masked_scatter`). Tensor and mask broadcast.
    ///
    /// # Errors
    /// [`ErrorKind::DTypeMismatch`] if the mask is not boolean, or `source` has a different dtype than this tensor.
    /// [`ErrorKind::InvalidArgument`] if the mask is true anywhere while `source` is empty.
    /// [`ErrorKind::BroadcastMismatch`] if the shapes do not broadcast. [`ErrorKind::IndexCheck`] if `source`
    /// has fewer elements than the broadcast mask has true elements. [`ErrorKind::Capture`] if `source` is empty and
    /// the stream is being captured. Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn masked_scatter(&self, mask: &Tensor, source: &Tensor) -> Result<Self> {
        const OP: &str = "masked_scatter";
        let _call = CallScope::enter(OP);
        check_mask(OP, self, mask)?;
        source.as_view().check_operand_dtype(OP, "the source", self.dtype())?;
        let sizes = broadcast(self.size(), mask.size())?;
        let sizes: Vec<isize> = sizes.iter().map(|&n| n as isize).collect();
        let mask = mask.expand(&sizes)?;
        if mask.numel() == 0 {
            return self.expand(&sizes)?.copy();
        }
        let flat = mask.reshape([mask.numel() as isize])?;
        let places = flat.cumsum(0)?.sub(1)?.clamp_min(0)?;
        if source.numel() == 0 {
            // An empty source is valid only if the mask has no true element.
            if flat.any(())?.item::<bool>()? {
                let reason = "the source has no elements, but the mask selects some";
                return Err(Error::invalid(OP, reason));
            }
            return self.expand(&sizes)?.copy();
        }
        let values = source.reshape([source.numel() as isize])?;
        let values = values.index_select(0, &places)?.reshape(&sizes)?;
        where_cond(&mask, &values, self)
    }

    /// [`Tensor::masked_scatter`] in place.
    ///
    /// # Errors
    /// The same as [`Tensor::masked_scatter`]. [`ErrorKind::ExpandMismatch`] if the mask does not broadcast to
    /// this tensor's shape.
    #[track_caller]
    pub fn masked_scatter_(&self, mask: &Tensor, source: &Tensor) -> Result<&Self> {
        let _call = CallScope::enter("masked_scatter_");
        mask.layout().expand(self.size())?;
        let all = self.masked_scatter(mask, source)?;
        self.copy_(&all, ())
    }

    /// Returns the row-major positions of the nonzero elements, as `int64`.
    #[track_caller]
    pub(in crate::methods) fn nonzero_positions(&self) -> Result<Self> {
        let options = (DType::I64, self.device());
        if self.numel() == 0 {
            return self.new_empty([0], options);
        }
        self.exec()?.refuse_capture("nonzero")?;
        let holds = if self.dtype() == DType::Bool { self.clone() } else { self.ne(0)? };
        let upto = holds.reshape([holds.numel() as isize])?.cumsum(0)?;
        let count = upto.select(0, -1)?.item::<i64>()?;
        // The n-th nonzero element is at the first position where the cumulative count reaches n.
        let each = arange_start(1i64, count + 1, options)?;
        searchsorted(&upto, &each, ())
    }
}

#[track_caller]
fn check_mask(op: &'static str, of: &Tensor, mask: &Tensor) -> Result<()> {
    crate::exec::check_together(op, of, mask)?;
    mask.as_view().check_operand_dtype(op, "the mask", DType::Bool)
}
