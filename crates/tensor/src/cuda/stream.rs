//! Functions that create streams and set the current stream.

use warpline_cuda_sys_safe::owned;
use warpline_stream::StreamDevice;

use super::{CudaDeviceArg, Stream, StreamGuard};
use crate::ambient::CurrentRuntime;
use crate::called::Called as _;
use crate::{Device, Error, Result, runtime};

/// Returns this thread's current stream of a device (`torch.cuda.current_stream`).
///
/// # Errors
/// The same as [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn current_stream(device: impl CudaDeviceArg) -> Result<Stream> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("current_stream")?;
    runtime.devices()?.current_stream(index)
}

/// Returns the default stream of a device (`torch.cuda.default_stream`). The default stream and the other
/// blocking streams of the device wait for each other.
///
/// # Errors
/// The same as [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn default_stream(device: impl CudaDeviceArg) -> Result<Stream> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("default_stream")?;
    Ok(runtime.device(index)?.device().default_stream().clone())
}

/// A marker of [`StreamDevice`] for devices named in the ambient runtime.
#[derive(Debug)]
pub struct Ambient;

macro_rules! stream_devices {
    ($($ty:ty),*) => {$(
        /// A device of the [ambient runtime](crate::runtime).
        impl StreamDevice<Ambient> for $ty {
            type Error = Error;

            #[track_caller]
            fn stream(self, priority: i32) -> Result<Stream> {
                let runtime = runtime();
                let index = self.index_in(&runtime).of("Stream::new")?;
                runtime.device(index)?.device().stream_from_pool(priority)
            }
        }
    )*};
}

stream_devices!((), usize, Device, &Device, &str, &String, String);

/// Creates a stream that is not shared. `priority` is lower for work that is to run first.
///
/// # Errors
/// [`ErrorKind::Driver`](crate::ErrorKind::Driver) if the driver fails. Otherwise the same as
/// [`CudaDeviceArg::index_in`].
#[doc(alias = "Stream")]
#[track_caller]
pub fn exclusive_stream(device: impl CudaDeviceArg, priority: i32) -> Result<Stream> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("exclusive_stream")?;
    runtime.device(index)?.device().exclusive_stream(priority)
}

/// Wraps a stream made elsewhere (`torch.cuda.ExternalStream`).
///
/// # Errors
/// [`ErrorKind::RuntimeMismatch`](crate::ErrorKind::RuntimeMismatch) if the stream belongs to another driver,
/// or another runtime on the same driver uses the stream.
#[doc(alias = "ExternalStream")]
#[track_caller]
pub fn external_stream(stream: owned::Stream) -> Result<Stream> {
    let runtime = runtime();
    let index = stream.device();
    runtime.device(index)?.device().external_stream(stream)
}

/// Sets this thread's current stream on the stream's device, and makes that device the current device
/// (`torch.cuda.set_stream`). [`stream`] and [`with_stream`] also restore the previous ones.
///
/// # Errors
/// [`ErrorKind::RuntimeMismatch`](crate::ErrorKind::RuntimeMismatch) if the stream belongs to another runtime.
#[track_caller]
pub fn set_stream(stream: &Stream) -> Result<()> {
    let runtime = runtime();
    let devices = runtime.devices()?;
    devices.set_current_stream(stream).map_err(|e| e.of("set_stream"))?;
    devices.set_device(stream.device_index())?;
    Ok(())
}

/// Sets the current stream of the stream's device, and makes that device the current device, until the guard is
/// dropped (`torch.cuda.stream`).
///
/// # Errors
/// [`ErrorKind::RuntimeMismatch`](crate::ErrorKind::RuntimeMismatch) if the stream belongs to another runtime.
#[inline(always)] // as in `Devices::stream_guard`
#[doc(alias = "StreamContext")]
#[track_caller]
pub fn stream(stream: &Stream) -> Result<StreamGuard> {
    CurrentRuntime::get().devices()?.stream_guard(stream).map_err(|e| e.of("stream"))
}

/// Runs `f` with a stream as the current stream, and restores the previous one, even if `f` panics.
///
/// # Errors
/// Errors of `f`. [`ErrorKind::RuntimeMismatch`](crate::ErrorKind::RuntimeMismatch) if the stream belongs to
/// another runtime; `f` does not run then.
#[track_caller]
pub fn with_stream<R>(stream: &Stream, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let guard = CurrentRuntime::get().devices()?.stream_guard(stream);
    let _guard = guard.map_err(|e| e.of("with_stream"))?;
    f()
}
