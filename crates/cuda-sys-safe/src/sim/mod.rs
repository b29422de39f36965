//! The simulated driver: CUDA devices in host memory.
//!
//! [`SimConfig::build`] makes a [`SimDriver`]: a box of devices with streams that really are
//! asynchronous, behind the same [`Driver`](crate::Driver) interface as real ones. It has no
//! threads. Work runs only inside driver calls, one operation at a time, in an order that the
//! stream rules allow and the [`Schedule`] picks. So a missing wait gives wrong data, the same in
//! every run with the same seed, and never a data race. Kernels run through their CPU
//! implementation.
//!
//! ```
//! use std::sync::Arc;
//! use warpline_cuda_sys_safe::{Driver, MemsetValue, owned::*, sim::*};
//!
//! let sim = SimConfig { schedule: Schedule::Lazy, ..SimConfig::new(2) }.build();
//! let driver: Arc<dyn Driver> = sim.clone();
//! let stream = Stream::new(&driver, 1, Default::default())?;
//! let memory = DeviceMemory::new(&driver, 1, 1 << 30)?; // no host memory until it is touched
//! // SAFETY: the memory outlives the work: freeing it waits.
//! unsafe { driver.memset_async(memory.ptr(), MemsetValue::U8(1), 64, stream.handle()) }?;
//! assert_eq!(sim.pending(), 1);
//! stream.synchronize()?;
//! assert_eq!(sim.pending(), 0);
//! drop((memory, stream));
//! assert!(sim.usage().all_released());
//! # Ok::<(), warpline_cuda_sys_safe::DriverError>(())
//! ```
//!
//! # What it imitates
//!
//! **Streams.** In order within a stream. The legacy default stream waits for all earlier work of
//! its device's blocking streams, and they for its; non-blocking streams take no part.
//! Destroying a stream lets its work finish. Priorities are clamped to `0..=-5` and kept, but
//! order nothing.
//!
//! **Events.** A wait is for the record that is latest when the wait is made; recording again
//! does not move it. An event that was never recorded is done, and waiting for it does nothing.
//! Recording on another device's stream is `INVALID_HANDLE`; waiting there is fine. Elapsed time
//! is `INVALID_HANDLE` without timing (captured or not), before a record or across devices, and `NOT_READY` before
//! both records are done. Times come from a virtual clock, on which streams overlap.
//!
//! **Copies.** From pageable memory to a device, the source is read when the call is made
//! (`cuMemcpy` also first waits for what is before it, blocking streams included). Into pageable
//! memory, and between host memories, the call returns when the copy is done. Page-locked memory
//! is touched when the copy runs. `cuMemcpy` with page-locked memory waits for the copy; between
//! devices it does not. Copies reach every device's memory, linked or not; a memset of memory
//! that its device has no access to is `INVALID_VALUE` (unless it is captured). A copy of no bytes does nothing.
//!
//! **Memory.** Device addresses lie where host code faults on them; a host end that is one is
//! `INVALID_VALUE`, and so is a device end that is not inside one live allocation or mapped
//! range of the device it names. `cuMemFree` waits for the device that the memory is of, whichever
//! it is told, not for others that have peer access to it, and for none with a pool's memory; `cuMemFreeHost` and `cuMemHostUnregister` wait for all. Zero bytes are
//! `INVALID_VALUE`. Page-locked memory of the driver cannot be registered or
//! unregistered (`INVALID_VALUE`).
//! Page-locked memory is addressable by kernels at its host address. Freed page-locked memory
//! stays inaccessible. Allocations are counted in units of 512 bytes and addresses are never used
//! twice.
//!
//! **Kernels.** A launch is refused, with nothing harmed, for an empty or too large grid or block,
//! more shared memory than the function may have, or more than 4 KiB of parameters. When it runs,
//! each operand must lie in live memory that its device may address (`ILLEGAL_ADDRESS`) and be
//! aligned to its items up to 16 bytes (`MISALIGNED_ADDRESS`); a panic is `LAUNCH_FAILED`. A
//! module is PTX text, read for its version, target and entry names, or a cubin, for its sections.
//!
//! **Errors.** Those above that strike when work runs lose the device: the first call that notices
//! returns the error, later ones [`DeviceLost`](crate::DriverError::DeviceLost); what was queued is
//! dropped; releases succeed, whatever they are given. All other devices of the process are lost
//! with it, as on hardware, unless [`SimConfig::isolate_faults`] keeps them apart.
//!
//! **Peers.** Kernels need peer access (or, for mapped memory, `cuMemSetAccess`); copies do not.
//! A device with itself is `PEER_ACCESS_UNSUPPORTED`.
//!
//! **Virtual memory.** Granularity of 2 MiB; mapping at several addresses; access per device and
//! whole mappings; physical memory that lasts until it is both released and unmapped. Unmapping
//! does not wait: work that then touches the range faults. What is not mapped may be unmapped. On Windows, and where
//! [`SimConfig::properties`] say so, a device has none (`NOT_SUPPORTED`).
//!
//! **Pools.** Memory is valid from when its allocation runs until its free runs, in stream order,
//! on whatever device's streams; memory that is not of a pool can be freed so too, and a null
//! address. An allocation of
//! no bytes is a null address. Unused bytes above the release threshold go back at host waits.
//!
//! **Capture.** Not of the default stream (`UNSUPPORTED`). Waiting for a captured event takes a
//! stream into the capture; two captures do not `MERGE`, an event from outside is `ISOLATION`, one
//! for other processes `UNSUPPORTED`; a stream that has not come back is `UNJOINED`, another stream
//! cannot end the capture (`UNMATCHED`), nor another thread unless relaxed (`WRONG_THREAD`).
//!
//! What captures forbid fails and spoils them. By the modes of capture and thread, and whatever the
//! call is about (`UNSUPPORTED`, also once the capture is spoiled): allocation and frees, page-locking,
//! queries of and waits for streams and events, modules, peers, pools and what is allocated of them,
//! instantiating graphs and destroying executables. In all modes: waiting for or asking about a
//! stream or device that is captured (`UNSUPPORTED`) or a captured event (`CAPTURED_EVENT`), which
//! spoils that capture alone; using the default stream, for a `cuMemcpy` or its priority too, while
//! blocking streams are captured (`IMPLICIT`, and spoils all of theirs); in a captured stream copies
//! between devices and launches of graphs (`UNSUPPORTED`), and work that is refused anyhow. Neither
//! can host functions be captured, events for other processes be recorded, nor captured events have
//! a time, and memsets with bad arguments are refused; these spoil nothing. All else about a stream
//! of a spoiled capture is `INVALIDATED`. What a stream's captures forbid is looked at before the
//! call's other arguments. An event of a capture that is over or spoiled is
//! `INVALID_VALUE` until it is recorded again. A stream that is destroyed leaves the capture of
//! another one as it is. A copy of pageable memory is captured like others,
//! and touches it when the graph runs.
//!
//! A graph runs as one operation, its nodes in any legal order, and replays of one executable run
//! one after another, on whatever streams.
//!
//! **The process.** A device's primary context appears with the first call that needs it. A forked
//! child gets [`ForkedChild`](crate::DriverError::ForkedChild). A host function runs outside the
//! lock and may not call the driver (`NOT_PERMITTED`); a panic in it goes no further. `CUDA_VISIBLE_DEVICES` and
//! `CUDA_LAUNCH_BLOCKING` are given as [`SimConfig::visible`] and [`SimConfig::launch_blocking`];
//! nothing here reads the environment.
//!
//! # What it checks besides
//!
//! Redzones around allocations (found when freed and by [`SimDriver::overruns`]); kernels'
//! footprints ([`SimConfig::check_footprints`], [`SimDriver::violations`]); that a launch gives as many
//! parameters as the kernel's PTX declares, and of those sizes; what is alive and how
//! often each call was made ([`SimDriver::usage`]); any failure on demand
//! ([`SimDriver::inject`]); which calls wait for a stream ([`SimDriver::hold`]).
//!
//! # What it does not imitate
//!
//! Nothing else runs while a host function does, so one must not wait for other work. Copies
//! between devices on the default stream wait only for their own device; waiting for the
//! default stream does not wait for blocking streams. Pools cannot be used in a capture or from a
//! peer. IPC handles are made but never open. The check of footprints does not see that two
//! addresses are mapped to the same memory.

// Layers, from below: `state` is plain data and its invariants. `exec` runs work on `state`. `driver` has the driver's calls.
// None of them imports a later one.
mod backing;
mod calls;
mod config;
mod driver;
mod exec;
mod properties;
mod state;
mod visible;

pub use calls::CallKind;
pub use config::{Schedule, SimConfig, SpecError};
pub use driver::session::SimDriver;
pub use driver::usage::{DeviceUsage, Usage};
pub use properties::{H200_TOTAL_MEMORY, h200};
pub use state::faults::Fault;
pub use state::hold::Hold;
pub use state::memory::Overrun;
pub use state::violation::{FootprintViolation, ViolationKind};
