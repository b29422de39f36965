//! Functions that join tensors. They add dimensions that a tensor lacks.

use std::borrow::Borrow;

#[cfg(doc)]
use crate::ErrorKind;
use crate::called::Called;
use crate::methods::composite::signed;
use crate::{Error, IntoOptions, Result, Tensor, cat};

/// The order of the dimensions of [`meshgrid`] (`indexing`). `()` stands for `Ij`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MeshIndexing {
    /// The first vector runs along the first dimension, the second along the second (`"ij"`).
    #[default]
    Ij,
    /// The first two dimensions are swapped, as for image coordinates (`"xy"`).
    Xy,
}

impl From<()> for MeshIndexing {
    fn from((): ()) -> Self {
        Self::Ij
    }
}

/// Expands vectors to a grid with one dimension per vector (`torch.meshgrid`). Returns one view per vector, in
/// which the vector's elements vary along its dimension.
///
/// ```
/// # use warpline::{meshgrid, tensor};
/// let grids = meshgrid(&[tensor([1i64, 2], ())?, tensor([3i64, 4], ())?], ())?;
/// assert_eq!(grids[0].to_vec::<i64>()?, [1, 1, 2, 2]);
/// assert_eq!(grids[1].to_vec::<i64>()?, [3, 4, 3, 4]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `tensors` is empty, or the dtypes differ. [`ErrorKind::ShapeMismatch`] if
/// a tensor has more than one dimension.
#[track_caller]
pub fn meshgrid<T: Borrow<Tensor>>(
    tensors: &[T],
    indexing: impl IntoOptions<MeshIndexing>,
) -> Result<Vec<Tensor>> {
    let (op, indexing) = ("meshgrid", indexing.into_options());
    let mut tensors: Vec<&Tensor> = tensors.iter().map(Borrow::borrow).collect();
    let Some(&head) = tensors.first() else {
        return Err(Error::invalid(op, "expected at least one tensor"));
    };
    if let Some(other) = tensors.iter().find(|t| t.dtype() != head.dtype()) {
        let reason = format!(
            "all tensors must have one dtype, but are {} and {}",
            head.dtype(),
            other.dtype()
        );
        return Err(Error::invalid(op, reason));
    }
    if let Some(other) = tensors.iter().find(|t| t.dim() > 1) {
        return Err(Error::shape(
            op,
            format!("expects vectors and numbers, but one is of {:?}", other.size()),
        ));
    }
    let exchanged = indexing == MeshIndexing::Xy && tensors.len() > 1;
    if exchanged {
        tensors.swap(0, 1);
    }
    let sizes: Vec<usize> = tensors.iter().map(|t| t.numel()).collect();
    let mut grids = Vec::new();
    for (d, tensor) in tensors.iter().enumerate() {
        let mut own = vec![1; sizes.len()];
        own[d] = sizes[d];
        grids.push(tensor.reshape(&own).of(op)?.expand(signed(&sizes)).of(op)?);
    }
    if exchanged {
        grids.swap(0, 1);
    }
    Ok(grids)
}

/// Joins tensors along the second dimension; vectors along their only dimension (`torch.hstack`).
///
/// # Errors
/// The same as [`cat`].
#[track_caller]
pub fn hstack<T: Borrow<Tensor>>(tensors: &[T]) -> Result<Tensor> {
    let tensors = with_dims(tensors, 1).of("hstack")?;
    let dim = if tensors.first().is_some_and(|t| t.dim() == 1) { 0 } else { 1 };
    cat(&tensors, dim).of("hstack")
}

/// Joins tensors along the first dimension; vectors become rows (`torch.vstack`).
///
/// ```
/// # use warpline::{hstack, tensor, vstack};
/// let rows = [tensor([1i64, 2], ())?, tensor([3i64, 4], ())?];
/// assert_eq!(vstack(&rows)?.size(), [2, 2]);
/// assert_eq!(hstack(&rows)?.size(), [4]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// The same as [`cat`].
#[doc(alias = "row_stack")]
#[track_caller]
pub fn vstack<T: Borrow<Tensor>>(tensors: &[T]) -> Result<Tensor> {
    cat(&with_dims(tensors, 2).of("vstack")?, 0).of("vstack")
}

/// Joins tensors along the third dimension (`torch.dstack`).
///
/// # Errors
/// The same as [`cat`].
#[track_caller]
pub fn dstack<T: Borrow<Tensor>>(tensors: &[T]) -> Result<Tensor> {
    cat(&with_dims(tensors, 3).of("dstack")?, 2).of("dstack")
}

/// Returns views with at least `dims` dimensions (`torch.atleast_1d` and similar).
#[track_caller]
fn with_dims<T: Borrow<Tensor>>(tensors: &[T], dims: usize) -> Result<Vec<Tensor>> {
    let mut all = Vec::new();
    for tensor in tensors {
        let mut tensor = tensor.borrow().clone();
        while tensor.dim() < dims {
            // A vector becomes a row, and a matrix gets a depth of one.
            tensor = tensor.unsqueeze(if tensor.dim() < 2 { 0 } else { 2 })?;
        }
        all.push(tensor);
    }
    Ok(all)
}
