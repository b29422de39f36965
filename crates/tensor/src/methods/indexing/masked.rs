//! Elements by masks: `nonzero`, `masked_select`, `masked_scatter`.

use std::panic::Location;

use warpline_runtime::broadcast;

use crate::called::Called;
use crate::methods::order::searchsorted;
use crate::{DType, Error, ErrorKind, Result, Tensor, arange_start, where_cond};

impl Tensor {
    /// The indices of the elements that are not zero, a row for each in row-major order (`torch.nonzero`). The
    /// host waits for how many these are.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor(&[[0, 7], [8, 0]], ())?;
    /// assert_eq!(t.nonzero()?.to_vec::<i64>()?, [0, 1, 1, 0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// What the launches fail with; [`ErrorKind::Capture`] while a graph is captured.
    #[track_caller]
    pub fn nonzero(&self) -> Result<Self> {
        const OP: &str = "nonzero";
        let which = self.numbers_that_hold(OP)?;
        if self.dim() == 0 {
            return which.new_empty([which.numel(), 0], ()).of(OP);
        }
        let mut columns = Vec::with_capacity(self.dim());
        let mut step = self.numel();
        for &size in self.size() {
            step /= size.max(1);
            let at = which.floor_divide(step.max(1) as i64).of(OP)?;
            columns.push(at.remainder(size.max(1) as i64).of(OP)?);
        }
        crate::stack(&columns, 1).of(OP)
    }

    /// [`Tensor::nonzero`] as a vector of indices for each dimension (`as_tuple=True`).
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn nonzero_as_tuple(&self) -> Result<Vec<Self>> {
        let rows = self.nonzero()?;
        (0..self.dim()).map(|d| rows.select(1, d as isize)).collect()
    }

    /// The elements that a mask of bools holds for, as a vector in row-major order. Both are broadcast
    /// (`torch.masked_select`). The host waits for how many these are.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a mask that is not of bools; [`ErrorKind::BroadcastMismatch`];
    /// [`ErrorKind::Capture`] while a graph is captured.
    #[track_caller]
    pub fn masked_select(&self, mask: &Tensor) -> Result<Self> {
        const OP: &str = "masked_select";
        check_mask(OP, self, mask)?;
        let sizes = broadcast(self.size(), mask.size()).of(OP)?;
        let sizes: Vec<isize> = sizes.iter().map(|&n| n as isize).collect();
        let which = mask.expand(&sizes).of(OP)?.numbers_that_hold(OP)?;
        let all = self.expand(&sizes).of(OP)?;
        all.reshape([all.numel() as isize]).of(OP)?.index_select(0, &which).of(OP)
    }

    /// With the elements of `source`, one after the other, where a mask of bools holds, which is broadcast
    /// (`torch.masked_scatter`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a mask that is not of bools; [`ErrorKind::DTypeMismatch`];
    /// [`ErrorKind::ExpandMismatch`]; [`ErrorKind::IndexCheck`] for a source of fewer elements than the mask holds for.
    #[track_caller]
    pub fn masked_scatter(&self, mask: &Tensor, source: &Tensor) -> Result<Self> {
        const OP: &str = "masked_scatter";
        check_mask(OP, self, mask)?;
        let (location, expected, actual) = (Location::caller(), self.dtype(), source.dtype());
        if expected != actual {
            return Err(ErrorKind::DTypeMismatch { expected, actual }.of(OP).at(location));
        }
        let sizes = broadcast(self.size(), mask.size()).of(OP)?;
        let sizes: Vec<isize> = sizes.iter().map(|&n| n as isize).collect();
        let mask = mask.expand(&sizes).of(OP)?;
        if mask.numel() == 0 {
            return self.expand(&sizes).of(OP)?.copy().of(OP);
        }
        let flat = mask.reshape([mask.numel() as isize]).of(OP)?;
        let places = flat.cumsum(0).of(OP)?.sub(1).of(OP)?.clamp_min(0).of(OP)?;
        if source.numel() == 0 {
            // Nothing can be picked from it, and need not where the mask holds for nothing.
            if flat.any(()).of(OP)?.item::<bool>().of(OP)? {
                let reason = "the source has no elements, but the mask holds for some";
                return Err(Error::invalid(OP, reason));
            }
            return self.expand(&sizes).of(OP)?.copy().of(OP);
        }
        let values = source.reshape([source.numel() as isize]).of(OP)?;
        let values = values.index_select(0, &places).of(OP)?.reshape(&sizes).of(OP)?;
        where_cond(&mask, &values, self).of(OP)
    }

    /// [`Tensor::masked_scatter`] in place.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn masked_scatter_(&self, mask: &Tensor, source: &Tensor) -> Result<&Self> {
        const OP: &str = "masked_scatter_";
        mask.layout().expand(self.size()).of(OP)?;
        let all = self.masked_scatter(mask, source).of(OP)?;
        self.copy_(&all, false).of(OP)
    }

    /// The numbers, in row-major order, of the elements that are not zero.
    #[track_caller]
    pub(in crate::methods) fn numbers_that_hold(&self, op: &'static str) -> Result<Self> {
        let options = (DType::I64, self.device());
        if self.numel() == 0 {
            return self.new_empty([0], options).of(op);
        }
        self.exec()?.refuse_capture(op)?;
        let holds = if self.dtype() == DType::Bool { self.clone() } else { self.ne(0).of(op)? };
        let upto = holds.reshape([holds.numel() as isize]).of(op)?.cumsum(0).of(op)?;
        let count = upto.select(0, -1).of(op)?.item::<i64>().of(op)?;
        // The n-th of them is where n are first reached.
        let each = arange_start(1i64, count + 1, options).of(op)?;
        searchsorted(&upto, &each, false).of(op)
    }
}

#[track_caller]
fn check_mask(op: &'static str, of: &Tensor, mask: &Tensor) -> Result<()> {
    crate::exec::check_together(op, of, mask)?;
    if mask.dtype() == DType::Bool {
        return Ok(());
    }
    let reason = format!(
        "the mask must be of torch.bool, but it is of {}; compare, or convert with `to`",
        mask.dtype()
    );
    Err(Error::invalid(op, reason))
}
