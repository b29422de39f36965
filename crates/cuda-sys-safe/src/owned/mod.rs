//! Owned driver objects: each keeps its driver alive and is released on drop.
//!
//! They cannot be forged by safe code. A release that fails in `drop` is not reported: the driver
//! has then already reported the same trouble to whoever used the object.

mod event;
mod host;
mod memory;
mod module;
mod stream;

pub use event::Event;
pub use host::HostMemory;
pub use memory::DeviceMemory;
pub use module::{Function, Module};
pub use stream::Stream;
