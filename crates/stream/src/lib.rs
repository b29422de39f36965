//! CUDA devices, streams, events and guards with PyTorch's semantics.
//!
//! [`Devices`] holds the devices of one driver, isolated from all other `Devices`. Each thread has
//! a current device and a current stream per device. [`Stream::submit`] enqueues work and numbers
//! it; the caller guarantees with a [`LaunchToken`](warpline_cuda_sys_safe::owned::LaunchToken)
//! that the work is sound. [`Stream::wait_for`] makes a stream wait, on the GPU, for a numbered
//! operation of another stream, and does nothing if that order already holds.
//!
//! ```
//! use std::sync::Arc;
//! use warpline_stream::driver::null::NullDriver;
//! use warpline_stream::driver::owned::LaunchToken;
//! use warpline_stream::{Devices, Stream, Error};
//!
//! let devices = Devices::new(Arc::new(NullDriver::new(2)))?;
//! let producer = Stream::new(devices.get(0)?)?;
//! let consumer = Stream::new(devices.get(1)?)?;
//!
//! // SAFETY: the closure below enqueues nothing.
//! let token = unsafe { LaunchToken::new() };
//! let ((), op) = producer.submit(token, |_handle| {
//!     // Enqueue a kernel or a copy here.
//!     Ok::<(), Error>(())
//! })?;
//! consumer.wait_for(&producer, op)?; // the consumer's later work comes after it
//!
//! devices.with_stream(&consumer, || {
//!     assert_eq!(devices.current_device(), 1);
//! })?;
//! assert_eq!(devices.current_device(), 0);
//! # Ok::<(), Error>(())
//! ```
#![forbid(unsafe_code)]

mod body;
mod capture;
mod captured_checks;
mod check_reports;
mod checked_launch;
mod clock;
mod current;
mod device;
mod devices;
mod event;
mod event_pool;
mod guard;
mod index_check;
mod kernel_set;
mod launch_ring;
mod mailbox;
mod numbering;
mod op_event;
mod order;
mod owner;
mod stream;

pub use body::{BodyGuard, ConditionalKind};
pub use capture::{CaptureGuard, CaptureLog, CapturedStream};
pub use captured_checks::CapturedChecks;
pub use checked_launch::{CheckOutcome, CheckedLaunch};
pub use clock::Before;
pub use current::apart;
pub use device::{Device, STREAMS_PER_POOL};
pub use devices::Devices;
pub use event::Event;
pub use guard::{DeviceGuard, StreamGuard};
pub use index_check::IndexCheck;
pub use kernel_set::KernelSet;
pub use mailbox::Mailbox;
pub use op_event::OpEvent;
pub use owner::CheckOwner;
pub use stream::{Stream, StreamDevice};
/// The driver's crate: the machine's driver and simulated drivers.
pub use warpline_cuda_sys_safe as driver;
pub use warpline_cuda_sys_safe::EventFlags;
pub use warpline_types::{
    Error, ErrorKind, LaunchRecord, PendingLaunches, Result, ResultExt, Site,
};

/// Number of an operation on its stream. The first operation has number 1.
///
/// Waits, and all work enqueued with [`Stream::submit`] or [`Stream::submit_waited`], are operations.
/// Event records are not.
pub type OpNumber = u64;

/// Runs the program of this crate's README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct CrateReadme;
