//! Views of parts of a tensor.

#[cfg(doc)]
use crate::ErrorKind;
use crate::called::Called;
use crate::{CallScope, Error, IntoOptions, IntoSizes, OrDefault, Result, Tensor, cat, stack};

impl Tensor {
    /// Splits the tensor along a dimension into views of size `size` (`torch.split`). The last view may be
    /// smaller. Default of `dim`: 0.
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension. [`ErrorKind::InvalidArgument`] if `size`
    /// is zero and the size of the dimension is not. [`ErrorKind::ShapeMismatch`] if the tensor has no
    /// dimensions.
    #[track_caller]
    pub fn split(&self, size: usize, dim: impl IntoOptions<OrDefault<isize>>) -> Result<Vec<Self>> {
        let dim = dim.into_options().or(0);
        self.check_has_dims("split")?;
        let total = self.size()[self.layout().dim(dim).of("split")?];
        if total == 0 {
            return Ok(vec![self.clone()]);
        }
        if size == 0 {
            return Err(Error::invalid("split", "the size must be greater than zero"));
        }
        let lengths = (0..total.div_ceil(size)).map(|i| size.min(total - i * size));
        self.split_lengths("split", dim, lengths)
    }

    /// Splits the tensor into at most `chunks` views of equal size along a dimension (`torch.chunk`). The last
    /// view may be smaller. Default of `dim`: 0.
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension. [`ErrorKind::InvalidArgument`] if
    /// `chunks` is zero. [`ErrorKind::ShapeMismatch`] if the tensor has no dimensions.
    #[track_caller]
    pub fn chunk(
        &self,
        chunks: usize,
        dim: impl IntoOptions<OrDefault<isize>>,
    ) -> Result<Vec<Self>> {
        let _call = CallScope::enter("chunk");
        let dim = dim.into_options().or(0);
        self.check_has_dims("chunk")?;
        if chunks == 0 {
            return Err(Error::invalid("chunk", "the number of chunks must be greater than zero"));
        }
        let total = self.size()[self.layout().dim(dim)?];
        if total == 0 {
            let mut all = list("chunk", chunks)?;
            all.resize(chunks, self.clone());
            return Ok(all);
        }
        self.split(total.div_ceil(chunks), dim)
    }

    /// Splits the tensor into views of the given sizes along a dimension (`torch.split` with a list). Default of
    /// `dim`: 0.
    ///
    /// ```
    /// # use warpline::arange;
    /// let parts = arange(5, ())?.split_with_sizes(&[1, 4], 0)?;
    /// assert_eq!(parts[1].to_vec::<i64>()?, [1, 2, 3, 4]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension. [`ErrorKind::InvalidArgument`] if the
    /// sizes do not add up to the dimension's size, or if the tensor has no dimensions.
    #[track_caller]
    pub fn split_with_sizes(
        &self,
        sizes: &[usize],
        dim: impl IntoOptions<OrDefault<isize>>,
    ) -> Result<Vec<Self>> {
        let dim = dim.into_options().or(0);
        let own = self.size_to_split("split_with_sizes", dim)?;
        if sizes.iter().fold(0, |sum: usize, n| sum.saturating_add(*n)) != own {
            let reason =
                format!("the sizes {sizes:?} must add up to the size of the dimension, {own}");
            return Err(Error::invalid("split_with_sizes", reason));
        }
        self.split_lengths("split_with_sizes", dim, sizes.iter().copied())
    }

    /// Splits the tensor into `sections` views along a dimension (`torch.tensor_split` with a number). If the
    /// size is not divisible, the first views have one index more. Default of `dim`: 0.
    ///
    /// ```
    /// # use warpline::arange;
    /// let parts = arange(5, ())?.tensor_split(2, 0)?;
    /// assert_eq!(parts[0].to_vec::<i64>()?, [0, 1, 2]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension. [`ErrorKind::InvalidArgument`] if
    /// `sections` is zero, or if the tensor has no dimensions.
    #[track_caller]
    pub fn tensor_split(
        &self,
        sections: usize,
        dim: impl IntoOptions<OrDefault<isize>>,
    ) -> Result<Vec<Self>> {
        let dim = dim.into_options().or(0);
        let own = self.size_to_split("tensor_split", dim)?;
        if sections == 0 {
            let reason = "the number of sections must be greater than zero";
            return Err(Error::invalid("tensor_split", reason));
        }
        let (size, longer) = (own / sections, own % sections);
        self.split_lengths(
            "tensor_split",
            dim,
            (0..sections).map(|i| size + usize::from(i < longer)),
        )
    }

    /// Splits the tensor into views along a dimension at the given indices (`torch.tensor_split` with a list).
    /// Negative indices count from the end, and indices beyond the dimension are clamped. Default of `dim`: 0.
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension. [`ErrorKind::InvalidArgument`] if the
    /// tensor has no dimensions.
    #[doc(alias = "tensor_split")]
    #[track_caller]
    pub fn tensor_split_at(
        &self,
        indices: impl IntoSizes,
        dim: impl IntoOptions<OrDefault<isize>>,
    ) -> Result<Vec<Self>> {
        let (indices, dim) = (indices.into_sizes(), dim.into_options().or(0));
        let own = self.size_to_split("tensor_split_at", dim)? as isize;
        let from_start = |end: &isize| {
            let end = if *end < 0 { end.saturating_add(own) } else { *end };
            end.clamp(0, own)
        };
        let ends: Vec<isize> = indices.iter().map(from_start).chain([own]).collect();
        if ends.is_sorted() {
            let lengths = ends.iter().scan(0, |start, &end| {
                let length = (end - *start) as usize;
                *start = end;
                Some(length)
            });
            return self.split_lengths("tensor_split_at", dim, lengths);
        }
        // These views may overlap or omit elements, so autograd records each view separately.
        let mut parts = Vec::new();
        let mut start = 0;
        for end in ends {
            let length = (end - start).max(0) as usize;
            parts.push(self.narrow(dim, start, length).of("tensor_split_at")?);
            start = end;
        }
        Ok(parts)
    }

    /// Returns one view per index of a dimension; the views lack this dimension (`torch.unbind`). Default of
    /// `dim`: 0.
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension. [`ErrorKind::InvalidArgument`] if the
    /// tensor has no dimensions.
    #[track_caller]
    pub fn unbind(&self, dim: impl IntoOptions<OrDefault<isize>>) -> Result<Vec<Self>> {
        let dim = dim.into_options().or(0);
        let own = self.size_to_split("unbind", dim)?;
        let mut layouts = list("unbind", own)?;
        for i in 0..own {
            layouts.push(self.layout().select(dim, i as isize).of("unbind")?);
        }
        self.viewed_partition("unbind", layouts, move |grads| stack(grads, dim))
    }

    /// Returns consecutive views of the given lengths along a dimension.
    #[track_caller]
    fn split_lengths(
        &self,
        op: &'static str,
        dim: isize,
        lengths: impl Iterator<Item = usize>,
    ) -> Result<Vec<Self>> {
        let mut start = 0;
        let mut layouts = list(op, lengths.size_hint().0)?;
        for length in lengths {
            layouts.push(self.layout().narrow(dim, start as isize, length).of(op)?);
            start += length;
        }
        self.viewed_partition(op, layouts, move |grads| cat(grads, dim))
    }

    #[track_caller]
    fn size_to_split(&self, op: &'static str, dim: isize) -> Result<usize> {
        if self.dim() == 0 {
            return Err(Error::invalid(op, "cannot be applied to a 0-dim tensor"));
        }
        Ok(self.size()[self.layout().dim(dim).of(op)?])
    }
}

/// Allocates a list with room for `count` views or their layouts.
#[track_caller]
pub(crate) fn list<T>(op: &'static str, count: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    match list.try_reserve_exact(count) {
        Ok(()) => Ok(list),
        Err(e) => Err(Error::invalid(op, format!("cannot make {count} views: {e}"))),
    }
}
