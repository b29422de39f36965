//! The launch path: the only way in which ops run, on the host's cores or on a stream of a device.
//!
//! A [`Kernel`], a [`LibraryOp`], [`iter::Kernels`](crate::iter::Kernels) or [`run_collectives`]
//! describes an op in a `Call`: the operands with the access to each, the plain-data parameters, the
//! CPU implementation, and the code that a GPU runs. The kernel's pointer arguments, the waits between
//! streams, the reports to the allocator, the work of a simulated GPU, and the texts of errors and
//! race reports all follow from this declaration.
//!
//! # Steps on a device
//!
//! 1. Refuse a stream of another runtime, and find the kernel. After the first launch this takes no
//!    lock and compares no string.
//! 2. Refuse memory that the device cannot reach, storages that were made in a capture and have no
//!    contents yet, and storages of another runtime.
//! 3. Lock the `Uses` of the distinct storages, in the order of their [keys](Storage::key).
//! 4. Collect the work that the op's inputs depend on (`result_marks.rs`), and refuse the op if such work
//!    is known to have failed.
//! 5. Under [`SyncPolicy::Manual`](crate::SyncPolicy), compare the op with the histories of its
//!    storages and report races.
//! 6. Under [`SyncPolicy::Auto`](crate::SyncPolicy), and for page-locked memory under either
//!    policy, make the stream wait, on the GPU, for each conflicting use on another stream. On its
//!    own stream a storage costs one comparison.
//! 7. Tell the allocator of the stream, if the stream is new to the storage: under `Auto`, and for
//!    page-locked memory under either policy. Shared memory has no allocator, so its storage notes
//!    the stream. Memory of a graph's pool needs neither.
//! 8. Enqueue the work, record it as a use of its storages, and unlock.
//!
//! On the CPU: lock the storages for the host, in the order of their keys, wait for device copies
//! that use the bytes, and run the CPU implementation.
//!
//! While a stream is captured, uses are recorded in the capture's log (`graph/log.rs`) instead of
//! `Uses`.
//!
//! # Lock order
//!
//! Random generator, then host locks (in the order of the storages' keys), then `Uses` (in the
//! same order), a capture's log or the histories of freed memory, then a graph's record of replays,
//! then a stream's submit lock, then the allocator or the driver. No thread takes a lock of an
//! earlier group while it holds one of a later group.
//!
//! Invariant: host memory is never raced. Host code reaches bytes only under the storage's host
//! lock and after waiting for conflicting device work. A copy is recorded in `Uses` while the host
//! lock is held.

mod collectives;
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

use smallvec::SmallVec;
use warpline_cuda_sys_safe::owned::LaunchToken;
use warpline_cuda_sys_safe::{DevicePtr, DriverError, HostKernel, StreamHandle};
use warpline_stream::Stream;

use crate::module::Program;
use crate::overlap::{self, Overlap};
use crate::{CudaDevice, ErrorKind, Operand, Result, Runtime, Site, Storage};

pub use collectives::{CollectiveCalls, TrackedCommunicator, run_collectives};
pub use cpu::with_operands;
pub use cuda::address;
pub(crate) use cuda::enqueue;
pub use host_bytes::{fill_bytes, read_bytes, write_bytes};
pub use index_report::Report;
pub(crate) use kernel::check_definition;
pub use kernel::{Grid, Hosts, Kernel, LibraryCall, LibraryOp};
pub(crate) use replay::GraphReplay;
pub(crate) use result_marks::ResultMarks;
pub use transfer::{copy_bytes, memset};

/// The token with which this crate vouches for its launches.
// SAFETY: each submitted closure enqueues the work of its operation. `submit_waited` is used only
// for copies to pageable memory, whose driver call returns after the copy. All captured work goes
// through `GraphLog`, and the graph keeps the storages, or their pool, as long as it can be
// replayed.
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

/// A function that enqueues collectives on a stream.
type Enqueue<'a> = &'a dyn Fn(StreamHandle) -> Result<(), DriverError>;

/// A function that enqueues a library call on a stream. Receives one pointer per operand.
type EnqueueLibrary<'a> = &'a dyn Fn(StreamHandle, &[DevicePtr]) -> Result<(), DriverError>;

/// The code that a GPU runs for an op.
#[derive(Clone, Copy)]
pub(crate) enum Code<'a> {
    /// A kernel. Its arguments are one pointer per operand, then the parameters.
    Kernel {
        /// The program, the number of the variant, and the number of the kernel in the variant.
        kernel: (&'static Program, usize, usize),
        /// Number of blocks in x, y and z.
        grid: [u32; 3],
        /// Number of threads per block.
        threads: u32,
    },
    Library(EnqueueLibrary<'a>),
    /// Collectives. Unlike kernels and library calls, they also run on simulated devices.
    Collectives(Enqueue<'a>, TrackedCommunicator<'a>),
}

/// Converts `n` to a number of blocks for the grid of a kernel.
///
/// A GPU supports fewer than 2³¹ blocks in x. With more, a launch on a GPU fails with [`ErrorKind::InvalidArgument`]. A
/// number that does not fit `u32` becomes `u32::MAX` and never wraps around to a smaller grid. On the CPU the grid is
/// not used.
#[inline]
#[must_use]
pub fn blocks(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// One launch of an op, for [`run`].
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    /// Name of the op, for its users.
    pub(crate) op: &'static str,
    /// The operands, in the order of the kernel's pointer arguments.
    pub(crate) operands: &'a [Operand<'a>],
    /// The kernel's parameter block (`bytemuck::bytes_of`). Empty if the kernel takes none.
    pub(crate) params: &'a [u8],
    /// Whether the code checks indices. The parameters then begin with a [`Report`], through which
    /// the code reports an index out of range.
    pub(crate) checks_indices: bool,
    /// The CPU implementation, for CPU tensors and simulated GPUs.
    pub(crate) host: HostKernel,
    /// The code for a GPU.
    pub(crate) code: Code<'a>,
    /// Location of the op's call.
    pub(crate) location: &'static Location<'static>,
}

impl Call<'_> {
    /// Returns the op, and the location of the public call that launches it.
    fn site(&self) -> Site {
        let own = Site { op: self.op, location: self.location };
        Site { op: self.op, ..own.or_public() }
    }
}

/// Runs an op. Does nothing if there are operands and none has elements.
///
/// # Errors
/// The errors of [`Kernel::launch`], except [`ErrorKind::UnsupportedDType`].
///
/// # Safety
/// The conditions of [`Kernel::new`] hold for this launch. `params` are the bytes of the struct
/// that the kernel and `host` take. The struct begins with a [`Report`] if and only if
/// `checks_indices` is set. Library calls and collectives fulfil the contract of [`LibraryCall`]
/// and [`CollectiveCalls`].
#[track_caller]
pub(crate) unsafe fn run(target: Target<'_>, call: &Call<'_>) -> Result<()> {
    if call.operands.iter().all(|o| o.view.numel() == 0) && !call.operands.is_empty() {
        return Ok(());
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

/// Checks operands as [`check_operands`] does, for an op that may work in place: an operand may consist of exactly the
/// elements of a written operand.
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
                    Overlap::Partial => false,
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

/// Returns each storage once, sorted by key, which is the lock order. The flag is set if the
/// storage is written.
fn distinct<'a>(
    storages: impl Iterator<Item = (&'a Storage, bool)>,
) -> SmallVec<[(&'a Storage, bool); 4]> {
    let mut distinct: SmallVec<[(&Storage, bool); 4]> = SmallVec::new();
    // A loop is faster than `collect`.
    storages.for_each(|storage| distinct.push(storage));
    distinct.sort_unstable_by_key(|(s, _)| s.key());
    if distinct.windows(2).any(|two| two[0].0.same_as(two[1].0)) {
        distinct.dedup_by(|(later, write), (first, written)| {
            let same = later.same_as(first);
            *written |= same && *write;
            same
        });
    }
    distinct
}
