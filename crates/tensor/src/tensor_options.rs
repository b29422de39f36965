//! Options of functions that make tensors (dtype, device, pinned memory, memory format), and the types of arguments
//! that may be absent or have a default.

use std::borrow::Borrow;
use std::panic::Location;

use half::{bf16, f16};

#[cfg(doc)]
use crate::ErrorKind;
use crate::{DType, Device, Error, Integer, IntoDevice, MemoryFormat, Result, Scalar, Tensor};

/// Dtype, device, page-locking and memory format of a tensor to be made (`dtype=`, `device=`, `pin_memory=`,
/// `memory_format=`).
///
/// Functions take `impl Into<TensorOptions>`, so most calls need no builder. Pass `()` for the defaults, a
/// dtype, a device or its name, a [`MemoryFormat`], or `(dtype, device)`.
///
/// ```
/// use warpline::{DType, TensorOptions, zeros};
///
/// let a = zeros([2, 3], ())?;
/// let b = zeros([2, 3], DType::I64)?;
/// let c = zeros([2, 3], (DType::F16, "cpu"))?;
/// let d = zeros([2, 3], TensorOptions::new().dtype(DType::F16).device("cpu"))?;
/// assert_eq!(c.dtype(), d.dtype());
/// # Ok::<(), warpline::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct TensorOptions {
    dtype: Option<DType>,
    /// The requested device. An invalid name is stored as an error, which the call that uses the options
    /// returns.
    device: Option<Result<Device, Box<Error>>>,
    pin_memory: bool,
    memory_format: Option<MemoryFormat>,
}

impl TensorOptions {
    /// Creates options that leave everything to the defaults of the function.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the dtype. Default: the function's default.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// Sets the device. Default: the function's default. An invalid name becomes an error of the function that
    /// uses the options.
    #[must_use]
    pub fn device(mut self, device: impl IntoDevice) -> Self {
        self.device = Some(device.into_device().map_err(Box::new));
        self
    }

    /// Sets whether the tensor is in page-locked host memory. Default: `false`.
    #[must_use]
    pub fn pin_memory(mut self, pin: bool) -> Self {
        self.pin_memory = pin;
        self
    }

    /// Sets the order of dimensions in memory. Default: row-major, or the order of the source where there is a
    /// source tensor ([`to`](crate::Tensor::to), [`empty_like`](crate::Tensor::empty_like)).
    #[must_use]
    pub fn memory_format(mut self, format: MemoryFormat) -> Self {
        self.memory_format = Some(format);
        self
    }

    /// Returns the requested memory format. `None`: the function's default.
    #[must_use]
    pub fn requested_memory_format(&self) -> Option<MemoryFormat> {
        self.memory_format
    }

    /// Returns the requested dtype. `None`: the function's default.
    #[must_use]
    pub fn requested_dtype(&self) -> Option<DType> {
        self.dtype
    }

    /// Returns the requested device. `None`: the function's default.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidDeviceString`] if the device was given as a string that is not the name of a device.
    #[track_caller]
    pub fn requested_device(&self) -> Result<Option<Device>> {
        match &self.device {
            None => Ok(None),
            Some(Ok(device)) => Ok(Some(*device)),
            Some(Err(error)) => Err(Error::clone(error).at(Location::caller())),
        }
    }

    /// Returns whether page-locked memory is requested.
    #[must_use]
    pub fn pins_memory(&self) -> bool {
        self.pin_memory
    }

    /// Sets the dtype and the device unless they are requested already.
    pub(crate) fn or(mut self, dtype: DType, device: Device) -> Self {
        self.dtype.get_or_insert(dtype);
        self.device.get_or_insert(Ok(device));
        self
    }
}

impl From<()> for TensorOptions {
    fn from((): ()) -> Self {
        Self::new()
    }
}

impl From<DType> for TensorOptions {
    fn from(dtype: DType) -> Self {
        Self::new().dtype(dtype)
    }
}

impl From<MemoryFormat> for TensorOptions {
    fn from(format: MemoryFormat) -> Self {
        Self::new().memory_format(format)
    }
}

macro_rules! from_device {
    ($($ty:ty),*) => {$(
        impl From<$ty> for TensorOptions {
            fn from(device: $ty) -> Self {
                Self::new().device(device)
            }
        }
    )*};
}

from_device!(Device, &Device, &str, String, &String, usize);

impl<D: IntoDevice> From<(DType, D)> for TensorOptions {
    fn from((dtype, device): (DType, D)) -> Self {
        Self::new().dtype(dtype).device(device)
    }
}

impl From<&TensorOptions> for TensorOptions {
    fn from(options: &TensorOptions) -> Self {
        options.clone()
    }
}

/// A tensor that may be absent: `&t`, `Some(&t)`, `None`, or a reference to an `Option` of a tensor. A module's
/// parameter or buffer can take the place of the tensor.
///
/// ```
/// # use warpline::functional::linear;
/// let (x, w) = (warpline::ones([1, 2], ())?, warpline::ones([3, 2], ())?);
/// let bias = Some(warpline::ones([3], ())?);
/// for y in [linear(&x, &w, &bias)?, linear(&x, &w, bias.as_ref())?] {
///     assert_eq!(y.to_vec::<f32>()?, [3.0; 3]);
/// }
/// assert_eq!(linear(&x, &w, None)?.to_vec::<f32>()?, [2.0; 3]);
/// # Ok::<(), warpline::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an optional tensor",
    label = "expected `&t`, `Some(&t)`, `None`, or a reference to an `Option` of a tensor"
)]
pub trait IntoOptionalTensor<'a> {
    /// Returns the tensor, if there is one.
    fn into_optional(self) -> Option<&'a Tensor>;
}

impl<'a> IntoOptionalTensor<'a> for &'a Tensor {
    fn into_optional(self) -> Option<&'a Tensor> {
        Some(self)
    }
}

impl<'a> IntoOptionalTensor<'a> for Option<&'a Tensor> {
    fn into_optional(self) -> Option<&'a Tensor> {
        self
    }
}

impl<'a, T: Borrow<Tensor>> IntoOptionalTensor<'a> for &'a Option<T> {
    fn into_optional(self) -> Option<&'a Tensor> {
        self.as_ref().map(Borrow::borrow)
    }
}

/// An argument that has a default: `()` for the default, or a value.
///
/// ```
/// use warpline::{cat, tensor};
///
/// let (a, b) = (tensor![[1, 2]]?, tensor![[3, 4]]?);
/// assert_eq!(cat(&[&a, &b], ())?.size(), [2, 2]); // dimension 0
/// assert_eq!(cat(&[&a, &b], 1)?.size(), [1, 4]);
/// # Ok::<(), warpline::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrDefault<T>(Option<T>);

impl<T> OrDefault<T> {
    /// Returns the value, or `default` for `()`.
    pub fn or(self, default: T) -> T {
        self.0.unwrap_or(default)
    }
}

impl<T> From<()> for OrDefault<T> {
    fn from((): ()) -> Self {
        Self(None)
    }
}

impl<I: Integer> From<I> for OrDefault<isize> {
    fn from(value: I) -> Self {
        Self(Some(value.into_isize()))
    }
}

macro_rules! or_default {
    ($($value:ty => $target:ty),*) => {$(
        impl From<$value> for OrDefault<$target> {
            fn from(value: $value) -> Self {
                Self(Some(value.into()))
            }
        }
    )*};
}

or_default! { bool => bool, f64 => f64 }

// A generic conversion from `T: Into<Scalar>` could overlap with the conversion from `()`.
or_default! {
    Scalar => Scalar, bool => Scalar, f16 => Scalar, bf16 => Scalar, f32 => Scalar, f64 => Scalar,
    u8 => Scalar, u16 => Scalar, u32 => Scalar, u64 => Scalar, u128 => Scalar, usize => Scalar,
    i8 => Scalar, i16 => Scalar, i32 => Scalar, i64 => Scalar, i128 => Scalar, isize => Scalar
}

/// An options value of a function or module: `()` for the defaults, options, or a value that converts into options.
///
/// Every type that converts into the options implements this trait.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a value of the options `{O}`",
    label = "expected `()` or `{O}`",
    note = "options are made by `new` and one setter per option; the page of `{O}` lists the numbers, tuples and other values that convert into it"
)]
pub trait IntoOptions<O> {
    /// Returns the options.
    fn into_options(self) -> O;
}

#[diagnostic::do_not_recommend]
impl<O, T: Into<O>> IntoOptions<O> for T {
    fn into_options(self) -> O {
        self.into()
    }
}
