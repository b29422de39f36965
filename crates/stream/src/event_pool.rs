//! A pool of driver events. Creating an event costs as much as recording one.

use std::ops::Deref;
use std::panic::Location;
use std::sync::{Arc, PoisonError};

use warpline_cuda_sys_safe::owned;
use warpline_cuda_sys_safe::{DriverError, EventFlags};
use warpline_sync::Mutex;

use crate::device::DeviceCore;

/// Maximum number of idle events per combination of flags. Further events are destroyed.
const MAX_IDLE: usize = 1024;

/// The idle events of one device, in one list per combination of timing and blocking.
#[derive(Debug, Default)]
pub(crate) struct EventPool {
    idle: [Mutex<Vec<Arc<owned::Event>>>; 4],
}

impl EventPool {
    /// Returns the list for events with these flags. `None` for interprocess events, which are not
    /// reused.
    fn list(&self, flags: EventFlags) -> Option<&Mutex<Vec<Arc<owned::Event>>>> {
        if flags.interprocess {
            return None;
        }
        self.idle.get(usize::from(flags.timing) + 2 * usize::from(flags.blocking))
    }
}

/// An event that returns to its device's pool when dropped.
///
/// An event may return to the pool and be recorded again while a stream still waits for its earlier
/// record. The wait is not affected, because an enqueued wait is for the record that was the latest
/// when the wait was enqueued.
#[derive(Debug)]
pub(crate) struct PooledEvent {
    event: Arc<owned::Event>,
    flags: EventFlags,
    core: Arc<DeviceCore>,
}

impl PooledEvent {
    /// Takes an idle event of the device, or creates one.
    #[track_caller]
    pub(crate) fn take(core: &Arc<DeviceCore>, flags: EventFlags) -> Result<Self, DriverError> {
        let location = Location::caller();
        let idle = core
            .events
            .list(flags)
            .and_then(|list| list.lock().unwrap_or_else(PoisonError::into_inner).pop());
        let event = match idle {
            Some(event) => event,
            None => Arc::new(
                owned::Event::new(&core.driver, core.index, flags).map_err(|e| e.at(location))?,
            ),
        };
        Ok(Self { event, flags, core: Arc::clone(core) })
    }

    pub(crate) fn core(&self) -> &DeviceCore {
        &self.core
    }
}

impl Deref for PooledEvent {
    type Target = owned::Event;

    fn deref(&self) -> &owned::Event {
        &self.event
    }
}

impl Drop for PooledEvent {
    fn drop(&mut self) {
        if let Some(list) = self.core.events.list(self.flags) {
            let mut idle = list.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < MAX_IDLE {
                idle.push(Arc::clone(&self.event));
            }
        }
    }
}
