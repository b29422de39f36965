//! The launch path: the only way in which ops run, on the host's cores or on a stream of a device.
//!
//! An op describes itself in a [`Call`]: its operands and its access to each, its plain-data
//! parameters, its CPU implementation, and the code that a GPU runs. The kernel's pointer
//! arguments, the waits between streams, the reports to the allocator, the work of a simulated GPU,
//! and the texts of errors and race reports all follow from this declaration.
//!
//! # Steps on a device
//!
//! 1. Refuse a stream or storage of another runtime, and memory that the device cannot reach.
//! 2. Find the kernel. After the first launch this takes no lock and compares no string.
//! 3. Lock the `Uses` of the distinct storages, in the order of their addresses.
//! 4. Collect the work that the op's inputs depend on (`result_marks.rs`), and refuse the op if such work
//!    is known to have failed.
//! 5. Under [`SyncPolicy::Manual`](crate::SyncPolicy), compare the op with the histories of its
//!    storages and report races.
//! 6. Under [`SyncPolicy::Auto`](crate::SyncPolicy), and for page-locked memory under either
//!    policy, make the stream wait, on the GPU, for each conflicting use on another stream. On its
//!    own stream a storage costs one comparison.
//! 7. Tell the allocator of the stream, if the stream is new to the storage: under `Auto`, and for
//!    page-locked and shared memory under either policy.
//! 8. Enqueue the work, record it as a use of its storages, and unlock.
//!
//! On the CPU: lock the storages for the host, in the order of their addresses, wait for device
//! copies that use the bytes, and run the CPU implementation.
//!
//! While a stream is captured, uses are recorded in the capture's log (`graph/log.rs`) instead of
//! `Uses`.
//!
//! # Lock order
//!
//! Random generator, then host locks (in the order of the storages' addresses), then `Uses` (in the
//! same order), a capture's log or the histories of freed memory, then a graph's record of replays,
//! then a stream's submit lock, then the allocator or the driver. No thread takes a lock of an
//! earlier group while it holds one of a later group.
//!
//! Invariant: host memory is never raced. Host code reaches bytes only under the storage's host
//! lock and after waiting for conflicting device work. A copy is recorded in `Uses` while the host
//! lock is held.

mod cpu;
mod cuda;
mod host_bytes;
mod index_report;
mod kernel;
mod ordered;
mod pageable;
mod replay;
mod result_marks;
#[cfg(test)]
mod staging_tests;
#[cfg(test)]
mod tests;
mod transfer;
mod unlinked;
#[cfg(test)]
mod unlinked_tests;

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;
use warpline_cuda_sys_safe::owned::{Communicator, LaunchToken};
use warpline_cuda_sys_safe::{DevicePtr, DriverError, HostKernel, StreamHandle};
use warpline_stream::Stream;

use crate::captured_collectives::Replays;
use crate::completion::Completion;
use crate::module::Program;
use crate::overlap::{self, Overlap};
use crate::{CudaDevice, Error, ErrorKind, Operand, Result, Runtime, Storage};

pub use cpu::with_operands;
pub use cuda::address;
pub(crate) use cuda::enqueue;
pub use host_bytes::{fill_bytes, read_bytes, write_bytes};
pub use index_report::{Report, report_as};
pub use kernel::{Grid, Hosts, Kernel};
pub(crate) use replay::Replay;
pub(crate) use result_marks::ResultMarks;
pub use transfer::{copy_bytes, memset};

/// Proof to streams that this crate's launches are sound.
// SAFETY: each submitted closure enqueues the work of its operation. `submit_waited` is used only
// for copies to pageable memory, whose driver call returns after the copy. All captured work goes
// through `Log`, and the graph keeps the storages, or their pool, as long as it can be replayed.
pub(crate) const TOKEN: LaunchToken = unsafe { LaunchToken::new() };

/// The place where an op runs.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// On the host's cores, immediately.
    Cpu(&'a Runtime),
    /// On a stream of a device, asynchronously.
    Cuda(&'a Runtime, &'a CudaDevice, &'a Stream),
}

impl Target<'_> {
    /// Returns the runtime.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        match self {
            Self::Cpu(runtime) => runtime,
            Self::Cuda(runtime, ..) => runtime,
        }
    }

    /// Checks that runtime, device and stream belong together, for callers that change state before
    /// the launch checks it.
    ///
    /// # Errors
    /// - [`ErrorKind::RuntimeMismatch`] if the device or the stream belongs to another runtime.
    /// - [`ErrorKind::NoSuchDevice`] if the runtime has no such device.
    /// - [`ErrorKind::InvalidArgument`] if the stream is a twin.
    #[track_caller]
    pub fn check(&self, op: &'static str) -> Result<()> {
        let Self::Cuda(runtime, device, stream) = self else { return Ok(()) };
        if runtime.device(device.index())?.device() != device.device() {
            return Err(ErrorKind::RuntimeMismatch.of(op));
        }
        runtime.check_stream(stream, op)
    }
}

/// A library call. Receives the stream and one pointer per operand.
pub type LibraryCall<'a> = &'a dyn Fn(StreamHandle, &[DevicePtr]) -> Result<(), DriverError>;

/// A call of NCCL. Receives the stream.
pub type CollectiveCall<'a> = &'a dyn Fn(StreamHandle) -> Result<(), DriverError>;

/// The code that a GPU runs for an op. [`Kernel`] and [`iter::Kernels`](crate::iter::Kernels) make
/// it for their families; an op that consists of collectives makes it itself.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)] // a closure has nothing to show
pub struct Code<'a>(GpuCode<'a>);

/// The forms of [`Code`].
#[derive(Clone, Copy)]
enum GpuCode<'a> {
    /// A kernel. Its arguments are one pointer per operand, then the parameters.
    Kernel {
        /// The program, the number of the variant, and the number of the kernel in the variant.
        kernel: (&'static Program, usize, usize),
        /// Number of blocks in x, y and z.
        grid: [u32; 3],
        /// Number of threads per block.
        threads: u32,
    },
    /// A library call that enqueues its own kernels. Receives one pointer per operand.
    Library(LibraryCall<'a>),
    Collective(Collective<'a>),
}

/// Collectives. Their function enqueues them, on the streams of real and of simulated devices.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)] // a closure has nothing to show
pub struct Collective<'a> {
    /// Enqueues the collectives.
    pub enqueue: CollectiveCall<'a>,
    /// The communicator. A graph that captures the call keeps it.
    pub comm: &'a Communicator,
    /// Number of the call on its communicator. If the call fails, uses of its results are refused.
    pub number: Option<(&'a Completion, u64)>,
    /// Creates the watcher for the replays of a graph that captures the call.
    pub replays: Option<&'a dyn Fn() -> Arc<dyn Replays>>,
}

impl<'a> Code<'a> {
    pub(crate) fn kernel(
        kernel: (&'static Program, usize, usize),
        grid: [u32; 3],
        threads: u32,
    ) -> Self {
        Self(GpuCode::Kernel { kernel, grid, threads })
    }

    pub(crate) fn library(call: LibraryCall<'a>) -> Self {
        Self(GpuCode::Library(call))
    }
}

impl<'a> From<Collective<'a>> for Code<'a> {
    fn from(collective: Collective<'a>) -> Self {
        Self(GpuCode::Collective(collective))
    }
}

/// Converts `n` to a number of blocks for the grid of a kernel.
///
/// A GPU supports fewer than 2³¹ blocks in x. A larger `n` becomes a number that [`run`] rejects on
/// a GPU with [`ErrorKind::InvalidArgument`]; it never wraps around to a smaller grid. On the CPU
/// the grid is not used.
#[inline]
#[must_use]
pub fn blocks(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// One launch of an op, for [`run`].
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)] // `Code` has none
pub struct Call<'a> {
    /// Name of the op, for its users.
    pub op: &'static str,
    /// The operands, in the order of the kernel's pointer arguments.
    pub operands: &'a [Operand<'a>],
    /// The kernel's parameter block (`bytemuck::bytes_of`). Empty if the kernel takes none.
    pub params: &'a [u8],
    /// Whether the code checks indices. The parameters then begin with a [`Report`], through which
    /// the code reports an index out of range.
    pub checks_indices: bool,
    /// The CPU implementation, for CPU tensors and simulated GPUs.
    pub host: HostKernel,
    /// The code for a GPU.
    pub code: Code<'a>,
    /// Location of the op's call.
    pub location: &'static Location<'static>,
}

/// Runs an op. A [`Kernel`] makes this call for its family; an op that consists of collectives
/// makes it itself.
///
/// If no operand has elements, does nothing. On the CPU, waits for device work that the operands
/// conflict with and runs the CPU implementation. On a device, enqueues the launch, in order with
/// the operands' uses on other streams.
///
/// If the code checks indices, a failed check is an error of this call on the CPU. On a device the
/// kernel cannot stop its stream, and later work runs. The results are marked: each host read of
/// them returns the error, and so does the next `synchronize` of the thread that made the call.
///
/// # Errors
/// - [`ErrorKind::InvalidArgument`] on a GPU if the grid has 2³¹ blocks or more in x, and if the
///   code checks indices but `params` is shorter than a [`Report`].
/// - [`ErrorKind::RuntimeMismatch`] if operands, device or stream belong to different runtimes.
/// - [`ErrorKind::DeviceMismatch`] if an operand is in memory that the device cannot access.
/// - [`ErrorKind::SharedHostMemory`] on the CPU if other processes may write to an operand.
/// - [`ErrorKind::NotReplayed`] if an operand was made in a capture whose graph was not replayed
///   yet.
/// - [`ErrorKind::NoGpuCode`] if a real device has no code for the op.
/// - [`ErrorKind::Driver`] or [`ErrorKind::NotStarted`] if the driver refuses the launch, also
///   because of earlier work.
/// - [`ErrorKind::IndexCheck`], [`ErrorKind::Collective`] or [`ErrorKind::PeerGone`] if an operand
///   depends on work that is known to have failed.
/// - [`ErrorKind::IndexCheck`] on the CPU if the op's own check fails.
/// - [`ErrorKind::Race`] under [`SyncPolicy::Manual`](crate::SyncPolicy) with
///   [`RaceReport::Error`](crate::RaceReport::Error).
///
/// # Safety
/// This function ensures the order of work, the lifetimes of memory, and the addresses passed to
/// the code. The caller guarantees the facts that only the op's author can know:
///
/// - **The operands lie in their storages**: [`View::check_inside`](crate::View::check_inside)
///   succeeds for each. [`check_operands`] checks all.
/// - **The code accesses only its operands.** The GPU code and `call.host` both read only elements
///   of operands that are declared as read, and write only elements of operands that are declared
///   as written. The elements of an operand are those that the view's layout reaches from the
///   operand's pointer, which is that of index zero; strides may be negative. Of an operand
///   declared as [`View::write`](crate::View::write), every element is written and none is read
///   before. Memory accessed in other ways, such as by numbers in the parameters, consists of these
///   elements too.
/// - **Indices are checked before use.** Indices come from memory and may have any value. For an
///   index out of range, the code accesses nothing but the report ([`Report::check_index`],
///   `check_index` in CUDA), continues as if the index were not there, and still writes all its
///   results.
/// - **The parameters match the kernel.** The kernel's arguments are one pointer per operand, in
///   this order, and then, unless `params` is empty, one struct by value, whose bytes are `params`.
///   `call.host` reads the same struct. The struct begins with a [`Report`] if and only if
///   `checks_indices` is set. A struct whose CUDA definition [`cuda_struct!`](crate::cuda_struct)
///   generates is the same on both sides.
/// - **The element types match.** Both treat the operands' elements as of the views' dtypes, and
///   accept any bytes in them, such as a bool other than 0 and 1.
/// - **Threads do not race.** If a thread of the launch writes an element, no other thread accesses
///   it, except with atomics or with a barrier of the block between. Therefore, unless the code is
///   made for it, views that are written have no two indices at one address, and no operand shares
///   memory with one that is written; [`check_operands`] rejects such operands.
/// - **The kernel runs with this grid, block and dynamic shared memory**, and terminates. If the
///   kernel is compiled for fewer threads, or needs more shared memory, the driver returns an
///   error; the kernel never accesses memory outside its shared memory.
/// - **`call.host` is self-contained.** It runs while locks of its operands are held, possibly on a
///   thread of the simulator: it launches nothing and uses no tensors. All its threads have
///   finished when it returns.
/// - **A library or collective call** enqueues only on the stream that it receives, and no longer
///   uses the host memory that it received when it returns.
#[track_caller]
pub unsafe fn run(target: Target<'_>, call: &Call<'_>) -> Result<()> {
    if call.operands.iter().all(|o| o.view.numel() == 0) && !call.operands.is_empty() {
        return Ok(());
    }
    if call.checks_indices && call.params.len() < size_of::<Report>() {
        let reason = "the parameters of an op that checks indices must begin with a `Report`";
        return Err(Error::invalid(call.op, reason));
    }
    match target {
        Target::Cpu(_) => cpu::run(call),
        Target::Cuda(_, device, stream) => cuda::run(device, stream, call),
    }
}

/// Checks operands for an op that does not support overlaps: rejects views that reach outside their
/// storages, written views with several indices at one address, and operands that share memory with
/// a written operand.
///
/// # Errors
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingWrite`] if a written view has, or may have, several indices at one
///   address.
/// - [`ErrorKind::OverlappingOperands`] if an operand shares memory with a written operand, or may
///   share it.
#[track_caller]
pub fn check_operands(op: &'static str, operands: &[Operand<'_>]) -> Result<()> {
    check_sharing(op, operands, false)
}

/// Checks operands as [`check_operands`] does, for an op that may work in place: an operand may
/// consist of exactly the elements of a written one.
///
/// # Errors
/// The same as [`check_operands`].
#[track_caller]
pub fn check_in_place(op: &'static str, operands: &[Operand<'_>]) -> Result<()> {
    check_sharing(op, operands, true)
}

#[track_caller]
fn check_sharing(op: &'static str, operands: &[Operand<'_>], in_place: bool) -> Result<()> {
    for (at, written) in operands.iter().enumerate().filter(|(_, o)| o.access.writes()) {
        written.view.check_writable(op)?;
        let apart = |one: &Operand<'_>| {
            let views = [one.view, written.view];
            let [one, other] = views.map(|view| (view.layout, view.dtype.size()));
            !views[0].storage.same_as(views[1].storage)
                || match overlap::between(one, other) {
                    Overlap::None => true,
                    Overlap::Same => in_place,
                    Overlap::Some => false,
                }
        };
        if !operands.iter().enumerate().all(|(other, operand)| other == at || apart(operand)) {
            return Err(ErrorKind::OverlappingOperands.of(op));
        }
    }
    for operand in operands {
        operand.view.check_inside(op)?;
    }
    Ok(())
}

/// Returns each storage once, with whether it is written, sorted by key, which is the lock order.
fn distinct<'a>(
    storages: impl Iterator<Item = (&'a Storage, bool)>,
) -> SmallVec<[(&'a Storage, bool); 4]> {
    let mut distinct: SmallVec<[(&Storage, bool); 4]> = SmallVec::new();
    // A loop is faster than `collect`.
    storages.for_each(|storage| distinct.push(storage));
    distinct.sort_unstable_by_key(|(s, _)| s.key());
    distinct.dedup_by(|(later, write), (first, written)| {
        let same = later.same_as(first);
        *written |= same && *write;
        same
    });
    distinct
}
