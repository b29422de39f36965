//! Where values belong among sorted ones.

use warpline_kernels::sort;

use crate::called::Called;
use crate::exec::check_together;
use crate::methods::result_type;
use crate::{DType, Result, Tensor};

/// For each of `values` where it belongs in `sorted`, so that all before are less, or with `right` no larger
/// (`torch.searchsorted`). `sorted` is a vector, or has a row for each row of the values. `int64`.
///
/// ```
/// # use warpline::{searchsorted, tensor};
/// let sorted = tensor(&[1, 3, 5], ())?;
/// let places = searchsorted(&sorted, &tensor(&[3, 6], ())?, false)?;
/// assert_eq!(places.to_vec::<i64>()?, [1, 3]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::DTypeMismatch`](crate::ErrorKind::DTypeMismatch);
/// [`ErrorKind::ShapeMismatch`](crate::ErrorKind::ShapeMismatch);
/// [`ErrorKind::UnsupportedDType`](crate::ErrorKind::UnsupportedDType) of bools;
/// [`ErrorKind::DeviceMismatch`](crate::ErrorKind::DeviceMismatch).
#[track_caller]
pub fn searchsorted(sorted: &Tensor, values: &Tensor, right: bool) -> Result<Tensor> {
    check_together("searchsorted", values, sorted)?;
    let exec = values.exec()?;
    let out = exec.empty(values.size(), DType::I64).of("searchsorted")?;
    let (of, to) = (values.as_view(), out.as_view());
    sort::searchsorted(exec.target(), sorted.as_view(), of, to, right)?;
    Ok(out)
}

/// Whether each of `elements` is among `test_elements` (`torch.isin`).
///
/// # Errors
/// As [`searchsorted`]; both are converted to the dtype in which they meet.
#[track_caller]
pub fn isin(elements: &Tensor, test_elements: &Tensor) -> Result<Tensor> {
    const OP: &str = "isin";
    check_together(OP, elements, test_elements)?;
    let dtype = result_type(elements, test_elements);
    // Bools have no order to search.
    let dtype = if dtype == DType::Bool { DType::U8 } else { dtype };
    let of = |t: &Tensor| t.detach().in_dtype(dtype);
    let (elements, tests) = (of(elements).of(OP)?, of(test_elements).of(OP)?);
    if tests.numel() == 0 {
        return elements.new_zeros(elements.size(), DType::Bool).of(OP);
    }
    let (sorted, _) = tests.reshape([tests.numel() as isize]).of(OP)?.sort(0, false).of(OP)?;
    let places = searchsorted(&sorted, &elements, false).of(OP)?;
    let places = places.clamp_max(sorted.numel() as i64 - 1).of(OP)?;
    sorted.take(&places).of(OP)?.eq(&elements).of(OP)
}

impl Tensor {
    /// [`searchsorted`] of this tensor's elements in a vector of boundaries (`torch.bucketize`).
    ///
    /// # Errors
    /// As there; [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for boundaries that are no vector.
    #[track_caller]
    pub fn bucketize(&self, boundaries: &Tensor, right: bool) -> Result<Self> {
        if boundaries.dim() != 1 {
            let reason =
                format!("the boundaries have sizes {:?}, but must be a vector", boundaries.size());
            return Err(crate::Error::invalid("bucketize", reason));
        }
        searchsorted(boundaries, self, right).of("bucketize")
    }
}
