//! Repetitions of tensors.

use std::panic::Location;

use smallvec::SmallVec;

use crate::methods::composite::signed;
use crate::{CallScope, Error, ErrorKind, IntoDim, IntoShape, Result, Tensor};

impl Tensor {
    /// Repeats the tensor `repeats[d]` times along each dimension `d`, in a copy (`torch.Tensor.repeat`). If
    /// there are more numbers than dimensions, the first numbers apply to new leading dimensions.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor([1i64, 2], ())?;
    /// assert_eq!(t.repeat([2, 2])?.to_vec::<i64>()?, [1, 2, 1, 2, 1, 2, 1, 2]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if `repeats` has fewer numbers than the tensor has dimensions.
    /// [`ErrorKind::SizeOverflow`] if the number of elements of the result does not fit `isize`. Errors of [every
    /// op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn repeat(&self, repeats: impl IntoShape) -> Result<Self> {
        let _call = CallScope::enter("repeat");
        let repeats = repeats.into_shape();
        let Some(new) = repeats.len().checked_sub(self.dim()) else {
            return Err(Error::shape(
                "repeat",
                format!(
                    "{repeats:?} has fewer numbers than the tensor has dimensions, {}",
                    self.dim()
                ),
            ));
        };
        // Insert a dimension of size `times` before each dimension, then merge both into the repeated
        // dimension.
        let mut apart: SmallVec<[isize; 12]> = SmallVec::new();
        let mut expanded: SmallVec<[isize; 12]> = SmallVec::new();
        let mut sizes: SmallVec<[isize; 6]> = SmallVec::new();
        for (d, &times) in repeats.iter().enumerate() {
            let own = d.checked_sub(new).map_or(1, |d| self.size()[d]);
            let times = checked_count("repeat", times, self)?;
            apart.extend([1, own as isize]);
            expanded.extend([times, own as isize]);
            sizes.push(times.saturating_mul(own as isize));
        }
        let expanded = self.reshape(&apart[..])?.expand(&expanded[..])?;
        let out = expanded.reshape(&sizes[..])?;
        // Without repetition, `out` is a view. PyTorch returns a copy.
        if repeats.iter().all(|&times| times == 1) { out.copy() } else { copy_if_view(out) }
    }

    /// Repeats the tensor along its dimensions, as [`Tensor::repeat`] does (`torch.tile`). If there are fewer
    /// numbers than dimensions, the numbers apply to the last dimensions.
    ///
    /// # Errors
    /// [`ErrorKind::SizeOverflow`] if the number of elements of the result does not fit `isize`. Errors of
    /// [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn tile(&self, dims: impl IntoShape) -> Result<Self> {
        let _call = CallScope::enter("tile");
        let dims = dims.into_shape();
        let ones = self.dim().saturating_sub(dims.len());
        let repeats: SmallVec<[usize; 6]> =
            std::iter::repeat_n(1, ones).chain(dims.iter().copied()).collect();
        self.repeat(&repeats[..])
    }

    /// Repeats each index of a dimension `repeats` times in a row, in a copy (`torch.repeat_interleave`). If
    /// `dim` is `None` or `()`, repeats the elements of the flattened tensor.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor([1i64, 2], ())?;
    /// assert_eq!(t.repeat_interleave(2, 0)?.to_vec::<i64>()?, [1, 1, 2, 2]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the tensor lacks the dimension. [`ErrorKind::SizeOverflow`] if the
    /// number of elements of the result does not fit `isize`. Errors of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn repeat_interleave(&self, repeats: usize, dim: impl IntoDim) -> Result<Self> {
        let op = "repeat_interleave";
        let _call = CallScope::enter(op);
        let (t, d) = match dim.into_dim() {
            None => (self.reshape([-1])?, 0),
            Some(dim) if self.dim() == 0 => (self.reshape([1])?, self.layout().dim(dim)?),
            Some(dim) => (self.clone(), self.layout().dim(dim)?),
        };
        let mut sizes = signed(t.size());
        let times = checked_count(op, repeats, &t)?;
        sizes.insert(d + 1, times);
        let expanded = t.unsqueeze(d as isize + 1)?.expand(&sizes)?;
        sizes.remove(d + 1);
        sizes[d] = sizes[d].saturating_mul(times);
        let out = expanded.reshape(&sizes)?;
        if repeats == 1 { out.copy() } else { copy_if_view(out) }
    }
}

/// Converts a number of repetitions to a size.
#[track_caller]
fn checked_count(op: &'static str, times: usize, of: &Tensor) -> Result<isize> {
    let location = Location::caller();
    isize::try_from(times).map_err(|_| {
        let sizes = [times].iter().chain(of.size()).copied().collect();
        ErrorKind::SizeOverflow { sizes }.of(op).at(location)
    })
}

/// Copies a result that is still an expanded view, as after the repetition of a dimension of size 1. PyTorch
/// also returns a copy.
#[track_caller]
fn copy_if_view(out: Tensor) -> Result<Tensor> {
    out.contiguous()
}
