//! Matrix products, with PyTorch's rules for the number of dimensions.

use smallvec::{SmallVec, smallvec};
use warpline_kernels::matmul as kernel;
use warpline_runtime::{Sizes, broadcast, checked_numel};

use crate::amp::autocast_operands;
use crate::autograd::{Gradients, NodeInputs, OpBackward, linear, record, saved, should_record};
use crate::called::Called;
use crate::exec::check_together;
use crate::{CallScope, Error, ErrorKind, Result, Tensor};

impl Tensor {
    /// The matrix product (`torch.matmul`): the dot product of two vectors, or the product of a matrix and a vector, or
    /// of two matrices. With more dimensions, there is one product per batch, and the batch dimensions broadcast. Both
    /// tensors must have the same dtype.
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if the inner sizes differ, or a tensor has no dimensions.
    /// [`ErrorKind::BroadcastMismatch`] if the batch dimensions do not broadcast. [`ErrorKind::OperandDTypes`]
    /// if the dtypes differ. [`ErrorKind::UnsupportedDType`] if the dtype has no matrix product. Errors of
    /// [every op](Tensor#errors-of-every-op).
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Result<Self> {
        let _call = CallScope::enter("matmul");
        let this = self;
        autocast_operands!(Low, Low, [this, other] => this.matmul(other));
        check_together("matmul", self, other)?;
        if self.dtype() != other.dtype() {
            let (operands, first, second) = ("both tensors", self.dtype(), other.dtype());
            return Err(ErrorKind::OperandDTypes { operands, first, second }.of("matmul"));
        }
        if self.dim() == 0 || other.dim() == 0 {
            return Err(Error::shape(
                "matmul",
                format!(
                    "both arguments need at least 1 dimension, but they have {} and {}",
                    self.dim(),
                    other.dim()
                ),
            ));
        }
        // A vector on the left becomes a row, and a vector on the right becomes a column. The added dimension
        // is removed from the result.
        let (row, column) = (self.dim() == 1, other.dim() == 1);
        let a = if row { self.unsqueeze(0)? } else { self.clone() };
        let b = if column { other.unsqueeze(1)? } else { other.clone() };
        let (batch_a, [m, k]) = split_batch(a.size());
        let (batch_b, [k2, n]) = split_batch(b.size());
        if k != k2 {
            return Err(Error::shape(
                "matmul",
                format!("mat1 and mat2 shapes cannot be multiplied ({m}x{k} and {k2}x{n})"),
            ));
        }
        let batch = broadcast(batch_a, batch_b)?;
        let count = checked_numel(&batch)?;
        let shape = |parts: &[usize]| -> SmallVec<[isize; 6]> {
            parts.iter().map(|&n| n as isize).collect()
        };
        // The sizes of the result, without dimensions that were added to vectors.
        let mut sizes: Sizes = batch.clone();
        sizes.extend((!row).then_some(m));
        sizes.extend((!column).then_some(n));
        let out = if batch.is_empty() {
            product(&a, &b, &[m, n])?
        } else if batch_b.is_empty() && a.is_contiguous() {
            // All batches are multiplied by the same matrix, so one product of all rows is enough.
            let rows = checked_numel(&[count, m])?;
            product(&a.reshape(&shape(&[rows, k]))?, &b, &[rows, n])?
        } else {
            let flat = |t: &Tensor, x: usize, y: usize| {
                let all: Sizes = batch.iter().copied().chain([x, y]).collect();
                t.viewed("expand", t.layout().expand(&all)?, linear(|grad, _| Ok(grad.clone())))?
                    .reshape(&shape(&[count, x, y]))
            };
            // Move `b` to the device of the product first, so that the reshape copies on that device.
            let near = if a.device() == b.device() {
                b
            } else {
                b.recorded_copy("to_copy", b.converted_by(&a.exec()?, b.dtype())?)?
            };
            let (a, b) = (flat(&a, m, k)?, flat(&near, k, n)?);
            product(&a, &b, &[count, m, n])?
        };
        if out.size() == &sizes[..] { Ok(out) } else { out.unsafe_view(&sizes) }
    }
}

/// Multiplies two matrices, or two batches of matrices of the same size.
#[track_caller]
fn product(a: &Tensor, b: &Tensor, sizes: &[usize]) -> Result<Tensor> {
    let exec = a.exec()?;
    let out = exec.empty(sizes, a.dtype()).of("matmul")?;
    kernel::matmul(exec.target(), a.as_view(), b.as_view(), out.as_view())?;
    if !should_record(&[a, b]) {
        return Ok(out);
    }
    let name = if a.dim() == 2 { "mm" } else { "bmm" };
    let transposed = (is_transposed(a)?, is_transposed(b)?);
    let saved = MatMul {
        a: b.requires_grad().then(|| a.clone()),
        b: a.requires_grad().then(|| b.clone()),
        transposed,
    };
    record(name, out, &[a, b], saved)
}

saved! {
    struct MatMul {
        /// The first operand. `None` if the second operand requires no gradient.
        a: Option<Tensor>,
        /// The second operand. `None` if the first operand requires no gradient.
        b: Option<Tensor>,
        /// For each operand, whether it is a transposed view.
        transposed: (bool, bool),
    }
}

impl OpBackward for MatMul {
    fn backward(&self, grad: &Tensor, _: &NodeInputs<'_>) -> Result<Gradients> {
        // Compute the gradient of a transposed operand in the layout of its base, which saves a copy.
        let of_a = |b: &Tensor| match self.transposed.0 {
            true => b.matmul(&grad.transpose(-2, -1)?)?.transpose(-2, -1),
            false => grad.matmul(&b.transpose(-2, -1)?),
        };
        let of_b = |a: &Tensor| match self.transposed.1 {
            true => grad.transpose(-2, -1)?.matmul(a)?.transpose(-2, -1),
            false => a.transpose(-2, -1)?.matmul(grad),
        };
        let of_a = self.b.as_ref().map(of_a).transpose()?;
        Ok(smallvec![of_a, self.a.as_ref().map(of_b).transpose()?])
    }
}

fn is_transposed(t: &Tensor) -> Result<bool> {
    Ok(!t.is_contiguous() && t.layout().transpose(-2, -1)?.is_contiguous())
}

/// Splits sizes into batch sizes, and rows and columns. There must be at least two dimensions.
fn split_batch(sizes: &[usize]) -> (&[usize], [usize; 2]) {
    let at = sizes.len() - 2;
    (&sizes[..at], [sizes[at], sizes[at + 1]])
}
