//! Functions with an index per element: `embedding`, `one_hot`.

use super::options::options;
#[cfg(doc)]
use crate::ErrorKind;
use crate::methods::embedding_padded;
use crate::{CallScope, DType, Error, Integer, IntoOptions, Result, Scalar, Tensor};

/// Converts the argument of the setter `padding_idx`.
fn row(index: impl Integer) -> Option<isize> {
    Some(index.into_isize())
}

options! {
    /// Options of [`embedding`].
    #[derive(Clone, Copy, Debug)]
    EmbeddingOptions [] [] {
        /// Sets the row that gets no gradient. Negative: counted from the end. Default: none.
        padding_idx: Option<isize> = None, impl Integer => row;
    }
}

options! {
    /// Options of [`one_hot`]. A `usize` converts into options with that `num_classes`.
    #[derive(Clone, Copy, Debug)]
    OneHotOptions [] [] {
        /// Sets the number of classes. Default: the largest index plus one, for which the host waits.
        num_classes: Option<usize> = None, impl Into<Option<usize>> => Into::into;
    }
}

impl From<usize> for OneHotOptions {
    fn from(num_classes: usize) -> Self {
        Self::new().num_classes(num_classes)
    }
}

/// Gathers the rows of `weight` that the indices in `input` name (`torch.nn.functional.embedding`).
/// Gradients are summed in the order of the indices, so they are reproducible.
///
/// ```
/// # use warpline::{functional, tensor};
/// let weight = tensor(&[[0.5f32, 1.0], [1.5, 2.0]], ())?.requires_grad_(true)?;
/// let options = functional::EmbeddingOptions::new().padding_idx(0);
/// let rows = functional::embedding(&tensor(&[1i64, 0, 1], ())?, &weight, options)?;
/// rows.sum(())?.backward()?;
/// assert_eq!(weight.grad().unwrap().to_vec::<f32>()?, [0.0, 0.0, 2.0, 2.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `padding_idx` is not a row of `weight`. Otherwise the same as
/// [`crate::embedding()`].
#[track_caller]
pub fn embedding(
    input: &Tensor,
    weight: &Tensor,
    options: impl IntoOptions<EmbeddingOptions>,
) -> Result<Tensor> {
    let EmbeddingOptions { padding_idx } = options.into_options();
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

/// Returns one row per index of `input`, as `int64`: a 1 at the index, zeros elsewhere (`torch.nn.functional.one_hot`).
///
/// ```
/// # use warpline::{functional, tensor};
/// let rows = functional::one_hot(&tensor(&[2i64, 0], ())?, 3)?;
/// assert_eq!(rows.to_vec::<i64>()?, [0, 0, 1, 1, 0, 0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::DTypeMismatch`] if `input` is not `int64`. [`ErrorKind::InvalidArgument`] if `input` is empty and
/// `num_classes` is missing.
/// [`ErrorKind::IndexCheck`] if an index is negative or too large, as described at [`Tensor::index_select`].
/// [`ErrorKind::Capture`] if `num_classes` is missing and the stream is being captured. Errors of
/// [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn one_hot(input: &Tensor, options: impl IntoOptions<OneHotOptions>) -> Result<Tensor> {
    const OP: &str = "one_hot";
    let _call = CallScope::enter(OP);
    let OneHotOptions { num_classes } = options.into_options();
    input.as_view().check_dtype(OP, DType::I64)?;
    let classes = match num_classes {
        Some(classes) => classes,
        None if input.numel() == 0 => {
            return Err(Error::invalid(OP, "num_classes must be given if there are no indices"));
        }
        // If all indices are negative, there are 0 classes, and `put` reports the indices as out of range.
        None => input.amax(())?.item::<i64>()?.max(-1).saturating_add(1) as usize,
    };
    let mut sizes = input.size().to_vec();
    sizes.push(classes);
    let out = input.new_zeros(sizes, ())?;
    out.put(OP, -1, &input.unsqueeze(-1)?, Scalar::Int(1).into(), true)?;
    Ok(out)
}
