//! Types that name a device.

use std::panic::Location;

#[cfg(doc)]
use crate::ErrorKind;
use crate::{Device, Error, Result};

/// A value that names a device: a [`Device`], a string such as `"cuda:1"`, or the index of a GPU.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name a device",
    label = "expected a `Device`, a name such as \"cuda:1\" or \"cpu\", or a GPU's index"
)]
pub trait IntoDevice {
    /// Converts the value to a device.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidDeviceString`] if a string is not the name of a device.
    fn into_device(self) -> Result<Device>;
}

impl IntoDevice for Device {
    #[track_caller]
    fn into_device(self) -> Result<Device> {
        Ok(self)
    }
}

impl IntoDevice for &Device {
    #[track_caller]
    fn into_device(self) -> Result<Device> {
        Ok(*self)
    }
}

impl IntoDevice for &str {
    #[track_caller]
    fn into_device(self) -> Result<Device> {
        let location = Location::caller();
        self.parse().map_err(|e: Error| e.at(location))
    }
}

impl IntoDevice for String {
    #[track_caller]
    fn into_device(self) -> Result<Device> {
        self.as_str().into_device()
    }
}

impl IntoDevice for &String {
    #[track_caller]
    fn into_device(self) -> Result<Device> {
        self.as_str().into_device()
    }
}

/// The index of a GPU, as an `int` is in PyTorch.
impl IntoDevice for usize {
    #[track_caller]
    fn into_device(self) -> Result<Device> {
        Ok(Device::Cuda(Some(self)))
    }
}
