//! What a factory is told besides sizes: dtype, device, page-locking, memory format.

use std::panic::Location;

use crate::{DType, Device, Error, IntoDevice, MemoryFormat, Result};

/// Where and as what a tensor is made (`dtype=`, `device=`, `pin_memory=`, `memory_format=`).
///
/// Functions take `impl Into<TensorOptions>`, so most calls need no builder: `()` for the
/// defaults, a dtype, a device or its name, or `(dtype, device)`.
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
    /// A bad name is kept and reported by the call that uses the options.
    device: Option<Result<Device, Box<Error>>>,
    pin_memory: bool,
    memory_format: Option<MemoryFormat>,
}

impl TensorOptions {
    /// Nothing asked for: each function's own defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for a dtype.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }

    /// Asks for a device. A name that means nothing is reported by the function that is given
    /// these options.
    #[must_use]
    pub fn device(mut self, device: impl IntoDevice) -> Self {
        self.device = Some(device.into_device().map_err(Box::new));
        self
    }

    /// Asks for page-locked host memory.
    #[must_use]
    pub fn pin_memory(mut self, pin: bool) -> Self {
        self.pin_memory = pin;
        self
    }

    /// Asks for an order of dimensions in memory.
    #[must_use]
    pub fn memory_format(mut self, format: MemoryFormat) -> Self {
        self.memory_format = Some(format);
        self
    }

    /// The order of dimensions asked for.
    #[must_use]
    pub fn requested_memory_format(&self) -> Option<MemoryFormat> {
        self.memory_format
    }

    /// The dtype asked for.
    #[must_use]
    pub fn requested_dtype(&self) -> Option<DType> {
        self.dtype
    }

    /// The device asked for.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidDeviceString`] where its name meant nothing.
    #[track_caller]
    pub fn requested_device(&self) -> Result<Option<Device>> {
        match &self.device {
            None => Ok(None),
            Some(Ok(device)) => Ok(Some(*device)),
            Some(Err(error)) => Err(Error::clone(error).at(Location::caller())),
        }
    }

    /// Whether page-locked memory is asked for.
    #[must_use]
    pub fn pins_memory(&self) -> bool {
        self.pin_memory
    }

    /// These, with what is not asked for taken from `dtype` and `device`.
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
