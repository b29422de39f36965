//! What has an index for each of its elements: `embedding`, `one_hot`.

use crate::called::Called;
use crate::methods::embedding_padded;
use crate::{DType, Error, Result, Scalar, Tensor};

/// The rows of `weight` that `input`, of indices, names (`torch.nn.functional.embedding`). The row
/// `padding_idx`, which counts from the end if negative, gets no gradient. That of the others is the same each
/// time: it has the order of the indices.
///
/// ```
/// # use warpline::{functional, tensor};
/// let weight = tensor(&[[0.5f32, 1.0], [1.5, 2.0]], ())?.requires_grad_(true)?;
/// let rows = functional::embedding(&tensor(&[1i64, 0, 1], ())?, &weight, Some(0))?;
/// rows.sum(())?.backward()?;
/// assert_eq!(weight.grad().unwrap().to_vec::<f32>()?, [0.0, 0.0, 2.0, 2.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// As [`crate::embedding()`]; [`ErrorKind::InvalidArgument`] for padding that is no row.
#[track_caller]
pub fn embedding(input: &Tensor, weight: &Tensor, padding_idx: Option<isize>) -> Result<Tensor> {
    let rows = weight.size().first().copied().unwrap_or(0) as isize;
    let padding = match padding_idx {
        Some(given) if !(-rows..rows).contains(&given) => {
            let reason = format!("padding_idx is {given}, but the weight has {rows} rows");
            return Err(Error::invalid("embedding", reason));
        }
        given => given.map(|given| given.rem_euclid(rows) as usize),
    };
    embedding_padded(weight, input, padding)
}

/// For each element, an index, a row of zeros with a 1 at its place (`torch.nn.functional.one_hot`). Without
/// `num_classes` there are as many as the largest index asks for, for which the host waits. `int64`.
///
/// ```
/// # use warpline::{functional, tensor};
/// let rows = functional::one_hot(&tensor(&[2i64, 0], ())?, Some(3))?;
/// assert_eq!(rows.to_vec::<i64>()?, [0, 0, 1, 1, 0, 0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for what is not of `int64`; [`ErrorKind::IndexCheck`] for an index that is negative
/// or too large.
#[track_caller]
pub fn one_hot(input: &Tensor, num_classes: Option<usize>) -> Result<Tensor> {
    const OP: &str = "one_hot";
    if input.dtype() != DType::I64 {
        return Err(Error::invalid(
            OP,
            format!("the indices are {}; they must be int64", input.dtype()),
        ));
    }
    let classes = match num_classes {
        Some(classes) => classes,
        None if input.numel() == 0 => {
            return Err(Error::invalid(OP, "num_classes does not follow from no indices"));
        }
        // Of negative indices alone there are none, and each of them is out of range.
        None => input.amax(()).of(OP)?.item::<i64>().of(OP)?.max(-1).saturating_add(1) as usize,
    };
    let mut sizes = input.size().to_vec();
    sizes.push(classes);
    let out = input.new_zeros(sizes, ()).of(OP)?;
    out.put(OP, -1, &input.unsqueeze(-1).of(OP)?, Scalar::Int(1).into(), true)?;
    Ok(out)
}
