//! Triangles of matrices.

use std::panic::Location;

use crate::called::Called;
use crate::{DType, Error, Result, Tensor, TensorOptions, tensor};

impl Tensor {
    /// The matrices' lower triangles, 0 above the diagonal `diagonal`, which is positive above the main one
    /// (`torch.tril`).
    ///
    /// ```
    /// # use warpline::ones;
    /// let t = ones([2, 3], ())?;
    /// assert_eq!(t.tril(0)?.to_vec::<f32>()?, [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
    /// assert_eq!(t.triu(1)?.to_vec::<f32>()?, [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for fewer than two dimensions.
    #[track_caller]
    pub fn tril(&self, diagonal: isize) -> Result<Self> {
        self.masked_fill(&self.above("tril", diagonal)?, 0).of("tril")
    }

    /// The matrices' upper triangles, 0 below the diagonal `diagonal` (`torch.triu`).
    ///
    /// # Errors
    /// As [`Tensor::tril`].
    #[track_caller]
    pub fn triu(&self, diagonal: isize) -> Result<Self> {
        self.masked_fill(&self.below("triu", diagonal)?, 0).of("triu")
    }

    /// [`Tensor::tril`] in place.
    ///
    /// # Errors
    /// As there; [`Error::OverlappingWrite`].
    #[track_caller]
    pub fn tril_(&self, diagonal: isize) -> Result<&Self> {
        self.masked_fill_(&self.above("tril_", diagonal)?, 0).of("tril_")
    }

    /// [`Tensor::triu`] in place.
    ///
    /// # Errors
    /// As [`Tensor::tril_`].
    #[track_caller]
    pub fn triu_(&self, diagonal: isize) -> Result<&Self> {
        self.masked_fill_(&self.below("triu_", diagonal)?, 0).of("triu_")
    }

    /// Where a matrix's elements lie above a diagonal.
    #[track_caller]
    pub(crate) fn above(&self, op: &'static str, diagonal: isize) -> Result<Self> {
        let (rows, columns) = self.places(op, diagonal)?;
        columns.gt(&rows).of(op)
    }

    #[track_caller]
    fn below(&self, op: &'static str, diagonal: isize) -> Result<Self> {
        let (rows, columns) = self.places(op, diagonal)?;
        columns.lt(&rows).of(op)
    }

    /// A matrix's rows as a column, and its columns less the diagonal's number as a row.
    #[track_caller]
    fn places(&self, op: &'static str, diagonal: isize) -> Result<(Self, Self)> {
        let &[.., rows, columns] = self.size() else {
            return Err(Error::ShapeMismatch {
                location: Location::caller(),
                op,
                reason: format!(
                    "the tensor must have at least 2 dimensions, but has {}",
                    self.dim()
                ),
            });
        };
        // Beyond the matrix all diagonals are the same.
        let most = rows.max(columns) as isize;
        let rows = self.arange_beside(0, rows).of(op)?.unsqueeze(1)?;
        let columns = self.arange_beside(-diagonal.clamp(-most, most), columns).of(op)?;
        Ok((rows, columns))
    }
}

/// Rows and columns of the elements of a matrix's lower triangle, as [`Tensor::tril`] has it, in two rows; `int64` unless
/// asked otherwise (`torch.tril_indices`).
///
/// ```
/// # use warpline::tril_indices;
/// let indices = tril_indices(2, 3, 0, ())?;
/// assert_eq!(indices.to_vec::<i64>()?, [0, 1, 1, 0, 0, 1]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// As [`tensor()`](crate::tensor()).
#[track_caller]
pub fn tril_indices(
    row: usize,
    col: usize,
    offset: isize,
    options: impl Into<TensorOptions>,
) -> Result<Tensor> {
    indices(row, |i| (0, after(i, offset, col)), options.into()).of("tril_indices")
}

/// Rows and columns of the elements of a matrix's upper triangle, as [`Tensor::triu`] has it
/// (`torch.triu_indices`).
///
/// # Errors
/// As [`tril_indices`].
#[track_caller]
pub fn triu_indices(
    row: usize,
    col: usize,
    offset: isize,
    options: impl Into<TensorOptions>,
) -> Result<Tensor> {
    let first = |i| after(i, offset.saturating_sub(1), col);
    indices(row, |i| (first(i), col), options.into()).of("triu_indices")
}

/// The first column right of a row's diagonal.
fn after(row: usize, offset: isize, columns: usize) -> usize {
    offset.saturating_add(1).saturating_add_unsigned(row).clamp(0, columns as isize) as usize
}

#[track_caller]
fn indices(
    rows: usize,
    columns: impl Fn(usize) -> (usize, usize),
    options: TensorOptions,
) -> Result<Tensor> {
    let of_row = |i: usize| {
        let (first, end) = columns(i);
        first..end
    };
    let mut all: Vec<i64> = (0..rows).flat_map(|i| of_row(i).map(move |_| i as i64)).collect();
    all.extend((0..rows).flat_map(|i| of_row(i).map(|j| j as i64)));
    let dtype = options.requested_dtype().unwrap_or(DType::I64);
    tensor(all, options.dtype(dtype))?.reshape([2, -1])
}
