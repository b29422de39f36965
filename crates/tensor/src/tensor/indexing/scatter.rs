//! Elements put, or combined with others, where a tensor of indices says: `scatter` and its like.

use warpline_kernels::scatter::{self, Reduce};

use super::as_indices;
use crate::called::Called;
use crate::exec::check_together;
use crate::tensor::TensorOrScalar;
use crate::tensor::inplace::check_filled;
use crate::{Error, Result, RoundingMode, Scalar, Tensor};

/// What [`Tensor::scatter_reduce`] makes of the elements that meet at a place (`reduce` of
/// `torch.scatter_reduce`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterReduce {
    /// Their sum.
    Sum,
    /// Their product.
    Prod,
    /// Their mean; of integers rounded down.
    Mean,
    /// The largest; NaN if there is one.
    Amax,
    /// The smallest; NaN if there is one.
    Amin,
}

impl Tensor {
    /// With the elements of `src` at their places, but along dimension `dim` at what `index` holds
    /// (`torch.scatter`). `index` is `int64` or `int32`, has as many dimensions, and is no larger than `src`
    /// in any, nor than this tensor in any but `dim`. Where several name one place, the last counts on the
    /// CPU, and any on a GPU. A number is put at all places. Indices out of range are errors as of
    /// [`Tensor::index_select`].
    ///
    /// ```
    /// # use warpline::{tensor, zeros};
    /// let index = tensor(&[[1i64], [0]], ())?;
    /// let t = zeros([2, 2], ())?.scatter(1, &index, &tensor(&[[5f32], [6.0]], ())?)?;
    /// assert_eq!(t.to_vec::<f32>()?, [0.0, 5.0, 6.0, 0.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::IndexCheck`]; [`Error::DimOutOfRange`]; [`Error::ShapeMismatch`];
    /// [`Error::DTypeMismatch`] where `src` is of another dtype; [`Error::InvalidArgument`] for indices of
    /// another, or a number that this one cannot hold; [`Error::DeviceMismatch`].
    #[track_caller]
    pub fn scatter<'a>(
        &self,
        dim: isize,
        index: &Tensor,
        src: impl Into<TensorOrScalar<'a>>,
    ) -> Result<Self> {
        let out = self.duplicate()?;
        out.put("scatter", dim, index, src.into())?;
        Ok(out)
    }

    /// [`Tensor::scatter`] in place.
    ///
    /// # Errors
    /// As there; [`Error::OverlappingOperands`] where `src` shares memory with this tensor.
    #[track_caller]
    pub fn scatter_<'a>(
        &self,
        dim: isize,
        index: &Tensor,
        src: impl Into<TensorOrScalar<'a>>,
    ) -> Result<&Self> {
        self.put("scatter_", dim, index, src.into())?;
        Ok(self)
    }

    /// With the elements of `src` added, at the places that [`Tensor::scatter`] puts them at
    /// (`torch.scatter_add`). On a GPU the order of additions differs from run to run where many indices name
    /// many places; everywhere else it is the order of the indices.
    ///
    /// ```
    /// # use warpline::{tensor, zeros};
    /// let sums = zeros([2], ())?;
    /// sums.scatter_add_(0, &tensor(&[0i64, 1, 0], ())?, &tensor(&[1f32, 2.0, 3.0], ())?)?;
    /// assert_eq!(sums.to_vec::<f32>()?, [4.0, 2.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Tensor::scatter`].
    #[track_caller]
    pub fn scatter_add(&self, dim: isize, index: &Tensor, src: &Tensor) -> Result<Self> {
        let out = self.duplicate()?;
        out.scatter_raw("scatter_add", dim, index, src, Reduce::Sum)?;
        Ok(out)
    }

    /// [`Tensor::scatter_add`] in place.
    ///
    /// # Errors
    /// As [`Tensor::scatter_`].
    #[track_caller]
    pub fn scatter_add_(&self, dim: isize, index: &Tensor, src: &Tensor) -> Result<&Self> {
        self.scatter_raw("scatter_add_", dim, index, src, Reduce::Sum)?;
        Ok(self)
    }

    /// With what `reduce` makes of the elements of `src` that [`Tensor::scatter`] would put at a place, and with
    /// `include_self`, PyTorch's default, of the element that is there (`torch.scatter_reduce`).
    ///
    /// # Errors
    /// As [`Tensor::scatter`].
    #[track_caller]
    pub fn scatter_reduce(
        &self,
        dim: isize,
        index: &Tensor,
        src: &Tensor,
        reduce: ScatterReduce,
        include_self: bool,
    ) -> Result<Self> {
        let out = self.duplicate()?;
        out.reduce_in("scatter_reduce", dim, index, src, reduce, include_self)?;
        Ok(out)
    }

    /// [`Tensor::scatter_reduce`] in place.
    ///
    /// # Errors
    /// As [`Tensor::scatter_`].
    #[track_caller]
    pub fn scatter_reduce_(
        &self,
        dim: isize,
        index: &Tensor,
        src: &Tensor,
        reduce: ScatterReduce,
        include_self: bool,
    ) -> Result<&Self> {
        self.reduce_in("scatter_reduce_", dim, index, src, reduce, include_self)?;
        Ok(self)
    }

    #[track_caller]
    fn put(
        &self,
        op: &'static str,
        dim: isize,
        index: &Tensor,
        src: TensorOrScalar<'_>,
    ) -> Result<()> {
        match src {
            TensorOrScalar::Tensor(src) => self.scatter_raw(op, dim, index, src, Reduce::Assign),
            TensorOrScalar::Scalar(value) => {
                let src = self.everywhere(op, value, index.size())?;
                self.scatter_raw(op, dim, index, &src, Reduce::Assign)
            }
        }
    }

    /// One element of this dtype, expanded.
    #[track_caller]
    pub(super) fn everywhere(
        &self,
        op: &'static str,
        value: Scalar,
        sizes: &[usize],
    ) -> Result<Self> {
        check_filled(op, value, self.dtype())?;
        let one = self.new_full((), value, ()).of(op)?;
        Ok(one.with_layout(one.layout().expand(sizes)?))
    }

    #[track_caller]
    pub(super) fn scatter_raw(
        &self,
        op: &'static str,
        dim: isize,
        index: &Tensor,
        src: &Tensor,
        reduce: Reduce,
    ) -> Result<()> {
        let index = as_indices(op, self, index)?;
        check_together(op, self, src)?;
        let dim = self.layout().dim(dim).of(op)?;
        let (index, src) = (index.as_view(), src.as_view());
        scatter::scatter(self.exec()?.target(), op, self.as_view(), dim, index, src, reduce)
    }

    #[track_caller]
    fn reduce_in(
        &self,
        op: &'static str,
        dim: isize,
        index: &Tensor,
        src: &Tensor,
        reduce: ScatterReduce,
        include_self: bool,
    ) -> Result<()> {
        let index = &as_indices(op, self, index)?;
        let kind = match reduce {
            ScatterReduce::Sum | ScatterReduce::Mean => Reduce::Sum,
            ScatterReduce::Prod => Reduce::Prod,
            ScatterReduce::Amax => Reduce::Max,
            ScatterReduce::Amin => Reduce::Min,
        };
        if !include_self {
            // Where nothing else comes, the element stays.
            let neutral = match kind {
                Reduce::Sum => Scalar::Int(0),
                Reduce::Prod => Scalar::Int(1),
                Reduce::Max => lowest(self),
                _ => highest(self),
            };
            let neutral = self.everywhere(op, neutral, index.size())?;
            self.scatter_raw(op, dim, index, &neutral, Reduce::Assign)?;
        }
        self.scatter_raw(op, dim, index, src, kind)?;
        if reduce == ScatterReduce::Mean {
            let counts = self.new_full(self.size(), i64::from(include_self), ()).of(op)?;
            let one = self.everywhere(op, Scalar::Int(1), index.size())?;
            counts.scatter_raw(op, dim, index, &one, Reduce::Sum)?;
            let counts = counts.clamp_min(1).of(op)?;
            let mean = if self.dtype().is_float() {
                self.div(&counts)
            } else {
                self.div_rounded(&counts, RoundingMode::Floor)
            };
            self.copy_(&mean.of(op)?, false).of(op)?;
        }
        Ok(())
    }
}

/// What is no larger than any element.
fn lowest(of: &Tensor) -> Scalar {
    match of.dtype().bits() {
        None => Scalar::Float(f64::NEG_INFINITY),
        Some((bits, signed)) => Scalar::Int(if signed { i64::MIN >> (64 - bits) } else { 0 }),
    }
}

/// What is no smaller than any element.
fn highest(of: &Tensor) -> Scalar {
    match of.dtype().bits() {
        None => Scalar::Float(f64::INFINITY),
        Some((bits, signed)) => {
            Scalar::Int((u64::MAX >> (64 - bits + u32::from(signed))) as i64)
        }
    }
}
