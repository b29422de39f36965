//! Guards that restore the current device and stream.

use std::marker::PhantomData;

use crate::current::{self, SavedState};

/// Restores this thread's current device when dropped, also while panicking.
///
/// The guard restores the device that was current at its creation. Drop guards in reverse order of
/// creation, as scopes do. In any other order, the guard that is dropped last sets the device.
/// [`crate::Devices::with_device`] always uses the right order.
#[derive(Debug)]
#[must_use = "the previous device is restored when the guard is dropped"]
pub struct DeviceGuard {
    devices: u64,
    previous: usize,
    not_send: PhantomData<*const ()>,
}

impl DeviceGuard {
    #[inline]
    pub(crate) fn new(devices: u64, previous: usize) -> Self {
        Self { devices, previous, not_send: PhantomData }
    }

    /// Returns the index of the device that will be restored.
    #[must_use]
    pub fn previous_device(&self) -> usize {
        self.previous
    }
}

impl Drop for DeviceGuard {
    #[inline]
    fn drop(&mut self) {
        current::restore_device(self.devices, self.previous);
    }
}

/// Restores the current stream of the guarded stream's device, and the current device, when
/// dropped. Drop guards in reverse order of creation; see [`DeviceGuard`].
#[derive(Debug)]
#[must_use = "the previous stream is restored when the guard is dropped"]
pub struct StreamGuard {
    devices: u64,
    on: usize,
    /// Contains an `Rc`, so the guard is not `Send`.
    saved: SavedState,
}

impl StreamGuard {
    #[inline]
    pub(crate) fn new(devices: u64, on: usize, saved: SavedState) -> Self {
        Self { devices, on, saved }
    }

    /// Returns the index of the device that will be restored.
    #[must_use]
    pub fn previous_device(&self) -> usize {
        self.saved.0
    }
}

impl Drop for StreamGuard {
    #[inline]
    fn drop(&mut self) {
        let (device, stream) = (self.saved.0, self.saved.1.take());
        current::restore(self.devices, self.on, (device, stream));
    }
}
