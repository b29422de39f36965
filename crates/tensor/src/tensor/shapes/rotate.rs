//! Rotations by right angles.

use warpline_kernels::fill;

use crate::called::Called;
use crate::{DType, Error, IntoDims, Result, Scalar, Tensor};

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
    /// [`Error::DimOutOfRange`]; [`Error::InvalidArgument`] for anything but two dimensions that differ.
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
            1 => self.reversed(to).of(op)?.transpose(from, to).of(op),
            2 => self.reversed(from).of(op)?.reversed(to).of(op),
            _ => self.reversed(from).of(op)?.transpose(from, to).of(op),
        }
    }

    /// A dimension from its end to its beginning.
    #[track_caller]
    fn reversed(&self, dim: isize) -> Result<Self> {
        let length = self.size()[self.layout().dim(dim)?];
        let index = self.new_empty([length], DType::I64)?;
        let exec = index.exec()?;
        let last = Scalar::Int(length as i64 - 1);
        fill::arange(exec.target(), index.as_view(), last, Scalar::Int(-1))?;
        self.index_select(dim, &index)
    }
}
