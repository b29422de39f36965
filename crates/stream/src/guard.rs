//! Guards that restore the current device and stream.

use std::marker::PhantomData;
use std::rc::Rc;

use crate::{Stream, current};

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
    fn drop(&mut self) {
        current::restore_device(self.devices, self.previous);
    }
}

/// Restores the current stream of the guarded stream's device, and the current device, when
/// dropped. Order of drops: as for [`DeviceGuard`].
#[derive(Debug)]
#[must_use = "the previous stream is restored when the guard is dropped"]
pub struct StreamGuard {
    device: DeviceGuard,
    on: usize,
    /// `None` is the default stream.
    previous: Option<Rc<Stream>>,
}

impl StreamGuard {
    pub(crate) fn new(device: DeviceGuard, on: usize, previous: Option<Rc<Stream>>) -> Self {
        Self { device, on, previous }
    }

    /// The device that will be restored.
    #[must_use]
    pub fn previous_device(&self) -> usize {
        self.device.previous
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        // The device follows when its own guard is dropped, right after this.
        current::restore_stream(self.device.devices, self.on, self.previous.take());
    }
}
