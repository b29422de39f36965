//! The macro `tensor!`.

use super::factories::tensor;
use super::tensor_data::TensorData;
use crate::called::Called;
use crate::{Category, DType, Element, Result, Tensor};

/// Makes a tensor on the CPU from literals, as `torch.tensor` does: floats give `float32`, integers `int64`,
/// and bools `bool`. The macro returns a [`Result`].
///
/// Elements are expressions of one type. Rows that differ in length do not compile. Use
/// [`tensor()`](crate::tensor()) to keep the data's own dtype, to choose a dtype or a device, or to make a tensor
/// without dimensions.
///
/// ```
/// use warpline::{DType, tensor};
///
/// let matrix = tensor![[1.0, 2.0], [3.0, 4.0]]?;
/// assert_eq!((matrix.size(), matrix.dtype()), (&[2, 2][..], DType::F32));
/// assert_eq!(tensor![1, 2, 3]?.dtype(), DType::I64);
/// assert_eq!(tensor![true, false]?.dtype(), DType::Bool);
/// assert_eq!(tensor![]?.size(), [0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if a float is out of the range of
/// `float32`. Errors of [`empty()`](crate::empty()).
#[macro_export]
macro_rules! tensor {
    () => { $crate::tensor_of_literals::<[f64; 0]>([]) };
    ($($element:expr),+ $(,)?) => { $crate::tensor_of_literals([$($element),+]) };
}

/// Makes a tensor with the default dtype for the category (bool, integer, float) of the numbers. For
/// [`tensor!`](crate::tensor!).
///
/// # Errors
/// The same as [`tensor!`](crate::tensor!).
#[doc(hidden)]
#[track_caller]
pub fn tensor_of_literals<D: TensorData>(data: D) -> Result<Tensor> {
    let dtype = match D::Elem::DTYPE.category() {
        Category::Float => DType::F32,
        Category::Int => DType::I64,
        Category::Bool => DType::Bool,
    };
    tensor(data, dtype).of("tensor")
}
