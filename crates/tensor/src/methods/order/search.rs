//! Positions of values among sorted values.

use warpline_kernels::sort;

use crate::exec::check_together;
use crate::methods::result_type;
use crate::{CallScope, DType, IntoOptions, OrDefault, Result, Tensor};

/// Finds, for each value, the position in `sorted` at which an insertion of the value keeps the order
/// (`torch.searchsorted`). All elements before the position are less than the value or, if `right` is true,
/// less than or equal to it. Default of `right`: `false`. `sorted` must be a vector, or have one row per row of
/// `values`. The result is `int64` and has the shape of `values`.
///
/// ```
/// # use warpline::{searchsorted, tensor};
/// let sorted = tensor(&[1, 3, 5], ())?;
/// let places = searchsorted(&sorted, &tensor(&[3, 6], ())?, ())?;
/// assert_eq!(places.to_vec::<i64>()?, [1, 3]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::DTypeMismatch`](crate::ErrorKind::DTypeMismatch) if the dtypes differ.
/// [`ErrorKind::ShapeMismatch`](crate::ErrorKind::ShapeMismatch) if `sorted` is not a vector, and its sizes
/// except the last differ from those of `values`.
/// [`ErrorKind::UnsupportedDType`](crate::ErrorKind::UnsupportedDType) if the tensors are boolean. Errors of
/// [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn searchsorted(
    sorted: &Tensor,
    values: &Tensor,
    right: impl IntoOptions<OrDefault<bool>>,
) -> Result<Tensor> {
    let _call = CallScope::enter("searchsorted");
    let right = right.into_options().or(false);
    check_together("searchsorted", values, sorted)?;
    let exec = values.exec()?;
    let out = exec.empty(values.size(), DType::I64)?;
    let (of, to) = (values.as_view(), out.as_view());
    sort::searchsorted(exec.target(), sorted.as_view(), of, to, right)?;
    Ok(out)
}

/// Returns a bool tensor: true where the element is in `test_elements` (`torch.isin`). Both tensors are converted to
/// the dtype of [`result_type`].
///
/// # Errors
/// Errors of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn isin(elements: &Tensor, test_elements: &Tensor) -> Result<Tensor> {
    const OP: &str = "isin";
    let _call = CallScope::enter(OP);
    check_together(OP, elements, test_elements)?;
    let dtype = result_type(elements, test_elements);
    // The kernel does not compare bools.
    let dtype = if dtype == DType::Bool { DType::U8 } else { dtype };
    let of = |t: &Tensor| t.detach().in_dtype(dtype);
    let (elements, tests) = (of(elements)?, of(test_elements)?);
    if tests.numel() == 0 {
        return elements.new_zeros(elements.size(), DType::Bool);
    }
    let (sorted, _) = tests.reshape([tests.numel() as isize])?.sort(0)?;
    let places = searchsorted(&sorted, &elements, ())?;
    let places = places.clamp_max(sorted.numel() as i64 - 1)?;
    sorted.take(&places)?.eq(&elements)
}

impl Tensor {
    /// Finds the position of each element of this tensor among sorted boundaries, as [`searchsorted`] does
    /// (`torch.bucketize`). `boundaries` must be a vector. Default of `right`: `false`.
    ///
    /// # Errors
    /// The same as [`searchsorted`]. [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if
    /// `boundaries` is not a vector.
    #[track_caller]
    pub fn bucketize(
        &self,
        boundaries: &Tensor,
        right: impl IntoOptions<OrDefault<bool>>,
    ) -> Result<Self> {
        let _call = CallScope::enter("bucketize");
        if boundaries.dim() != 1 {
            let reason =
                format!("the boundaries have sizes {:?}, but must be a vector", boundaries.size());
            return Err(crate::Error::invalid("bucketize", reason));
        }
        searchsorted(boundaries, self, right)
    }
}
