//! Triangles of matrices.

use std::ops::Range;

#[cfg(doc)]
use crate::ErrorKind;
use crate::{
    CallScope, DType, Error, IntoOptions, OrDefault, Result, Tensor, TensorOptions, tensor,
};

impl Tensor {
    /// The lower triangles of matrices, with 0 above a diagonal (`torch.tril`). `diagonal` 0 is the main
    /// diagonal; positive diagonals are above it. Default of `diagonal`: 0.
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
    /// [`ErrorKind::ShapeMismatch`] if the tensor has fewer than two dimensions. Errors of
    /// [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn tril(&self, diagonal: impl IntoOptions<OrDefault<isize>>) -> Result<Self> {
        let _call = CallScope::enter("tril");
        let diagonal = diagonal.into_options().or(0);
        self.masked_fill(&self.mask_above("tril", diagonal)?, 0)
    }

    /// The upper triangles of matrices, with 0 below a diagonal (`torch.triu`). `diagonal` 0 is the main
    /// diagonal; positive diagonals are above it. Default of `diagonal`: 0.
    ///
    /// # Errors
    /// The same as [`Tensor::tril`].
    #[track_caller]
    pub fn triu(&self, diagonal: impl IntoOptions<OrDefault<isize>>) -> Result<Self> {
        let _call = CallScope::enter("triu");
        let diagonal = diagonal.into_options().or(0);
        self.masked_fill(&self.mask_below("triu", diagonal)?, 0)
    }

    /// [`Tensor::tril`] in place.
    ///
    /// # Errors
    /// The same as [`Tensor::tril`]. [`ErrorKind::OverlappingWrite`] if elements of the tensor share an
    /// address.
    #[track_caller]
    pub fn tril_(&self, diagonal: impl IntoOptions<OrDefault<isize>>) -> Result<&Self> {
        let _call = CallScope::enter("tril_");
        let diagonal = diagonal.into_options().or(0);
        self.masked_fill_(&self.mask_above("tril_", diagonal)?, 0)
    }

    /// [`Tensor::triu`] in place.
    ///
    /// # Errors
    /// The same as [`Tensor::tril_`].
    #[track_caller]
    pub fn triu_(&self, diagonal: impl IntoOptions<OrDefault<isize>>) -> Result<&Self> {
        let _call = CallScope::enter("triu_");
        let diagonal = diagonal.into_options().or(0);
        self.masked_fill_(&self.mask_below("triu_", diagonal)?, 0)
    }

    /// Returns a mask that is true above a diagonal of a matrix.
    #[track_caller]
    pub(crate) fn mask_above(&self, op: &'static str, diagonal: isize) -> Result<Self> {
        let (rows, columns) = self.row_and_column_indices(op, diagonal)?;
        columns.gt(&rows)
    }

    #[track_caller]
    fn mask_below(&self, op: &'static str, diagonal: isize) -> Result<Self> {
        let (rows, columns) = self.row_and_column_indices(op, diagonal)?;
        columns.lt(&rows)
    }

    /// Returns the row indices of a matrix as a column, and the column indices minus `diagonal` as a row.
    #[track_caller]
    fn row_and_column_indices(&self, op: &'static str, diagonal: isize) -> Result<(Self, Self)> {
        let &[.., rows, columns] = self.size() else {
            return Err(Error::shape(
                op,
                format!("the tensor must have at least 2 dimensions, but has {}", self.dim()),
            ));
        };
        // Clamp the diagonal to avoid overflow. All diagonals beyond the same corner of the matrix have the same
        // effect.
        let most = rows.max(columns) as isize;
        let rows = self.arange_on_device(0, rows)?.unsqueeze(1)?;
        let columns = self.arange_on_device(-diagonal.clamp(-most, most), columns)?;
        Ok((rows, columns))
    }
}

/// Makes the indices of the lower triangle of a matrix of `row` rows and `col` columns (`torch.tril_indices`).
/// The result has two rows: row indices and column indices. `offset` is the diagonal of [`Tensor::tril`].
/// Default of `offset`: 0. Default dtype: `int64`.
///
/// ```
/// # use warpline::tril_indices;
/// let indices = tril_indices(2, 3, 0, ())?;
/// assert_eq!(indices.to_vec::<i64>()?, [0, 1, 1, 0, 0, 1]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if the host has no memory for the indices. Otherwise the same as
/// [`tensor()`](crate::tensor()).
#[track_caller]
pub fn tril_indices(
    row: usize,
    col: usize,
    offset: impl IntoOptions<OrDefault<isize>>,
    options: impl Into<TensorOptions>,
) -> Result<Tensor> {
    let _call = CallScope::enter("tril_indices");
    let offset = offset.into_options().or(0);
    let count = count_on_and_below(row, col, offset as i128);
    let first = offset.min(0).unsigned_abs().min(row);
    indices(first..row, count, |i| 0..first_column_after(i, offset, col), options.into())
}

/// Makes the indices of the upper triangle of a matrix of `row` rows and `col` columns (`torch.triu_indices`).
/// The result has two rows: row indices and column indices. `offset` is the diagonal of [`Tensor::triu`].
/// Default of `offset`: 0. Default dtype: `int64`.
///
/// # Errors
/// The same as [`tril_indices`].
#[track_caller]
pub fn triu_indices(
    row: usize,
    col: usize,
    offset: impl IntoOptions<OrDefault<isize>>,
    options: impl Into<TensorOptions>,
) -> Result<Tensor> {
    let _call = CallScope::enter("triu_indices");
    let offset = offset.into_options().or(0);
    let count = (row as u128 * col as u128) - count_on_and_below(row, col, offset as i128 - 1);
    let end = (col as i128 - offset as i128).clamp(0, row as i128) as usize;
    let first = |i| if offset == isize::MIN { 0 } else { first_column_after(i, offset - 1, col) };
    indices(0..end, count, |i| first(i)..col, options.into())
}

/// Returns the number of elements on and below the diagonal `offset` of a matrix.
fn count_on_and_below(rows: usize, columns: usize, offset: i128) -> u128 {
    let (rows, columns, width) = (rows as i128, columns as i128, offset + 1);
    // Row `i` has `i + width` elements, clamped to the range from 0 to `columns`.
    let first = (-width).clamp(0, rows);
    let full = (columns - width).clamp(first, rows);
    let twice = (first + width).max(0) + (full - 1 + width).max(0);
    ((full - first) as u128).saturating_mul(twice as u128) / 2
        + (rows - full) as u128 * columns as u128
}

/// Returns the first column to the right of the diagonal `offset` in a row.
fn first_column_after(row: usize, offset: isize, columns: usize) -> usize {
    offset
        .saturating_add(1)
        .saturating_add_unsigned(row)
        .clamp(0, isize::try_from(columns).unwrap_or(isize::MAX)) as usize
}

/// Creates the indices of `count` elements. If `count` is not 0, each row in `rows` has at least one element.
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
