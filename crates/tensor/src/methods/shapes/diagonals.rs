//! Matrices from their diagonals, and diagonals of matrices.

use std::borrow::Borrow;

use smallvec::SmallVec;

#[cfg(doc)]
use crate::ErrorKind;
use crate::functional::options::{from_integer, options};
use crate::{CallScope, Error, Integer, IntoOptions, OrDefault, Result, Tensor, cat};

options! {
    /// Options of [`Tensor::diag_embed`]. An integer converts into options with that `offset`.
    #[derive(Clone, Copy, Debug)]
    DiagEmbedOptions [] [] {
        /// Sets the diagonal by its distance from the main diagonal, positive above it and negative below it. Default:
        /// 0, the main diagonal.
        offset: isize = 0, impl Integer => Integer::into_isize;
        /// Sets the dimension of the rows. Negative: counted from the end. Default: -2.
        dim1: isize = -2, impl Integer => Integer::into_isize;
        /// Sets the dimension of the columns. Negative: counted from the end. Default: -1.
        dim2: isize = -1, impl Integer => Integer::into_isize;
    }
}

from_integer! { DiagEmbedOptions offset; }

impl Tensor {
    /// Makes a matrix with this vector on a diagonal and 0 elsewhere, or copies a diagonal of this matrix
    /// (`torch.diag`). `diagonal` 0 is the main diagonal; positive diagonals are above it. Default of
    /// `diagonal`: 0.
    ///
    /// ```
    /// # use warpline::tensor;
    /// let t = tensor([1i64, 2], ())?;
    /// assert_eq!(t.diag(0)?.to_vec::<i64>()?, [1, 0, 0, 2]);
    /// assert_eq!(t.diag(0)?.diag(0)?.to_vec::<i64>()?, [1, 2]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if the tensor is neither a vector nor a matrix. Errors of
    /// [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn diag(&self, diagonal: impl IntoOptions<OrDefault<isize>>) -> Result<Self> {
        let _call = CallScope::enter("diag");
        let diagonal = diagonal.into_options().or(0);
        match self.dim() {
            1 => self.diag_embed(DiagEmbedOptions::new().offset(diagonal).dim1(0).dim2(1)),
            2 => self.diagonal(diagonal)?.copy(),
            n => Err(Error::shape(
                "diag",
                format!("expects 1 or 2 dimensions, but the tensor has {n}"),
            )),
        }
    }

    /// Makes matrices with the vectors along the last dimension on the diagonal `offset`, and 0 elsewhere
    /// (`torch.diag_embed`). Rows and columns are the dimensions `dim1` and `dim2` of the result.
    ///
    /// # Errors
    /// [`ErrorKind::DimOutOfRange`] if the result lacks one of the dimensions. [`ErrorKind::InvalidArgument`]
    /// if the two dimensions are the same. [`ErrorKind::ShapeMismatch`] if the tensor has no dimensions. Errors
    /// of [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn diag_embed(&self, options: impl IntoOptions<DiagEmbedOptions>) -> Result<Self> {
        let _call = CallScope::enter("diag_embed");
        let DiagEmbedOptions { offset, dim1, dim2 } = options.into_options();
        let op = "diag_embed";
        let Some(&length) = self.size().last() else {
            return Err(Error::shape(op, "cannot be applied to a 0-dim tensor"));
        };
        // Pad the vectors, expand them to all rows, and mask the elements that are not on the diagonal.
        let beside = offset.unsigned_abs();
        let size = length.saturating_add(beside);
        let columns = if beside == 0 {
            self.clone()
        } else {
            let mut sizes: SmallVec<[usize; 6]> = self.size().into();
            sizes[self.dim() - 1] = beside;
            let zeros = self.new_zeros(&sizes[..], ())?;
            let parts = if offset > 0 { [&zeros, self] } else { [self, &zeros] };
            cat(&parts, -1)?
        };
        let row = self.arange_on_device(0, size)?.unsqueeze(1)?;
        let column = self.arange_on_device(-offset, size)?;
        let matrices = columns.unsqueeze(-2)?.masked_fill(&column.ne(&row)?, 0)?;
        matrices.movedim([-2, -1], [dim1, dim2])
    }
}

/// Makes a matrix with the given matrices along its diagonal and 0 elsewhere (`torch.block_diag`). A vector
/// counts as a matrix of one row, and a number as a matrix of one element.
///
/// ```
/// # use warpline::{block_diag, tensor};
/// let t = block_diag(&[tensor([[1i64, 2]], ())?, tensor(3i64, ())?])?;
/// assert_eq!(t.to_vec::<i64>()?, [1, 2, 0, 0, 0, 3]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`] if a tensor has more than two dimensions. Otherwise the same as [`cat`].
#[track_caller]
pub fn block_diag<T: Borrow<Tensor>>(tensors: &[T]) -> Result<Tensor> {
    let _call = CallScope::enter("block_diag");
    let op = "block_diag";
    let mut blocks = Vec::new();
    for tensor in tensors {
        let tensor = tensor.borrow();
        blocks.push(match tensor.dim() {
            0 | 1 => tensor.reshape([1, tensor.numel()])?,
            2 => tensor.clone(),
            n => {
                return Err(Error::shape(
                    op,
                    format!("expects at most 2 dimensions, but a tensor has {n}"),
                ));
            }
        });
    }
    let columns: usize = blocks.iter().map(|block| block.size()[1]).sum();
    let mut rows = Vec::new();
    let mut left = 0;
    for block in &blocks {
        let (height, width) = (block.size()[0], block.size()[1]);
        let before = block.new_zeros([height, left], ())?;
        left += width;
        let after = block.new_zeros([height, columns - left], ())?;
        rows.push(cat(&[&before, block, &after], 1)?);
    }
    cat(&rows, 0)
}
