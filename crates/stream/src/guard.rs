//! Guards that restore the current device and stream.

use std::marker::PhantomData;

use crate::current::{self, Former};

/// Restores this thread's current device when dropped, also while panicking.
///
/// It puts back what was current when it was made. Guards are meant to be dropped in reverse
/// order, as scopes do; dropped in another order, each still puts back what it saw, so the last
/// one dropped decides. [`crate::Devices::with_device`] cannot be got wrong.
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

    /// The device that will be restored.
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
/// dropped. Order of drops: as for [`DeviceGuard`].
#[derive(Debug)]
#[must_use = "the previous stream is restored when the guard is dropped"]
pub struct StreamGuard {
    devices: u64,
    on: usize,
    /// Its stream is counted without atomics, which keeps the guard in its thread.
    former: Former,
}

impl StreamGuard {
    #[inline]
    pub(crate) fn new(devices: u64, on: usize, former: Former) -> Self {
        Self { devices, on, former }
    }

    /// The device that will be restored.
    #[must_use]
    pub fn previous_device(&self) -> usize {
        self.former.0
    }
}

impl Drop for StreamGuard {
    #[inline]
    fn drop(&mut self) {
        let (device, stream) = (self.former.0, self.former.1.take());
        current::restore(self.devices, self.on, (device, stream));
    }
}
