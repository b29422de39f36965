//! The devices of one driver, with each thread's current device and streams.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use warpline_cuda_sys_safe::Driver;

use crate::check_reports::CheckReports;
use crate::current;
use crate::{Device, DeviceGuard, Error, ErrorKind, Result, Stream, StreamGuard};

/// State that all devices of one `Devices` share.
#[derive(Debug)]
pub(crate) struct SharedState {
    id: u64,
    /// Reports of failed checks by kernels.
    pub(crate) checks: CheckReports,
}

impl SharedState {
    fn new() -> Self {
        // From std rather than `warpline_sync`: identifiers are unique in the whole process.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, checks: CheckReports::default() }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

/// The devices of one driver, isolated from all other `Devices`. Clones share the state.
///
/// Each thread has a current device and, for each device, a current stream. A new thread begins
/// with device 0 and the default streams.
#[derive(Clone)]
pub struct Devices(Arc<DevicesInner>);

pub(crate) struct DevicesInner {
    shared: Arc<SharedState>,
    driver: Arc<dyn Driver>,
    devices: Vec<Device>,
}

impl DevicesInner {
    pub(crate) fn id(&self) -> u64 {
        self.shared.id
    }
}

impl Devices {
    /// Opens all devices of a driver. Creates no driver context.
    ///
    /// # Errors
    /// [`ErrorKind::Driver`] if the driver cannot report a device's properties.
    pub fn new(driver: Arc<dyn Driver>) -> Result<Self> {
        let shared = Arc::new(SharedState::new());
        let devices = (0..driver.device_count())
            .map(|index| Device::new(&driver, index, &shared))
            .collect::<Result<_>>()?;
        Ok(Self(Arc::new(DevicesInner { shared, driver, devices })))
    }

    /// Returns an identifier that is unique among all `Devices` of the process, past and future.
    /// Clones have the same identifier.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.shared.id
    }

    /// Returns the driver.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.0.driver
    }

    /// Returns the number of devices (`torch.cuda.device_count`).
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.devices.len()
    }

    /// Returns the device with an index.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchDevice`] if there is no device with this index.
    #[inline]
    #[track_caller]
    pub fn get(&self, index: usize) -> Result<&Device> {
        match self.0.devices.get(index) {
            Some(device) => Ok(device),
            None => Err(self.no_such(index)),
        }
    }

    #[cold]
    #[track_caller]
    fn no_such(&self, index: usize) -> Error {
        ErrorKind::NoSuchDevice { index, count: self.count() }.of("")
    }

    /// Returns an iterator over all devices, in order of their indices.
    pub fn iter(&self) -> std::slice::Iter<'_, Device> {
        self.0.devices.iter()
    }

    /// Returns the index of this thread's current device (`torch.cuda.current_device`).
    #[must_use]
    pub fn current_device(&self) -> usize {
        current::device(self.id())
    }

    /// Makes a device this thread's current device and returns the index of the previous one
    /// (`torch.cuda.set_device`). Creates no driver context.
    ///
    /// # Errors
    /// - [`ErrorKind::NoSuchDevice`] if there is no device with this index.
    /// - [`ErrorKind::ThreadEnding`] if the thread is ending and its state is destroyed.
    #[inline]
    pub fn set_device(&self, index: usize) -> Result<usize> {
        self.get(index)?;
        current::set_device(&self.0, index)
    }

    /// Returns this thread's current stream of a device (`torch.cuda.current_stream`).
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchDevice`] if there is no device with this index.
    pub fn current_stream(&self, device: usize) -> Result<Stream> {
        self.with_current_stream(device, Stream::clone)
    }

    /// Returns this thread's current stream of a device. Cheaper than [`Devices::current_stream`] for the default
    /// stream, because no atomic reference count changes.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchDevice`] if there is no device with this index.
    pub fn borrowed_stream(&self, device: usize) -> Result<Cow<'_, Stream>> {
        let Some(of) = self.0.devices.get(device) else { return Err(self.no_such(device)) };
        Ok(match current::stream(self.id(), device) {
            Some(stream) => Cow::Owned(Stream::clone(&stream)),
            None => Cow::Borrowed(of.default_stream()),
        })
    }

    /// Runs `f` with this thread's current stream of a device. Cheaper than
    /// [`Devices::current_stream`], because no atomic reference count changes. If `f` changes the
    /// current stream, the change stays, but `f` keeps the stream that was passed to it.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchDevice`] if there is no device with this index.
    pub fn with_current_stream<R>(&self, device: usize, f: impl FnOnce(&Stream) -> R) -> Result<R> {
        let Some(of) = self.0.devices.get(device) else { return Err(self.no_such(device)) };
        Ok(match current::stream(self.id(), device) {
            Some(stream) => f(&stream),
            None => f(of.default_stream()),
        })
    }

    /// Makes a stream this thread's current stream on the stream's device. The current device does
    /// not change, as with PyTorch's C++ function `setCurrentCUDAStream`; a [`StreamGuard`] changes
    /// both.
    ///
    /// # Errors
    /// - [`ErrorKind::RuntimeMismatch`] if the stream belongs to other `Devices`.
    /// - [`ErrorKind::ThreadEnding`] if the thread is ending and its state is destroyed.
    #[inline]
    #[track_caller]
    pub fn set_current_stream(&self, stream: &Stream) -> Result<()> {
        self.check(stream, "set_current_stream")?;
        current::set_stream(&self.0, stream).map(drop)
    }

    #[inline]
    #[track_caller]
    fn check(&self, stream: &Stream, call: &'static str) -> Result<()> {
        if Arc::ptr_eq(&stream.core().shared, &self.0.shared) {
            return Ok(());
        }
        Err(ErrorKind::RuntimeMismatch.of(call))
    }

    /// Makes a device this thread's current device until the guard is dropped
    /// (`torch.cuda.device`).
    ///
    /// # Errors
    /// The same as [`Devices::set_device`].
    #[inline(always)] // returning a guard through memory would cost more than its work
    pub fn device_guard(&self, index: usize) -> Result<DeviceGuard> {
        Ok(DeviceGuard::new(self.id(), self.set_device(index)?))
    }

    /// Makes a stream this thread's current stream on its device, and that device the current
    /// device, until the guard is dropped (`torch.cuda.stream`).
    ///
    /// # Errors
    /// - [`ErrorKind::RuntimeMismatch`] if the stream belongs to other `Devices`.
    /// - [`ErrorKind::ThreadEnding`] if the thread is ending and its state is destroyed.
    #[inline(always)] // returning a guard through memory would cost more than its work
    #[track_caller]
    pub fn stream_guard(&self, stream: &Stream) -> Result<StreamGuard> {
        self.check(stream, "stream_guard")?;
        let former = current::enter(&self.0, stream)?;
        Ok(StreamGuard::new(self.id(), stream.device_index(), former))
    }

    /// Runs `f` with a device as this thread's current device. Restores the previous device
    /// afterwards, also if `f` panics.
    ///
    /// # Errors
    /// The same as [`Devices::set_device`]. `f` does not run after an error.
    pub fn with_device<R>(&self, index: usize, f: impl FnOnce() -> R) -> Result<R> {
        let _guard = self.device_guard(index)?;
        Ok(f())
    }

    /// Runs `f` with a stream as the current stream of its device, and that device as the current
    /// device. Restores both afterwards, also if `f` panics.
    ///
    /// # Errors
    /// The same as [`Devices::stream_guard`]. `f` does not run after an error.
    #[track_caller]
    pub fn with_stream<R>(&self, stream: &Stream, f: impl FnOnce() -> R) -> Result<R> {
        let _guard = self.stream_guard(stream).map_err(|e| e.of("with_stream"))?;
        Ok(f())
    }
}

impl<'a> IntoIterator for &'a Devices {
    type Item = &'a Device;
    type IntoIter = std::slice::Iter<'a, Device>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Devices")
            .field("id", &self.id())
            .field("driver", &self.0.driver)
            .field("devices", &self.0.devices)
            .finish()
    }
}
