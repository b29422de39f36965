//! Streams: where they come from, and which is current.

use warpline_cuda_sys_safe::owned;
use warpline_stream::StreamDevice;

use super::{CudaDeviceArg, Stream, StreamGuard};
use crate::ambient::InUse;
use crate::called::Called as _;
use crate::{Device, Error, Result, runtime};

/// This thread's current stream of a device.
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn current_stream(device: impl CudaDeviceArg) -> Result<Stream> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("current_stream")?;
    runtime.devices()?.current_stream(index)
}

/// A device's default stream, which waits for its other blocking streams and they for it.
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn default_stream(device: impl CudaDeviceArg) -> Result<Stream> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("default_stream")?;
    Ok(runtime.device(index)?.device().default_stream().clone())
}

/// Tells devices that are named in the ambient runtime from those of other crates.
#[derive(Debug)]
pub struct Ambient;

macro_rules! stream_devices {
    ($($ty:ty),*) => {$(
        /// Of the [ambient runtime](crate::runtime).
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

/// A stream that nobody else is given.
///
/// # Errors
/// The driver's own; as [`CudaDeviceArg::index_in`].
#[doc(alias = "Stream")]
#[track_caller]
pub fn exclusive_stream(device: impl CudaDeviceArg, priority: i32) -> Result<Stream> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("exclusive_stream")?;
    runtime.device(index)?.device().exclusive_stream(priority)
}

/// A stream made elsewhere (`torch.cuda.ExternalStream`).
///
/// # Errors
/// [`ErrorKind::RuntimeMismatch`](crate::ErrorKind::RuntimeMismatch) if the stream belongs to another driver.
#[doc(alias = "ExternalStream")]
#[track_caller]
pub fn external_stream(stream: owned::Stream) -> Result<Stream> {
    let runtime = runtime();
    let index = stream.device();
    runtime.device(index)?.device().external_stream(stream)
}

/// Makes a stream this thread's current one on its device (`torch.cuda.set_stream`), and that
/// device the current one. [`stream`] and [`with_stream`] also put the former ones back.
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

/// Makes a stream the current one of its device, and that device the current one, until the guard
/// is dropped (`torch.cuda.stream`).
///
/// # Errors
/// [`ErrorKind::RuntimeMismatch`](crate::ErrorKind::RuntimeMismatch) if the stream belongs to another runtime.
#[inline(always)] // as in `Devices::stream_guard`
#[doc(alias = "StreamContext")]
#[track_caller]
pub fn stream(stream: &Stream) -> Result<StreamGuard> {
    InUse::get().devices()?.stream_guard(stream).map_err(|e| e.of("stream"))
}

/// Runs `f` with a stream as the current one; the former one is back afterwards, after a panic
/// too.
///
/// # Errors
/// [`ErrorKind::RuntimeMismatch`](crate::ErrorKind::RuntimeMismatch) if the stream belongs to another runtime; `f` is not run then.
#[track_caller]
pub fn with_stream<R>(stream: &Stream, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let guard = InUse::get().devices()?.stream_guard(stream);
    let _guard = guard.map_err(|e| e.of("with_stream"))?;
    f()
}
