//! Rotations by right angles.

use crate::called::Called;
use crate::{Error, IntoDims, Result, Tensor};

impl Tensor {
    /// Turned `k` times by a right angle, from the first of two dimensions towards the second; the other way round where `k`
    /// is negative (`torch.rot90`, which has 1 and `[0, 1]` where nothing is said).
    ///
    /// ```
    /// # use warpline::arange;
    /// let t = arange(4, ())?.reshape([2, 2])?;
    /// assert_eq!(t.rot90(1, [0, 1])?.to_vec::<i64>()?, [1, 3, 0, 2]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`]; [`ErrorKind::InvalidArgument`] for anything but two dimensions that differ.
    #[track_caller]
    pub fn rot90(&self, k: isize, dims: impl IntoDims) -> Result<Self> {
        let (op, dims) = ("rot90", dims.into_dims());
        let &[from, to] = &dims[..] else {
            return Err(Error::invalid(op, format!("expects two dimensions, not {dims:?}")));
        };
        let (from, to) = (self.layout().dim(from).of(op)?, self.layout().dim(to).of(op)?);
        if from == to {
            return Err(Error::invalid(op, format!("both dimensions are {from}")));
        }
        let (from, to) = (from as isize, to as isize);
        match k.rem_euclid(4) {
            0 => self.copy().of(op),
            1 => self.flip(to).of(op)?.transpose(from, to).of(op),
            2 => self.flip([from, to]).of(op),
            _ => self.flip(from).of(op)?.transpose(from, to).of(op),
        }
    }
}
