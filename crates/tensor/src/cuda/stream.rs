//! Streams: where they come from, and which is current.

use warpline_cuda_sys_safe::owned;

use super::{CudaDeviceArg, Stream, StreamGuard};
use crate::ambient::InUse;
use crate::{Result, runtime};

/// This thread's current stream of a device.
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn current_stream(device: impl CudaDeviceArg) -> Result<Stream> {
    let runtime = runtime();
    let index = device.index_in(&runtime)?;
    Ok(runtime.devices()?.current_stream(index)?)
}

/// A device's default stream, which waits for its other blocking streams and they for it.
///
/// # Errors
/// As [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn default_stream(device: impl CudaDeviceArg) -> Result<Stream> {
    let runtime = runtime();
    let index = device.index_in(&runtime)?;
    Ok(runtime.device(index)?.device().default_stream().clone())
}

/// A stream from the device's pool of 32 per priority, handed out in turn
/// (`torch.cuda.Stream(device, priority)`). `priority` goes from 0, the least, to −3.
///
/// # Errors
/// The driver's own; as [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn stream_from_pool(device: impl CudaDeviceArg, priority: i32) -> Result<Stream> {
    let runtime = runtime();
    let index = device.index_in(&runtime)?;
    Ok(runtime.device(index)?.device().stream_from_pool(priority)?)
}

/// A stream that nobody else is given.
///
/// # Errors
/// The driver's own; as [`CudaDeviceArg::index_in`].
#[track_caller]
pub fn exclusive_stream(device: impl CudaDeviceArg, priority: i32) -> Result<Stream> {
    let runtime = runtime();
    let index = device.index_in(&runtime)?;
    Ok(runtime.device(index)?.device().exclusive_stream(priority)?)
}

/// A stream made elsewhere (`torch.cuda.ExternalStream`).
///
/// # Errors
/// [`crate::Error::Stream`] when it is of another driver.
#[track_caller]
pub fn external_stream(stream: owned::Stream) -> Result<Stream> {
    let runtime = runtime();
    let index = stream.device();
    Ok(runtime.device(index)?.device().external_stream(stream)?)
}

/// Makes a stream this thread's current one on its device (`torch.cuda.set_stream`), and that
/// device the current one. [`stream`] and [`with_stream`] also put the former ones back.
///
/// # Errors
/// [`crate::Error::Stream`] when it is of another runtime.
#[track_caller]
pub fn set_stream(stream: &Stream) -> Result<()> {
    let runtime = runtime();
    let devices = runtime.devices()?;
    devices.set_current_stream(stream)?;
    devices.set_device(stream.device_index())?;
    Ok(())
}

/// Makes a stream the current one of its device, and that device the current one, until the guard
/// is dropped (`torch.cuda.stream`).
///
/// # Errors
/// [`crate::Error::Stream`] when it is of another runtime.
#[inline(always)] // as in `Devices::stream_guard`
#[track_caller]
pub fn stream(stream: &Stream) -> Result<StreamGuard> {
    Ok(InUse::get().devices()?.stream_guard(stream)?)
}

/// Runs `f` with a stream as the current one; the former one is back afterwards, after a panic
/// too.
///
/// # Errors
/// [`crate::Error::Stream`] when it is of another runtime; `f` is not run then.
#[track_caller]
pub fn with_stream<R>(stream: &Stream, f: impl FnOnce() -> R) -> Result<R> {
    let _guard = self::stream(stream)?;
    Ok(f())
}
