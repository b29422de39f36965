//! Functions that create tensors.

use warpline_kernels::{fill, random};
use warpline_runtime::launch;

use super::inplace::check_filled;
use super::tensor_data::TensorData;
#[cfg(doc)]
use crate::ErrorKind;
use crate::exec::empty as empty_in;
use crate::functional::PerDimension;
use crate::{
    CallScope, Category, DType, Device, Element, Error, IntoOptions, IntoShape, OrDefault, Result,
    Runtime, Scalar, Tensor, TensorOptions, runtime,
};

/// Makes a tensor with uninitialized elements (`torch.empty`). Default: `float32` on the CPU.
///
/// # Errors
/// [`ErrorKind::InvalidDeviceString`], [`ErrorKind::NoSuchDevice`] or [`ErrorKind::CudaUnavailable`] if the
/// requested device does not exist. [`ErrorKind::InvalidVariable`] if an environment variable is invalid and
/// the device is a GPU. [`ErrorKind::CannotPin`] if pinned memory is requested on a GPU.
/// [`ErrorKind::InvalidArgument`] if the memory format does not apply to the number of dimensions.
/// [`ErrorKind::SizeOverflow`] if the tensor is larger than the address space. [`ErrorKind::Alloc`] if there is
/// no memory.
#[track_caller]
pub fn empty(sizes: impl IntoShape, options: impl Into<TensorOptions>) -> Result<Tensor> {
    let _call = CallScope::enter("empty");
    empty_in(&runtime(), &sizes.into_shape(), &options.into(), DType::F32)
}

/// Makes a tensor of zeros (`torch.zeros`). Default dtype: `float32`.
///
/// # Errors
/// Errors of [`empty()`] and of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn zeros(sizes: impl IntoShape, options: impl Into<TensorOptions>) -> Result<Tensor> {
    let _call = CallScope::enter("zeros");
    filled(&sizes.into_shape(), Scalar::Int(0), &options.into(), DType::F32)
}

/// Makes a tensor of ones (`torch.ones`). Default dtype: `float32`.
///
/// # Errors
/// Errors of [`empty()`] and of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn ones(sizes: impl IntoShape, options: impl Into<TensorOptions>) -> Result<Tensor> {
    let _call = CallScope::enter("ones");
    filled(&sizes.into_shape(), Scalar::Int(1), &options.into(), DType::F32)
}

/// Makes a tensor with one value everywhere (`torch.full`). Default dtype: `bool`, `int64` or `float32`, for a
/// bool, integer or float.
///
/// ```
/// # use warpline::full;
/// assert_eq!(full([2], 7, ())?.to_string(), "tensor([7, 7])");
/// assert_eq!(full([2], 0.5, ())?.to_string(), "tensor([0.5000, 0.5000])");
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if the requested dtype cannot hold the value. Errors of [`empty()`] and of
/// [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn full(
    sizes: impl IntoShape,
    value: impl Into<Scalar>,
    options: impl Into<TensorOptions>,
) -> Result<Tensor> {
    let _call = CallScope::enter("full");
    let value = value.into();
    filled(&sizes.into_shape(), value, &options.into(), value.default_dtype())
}

#[track_caller]
fn filled(sizes: &[usize], value: Scalar, options: &TensorOptions, dtype: DType) -> Result<Tensor> {
    let out = empty_in(&runtime(), sizes, options, dtype)?;
    out.fill_(value)?;
    Ok(out)
}

/// Makes a tensor from numbers: a scalar, or nested arrays, slices or vectors (`torch.tensor`). The numbers are
/// copied. Default dtype: the dtype of the numbers.
///
/// ```
/// # use warpline::{DType, tensor};
/// let t = tensor(&[[1f32, 2.0], [3.0, 4.0]], ())?;
/// assert_eq!((t.size(), t.dtype()), (&[2, 2][..], DType::F32));
/// assert_eq!(tensor(7i64, ())?.dim(), 0);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`] if rows differ in shape. [`ErrorKind::InvalidArgument`] if the requested dtype
/// cannot hold a number. Errors of [`empty()`] and of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn tensor(data: impl TensorData, options: impl Into<TensorOptions>) -> Result<Tensor> {
    let _call = CallScope::enter("tensor");
    tensor_in(&runtime(), data, &options.into())
}

/// Creates a tensor like [`tensor()`] in a given runtime.
#[track_caller]
pub(super) fn tensor_in<D: TensorData>(
    runtime: &Runtime,
    data: D,
    options: &TensorOptions,
) -> Result<Tensor> {
    let sizes = data.sizes()?;
    let mut elements = Vec::new();
    data.append_to(&mut elements);
    let own = <D::Elem as Element>::DTYPE;
    // Write the elements to host memory in their own dtype first. If the options ask for page-locked memory and
    // no conversion follows, this memory is page-locked already.
    let pin = options.pins_memory() && options.requested_dtype().is_none_or(|d| d == own);
    let host = TensorOptions::new().pin_memory(pin);
    let source = empty_in(runtime, &sizes, &host, own)?;
    launch::write_bytes((source.storage(), 0), bytemuck::cast_slice(&elements))?;
    let dtype = options.requested_dtype().unwrap_or(own);
    if dtype != own {
        for element in &elements {
            check_filled("tensor", element.to_scalar(), dtype)?;
        }
    }
    let device = options.requested_device()?.unwrap_or_default();
    let is_made = dtype == own && pin == options.pins_memory();
    if device == Device::Cpu && is_made && options.requested_memory_format().is_none() {
        return Ok(source);
    }
    let out = empty_in(runtime, &sizes, options, dtype)?;
    out.copy_(&source, ())?;
    Ok(out)
}

/// Makes a vector of the numbers `0, 1, …` that are less than `end` (`torch.arange`). Default dtype: `int64` if
/// `end` is an integer, `float32` if it is a float.
///
/// # Errors
/// The same as [`arange_start_step`].
#[track_caller]
pub fn arange(end: impl Into<Scalar>, options: impl Into<TensorOptions>) -> Result<Tensor> {
    arange_start_step(0, end, 1, options)
}

/// Makes a vector of the numbers `start, start + 1, …` that are less than `end` (`torch.arange`). Default
/// dtype: `int64` if `start` and `end` are integers, otherwise `float32`.
///
/// # Errors
/// The same as [`arange_start_step`].
#[track_caller]
pub fn arange_start(
    start: impl Into<Scalar>,
    end: impl Into<Scalar>,
    options: impl Into<TensorOptions>,
) -> Result<Tensor> {
    arange_start_step(start, end, 1, options)
}

/// Makes a vector of `start, start + step, …`, up to but excluding `end` (`torch.arange`). Default dtype:
/// `int64` if all three are integers, otherwise `float32`.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `step` is zero or leads away from `end`, if an argument is not finite, if
/// the range has too many elements, or if a requested integer dtype cannot hold them. [`ErrorKind::UnsupportedDType`]
/// if bools are requested. Errors of [`empty()`] and of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn arange_start_step(
    start: impl Into<Scalar>,
    end: impl Into<Scalar>,
    step: impl Into<Scalar>,
    options: impl Into<TensorOptions>,
) -> Result<Tensor> {
    let _call = CallScope::enter("arange");
    let (start, end, step) = (start.into(), end.into(), step.into());
    let options = options.into();
    let floats = [start, end, step].iter().any(|s| matches!(s, Scalar::Float(_)));
    let dtype = if floats { DType::F32 } else { DType::I64 };
    let length = range_length(start, end, step, floats)?;
    let out = empty_in(&runtime(), &[length], &options, dtype)?;
    // Integer bounds fit `i64`, so check only smaller integer dtypes.
    let small = out.dtype().category() == Category::Int && out.dtype() != DType::I64;
    if let (Some(last), true) = (length.checked_sub(1), small) {
        check_filled("arange", start, out.dtype())?;
        let last = start.to_f64() + last as f64 * step.to_f64();
        check_filled("arange", Scalar::Float(last), out.dtype())?;
    }
    let exec = out.exec()?;
    fill::arange(exec.target(), out.as_view(), start, step)?;
    Ok(out)
}

#[track_caller]
fn range_length(start: Scalar, end: Scalar, step: Scalar, floats: bool) -> Result<usize> {
    let invalid = |reason: &str| {
        Error::invalid("arange", format!("{reason} (start {start}, end {end}, step {step})"))
    };
    if step.to_f64() == 0.0 {
        return Err(invalid("the step must not be zero"));
    }
    if floats {
        let (start, end, step) = (start.to_f64(), end.to_f64(), step.to_f64());
        if !(start.is_finite() && end.is_finite() && step.is_finite()) {
            return Err(invalid("the bounds and the step must be finite"));
        }
        let length = ((end - start) / step).ceil();
        if (end - start) * step.signum() < 0.0 {
            return Err(invalid("the step leads away from the end"));
        }
        if length >= isize::MAX as f64 || length.is_nan() {
            return Err(invalid("the range has too many elements"));
        }
        return Ok(length as usize);
    }
    let wide = |s: Scalar| i128::from(s.to_i64());
    let (start, end, step) = (wide(start), wide(end), wide(step));
    if (end - start) * step.signum() < 0 {
        return Err(invalid("the step leads away from the end"));
    }
    let length = ((end - start) * step.signum() + step.abs() - 1) / step.abs();
    usize::try_from(length).map_err(|_| invalid("the range has too many elements"))
}

/// Makes a vector of `steps` evenly spaced values from `start` to `end`, both included (`torch.linspace`).
/// Default dtype: `float32`.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if a bound is not finite. [`ErrorKind::UnsupportedDType`] if bools are
/// requested. Errors of [`empty()`] and of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn linspace(
    start: impl Into<Scalar>,
    end: impl Into<Scalar>,
    steps: usize,
    options: impl Into<TensorOptions>,
) -> Result<Tensor> {
    let _call = CallScope::enter("linspace");
    let (start, end) = (start.into(), end.into());
    if !(start.to_f64().is_finite() && end.to_f64().is_finite()) {
        return Err(Error::invalid(
            "linspace",
            format!("the bounds must be finite, but are {} and {}", start.to_f64(), end.to_f64()),
        ));
    }
    let out = empty_in(&runtime(), &[steps], &options.into(), DType::F32)?;
    let exec = out.exec()?;
    fill::linspace(exec.target(), out.as_view(), start.to_f64(), end.to_f64())?;
    Ok(out)
}

/// Makes a vector of `base` to the power of each value of [`linspace`] (`torch.logspace`). Default of `base`: 10.
/// Default dtype: `float32`.
///
/// ```
/// # use warpline::logspace;
/// assert_eq!(logspace(-1, 1, 3, (), ())?.to_vec::<f32>()?, [0.1, 1.0, 10.0]);
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if a bound is not finite. Errors of [`empty()`] and of
/// [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn logspace(
    start: impl Into<Scalar>,
    end: impl Into<Scalar>,
    steps: usize,
    base: impl IntoOptions<OrDefault<f64>>,
    options: impl Into<TensorOptions>,
) -> Result<Tensor> {
    let _call = CallScope::enter("logspace");
    let options = options.into();
    let exact = options.clone().dtype(DType::F64).pin_memory(false);
    let powers = linspace(start, end, steps, exact)?.rpow(base.into_options().or(10.0))?;
    let out = empty_in(&runtime(), &[steps], &options, DType::F32)?;
    out.copy_(&powers, ())?;
    Ok(out)
}

/// Makes a matrix with ones on its diagonal and zeros elsewhere (`torch.eye`). `sizes` is the number of rows and
/// columns, or a tuple of both. Default dtype: `float32`.
///
/// ```
/// # use warpline::eye;
/// assert_eq!((eye(3, ())?.size(), eye((3, 4), ())?.size()), (&[3, 3][..], &[3, 4][..]));
/// # Ok::<(), warpline::Error>(())
/// ```
///
/// # Errors
/// Errors of [`empty()`] and of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn eye(sizes: impl PerDimension<2>, options: impl Into<TensorOptions>) -> Result<Tensor> {
    let _call = CallScope::enter("eye");
    let sizes = sizes.per_dimension();
    let out = empty_in(&runtime(), &sizes, &options.into(), DType::F32)?;
    let exec = out.exec()?;
    fill::eye(exec.target(), out.as_view())?;
    Ok(out)
}

/// Makes a tensor of random values, uniform in `[0, 1)` (`torch.rand`). Default dtype: `float32`.
///
/// # Errors
/// [`ErrorKind::UnsupportedDType`] if the requested dtype is not a float. Errors of [`empty()`] and of
/// [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn rand(sizes: impl IntoShape, options: impl Into<TensorOptions>) -> Result<Tensor> {
    let _call = CallScope::enter("rand");
    let out = empty_in(&runtime(), &sizes.into_shape(), &options.into(), DType::F32)?;
    out.uniform_(())?;
    Ok(out)
}

/// Makes a tensor of random values from the standard normal distribution (`torch.randn`). Default dtype:
/// `float32`.
///
/// # Errors
/// The same as [`rand`].
#[track_caller]
pub fn randn(sizes: impl IntoShape, options: impl Into<TensorOptions>) -> Result<Tensor> {
    let _call = CallScope::enter("randn");
    let out = empty_in(&runtime(), &sizes.into_shape(), &options.into(), DType::F32)?;
    out.normal_(())?;
    Ok(out)
}

/// Makes a tensor of random integers from `low` up to but excluding `high` (`torch.randint`). Default dtype:
/// `int64`.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `high` is not greater than `low`, or if the requested dtype cannot hold
/// the integers. Errors of [`empty()`] and of [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn randint(
    low: i64,
    high: i64,
    sizes: impl IntoShape,
    options: impl Into<TensorOptions>,
) -> Result<Tensor> {
    let _call = CallScope::enter("randint");
    let out = empty_in(&runtime(), &sizes.into_shape(), &options.into(), DType::I64)?;
    out.random_(low, high)?;
    Ok(out)
}

/// Makes a vector of the integers `0..n` in random order (`torch.randperm`). Default dtype: `int64`.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if the requested dtype cannot hold the integers.
/// [`ErrorKind::UnsupportedDType`] if the requested dtype is bool. Errors of [`empty()`] and of
/// [every op](Tensor#errors-of-every-op).
#[track_caller]
pub fn randperm(n: usize, options: impl Into<TensorOptions>) -> Result<Tensor> {
    let _call = CallScope::enter("randperm");
    let out = empty_in(&runtime(), &[n], &options.into(), DType::I64)?;
    let exec = out.exec()?;
    random::randperm(exec.target(), out.as_view())?;
    Ok(out)
}

impl Tensor {
    /// Makes a tensor of the given sizes from a vector of its elements, in row-major order. [`tensor()`] takes
    /// nested arrays.
    ///
    /// ```
    /// # use warpline::Tensor;
    /// let t = Tensor::from_vec(vec![1f32, 2.0, 3.0, 4.0], [2, 2], ())?;
    /// assert_eq!(t.size(), [2, 2]);
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidReshape`] if the number of elements is not the product of the sizes. Errors of
    /// [`tensor()`].
    #[doc(alias = "from_shape_vec")]
    #[doc(alias = "from_slice")]
    #[doc(alias = "from_numpy")]
    #[track_caller]
    pub fn from_vec<T: TensorData + Element>(
        elements: Vec<T>,
        sizes: impl IntoShape,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        let _call = CallScope::enter("from_vec");
        let options = options.into();
        let flat = tensor_in(&runtime(), elements, &options)?;
        // Detach the result, so that it is not a view of `flat`.
        let sized = flat.reshape(&sizes.into_shape())?.detach();
        match options.requested_memory_format() {
            Some(format) => sized.contiguous_in(format),
            None => Ok(sized),
        }
    }
}
