//! Owned driver objects: each keeps its driver alive and is released on drop.
//!
//! They cannot be forged by safe code. A release that the driver refuses keeps the object, with all
//! that it needs, among those that are [counted and tried again](Refused).

use std::sync::Arc;

use crate::{Driver, DriverError, Result};

mod communicator;
mod event;
mod foreign;
mod graph;
mod host;
mod ipc;
mod memory;
mod module;
mod pages;
mod pool;
mod refused;
mod shared_host;
mod shared_words;
mod stream;
mod token;
mod vmm;
mod words;

pub use communicator::Communicator;
pub use event::Event;
pub use foreign::ForeignMemory;
pub use graph::{Capture, Graph, GraphExec};
pub use host::HostMemory;
pub use ipc::SharedMemory;
pub use memory::DeviceMemory;
pub use module::{Function, Module};
pub use pool::{MemPool, PoolMemory};
pub use refused::{Refused, RefusedCount, ReleaseKind, retry_refused};
pub use shared_host::SharedHostMemory;
pub use shared_words::SharedWords;
pub use stream::Stream;
pub use token::LaunchToken;
pub use vmm::{Mapping, PhysicalMemory, Reservation};
pub use words::MappedWords;

/// Refuses objects of two drivers in one call: a handle means nothing to any driver but its own.
#[inline]
fn same_driver(call: &'static str, a: &Arc<dyn Driver>, b: &Arc<dyn Driver>) -> Result<()> {
    if Arc::ptr_eq(a, b) {
        return Ok(());
    }
    Err(DriverError::InvalidArgument {
        call,
        reason: format!("one object belongs to the {} driver, the other to another", a.name()),
    })
}
