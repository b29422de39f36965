//! Owned driver objects. Each keeps its driver alive and is released on drop. Safe code cannot
//! forge them.
//!
//! # Work and order
//!
//! Safe code cannot enqueue work that accesses memory. It can order the work of streams, query and
//! wait for them, and allocate from a [`MemPool`] in stream order. Launches, copies and replays are
//! `unsafe`. A layer that forbids `unsafe` must trust its caller in three statements that it cannot
//! check: that work was enqueued, that work is done, and that work may be captured. Such a layer
//! accepts each statement only together with a [`LaunchToken`], which only an `unsafe` function
//! makes. Outside of tests, only the launch path of `warpline-runtime` makes a token.
//!
//! - Beginning a capture takes the token and returns a [`Capture`], which alone can end the
//!   capture.
//! - Adding a conditional node takes the token and returns a [`BodyCapture`], which alone can end
//!   the capture of the node's body.
//! - Waiting on a captured event joins the capture only if the caller holds the token.
//! - Replaying a graph is `unsafe`.
//! - A driver's stream that is wrapped twice is one [`Stream`], unless it is a default stream,
//!   which cannot be captured.
//!
//! # Refused releases
//!
//! A release that the driver refuses keeps the object, with everything that the object needs, in a
//! list of the driver ([`Refused`]). The list counts refused releases by kind. They are retried
//! when an object of the same kind is dropped, before most allocations of memory and addresses, and
//! in [`retry_refused`]. A caller that must know at once, such as an allocator, calls `release`
//! instead of dropping the object.

use std::sync::Arc;

use crate::{Driver, DriverError, Result};

mod communicator;
mod conditional;
mod event;
mod foreign;
mod graph;
mod host;
mod ipc;
mod memory;
mod module;
mod pages;
mod pluggable;
mod pool;
mod refused;
mod shared_host;
mod shared_words;
mod stream;
mod token;
mod vmm;
mod words;

pub use communicator::Communicator;
pub use conditional::BodyCapture;
pub use event::Event;
pub use foreign::ForeignMemory;
pub use graph::{Capture, Graph, GraphExec};
pub use host::HostMemory;
pub use ipc::SharedMemory;
pub use memory::DeviceMemory;
pub use module::{Function, Module};
pub use pluggable::CudaPluggableAllocator;
pub use pool::{MemPool, PoolMemory};
pub use refused::{Refused, RefusedCount, ReleaseKind, retry_refused};
pub use shared_host::SharedHostMemory;
pub use shared_words::SharedWords;
pub use stream::Stream;
pub use token::LaunchToken;
pub use vmm::{Mapping, PhysicalMemory, Reservation};
pub use words::MappedWords;

/// Refuses objects of different drivers, because a handle is valid for its own driver only.
#[inline]
fn same_driver(call: &'static str, a: &Arc<dyn Driver>, b: &Arc<dyn Driver>) -> Result<()> {
    if Arc::ptr_eq(a, b) {
        return Ok(());
    }
    Err(DriverError::InvalidArgument {
        call,
        reason: format!(
            "the two arguments belong to different drivers; one is the {} driver",
            a.name()
        ),
    })
}
