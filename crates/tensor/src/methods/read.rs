//! Reads into arrays, nested vectors and numbers, and iteration over rows.

use super::shapes::list;
#[cfg(doc)]
use crate::ErrorKind;
use crate::called::Called;
use crate::{Element, Error, Result, Tensor};

impl Tensor {
    /// Returns the sizes as an array, for a pattern (`b, t, c = x.shape`).
    ///
    /// ```
    /// # use warpline::zeros;
    /// let x = zeros([2, 3, 4], ())?;
    /// let [batch, time, channels] = x.dims()?;
    /// assert_eq!((batch, time, channels), (2, 3, 4));
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if the tensor has another number of dimensions than the array.
    #[doc(alias = "shape")]
    #[doc(alias = "dims2")]
    #[doc(alias = "dims3")]
    #[doc(alias = "dims4")]
    #[track_caller]
    pub fn dims<const N: usize>(&self) -> Result<[usize; N]> {
        match self.size().try_into() {
            Ok(sizes) => Ok(sizes),
            Err(_) => Err(Error::shape(
                "dims",
                format!("expected {N} dimensions, but the tensor has the shape {:?}", self.size()),
            )),
        }
    }

    /// Copies a matrix to the host, as a vector of its rows (`torch.Tensor.tolist`). Waits for the device.
    ///
    /// ```
    /// # use warpline::tensor;
    /// assert_eq!(tensor![[1, 2], [3, 4]]?.to_vec2::<i64>()?, [[1, 2], [3, 4]]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if the tensor does not have two dimensions. Otherwise the same as
    /// [`Tensor::to_vec`].
    #[doc(alias = "tolist")]
    #[track_caller]
    pub fn to_vec2<T: Element>(&self) -> Result<Vec<Vec<T>>> {
        let [rows, _] = self.dims().of("to_vec2")?;
        nested("to_vec2", self.to_vec().of("to_vec2")?, rows)
    }

    /// Copies a tensor of three dimensions to the host, as nested vectors (`torch.Tensor.tolist`). Waits for the
    /// device.
    ///
    /// # Errors
    /// [`ErrorKind::ShapeMismatch`] if the tensor does not have three dimensions. Otherwise the same as
    /// [`Tensor::to_vec`].
    #[doc(alias = "tolist")]
    #[track_caller]
    pub fn to_vec3<T: Element>(&self) -> Result<Vec<Vec<Vec<T>>>> {
        const OP: &str = "to_vec3";
        let [matrices, rows, _] = self.dims().of(OP)?;
        // An overflow leaves too many rows to allocate, which `nested` reports.
        nested(OP, nested(OP, self.to_vec().of(OP)?, matrices.saturating_mul(rows))?, matrices)
    }

    /// Iterates over the first dimension, as `for row in tensor` does in Python: over the views that
    /// [`Tensor::unbind`] returns.
    ///
    /// ```
    /// # use warpline::tensor;
    /// for (row, expected) in tensor![[1, 2], [3, 4]]?.iter()?.zip([3, 7]) {
    ///     assert_eq!(row.sum(())?.item::<i64>()?, expected);
    /// }
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the tensor has no dimensions.
    #[doc(alias = "__iter__")]
    #[track_caller]
    pub fn iter(&self) -> Result<std::vec::IntoIter<Self>> {
        Ok(self.unbind(0).of("iter")?.into_iter())
    }
}

/// Divides `values` into `count` lists of equal length.
#[track_caller]
fn nested<T>(op: &'static str, values: Vec<T>, count: usize) -> Result<Vec<Vec<T>>> {
    let length = values.len().checked_div(count).unwrap_or(0);
    let mut rows = list(op, count)?;
    let mut values = values.into_iter();
    for _ in 0..count {
        rows.push(values.by_ref().take(length).collect());
    }
    Ok(rows)
}

macro_rules! conversions {
    ($($ty:ty),*) => {$(
        /// Reads the only element. The same as [`Tensor::item`].
        impl TryFrom<&Tensor> for $ty {
            type Error = Error;
            #[track_caller]
            fn try_from(tensor: &Tensor) -> Result<Self> {
                tensor.item()
            }
        }

        /// Reads all elements, in row-major order. The same as [`Tensor::to_vec`].
        impl TryFrom<&Tensor> for Vec<$ty> {
            type Error = Error;
            #[track_caller]
            fn try_from(tensor: &Tensor) -> Result<Self> {
                tensor.to_vec()
            }
        }

        /// Reads the rows of a matrix. The same as [`Tensor::to_vec2`].
        impl TryFrom<&Tensor> for Vec<Vec<$ty>> {
            type Error = Error;
            #[track_caller]
            fn try_from(tensor: &Tensor) -> Result<Self> {
                tensor.to_vec2()
            }
        }

        /// Reads a tensor of three dimensions. The same as [`Tensor::to_vec3`].
        impl TryFrom<&Tensor> for Vec<Vec<Vec<$ty>>> {
            type Error = Error;
            #[track_caller]
            fn try_from(tensor: &Tensor) -> Result<Self> {
                tensor.to_vec3()
            }
        }
    )*};
}

conversions!(bool, u8, i8, i16, i32, i64, half::f16, half::bf16, f32, f64);
