//! Events that are kept for reuse: making one anew costs as much as recording it.

use std::ops::Deref;
use std::panic::Location;
use std::sync::{Arc, PoisonError};

use warpline_cuda_sys_safe::owned;
use warpline_cuda_sys_safe::{DriverError, EventFlags};
use warpline_sync::Mutex;

use crate::device::Core;

/// More than this many idle events of one kind are given back to the driver.
const MAX_IDLE: usize = 1024;

/// The idle events of one device, by whether they keep times and whether they block.
#[derive(Debug, Default)]
pub(crate) struct EventPool {
    idle: [Mutex<Vec<Arc<owned::Event>>>; 4],
}

impl EventPool {
    /// Where events of this kind are kept. Those for other processes are not.
    fn slot(&self, flags: EventFlags) -> Option<&Mutex<Vec<Arc<owned::Event>>>> {
        if flags.interprocess {
            return None;
        }
        self.idle.get(usize::from(flags.timing) + 2 * usize::from(flags.blocking))
    }
}

/// An event that goes back to its device's pool once nobody needs it.
///
/// It may be recorded anew while a stream still waits for its last record: a wait takes hold of
/// the record when it is enqueued.
#[derive(Debug)]
pub(crate) struct PooledEvent {
    event: Arc<owned::Event>,
    flags: EventFlags,
    core: Arc<Core>,
}

impl PooledEvent {
    /// An idle event of the device, or a new one.
    #[track_caller]
    pub(crate) fn take(core: &Arc<Core>, flags: EventFlags) -> Result<Self, DriverError> {
        let location = Location::caller();
        let idle = core
            .events
            .slot(flags)
            .and_then(|slot| slot.lock().unwrap_or_else(PoisonError::into_inner).pop());
        let event = match idle {
            Some(event) => event,
            None => Arc::new(
                owned::Event::new(&core.driver, core.index, flags).map_err(|e| e.at(location))?,
            ),
        };
        Ok(Self { event, flags, core: Arc::clone(core) })
    }

    pub(crate) fn core(&self) -> &Core {
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
        if let Some(slot) = self.core.events.slot(self.flags) {
            let mut idle = slot.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < MAX_IDLE {
                idle.push(Arc::clone(&self.event));
            }
        }
    }
}
