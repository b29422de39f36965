//! Functions that create streams and set the current stream.

use warpline_cuda_sys_safe::owned;
use warpline_stream::StreamDevice;

use super::{CudaDeviceArg, Stream, StreamGuard};
#[cfg(doc)]
use crate::ErrorKind;
use crate::ambient::CurrentRuntime;
use crate::called::Called as _;
use crate::{Device, Error, IntoDevice, Result, runtime};

/// Returns this thread's current stream of a device (`torch.cuda.current_stream`).
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
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
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used.
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
            fn stream(self) -> Result<Stream> {
                stream_from_pool(self, 0)
            }
        }
    )*};
}

#[track_caller]
fn stream_from_pool(device: impl CudaDeviceArg, priority: i32) -> Result<Stream> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("Stream::new")?;
    runtime.device(index)?.device().stream_from_pool(priority)
}

/// Options of [`Stream::new`]: device and priority (`torch.cuda.Stream`).
///
/// ```
/// use warpline::cuda::{Stream, StreamOptions};
/// # use warpline::{simulated, with_runtime};
///
/// # with_runtime(&simulated(1)?, || {
/// let urgent = Stream::new(StreamOptions::new().device("cuda:0").priority(-1))?;
/// assert_eq!(urgent.priority()?, -1);
/// # Ok::<_, warpline::Error>(())
/// # })?;
/// # Ok::<(), warpline::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct StreamOptions {
    /// The device, or the error of an invalid name.
    device: Option<Result<Device, Box<Error>>>,
    priority: i32,
}

impl StreamOptions {
    /// Creates options with the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the device. Default: the current device. An invalid name becomes an error of [`Stream::new`].
    #[must_use]
    pub fn device(mut self, device: impl IntoDevice) -> Self {
        self.device = Some(device.into_device().map_err(Box::new));
        self
    }

    /// Sets the priority, from 0, the lowest, to -3. Other numbers are clamped to this range. Default: 0.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }
}

impl StreamDevice<Ambient> for StreamOptions {
    type Error = Error;

    #[track_caller]
    fn stream(self) -> Result<Stream> {
        match self.device.transpose().map_err(|error| *error).of("Stream::new")? {
            Some(device) => stream_from_pool(device, self.priority),
            None => stream_from_pool((), self.priority),
        }
    }
}

stream_devices!((), usize, Device, &Device, &str, &String, String);

/// Creates a stream that no other call returns. Streams with a lower `priority` run first. The driver clamps `priority`
/// to its range.
///
/// # Errors
/// [`ErrorKind::NoSuchDevice`] if there is no GPU with this index. [`ErrorKind::InvalidArgument`] if the device
/// is the CPU. [`ErrorKind::InvalidDeviceString`] if a string does not name a device.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be
/// used or the driver fails.
#[doc(alias = "Stream")]
#[track_caller]
pub fn exclusive_stream(device: impl CudaDeviceArg, priority: i32) -> Result<Stream> {
    let runtime = runtime();
    let index = device.index_in(&runtime).of("exclusive_stream")?;
    runtime.device(index)?.device().exclusive_stream(priority)
}

/// Wraps a stream made elsewhere (`torch.cuda.ExternalStream`). If the driver's stream is wrapped already, returns the
/// existing stream.
///
/// # Errors
/// [`ErrorKind::RuntimeMismatch`] if the stream belongs to another driver, or another runtime on the same
/// driver uses the stream. [`ErrorKind::NoSuchDevice`] if the runtime has no GPU with the index of the stream's GPU.
/// [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or [`ErrorKind::Driver`] if no GPU can be used.
#[doc(alias = "ExternalStream")]
#[track_caller]
pub fn external_stream(stream: owned::Stream) -> Result<Stream> {
    let runtime = runtime();
    let index = stream.device();
    runtime.device(index)?.device().external_stream(stream)
}

/// Sets this thread's current stream on the stream's device, and makes that device the current device
/// (`torch.cuda.set_stream`). [`stream`] and [`with_stream`] also restore the previous stream and device.
///
/// # Errors
/// [`ErrorKind::RuntimeMismatch`] if the stream belongs to another runtime. [`ErrorKind::ThreadEnding`] if the thread
/// is ending and its current streams are gone. [`ErrorKind::CudaUnavailable`], [`ErrorKind::InvalidVariable`] or
/// [`ErrorKind::Driver`] if no GPU can be used.
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
/// The same as [`set_stream`].
#[inline(always)] // as in `Devices::stream_guard`
#[doc(alias = "StreamContext")]
#[track_caller]
pub fn stream(stream: &Stream) -> Result<StreamGuard> {
    CurrentRuntime::get().devices()?.stream_guard(stream).map_err(|e| e.of("stream"))
}

/// Runs `f` with a stream as the current stream, as [`stream`] sets it, and restores the previous stream and device,
/// even if `f` panics.
///
/// # Errors
/// Errors of `f`. Without running `f`: the same as [`set_stream`].
#[track_caller]
pub fn with_stream<R>(stream: &Stream, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let guard = CurrentRuntime::get().devices()?.stream_guard(stream);
    let _guard = guard.map_err(|e| e.of("with_stream"))?;
    f()
}
