//! Collectives: launches that make calls on a communicator, on real and on simulated devices.

use std::fmt;
use std::sync::Arc;

use warpline_cuda_sys_safe::owned::Communicator;
use warpline_cuda_sys_safe::{DriverError, HostLaunch, StreamHandle};

use super::{Call, Code, Target, run};
use crate::captured_collectives::CollectiveWatcher;
use crate::completion::Completion;
use crate::{Device, ErrorKind, Operand, Result, Site};

/// Calls on a communicator, for [`run_collectives`].
///
/// # Safety
/// - The operands lie in their storages, and share no memory with an operand that is written unless
///   the calls permit it.
/// - [`enqueue`](Self::enqueue) enqueues only on the stream that it receives, and uses no host
///   memory after it has returned.
/// - The enqueued work accesses only the operands. It writes every element of those that are
///   declared as written, and no element of those that are declared as read.
/// - The enqueued work needs only the communicator that [`watched`](Self::watched) returns.
pub unsafe trait CollectiveCalls {
    /// Returns the operands of all calls.
    fn operands(&self) -> &[Operand<'_>];

    /// Returns the communicator.
    fn watched(&self) -> TrackedCommunicator<'_>;

    /// Enqueues the calls on a stream.
    ///
    /// # Errors
    /// The error of NCCL, if NCCL refuses a call or has failed.
    ///
    /// # Safety
    /// The stream is alive and belongs to the communicator's device. The memory of the operands
    /// stays valid until the work is done. Graphs replay the calls only in
    /// [`Communicator::while_usable`].
    unsafe fn enqueue(&self, stream: StreamHandle) -> Result<(), DriverError>;
}

/// A communicator for a collective, optionally with the number under which a [`Completion`] tracks
/// the call. If a tracked call fails, later uses of its outputs fail.
#[derive(Clone, Copy)]
pub struct TrackedCommunicator<'a> {
    pub(super) comm: &'a Communicator,
    pub(super) number: Option<(&'a Completion, u64)>,
    pub(super) replays: Option<&'a dyn Fn() -> Arc<dyn CollectiveWatcher>>,
}

impl<'a> TrackedCommunicator<'a> {
    /// Tracks a call on `comm` as number `number` of `completion`. Numbers begin with 1 and follow
    /// the order of the calls. A graph that captures the call keeps the value that `replays`
    /// returns.
    #[must_use]
    pub fn new(
        comm: &'a Communicator,
        completion: &'a Completion,
        number: u64,
        replays: &'a dyn Fn() -> Arc<dyn CollectiveWatcher>,
    ) -> Self {
        Self { comm, number: Some((completion, number)), replays: Some(replays) }
    }

    /// Returns the communicator.
    #[must_use]
    pub fn comm(&self) -> &'a Communicator {
        self.comm
    }
}

impl<'a> From<&'a Communicator> for TrackedCommunicator<'a> {
    fn from(comm: &'a Communicator) -> Self {
        Self { comm, number: None, replays: None }
    }
}

impl fmt::Debug for TrackedCommunicator<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrackedCommunicator")
            .field("comm", &self.comm)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// Enqueues calls on a communicator, in order with the operands' uses on other streams. A graph
/// that captures the calls keeps the communicator.
///
/// # Errors
/// - [`ErrorKind::DeviceMismatch`] if the target is the CPU or a device other than the
///   communicator's.
/// - [`ErrorKind::RuntimeMismatch`] if the communicator and the target's device have different
///   drivers.
/// - The errors of [`Kernel::launch`](super::Kernel::launch) on a device.
#[track_caller]
pub fn run_collectives(
    target: Target<'_>,
    Site { op, location }: Site,
    calls: &impl CollectiveCalls,
) -> Result<()> {
    /// Stands in for a CPU implementation. It never runs, because simulated devices also run the
    /// collective itself.
    ///
    /// # Safety
    /// None: the function does nothing.
    unsafe fn no_host(_: &HostLaunch<'_>) {}
    let watched = calls.watched();
    let own = Device::cuda(watched.comm.device());
    let Target::Cuda(_, device, _) = target else {
        return Err(ErrorKind::device_mismatch(own, Device::Cpu).of(op));
    };
    if !Arc::ptr_eq(watched.comm.driver(), device.driver()) {
        return Err(ErrorKind::RuntimeMismatch.of(op));
    }
    if watched.comm.device() != device.index() {
        return Err(ErrorKind::device_mismatch(own, Device::cuda(device.index())).of(op));
    }
    // SAFETY: the driver passes the target's stream, which is on the communicator's device. The
    // launch keeps the memory of the operands alive, and graphs replay calls in `while_usable`.
    let enqueue = |stream| unsafe { calls.enqueue(stream) };
    let (operands, code) = (calls.operands(), Code::Collectives(&enqueue, watched));
    let (params, checks_indices, host) = (&[][..], false, no_host as _);
    let call = Call { op, operands, params, checks_indices, host, code, location };
    // SAFETY: the implementation of `CollectiveCalls` guarantees that the calls access only the
    // operands, as declared. The target is the communicator's device.
    unsafe { run(target, &call) }
}
