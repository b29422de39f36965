//! The one way in which ops run: on the host's cores, or on a stream of a device.
//!
//! An op describes itself in a [`Call`]: its operands with what it does to each, its plain-data
//! parameters, its CPU implementation, and the code a GPU runs. From that one declaration come
//! the kernel's pointer arguments, the waits between streams, what the allocator is told, what a
//! simulated GPU runs, and what an error or a race report says.

mod capture;
mod cpu;
mod cuda;
mod host_bytes;
mod marks;
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
use crate::replays::Replays;
use crate::{CudaDevice, Error, Operand, Result, Runtime, Storage};

pub(crate) use capture::{ReplayUses, replay};
pub use cpu::with_operands;
pub use cuda::address;
pub(crate) use cuda::enqueue;
pub use host_bytes::{read_bytes, write_bytes};
pub(crate) use marks::{Flows, Marking};
pub use report::Report;
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
    /// [`Error::RuntimeMismatch`]; [`Error::NoSuchDevice`].
    pub fn check(&self, op: &'static str) -> Result<()> {
        let Self::Cuda(runtime, device, stream) = self else { return Ok(()) };
        if runtime.device(device.index())?.device() != device.device() {
            return Err(Error::RuntimeMismatch { op });
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

/// One op, ready to run.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)] // as `Code`
pub struct Call<'a> {
    /// The op, as its users know it.
    pub op: &'static str,
    /// What it touches, in the order of the kernel's pointer arguments.
    pub operands: &'a [Operand<'a>],
    /// The kernel's parameter block (`bytemuck::bytes_of`); empty if it takes none.
    pub params: &'a [u8],
    /// The CPU implementation: what runs for CPU tensors and on a simulated GPU.
    pub host: HostKernel,
    /// What runs on a GPU.
    pub code: Code<'a>,
    /// Where the op was called.
    pub location: &'static Location<'static>,
}

/// Runs an op.
///
/// # Errors
/// [`crate::Error::RuntimeMismatch`]; [`crate::Error::Driver`] where the driver refuses the launch;
/// on a CUDA target also what an operand's earlier work failed with; [`crate::Error::IndexCheck`] and
/// [`crate::Error::Collective`] of what an operand was computed from, where that is known to have
/// failed.
///
/// # Safety
/// `call.host` and the GPU code must do to each operand no more than declared, given `params`.
pub unsafe fn run(target: Target<'_>, call: &Call<'_>) -> Result<()> {
    run_any(target, call, false)
}

/// [`run`] for a kernel that checks indices, whose parameters begin with a [`Report`]. On the CPU a
/// failed check is this call's error. On a device it is that of a wait that covers the launch: the
/// kernel cannot stop its stream, and what comes after it runs. What it writes is marked with that.
///
/// # Errors
/// As [`run`]; [`crate::Error::IndexCheck`].
///
/// # Safety
/// As [`run`].
pub unsafe fn run_checked(target: Target<'_>, call: &Call<'_>) -> Result<()> {
    run_any(target, call, true)
}

fn run_any(target: Target<'_>, call: &Call<'_>, checks: bool) -> Result<()> {
    if call.operands.iter().all(|o| o.view.numel() == 0) && !call.operands.is_empty() {
        return Ok(());
    }
    match target {
        Target::Cpu(_) => cpu::run(call, checks),
        Target::Cuda(_, device, stream) => cuda::run(device, stream, call, checks),
    }
}

/// Each storage once, with whether it is written, in the order in which locks are taken.
fn distinct<'a>(
    storages: impl Iterator<Item = (&'a Storage, bool)>,
) -> SmallVec<[(&'a Storage, bool); 4]> {
    let mut distinct: SmallVec<[(&Storage, bool); 4]> = SmallVec::new();
    for (storage, write) in storages {
        match distinct.iter_mut().find(|(s, _)| s.same_as(storage)) {
            Some((_, w)) => *w |= write,
            None => distinct.push((storage, write)),
        }
    }
    distinct.sort_unstable_by_key(|(s, _)| s.key());
    distinct
}
