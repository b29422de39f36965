//! Reads into arrays, vectors and numbers, and iteration over rows.

use bytemuck::checked;
use half::{bf16, f16};
use smallvec::SmallVec;
use warpline_runtime::launch;

use super::shapes::list;
use crate::exec::Exec;
use crate::{CallScope, DType, Element, Error, ErrorKind, Result, Scalar, Tensor};

impl Tensor {
    /// Returns the sizes as an array, to be matched by a pattern (Python's `b, t, c = x.shape`).
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
    /// [`ErrorKind::ShapeMismatch`] if the tensor has a different number of dimensions than the array.
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

    /// Copies all elements to the host, in row-major order (`torch.Tensor.tolist`). Waits for the device.
    ///
    /// # Errors
    /// [`ErrorKind::DTypeMismatch`] if `T` is not the tensor's dtype. [`ErrorKind::Surfaced`] if earlier work
    /// on the device failed. [`ErrorKind::Capture`] if the stream is being captured. Errors of [every
    /// op](Tensor#errors-of-every-op).
    #[doc(alias = "tolist")]
    #[doc(alias = "numpy")]
    #[doc(alias = "to_vec1")]
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let _call = CallScope::enter("to_vec");
        self.as_view().check_dtype("to_vec", T::DTYPE)?;
        self.check_readable("to_vec")?;
        let copied;
        let host = if self.is_cuda() || !self.is_contiguous() {
            copied = self.cpu()?.contiguous()?;
            &copied
        } else {
            self
        };
        // The buffer is aligned for every dtype. A small buffer needs no allocation.
        let bytes = host.numel() * host.element_size();
        let mut words: SmallVec<[u64; 32]> = SmallVec::from_elem(0, bytes.div_ceil(8));
        let out = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes];
        launch::read_bytes((host.storage(), host.byte_offset()), out)?;
        match checked::try_cast_slice::<u8, T>(out) {
            Ok(values) => Ok(values.to_vec()),
            Err(e) => {
                let reason = format!("the memory holds no valid {}: {e}", self.dtype());
                Err(Error::invalid("to_vec", reason))
            }
        }
    }

    /// Copies all elements to the host as numbers, in row-major order. Waits for the device.
    ///
    /// # Errors
    /// The same as [`Tensor::to_vec`], except [`ErrorKind::DTypeMismatch`].
    #[track_caller]
    pub fn to_scalars(&self) -> Result<Vec<Scalar>> {
        let _call = CallScope::enter("to_scalars");
        macro_rules! by_dtype {
            ($($dtype:ident => $ty:ty),*) => {
                match self.dtype() {
                    $(DType::$dtype => {
                        self.to_vec::<$ty>()?.into_iter().map(Element::to_scalar).collect()
                    })*
                }
            };
        }
        Ok(by_dtype!(
            Bool => bool, U8 => u8, I8 => i8, I16 => i16, I32 => i32, I64 => i64,
            F16 => f16, BF16 => bf16, F32 => f32, F64 => f64
        ))
    }

    /// Returns the only element as a number. Waits for the device.
    ///
    /// # Errors
    /// [`ErrorKind::NotAScalar`] if the tensor does not have exactly one element. Otherwise the same as
    /// [`Tensor::to_scalars`].
    #[track_caller]
    pub fn to_scalar(&self) -> Result<Scalar> {
        let _call = CallScope::enter("to_scalar");
        let not_one = || ErrorKind::NotAScalar { numel: self.numel() }.of("to_scalar");
        if self.numel() != 1 {
            return Err(not_one());
        }
        self.to_scalars()?.first().copied().ok_or_else(not_one)
    }

    /// Returns the only element as a type that can hold it (`torch.Tensor.item`). Waits for the device.
    ///
    /// ```
    /// # use warpline::tensor;
    /// assert_eq!(tensor([1.5f32, 2.5], ())?.sum(())?.item::<f64>()?, 4.0);
    /// assert_eq!(tensor(3i64, ())?.item::<u8>()?, 3);
    /// let error = tensor(300i64, ())?.item::<u8>().unwrap_err();
    /// let text = error.to_string(); // ends with the line of the call
    /// assert!(text.starts_with("item: the value 300 of torch.int64 does not fit torch.uint8"));
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::ValueDoesNotFit`] if `T` is an integer type and the element is outside its range, has a fraction or
    /// is not finite, or if `T` is a float type in which the finite element would become infinite. Otherwise the same
    /// as [`Tensor::to_scalar`].
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        let _call = CallScope::enter("item");
        self.check_readable("item")?;
        let (value, dtype) = (self.to_scalar()?, self.dtype());
        let op = "item";
        T::from_scalar(value)
            .ok_or(ErrorKind::ValueDoesNotFit { value, dtype, asked: T::DTYPE }.of(op))
    }

    /// Fails if the stream is being captured, because captured work does not run and the host would wait
    /// forever.
    #[track_caller]
    fn check_readable(&self, op: &'static str) -> Result<()> {
        match self.exec()? {
            Exec::Cuda(_, _, stream) if stream.is_capturing() => {
                let reason = "the host would wait for the values; read them after a replay";
                Err(Error::capture(op, reason))
            }
            _ => Ok(()),
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
        let _call = CallScope::enter("to_vec2");
        let [rows, _] = self.dims()?;
        nested("to_vec2", self.to_vec()?, rows)
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
        let _call = CallScope::enter("to_vec3");
        const OP: &str = "to_vec3";
        let [matrices, rows, _] = self.dims()?;
        // If the product overflows, there are too many rows to allocate, which `nested` reports.
        nested(OP, nested(OP, self.to_vec()?, matrices.saturating_mul(rows))?, matrices)
    }

    /// Returns an iterator over the first dimension, as `for row in tensor` does in Python. It yields the views
    /// that [`Tensor::unbind`] returns.
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
        let _call = CallScope::enter("iter");
        Ok(self.unbind(0)?.into_iter())
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

macro_rules! wide_conversions {
    ($($ty:ty),*) => {$(
        /// Reads the only element, as [`Tensor::item`] reads an `i64`.
        impl TryFrom<&Tensor> for $ty {
            type Error = Error;
            #[track_caller]
            fn try_from(tensor: &Tensor) -> Result<Self> {
                let value = tensor.item::<i64>()?;
                match value.try_into() {
                    Ok(value) => Ok(value),
                    Err(_) => {
                        let reason = format!("the value {value} does not fit {}", stringify!($ty));
                        Err(Error::invalid("item", reason))
                    }
                }
            }
        }
    )*};
}

// These types have no dtype, so they are no elements.
wide_conversions!(u32, u64, usize);
