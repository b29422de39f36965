//! Functions that join tensors, some of which first add dimensions to tensors that have too few, and `meshgrid`.

use std::borrow::Borrow;

use smallvec::SmallVec;
use warpline_kernels as kernels;
use warpline_runtime::{Sizes, resolve_dim};

use crate::autograd::{Gradients, NodeInputs, OpBackward, record, saved, should_record};
use crate::exec::check_together;
use crate::methods::composite::signed;
use crate::{CallScope, Error, ErrorKind, IntoOptions, OrDefault, Result, Tensor};

impl Tensor {
    /// The same as [`crate::cat`].
    ///
    /// # Errors
    /// The same as [`crate::cat`].
    #[track_caller]
    pub fn cat<T: Borrow<Self>>(
        tensors: &[T],
        dim: impl IntoOptions<OrDefault<isize>>,
    ) -> Result<Self> {
        cat(tensors, dim)
    }

    /// The same as [`crate::stack`].
    ///
    /// # Errors
    /// The same as [`crate::stack`].
    #[track_caller]
    pub fn stack<T: Borrow<Self>>(
        tensors: &[T],
        dim: impl IntoOptions<OrDefault<isize>>,
    ) -> Result<Self> {
        stack(tensors, dim)
    }
}

/// Joins tensors along an existing dimension (`torch.cat`). As in PyTorch, dtypes are promoted, and empty
/// tensors of one dimension are skipped. Default of `dim`: 0.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `tensors` is empty. [`ErrorKind::ShapeMismatch`] if the tensors differ in
/// another dimension, or a tensor has no dimensions. [`ErrorKind::DimOutOfRange`] if the tensors lack the
/// dimension. Errors of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn cat<T: Borrow<Tensor>>(
    tensors: &[T],
    dim: impl IntoOptions<OrDefault<isize>>,
) -> Result<Tensor> {
    let _call = CallScope::enter("cat");
    let dim = dim.into_options().or(0);
    let tensors: SmallVec<[&Tensor; 8]> = tensors.iter().map(Borrow::borrow).collect();
    let Some(&head) = tensors.first() else {
        return Err(Error::invalid("cat", "expected at least one tensor"));
    };
    let mut dtype = head.dtype();
    for tensor in &tensors {
        check_together("cat", head, tensor)?;
        dtype = dtype.promote(tensor.dtype());
        if tensor.dim() == 0 {
            return Err(Error::shape("cat", "a 0-dim tensor cannot be concatenated"));
        }
    }
    let skipped = |t: &Tensor| t.size() == [0];
    let model = tensors.iter().copied().find(|t| !skipped(t)).unwrap_or(head);
    let d = model.layout().dim(dim)?;
    let mut sizes: Sizes = model.size().into();
    sizes[d] = 0;
    for tensor in tensors.iter().filter(|t| !skipped(t)) {
        let fits = tensor.dim() == model.dim()
            && (0..model.dim()).all(|i| i == d || tensor.size()[i] == model.size()[i]);
        if !fits {
            return Err(Error::shape(
                "cat",
                format!(
                    "sizes must match except in dimension {d}, but {:?} and {:?} were given",
                    model.size(),
                    tensor.size()
                ),
            ));
        }
        sizes[d] = sizes[d].saturating_add(tensor.size()[d]);
    }
    if tensors.iter().any(|t| t.storage().is_shared_host()) {
        let apart = tensors.iter().map(|t| match t.storage().is_shared_host() {
            true => t.copy_from_shared_host(),
            false => Ok((*t).clone()),
        });
        return cat(&apart.collect::<Result<Vec<_>>>()?, dim);
    }
    let exec = head.exec()?;
    let out = exec.empty(&sizes, dtype)?;
    let joined = tensors.iter().filter(|t| !skipped(t)).map(|t| t.as_view());
    let joined: SmallVec<[_; 8]> = joined.collect();
    if !joined.is_empty() {
        kernels::cat::cat(exec.target(), &joined, d, out.as_view())?;
    }
    if !out.dtype().is_float() || !should_record(&tensors) {
        return Ok(out);
    }
    let lengths = tensors.iter().map(|t| if skipped(t) { 0 } else { t.size()[d] }).collect();
    record("cat", out, &tensors, Cat { dim: d, lengths })
}

saved! {
    struct Cat { dim: usize, lengths: SmallVec<[usize; 8]> }
}

impl OpBackward for Cat {
    fn backward(&self, grad: &Tensor, inputs: &NodeInputs<'_>) -> Result<Gradients> {
        let mut start = 0;
        let mut part = |(i, &length): (usize, &usize)| {
            let from = start as isize;
            start += length;
            if !inputs.needs(i) || length == 0 {
                return Ok(None);
            }
            grad.narrow(self.dim as isize, from, length).map(Some)
        };
        self.lengths.iter().enumerate().map(&mut part).collect()
    }
}

/// Joins tensors of the same shape along a new dimension (`torch.stack`). Default of `dim`: 0.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `tensors` is empty. [`ErrorKind::ShapeMismatch`] if the shapes differ.
/// [`ErrorKind::DimOutOfRange`] if `dim` is out of range. Errors of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn stack<T: Borrow<Tensor>>(
    tensors: &[T],
    dim: impl IntoOptions<OrDefault<isize>>,
) -> Result<Tensor> {
    let _call = CallScope::enter("stack");
    let dim = dim.into_options().or(0);
    let Some(head) = tensors.first().map(Borrow::borrow) else {
        return Err(Error::invalid("stack", "expected at least one tensor"));
    };
    if let Some(other) = tensors.iter().map(Borrow::borrow).find(|t| t.size() != head.size()) {
        return Err(Error::shape(
            "stack",
            format!(
                "all tensors must have the same sizes, but got {:?} and {:?}",
                head.size(),
                other.size()
            ),
        ));
    }
    let d = resolve_dim(dim, head.dim() + 1)?;
    let rows = tensors.iter().map(|t| t.borrow().unsqueeze(dim)).collect::<Result<Vec<_>>>()?;
    cat(&rows, d as isize)
}

/// The order of the dimensions of [`meshgrid`] (`indexing` of `torch.meshgrid`). `()` means `Ij`.
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
/// [`ErrorKind::InvalidArgument`] if `tensors` is empty. [`ErrorKind::OperandDTypes`] if the dtypes differ.
/// [`ErrorKind::ShapeMismatch`] if a tensor has more than one dimension.
#[track_caller]
pub fn meshgrid<T: Borrow<Tensor>>(
    tensors: &[T],
    indexing: impl IntoOptions<MeshIndexing>,
) -> Result<Vec<Tensor>> {
    let _call = CallScope::enter("meshgrid");
    let (op, indexing) = ("meshgrid", indexing.into_options());
    let mut tensors: Vec<&Tensor> = tensors.iter().map(Borrow::borrow).collect();
    let Some(&head) = tensors.first() else {
        return Err(Error::invalid(op, "expected at least one tensor"));
    };
    if let Some(other) = tensors.iter().find(|t| t.dtype() != head.dtype()) {
        let (operands, first, second) = ("all tensors", head.dtype(), other.dtype());
        return Err(ErrorKind::OperandDTypes { operands, first, second }.of(op));
    }
    if let Some(other) = tensors.iter().find(|t| t.dim() > 1) {
        return Err(Error::shape(
            op,
            format!(
                "expects tensors of at most one dimension, but a tensor has sizes {:?}",
                other.size()
            ),
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
        grids.push(tensor.reshape(&own)?.expand(signed(&sizes))?);
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
    let _call = CallScope::enter("hstack");
    let tensors = with_dims(tensors, 1)?;
    let dim = if tensors.first().is_some_and(|t| t.dim() == 1) { 0 } else { 1 };
    cat(&tensors, dim)
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
    let _call = CallScope::enter("vstack");
    cat(&with_dims(tensors, 2)?, 0)
}

/// Joins tensors along the third dimension (`torch.dstack`).
///
/// # Errors
/// The same as [`cat`].
#[track_caller]
pub fn dstack<T: Borrow<Tensor>>(tensors: &[T]) -> Result<Tensor> {
    let _call = CallScope::enter("dstack");
    cat(&with_dims(tensors, 3)?, 2)
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
