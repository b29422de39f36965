//! Views of parts.

use crate::called::Called;
use crate::{Error, Result, Tensor};

impl Tensor {
    /// Views of so many indices of a dimension each (`torch.split` with a list).
    ///
    /// ```
    /// # use warpline::arange;
    /// let parts = arange(5, ())?.split_with_sizes(&[1, 4], 0)?;
    /// assert_eq!(parts[1].to_vec::<i64>()?, [1, 2, 3, 4]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`]; [`Error::InvalidArgument`] for sizes that do not add up to the dimension's.
    #[track_caller]
    pub fn split_with_sizes(&self, sizes: &[usize], dim: isize) -> Result<Vec<Self>> {
        let own = self.size_to_split("split_with_sizes", dim)?;
        if sizes.iter().fold(0, |sum: usize, n| sum.saturating_add(*n)) != own {
            let reason = format!("the sizes {sizes:?} must add up to the dimension's, {own}");
            return Err(Error::invalid("split_with_sizes", reason));
        }
        let mut parts = Vec::new();
        let mut start = 0;
        for &size in sizes {
            parts.push(self.narrow(dim, start as isize, size).of("split_with_sizes")?);
            start += size;
        }
        Ok(parts)
    }

    /// So many views along a dimension, the first ones an index longer where it does not divide
    /// (`torch.tensor_split` with a number).
    ///
    /// ```
    /// # use warpline::arange;
    /// let parts = arange(5, ())?.tensor_split(2, 0)?;
    /// assert_eq!(parts[0].to_vec::<i64>()?, [0, 1, 2]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`]; [`Error::InvalidArgument`] when `sections` is zero.
    #[track_caller]
    pub fn tensor_split(&self, sections: usize, dim: isize) -> Result<Vec<Self>> {
        let own = self.size_to_split("tensor_split", dim)?;
        if sections == 0 {
            let reason = "the number of sections must be over zero";
            return Err(Error::invalid("tensor_split", reason.into()));
        }
        let (size, longer) = (own / sections, own % sections);
        let mut parts = Vec::new();
        let mut start = 0;
        for i in 0..sections {
            let size = size + usize::from(i < longer);
            parts.push(self.narrow(dim, start as isize, size).of("tensor_split")?);
            start += size;
        }
        Ok(parts)
    }

    /// Views along a dimension that end where the next begins, at these indices (`torch.tensor_split` with a list);
    /// negative ones count from the end, and what lies beyond the dimension is cut off.
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`].
    #[doc(alias = "tensor_split")]
    #[track_caller]
    pub fn tensor_split_at(&self, indices: &[isize], dim: isize) -> Result<Vec<Self>> {
        let own = self.size_to_split("tensor_split", dim)? as isize;
        let mut parts = Vec::new();
        let mut start = 0;
        for &end in indices.iter().chain([&own]) {
            let end = if end < 0 { end.saturating_add(own) } else { end }.clamp(0, own);
            let size = (end - start).max(0) as usize;
            parts.push(self.narrow(dim, start, size).of("tensor_split")?);
            start = end;
        }
        Ok(parts)
    }

    /// A view of each index of a dimension, which goes away (`torch.unbind`).
    ///
    /// # Errors
    /// [`Error::DimOutOfRange`]; [`Error::InvalidArgument`] of a tensor without dimensions.
    #[track_caller]
    pub fn unbind(&self, dim: isize) -> Result<Vec<Self>> {
        let own = self.size_to_split("unbind", dim)?;
        let mut parts = Vec::new();
        for i in 0..own {
            parts.push(self.select(dim, i as isize).of("unbind")?);
        }
        Ok(parts)
    }

    #[track_caller]
    fn size_to_split(&self, op: &'static str, dim: isize) -> Result<usize> {
        if self.dim() == 0 {
            return Err(Error::invalid(op, "cannot be applied to a 0-dim tensor".into()));
        }
        Ok(self.size()[self.layout().dim(dim).of(op)?])
    }
}
