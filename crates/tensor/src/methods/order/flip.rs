//! Elements in another order: `flip`, `roll`.

use smallvec::{SmallVec, smallvec};
use warpline_runtime::{Layout, Strides};

#[cfg(doc)]
use crate::ErrorKind;
use crate::autograd::{Gradients, NodeInputs, OpBackward, record, saved, should_record};
use crate::called::Called;
use crate::{CallScope, Error, IntoDims, Result, Tensor, cat};

impl Tensor {
    /// Reverses the order of the elements along dimensions, in a copy (`torch.flip`).
    ///
    /// ```
    /// # use warpline::arange;
    /// assert_eq!(arange(3, ())?.flip(0)?.to_vec::<i64>()?, [2, 1, 0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks a dimension. [`ErrorKind::InvalidArgument`] if a
    /// dimension appears several times. Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn flip(&self, dims: impl IntoDims) -> Result<Self> {
        let dims = dims.into_dims();
        let mut strides = Strides::from(self.stride());
        let mut offset = self.layout().offset() as isize;
        let mut seen: SmallVec<[usize; 6]> = SmallVec::new();
        for &dim in &dims {
            let d = self.layout().dim(dim).of("flip")?;
            if seen.contains(&d) {
                let reason = format!("dim {d} appears several times in {dims:?}");
                return Err(Error::invalid("flip", reason));
            }
            seen.push(d);
            if self.numel() > 0 && d < self.dim() {
                // Use wrapping arithmetic, because the stride of a dimension of size 1 is arbitrary. Such a
                // stride is multiplied by 0.
                offset =
                    offset.wrapping_add((self.size()[d] as isize - 1).wrapping_mul(strides[d]));
                strides[d] = strides[d].wrapping_neg();
            }
        }
        let layout = Layout::from_parts(self.size().into(), strides, offset as usize);
        let turned = self.with_layout(layout);
        let dense = Layout::contiguous(self.size())?;
        let out = turned.copied_to(&self.exec()?, dense, self.dtype()).of("flip")?;
        if !out.dtype().is_float() || !should_record(&[self]) {
            return Ok(out);
        }
        record("flip", out, &[self], Flip { dims })
    }

    /// [`Tensor::flip`] along the second dimension, the columns (`torch.fliplr`).
    ///
    /// # Errors
    /// The same as [`Tensor::flip`].
    #[track_caller]
    pub fn fliplr(&self) -> Result<Self> {
        let _call = CallScope::enter("fliplr");
        self.flip(1)
    }

    /// [`Tensor::flip`] along the first dimension, the rows (`torch.flipud`).
    ///
    /// # Errors
    /// The same as [`Tensor::flip`].
    #[track_caller]
    pub fn flipud(&self) -> Result<Self> {
        let _call = CallScope::enter("flipud");
        self.flip(0)
    }

    /// Shifts the elements by `shifts` along `dims` (`torch.roll`). Elements that are shifted beyond the end
    /// reappear at the start. If `dims` is `()`, the tensor is shifted as a vector and keeps its shape.
    ///
    /// ```
    /// # use warpline::arange;
    /// assert_eq!(arange(4, ())?.roll(1, 0)?.to_vec::<i64>()?, [3, 0, 1, 2]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks a dimension. [`ErrorKind::InvalidArgument`] if there is
    /// not one shift per dimension. Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn roll(&self, shifts: impl IntoDims, dims: impl IntoDims) -> Result<Self> {
        const OP: &str = "roll";
        let _call = CallScope::enter(OP);
        let (shifts, dims) = (shifts.into_dims(), dims.into_dims());
        if dims.is_empty() && shifts.len() == 1 {
            let flat = self.reshape([self.numel() as isize])?.roll(shifts[0], 0)?;
            let sizes: SmallVec<[isize; 6]> = self.size().iter().map(|&n| n as isize).collect();
            return flat.reshape(&sizes[..]);
        }
        if shifts.len() != dims.len() || dims.is_empty() {
            let reason = format!(
                "got {} shifts for {} dimensions; there must be one shift for each dimension",
                shifts.len(),
                dims.len()
            );
            return Err(Error::invalid(OP, reason));
        }
        let mut out = self.clone();
        for (&shift, &dim) in shifts.iter().zip(&dims) {
            let d = self.layout().dim(dim)?;
            let size = self.size().get(d).map_or(1, |&n| n as isize);
            if size == 0 || self.dim() == 0 {
                continue;
            }
            // First index of the elements that move to the front.
            let start = (size - shift.rem_euclid(size)) % size;
            let behind = out.narrow(dim, 0, start as usize)?;
            let front = out.narrow(dim, start, (size - start) as usize)?;
            out = cat(&[front, behind], dim)?;
        }
        if out.is_same(self) { self.copy() } else { Ok(out) }
    }
}

saved! {
    struct Flip { dims: SmallVec<[isize; 6]> }
}

impl OpBackward for Flip {
    fn backward(&self, grad: &Tensor, _: &NodeInputs<'_>) -> Result<Gradients> {
        Ok(smallvec![Some(grad.flip(&self.dims[..])?)])
    }
}
