//! Triangles of matrices.

use std::ops::Range;

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
    /// [`ErrorKind::ShapeMismatch`] for fewer than two dimensions.
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
    /// As there; [`ErrorKind::OverlappingWrite`].
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
            return Err(Error::shape(
                op,
                format!("the tensor must have at least 2 dimensions, but has {}", self.dim()),
            ));
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
    let count = below(row, col, offset as i128);
    let first = offset.min(0).unsigned_abs().min(row);
    indices(first..row, count, |i| 0..after(i, offset, col), options.into()).of("tril_indices")
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
    let count = (row as u128 * col as u128) - below(row, col, offset as i128 - 1);
    let end = (col as i128 - offset as i128).clamp(0, row as i128) as usize;
    let first = |i| if offset == isize::MIN { 0 } else { after(i, offset - 1, col) };
    indices(0..end, count, |i| first(i)..col, options.into()).of("triu_indices")
}

/// Returns the number of elements on and below the diagonal `offset` of a matrix.
fn below(rows: usize, columns: usize, offset: i128) -> u128 {
    let (rows, columns, width) = (rows as i128, columns as i128, offset + 1);
    // Row `i` has `i + width` elements, as long as that is from 0 to `columns`.
    let first = (-width).clamp(0, rows);
    let full = (columns - width).clamp(first, rows);
    let twice = (first + width).max(0) + (full - 1 + width).max(0);
    ((full - first) as u128).saturating_mul(twice as u128) / 2
        + (rows - full) as u128 * columns as u128
}

/// The first column right of a row's diagonal.
fn after(row: usize, offset: isize, columns: usize) -> usize {
    offset
        .saturating_add(1)
        .saturating_add_unsigned(row)
        .clamp(0, isize::try_from(columns).unwrap_or(isize::MAX)) as usize
}

/// Makes the indices of `count` elements. Each row has one at least, but for the first of a lower triangle.
#[track_caller]
fn indices(
    rows: Range<usize>,
    count: u128,
    columns: impl Fn(usize) -> Range<usize>,
    options: TensorOptions,
) -> Result<Tensor> {
    let rows = if count == 0 { 0..0 } else { rows };
    let mut all: Vec<i64> = Vec::new();
    let twice = usize::try_from(count).ok().and_then(|n| n.checked_mul(2));
    if twice.is_none_or(|n| all.try_reserve_exact(n).is_err()) {
        return Err(Error::invalid(
            "",
            format!("there is no memory for the indices of {count} elements"),
        ));
    }
    all.extend(rows.clone().flat_map(|i| columns(i).map(move |_| i as i64)));
    all.extend(rows.flat_map(|i| columns(i).map(|j| j as i64)));
    let dtype = options.requested_dtype().unwrap_or(DType::I64);
    let columns = all.len() as isize / 2;
    tensor(all, options.dtype(dtype))?.reshape([2, columns])
}
