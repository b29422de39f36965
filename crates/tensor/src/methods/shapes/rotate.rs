//! Rotations by right angles.

use smallvec::{SmallVec, smallvec};

#[cfg(doc)]
use crate::ErrorKind;
use crate::functional::options::{from_integer, options};
use crate::{CallScope, Error, Integer, IntoDims, IntoOptions, Result, Tensor};

options! {
    /// Options of [`Tensor::rot90`]. An integer converts into options with that `k`.
    #[derive(Clone, Debug)]
    Rot90Options [] [] {
        /// Sets the number of quarter turns from the first dimension to the second. Default: 1.
        k: isize = 1, impl Integer => Integer::into_isize;
        /// Sets the two dimensions of the plane. Default: 0 and 1.
        dims: SmallVec<[isize; 6]> = smallvec![0, 1], impl IntoDims => IntoDims::into_dims;
    }
}

from_integer! { Rot90Options k; }

impl Tensor {
    /// Rotates by 90 degrees `k` times, from the first of two dimensions towards the second (`torch.rot90`). A
    /// negative `k` rotates in the opposite direction. The result is a copy.
    ///
    /// ```
    /// # use warpline::arange;
    /// let t = arange(4, ())?.reshape([2, 2])?;
    /// assert_eq!(t.rot90(())?.to_vec::<i64>()?, [1, 3, 0, 2]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks one of the dimensions. [`ErrorKind::InvalidArgument`]
    /// if `dims` are not two different dimensions. Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn rot90(&self, options: impl IntoOptions<Rot90Options>) -> Result<Self> {
        let _call = CallScope::enter("rot90");
        let (op, Rot90Options { k, dims }) = ("rot90", options.into_options());
        let &[from, to] = &dims[..] else {
            return Err(Error::invalid(op, format!("expects two dimensions, not {dims:?}")));
        };
        let (from, to) = (self.layout().dim(from)?, self.layout().dim(to)?);
        if from == to {
            return Err(Error::invalid(
                op,
                format!("the two dimensions must differ, but both are dimension {from}"),
            ));
        }
        let (from, to) = (from as isize, to as isize);
        match k.into_isize().rem_euclid(4) {
            0 => self.copy(),
            1 => self.flip(to)?.transpose(from, to),
            2 => self.flip([from, to]),
            _ => self.flip(from)?.transpose(from, to),
        }
    }
}
