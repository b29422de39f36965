//! The simulated driver: CUDA devices in host memory.
//!
//! [`SimConfig::build`] makes a [`SimDriver`]: a set of devices with asynchronous streams, behind
//! the same [`Driver`](crate::Driver) interface as real devices. Work runs only inside driver
//! calls, one operation at a time, in an order that the stream rules allow and the [`Schedule`]
//! picks. (Work that another process may wait for also runs on a background thread.) A missing wait
//! therefore gives wrong data, the same whenever a program makes the same calls with the same seed,
//! and never a data race. Kernels run through their CPU implementation.
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
//! # Behaviour
//!
//! **Streams.** Work runs in order within a stream. The legacy default stream waits for all earlier
//! work of its device's blocking streams, and later work of these streams waits for it.
//! Non-blocking streams take no part in this. Destroying a stream lets its work finish. Priorities
//! are clamped to `0..=-5` and can be read, but do not affect the order.
//!
//! **Events.** A wait is for the latest record at the time of the call; later records do not change
//! it. An event that was never recorded is complete, and waiting for it does nothing. Recording on
//! a stream of another device is `INVALID_HANDLE`; waiting on such a stream is allowed. The elapsed
//! time is `CAPTURED_EVENT` for an event of a capture, `INVALID_HANDLE` if an event has no timing
//! or was never recorded or the events are on different devices, and `NOT_READY` until both records
//! are complete.
//!
//! **Time.** Times come from a virtual clock. Streams overlap in virtual time, and so do the branches of a graph. An
//! operation begins after the operations that it waits for, and after the call that enqueued it. Each call takes its
//! host thread 2 µs. A thread's clock also advances to the end of the work that the thread waits for or finds complete.
//! [`SimConfig::kernel_time`] and [`Topology`] set the times of kernels and collectives.
//!
//! **Copies.** In a copy from pageable memory to a device, the source is read during the call.
//! `cuMemcpy` then also waits for all work before the copy, including that of blocking streams. A
//! copy into pageable memory, or between host memories, is complete when the call returns.
//! Page-locked memory is accessed when the copy runs: `cuMemcpy` waits for such a copy, but not for
//! a copy from device memory to device memory. Copies reach the memory of every device, linked or
//! not. A memset of memory that its device cannot access is `INVALID_VALUE`, unless it is captured.
//! A copy of zero bytes does nothing.
//!
//! **Memory.** Host code that accesses a device address faults. A copy returns `INVALID_VALUE` if
//! its host end is a device address, only partly page-locked or freed page-locked memory, or if its
//! device end does not lie inside one live allocation or mapped range of the named device, or
//! inside page-locked memory. `cuMemFree` waits for the device that owns the memory, even if the
//! call names another device. It does not wait for devices with peer access to the memory, and for
//! memory of a pool it does not wait at all. `cuMemFreeHost` and `cuMemHostUnregister` wait for all
//! devices. A size of zero is `INVALID_VALUE`, except in pools. Page-locked memory that the driver
//! allocated can be neither registered nor unregistered (`INVALID_VALUE`). Kernels can address
//! page-locked memory at its host address. Freed page-locked memory stays inaccessible. Allocations
//! are counted in units of 512 bytes, and addresses are never reused.
//!
//! **Kernels.** A launch is refused, without losing the device, if its grid or block is empty or
//! too large, if it uses more shared memory than the function may have, or if it has more than 4
//! KiB of parameters. When a kernel runs, each operand must lie in live memory that the device may
//! address (otherwise the error is `ILLEGAL_ADDRESS`) and must be aligned to its item size, up to
//! 16 bytes (otherwise `MISALIGNED_ADDRESS`). A panic of the CPU implementation is `LAUNCH_FAILED`.
//! A module is PTX text or a cubin. The simulator reads version, target and entries (names and
//! parameters) of PTX text, and looks for the kernels' section names in a cubin.
//!
//! **Errors.** An error that occurs when work runs loses the device. The first call that notices
//! returns the error; later calls return [`DeviceLost`](crate::DriverError::DeviceLost). Queued
//! work is dropped. Releases succeed with any arguments. All other devices of the driver are lost,
//! too (on hardware, all devices of the process), unless [`SimConfig::isolate_faults`] is set.
//!
//! **Peers.** Kernels need peer access (for mapped memory `cuMemSetAccess`, for memory of a pool
//! `cuMemPoolSetAccess`); copies do not. Enabling peer access of a device to itself is
//! `PEER_ACCESS_UNSUPPORTED`.
//!
//! **Virtual memory.** The granularity is 2 MiB. Memory can be mapped at several addresses. Access
//! is set per device, for whole mappings. Physical memory lives until it is both released and
//! unmapped. Unmapping does not wait: work that then accesses the range faults. Unmapping addresses
//! without mappings succeeds. On Windows, and if [`SimConfig::properties`] say so, a device has no
//! virtual memory (`NOT_SUPPORTED`).
//!
//! **Pools.** Memory is valid from the time its allocation runs until its free runs, in stream
//! order, on streams of any device. `cuMemFreeAsync` of a null address has no effect.
//! `cuMemFreeAsync` also frees memory of `cuMemAlloc`, in stream order. An allocation of zero bytes
//! is a null address. Unused bytes above the release threshold are released at host waits.
//!
//! **Capture.** Here `UNSUPPORTED` stands for `STREAM_CAPTURE_UNSUPPORTED`; the codes `MERGE`,
//! `ISOLATION`, `UNJOINED`, `UNMATCHED`, `WRONG_THREAD`, `IMPLICIT` and `INVALIDATED` lack the same
//! prefix. The default stream cannot be captured (`UNSUPPORTED`). A stream that waits for an event
//! of a capture joins the capture. In a captured stream, a wait for an event of another capture is
//! `MERGE`, a wait for an event that was recorded outside a capture is `ISOLATION`, and a wait for
//! an interprocess event is `UNSUPPORTED`. Ending a capture fails with `UNJOINED` if a stream that
//! joined was not joined back, with `UNMATCHED` on any stream but the one on which the capture
//! began, and with `WRONG_THREAD` on another thread, unless the mode is relaxed.
//!
//! A forbidden call fails and invalidates captures:
//! - Calls that the modes of capture and thread forbid, on captured and other objects: allocation
//!   and frees, page-locking, queries of streams and events, waits for streams and events,
//!   unloading modules, enabling and disabling peer access, pools and their allocations,
//!   instantiating graphs and destroying executable graphs, opening and closing memory of other
//!   processes. They return `UNSUPPORTED`, also if the capture is already invalid.
//! - In all modes, waiting for or querying a captured stream, waiting for its device, allocating
//!   from a pool or freeing on the stream (`UNSUPPORTED`), and waiting for or querying an event of
//!   a capture (`CAPTURED_EVENT`). This invalidates only the captures of that stream, device or
//!   event.
//! - In all modes, using the default stream while blocking streams are captured (`IMPLICIT`). This
//!   invalidates the captures of all these streams. `cuMemcpy` on the default stream, and reading
//!   its priority, count as uses.
//! - In a captured stream, copies between devices and launches of graphs (`UNSUPPORTED`), and work
//!   that is refused for any other reason.
//!
//! Some calls fail without invalidating a capture: host functions in a captured stream or on the
//! default stream, waits for and writes of values, records of interprocess events, elapsed times of
//! events of a capture, the capture status of the default stream, and memsets with invalid
//! arguments.
//!
//! Other work on a stream of an invalid capture, ending the capture and reading the stream's
//! priority return `INVALIDATED`. The rules of a stream's captures are checked after the call's
//! handles and before most other arguments. An event of a capture that is over or invalid is
//! `INVALID_VALUE` until it is recorded again. Destroying a stream that joined a capture leaves the
//! capture unchanged; destroying the stream on which the capture began ends it. A copy of pageable
//! memory is captured like other copies, and accesses the memory when the graph runs.
//!
//! A graph runs as one operation, with its nodes in any legal order. Replays of one executable
//! graph run one after another, on any streams.
//!
//! A conditional node runs its body in the same way, and tests its condition before each run. A body
//! cannot hold collectives. A loop that does not end fails with `LAUNCH_TIMEOUT` after 100,000 runs
//! of its body; on hardware it hangs.
//!
//! **The process.** The first call that needs a device's primary context creates it. A forked child
//! gets [`ForkedChild`](crate::DriverError::ForkedChild). A host function runs outside the driver's
//! lock and may not call the driver (`NOT_PERMITTED`). A panic in a host function is caught.
//! [`SimConfig::visible`] and [`SimConfig::launch_blocking`] stand for `CUDA_VISIBLE_DEVICES` and
//! `CUDA_LAUNCH_BLOCKING`; the simulator does not read the environment.
//!
//! # Additional checks
//!
//! - Redzones around an allocation are checked when the allocation is freed, and by
//!   [`SimDriver::overruns`].
//! - Kernels must keep to their footprints ([`SimConfig::check_footprints`],
//!   [`SimDriver::violations`]).
//! - A launch must pass the parameters that the kernel's PTX declares, by number and size.
//! - [`SimDriver::usage`] counts live objects and calls.
//! - [`SimDriver::inject`] makes calls fail.
//! - [`SimDriver::hold`] finds calls that wait for a stream.
//!
//! # Differences from hardware
//!
//! No other work runs during a host function, so a host function must not wait for other work.
//! Copies between devices on the default stream wait only for their own device. Waiting for the
//! default stream does not wait for blocking streams. Pools cannot be used in a capture. IPC
//! handles can be created, but not opened. The check of footprints does not notice that two
//! addresses are mapped to the same memory.

// Layers, from the bottom: `state` holds data and its invariants, `exec` runs work on the state,
// and `driver` implements the driver's calls. No layer imports a later one.
mod backing;
mod call_kind;
mod config;
mod driver;
mod exec;
mod properties;
mod state;
mod topology;

pub use call_kind::CallKind;
pub use config::{Schedule, SimConfig, SpecError};
pub use driver::session::SimDriver;
pub use driver::usage::{DeviceUsage, Usage};
pub use properties::{H200_TOTAL_MEMORY, h200};
pub use state::faults::Fault;
pub use state::hold::Hold;
pub use state::memory::Overrun;
pub use state::violation::{FootprintViolation, ViolationKind};
pub use topology::{Link, Topology};
