//! The launch path: the only way in which ops run, on the host's cores or on a stream of a device.
//!
//! An op describes itself in a [`Call`]: its operands with what it does to each, its plain-data
//! parameters, its CPU implementation, and the code that a GPU runs. The kernel's pointer
//! arguments, the waits between streams, the reports to the allocator, the work of a simulated GPU,
//! and the texts of errors and race reports all follow from this declaration.
//!
//! # Steps on a device
//!
//! 1. Refuse a stream or storage of another runtime, and memory that the device cannot reach.
//! 2. Find the kernel. After the first launch this takes no lock and compares no string.
//! 3. Lock the `Uses` of the distinct storages, in the order of their addresses.
//! 4. Collect the pending checks of the bytes that the op reads (`marks.rs`), and refuse the op if
//!    one is known to have failed.
//! 5. Under [`SyncPolicy::Manual`](crate::SyncPolicy), compare the op with the histories of its
//!    storages and report races.
//! 6. Under [`SyncPolicy::Auto`](crate::SyncPolicy), and for page-locked memory under either policy,
//!    make the stream wait, on the GPU, for each conflicting use on another stream. On its own stream
//!    a storage costs one comparison.
//! 7. Tell the allocator of streams that it has not been told of: under `Auto`, and for page-locked
//!    and shared memory under either policy.
//! 8. Enqueue the work, enter it as a use of its storages, and unlock.
//!
//! On the CPU: lock the storages for the host, in the order of their addresses, wait for device
//! copies that use the bytes, and run the CPU implementation.
//!
//! While a stream is captured, the storages are entered in the capture's log (`graph/log.rs`)
//! instead of `Uses`.
//!
//! # Lock order
//!
//! Random generator, then host locks (in the order of the storages' addresses), then `Uses` (in the
//! same order), a capture's log or the histories of freed memory, then a graph's record of replays,
//! then a stream's submit lock, then the allocator or the driver. No thread takes a lock of an
//! earlier group while it holds one of a later group.
//!
//! Invariant: host memory is never raced. Host code reaches bytes only under the storage's host
//! lock and after waiting for conflicting device work. A copy is entered in `Uses` while the host
//! lock is held.

mod capture;
mod cpu;
mod cuda;
mod host_bytes;
mod kernel;
mod marks;
mod ordered;
mod pageable;
mod report;
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

use crate::completion::Completion;
use crate::module::Program;
use crate::overlap::{self, Overlap};
use crate::replays::Replays;
use crate::{CudaDevice, Error, ErrorKind, Operand, Result, Runtime, Storage};

pub(crate) use capture::Replay;
pub use cpu::with_operands;
pub use cuda::address;
pub(crate) use cuda::enqueue;
pub use host_bytes::{fill_bytes, read_bytes, write_bytes};
pub use kernel::{Grid, Hosts, Kernel};
pub(crate) use marks::Marking;
pub use report::{Report, report_as};
pub use transfer::{copy_bytes, memset};

/// What the streams are shown.
// SAFETY: what this crate submits is enqueued by the closure that it submits; a copy is said to be
// waited for only after the driver's call for pageable memory has returned. All that it enqueues on
// a captured stream goes through `Log`, which keeps the storages that it uses, or the pool they lie
// in, for as long as the graph can be replayed.
pub(crate) const TOKEN: LaunchToken = unsafe { LaunchToken::new() };

/// Where an op runs.
#[derive(Clone, Copy, Debug)]
pub enum Target<'a> {
    /// On the host's cores, at once.
    Cpu(&'a Runtime),
    /// On a stream of a device, some time after the call has returned.
    Cuda(&'a Runtime, &'a CudaDevice, &'a Stream),
}

impl Target<'_> {
    /// The runtime.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        match self {
            Self::Cpu(runtime) => runtime,
            Self::Cuda(runtime, ..) => runtime,
        }
    }

    /// Refuses a runtime, device and stream that do not belong together, for what is changed before
    /// the launch sees to that.
    ///
    /// # Errors
    /// [`ErrorKind::RuntimeMismatch`]; [`ErrorKind::NoSuchDevice`].
    #[track_caller]
    pub fn check(&self, op: &'static str) -> Result<()> {
        let Self::Cuda(runtime, device, stream) = self else { return Ok(()) };
        if runtime.device(device.index())?.device() != device.device() {
            return Err(ErrorKind::RuntimeMismatch.of(op));
        }
        runtime.check_stream(stream, op)
    }
}

/// A library call: it is given the stream and one pointer per operand.
pub type LibraryCall<'a> = &'a dyn Fn(StreamHandle, &[DevicePtr]) -> Result<(), DriverError>;

/// A call of NCCL's, which is given the stream.
pub type CollectiveCall<'a> = &'a dyn Fn(StreamHandle) -> Result<(), DriverError>;

/// The code a GPU runs for an op.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)] // a closure has nothing to show
pub enum Code<'a> {
    /// A kernel. Its arguments are one pointer per operand, then the parameters.
    Kernel {
        /// The program, the number of its variant, and of that the number of the kernel.
        kernel: (&'static Program, usize, usize),
        /// Blocks in x, y, z.
        grid: [u32; 3],
        /// Threads in x, y, z.
        block: [u32; 3],
        /// Dynamic shared memory, in bytes.
        shared_bytes: u32,
    },
    /// A library call that enqueues its own kernels, given one pointer per operand.
    Library(LibraryCall<'a>),
    /// Collectives, which enqueue themselves on every driver's streams.
    Collective {
        /// The calls.
        enqueue: CollectiveCall<'a>,
        /// Whose they are: a graph keeps it.
        comm: &'a Communicator,
        /// Their number, by which what they write is refused should they fail.
        number: Option<(&'a Completion, u64)>,
        /// Who is to watch the replays of a graph that takes them in.
        replays: Option<&'a dyn Fn() -> Arc<dyn Replays>>,
    },
}

/// Returns `n` as a number of blocks of a [`Code::Kernel`]'s grid.
///
/// A GPU takes fewer than 2³¹ blocks in x. A larger `n` becomes a number of blocks that [`run`] refuses on a
/// GPU with [`ErrorKind::InvalidArgument`]; it never wraps around to a smaller grid. On the CPU the grid is not used.
#[inline]
#[must_use]
pub fn blocks(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// One op, ready to run: what [`run`] is to be told, and what its caller vouches for.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)] // as `Code`
pub struct Call<'a> {
    /// The op, as its users know it.
    pub op: &'static str,
    /// What it touches, in the order of the kernel's pointer arguments.
    pub operands: &'a [Operand<'a>],
    /// The kernel's parameter block (`bytemuck::bytes_of`); empty if it takes none.
    pub params: &'a [u8],
    /// Whether the code checks indices, and says what is wrong with one by the [`Report`] with which
    /// the parameters then begin.
    pub checks_indices: bool,
    /// The CPU implementation: what runs for CPU tensors and on a simulated GPU.
    pub host: HostKernel,
    /// What runs on a GPU.
    pub code: Code<'a>,
    /// Where the op was called.
    pub location: &'static Location<'static>,
}

/// Runs an op. A [`Kernel`] makes this call for its family; an op that consists of collectives makes it itself.
///
/// What no operand has elements for is not run. Otherwise, on the CPU, device work that the operands
/// have to wait for is waited for, and the CPU implementation runs now; on a device the launch is
/// enqueued, in order with the operands' uses on other streams.
///
/// Where the code checks indices, a failed check is this call's error on the CPU. On a device the kernel
/// cannot stop its stream, and later work runs. Its result is marked: each read of it returns the
/// error, and so does the next `synchronize` of the thread that made the call.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] on a GPU if the grid has 2³¹ blocks or more in x; [`ErrorKind::RuntimeMismatch`];
/// [`ErrorKind::DeviceMismatch`]; [`ErrorKind::NoGpuCode`] where a real device
/// has no code for the op; [`ErrorKind::Driver`] where the driver refuses the launch; on a CUDA target
/// also what an operand's earlier work failed with; [`ErrorKind::IndexCheck`] and [`ErrorKind::Collective`]
/// of what an operand was computed from, where that is known to have failed; [`ErrorKind::IndexCheck`] of
/// the op itself on the CPU; [`ErrorKind::Race`] under [`SyncPolicy::Manual`](crate::SyncPolicy).
///
/// # Safety
/// Order, lifetimes and the addresses that the code is given are seen to here. The caller vouches for
/// what only the op's author can know:
///
/// - **The operands lie in their storages**: [`View::check_inside`](crate::View::check_inside) is
///   content with each. [`check_operands`] asks that of all.
/// - **The code keeps to its operands.** The GPU code and `call.host` both read no element but of
///   operands that are declared as read, and write none but of those declared as written. An element
///   is what a view's layout reaches from the pointer of the operand, which is that of index zero:
///   strides may be negative. An operand that is declared as [`View::write`](crate::View::write) has
///   every element written and none read before. All that is reached in another way, such as by
///   numbers among the parameters, is one of these elements.
/// - **What an index decides is checked first.** Indices come from memory and may be anything. With
///   one that is out of range, the code touches nothing but the report ([`Report::check_index`],
///   `check_index` in CUDA), goes on as if it were not there, and writes its results all the same.
/// - **The parameters are the kernel's.** The kernel's arguments are one pointer for each operand, in
///   this order, and then, unless `params` is empty, one struct by value, of which `params` are the
///   bytes; `call.host` reads the same struct. If `checks_indices` it begins with a [`Report`], and
///   if not it has none. A struct of which [`cuda_struct!`](crate::cuda_struct) generates CUDA's
///   definition is the same on both sides.
/// - **The element types are right.** Both take operands to be of the views' dtypes, and accept
///   any bytes in them, as a bool's other than 0 and 1.
/// - **Threads do not race.** No element is written by one thread of the launch and touched by
///   another, but by atomics or with a barrier of the block between. So views that are written have
///   no two indices at one address, and operands do not share memory with one that is written,
///   which [`check_operands`] refuses, unless the code is made for it.
/// - **The kernel runs with this grid, block and dynamic shared memory**, and ends. One that is
///   compiled for fewer threads, or needs more shared memory, is an error of the driver's, not
///   what touches memory outside of it.
/// - **`call.host` keeps to itself.** It runs while locks of its operands are held, perhaps on a
///   thread of the simulator: it launches nothing and uses no tensors. All its threads are done when
///   it returns.
/// - **A library or collective call** enqueues on the stream that it is given and no other, and is
///   done with the host's memory that it was given when it returns.
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

/// Refuses operands that an op has no way to deal with unless it was made for them: views that reach
/// outside their storages, written ones with several indices at one address, and any that share
/// memory with one that is written.
///
/// # Errors
/// [`ErrorKind::OutOfStorage`], [`ErrorKind::OverlappingWrite`], [`ErrorKind::OverlappingOperands`].
#[track_caller]
pub fn check_operands(op: &'static str, operands: &[Operand<'_>]) -> Result<()> {
    check_sharing(op, operands, false)
}

/// [`check_operands`] for an op that may work in place: an operand may be the very elements of one that is
/// written.
///
/// # Errors
/// As [`check_operands`].
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

/// Each storage once, with whether it is written, in the order in which locks are taken: by their keys.
fn distinct<'a>(
    storages: impl Iterator<Item = (&'a Storage, bool)>,
) -> SmallVec<[(&'a Storage, bool); 4]> {
    let mut distinct: SmallVec<[(&Storage, bool); 4]> = SmallVec::new();
    // Faster than `collect`.
    storages.for_each(|storage| distinct.push(storage));
    distinct.sort_unstable_by_key(|(s, _)| s.key());
    distinct.dedup_by(|(later, write), (first, written)| {
        let same = later.same_as(first);
        *written |= same && *write;
        same
    });
    distinct
}
