//! Collectives between devices, with the interface and the names of NCCL.
//!
//! [`Nccl`] is the interface of NCCL, as [`Driver`](crate::Driver) is of the CUDA driver.
//! [`Driver::nccl`](crate::Driver::nccl) returns the implementation that belongs to a driver: the
//! NCCL library for the real driver, a simulated NCCL for the simulated driver, and one that does
//! nothing for the null driver.
//!
//! Making a communicator never blocks. A call that is still running reports
//! [`CommState::InProgress`], and the caller polls [`Nccl::comm_state`]. A collective may block
//! until all ranks have called it; [`Nccl::comm_interrupt`] ends it.
//!
//! # Departed ranks
//!
//! A rank may leave as soon as its own work is done. Its departure fails the communicator only if
//! another rank waits for it. A rank that leaves during a split counts as departed in the new
//! communicator.
//!
//! # Aborts
//!
//! An abort has to end a call that hangs, and must not free memory that the call uses.
//! [`Communicator::abort`](crate::owned::Communicator::abort) works in two steps:
//!
//! 1. `comm_interrupt` makes the hanging call return. It takes no lock, because the hanging call
//!    holds the communicator's lock.
//! 2. `comm_abort` then frees the communicator, with no lock held. NCCL waits there until the
//!    graphs that hold calls of the communicator are destroyed. Until then, launches of
//!    these graphs are refused.
//!
//! `state` and `is_aborted` wait for no lock. A process that ends waits for running calls, and
//! other threads may abort communicators until these calls have returned.
//!
//! A graph keeps the communicators of its captured calls. These communicators are locked during a
//! launch of the graph, so that none of them is freed during the launch. After an abort, launches
//! of the graph are refused.

pub(crate) mod null;
pub(crate) mod real;
mod reduce;
pub(crate) mod sim;

use std::fmt;

use crate::{DevicePtr, Result, StreamHandle};

pub use reduce::reduce;

/// The id by which the ranks of a communicator find each other (`ncclUniqueId`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; Self::BYTES]);

impl UniqueId {
    /// Size of an id, in bytes.
    pub const BYTES: usize = 128;

    /// Restores an id from the bytes that another rank sent.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes to send to the other ranks.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({:02x?}..)", &self.0[..16])
    }
}

/// A rank's end of a communicator (`ncclComm_t`), on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CommHandle {
    raw: u64,
    device: usize,
}

impl CommHandle {
    /// Creates a handle. For implementations of [`Nccl`].
    ///
    /// # Safety
    /// `raw` is a communicator of the implementation that uses the handle, on this device.
    #[must_use]
    pub const unsafe fn new(raw: u64, device: usize) -> Self {
        Self { raw, device }
    }

    /// Returns the implementation's value of the handle.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.raw
    }

    /// Returns the index of the communicator's device.
    #[must_use]
    pub const fn device(self) -> usize {
        self.device
    }
}

/// The state of a communicator's last call (`ncclCommGetAsyncError`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommState {
    /// The last call is complete. Work may be enqueued.
    Ready,
    /// A call is still running in the background (`ncclInProgress`). No work may be enqueued on the
    /// stream of that call.
    InProgress,
}

/// The element type of a collective (`ncclDataType_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // NCCL's own names
pub enum NcclType {
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    BF16,
}

impl NcclType {
    /// Every type, in declaration order.
    pub const ALL: [Self; 10] = [
        Self::I8,
        Self::U8,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::BF16,
    ];

    /// Returns the size of an element, in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }
}

/// The operation of a reduction (`ncclRedOp_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Sum of the elements.
    Sum,
    /// Product of the elements.
    Product,
    /// Largest element.
    Max,
    /// Smallest element.
    Min,
    /// Mean of the elements.
    Avg,
}

impl ReduceOp {
    /// Every operation, in declaration order.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Product, Self::Max, Self::Min, Self::Avg];
}

/// A call on a communicator. Counts are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // fields are named as NCCL's parameters
pub enum Collective {
    /// Combines `count` elements of each rank, and writes the result on every rank.
    AllReduce { send: DevicePtr, recv: DevicePtr, count: usize, dtype: NcclType, op: ReduceOp },
    /// Copies `count` elements of `root` to every rank. Other ranks' `send` is not read.
    Broadcast { send: DevicePtr, recv: DevicePtr, count: usize, dtype: NcclType, root: usize },
    /// Combines `count` elements of each rank, and writes the result on `root`. Other ranks' `recv`
    /// is not written.
    Reduce {
        send: DevicePtr,
        recv: DevicePtr,
        count: usize,
        dtype: NcclType,
        op: ReduceOp,
        root: usize,
    },
    /// Concatenates `count` elements of each rank in rank order, and writes the result on every
    /// rank.
    AllGather { send: DevicePtr, recv: DevicePtr, count: usize, dtype: NcclType },
    /// Combines the elements of all ranks, and writes `count` elements of the result on each rank,
    /// in rank order.
    ReduceScatter { send: DevicePtr, recv: DevicePtr, count: usize, dtype: NcclType, op: ReduceOp },
    /// Sends `count` elements to `peer`.
    Send { send: DevicePtr, count: usize, dtype: NcclType, peer: usize },
    /// Receives `count` elements from `peer`.
    Recv { recv: DevicePtr, count: usize, dtype: NcclType, peer: usize },
}

/// An implementation of NCCL: the library, or a simulation.
///
/// # Errors
/// All methods share these errors:
/// - [`DriverError::LibraryCall`](crate::DriverError::LibraryCall) if NCCL refuses the call, or if
///   an earlier call on the communicator failed.
/// - [`DriverError::InvalidArgument`](crate::DriverError::InvalidArgument) if a number is too large
///   for NCCL, if the stream is on a different device than the communicator, or if the process is
///   ending. The simulated NCCL also returns it for invalid calls, such as one whose root is no
///   rank.
/// - [`DriverError::CollectiveMismatch`](crate::DriverError::CollectiveMismatch) from the simulated
///   NCCL, if ranks made different calls before.
/// - Errors of the [driver call](crate::Driver#errors) that makes the device current.
///
/// # Safety
/// An implementation enqueues work only on the stream that it is given. The work accesses only the
/// memory that a [`Collective`] names, and only before the stream's later work begins.
///
/// # Safety of the `unsafe` methods
/// Communicators are alive and used by one thread at a time;
/// [`owned::Communicator`](crate::owned::Communicator) ensures this. Memory stays valid until the
/// work is done or the communicator's abort has returned.
#[allow(clippy::missing_safety_doc)] // one contract for all of them, stated above
pub unsafe trait Nccl: Send + Sync + fmt::Debug {
    /// Returns the version, as major · 10 000 + minor · 100 + patch.
    fn version(&self) -> Result<u32>;

    /// Creates an id for one communicator. The process that creates the id must live until all
    /// ranks have joined, and with the simulated NCCL as long as the communicator is used.
    fn unique_id(&self) -> Result<UniqueId>;

    /// Begins to join a communicator of `ranks` ranks as rank `rank`. The communicator is usable
    /// when its state is [`CommState::Ready`].
    fn comm_init(
        &self,
        device: usize,
        id: &UniqueId,
        ranks: usize,
        rank: usize,
    ) -> Result<CommHandle>;

    /// Begins to split a communicator: ranks with the same `color` form a new communicator, ordered
    /// by `key` (`ncclCommSplit`). A rank with `None` takes part, but joins no new communicator.
    /// The new communicator is usable when its state is [`CommState::Ready`].
    unsafe fn comm_split(
        &self,
        comm: CommHandle,
        color: Option<u32>,
        key: usize,
    ) -> Result<Option<CommHandle>>;

    /// Returns the rank in the communicator, and the number of ranks (`ncclCommUserRank`,
    /// `ncclCommCount`). The communicator's state must have been [`CommState::Ready`].
    unsafe fn comm_rank(&self, comm: CommHandle) -> Result<(usize, usize)>;

    /// Returns the state of the last call. An error may come from an earlier call on the
    /// communicator, for example if a rank is gone.
    unsafe fn comm_state(&self, comm: CommHandle) -> Result<CommState>;

    /// Enqueues `calls` as one group: they begin together, in no particular order. This function may
    /// block until all ranks have called it. It also blocks while `enqueue` for another
    /// communicator on the same device blocks.
    unsafe fn enqueue(
        &self,
        comm: CommHandle,
        calls: &[Collective],
        stream: StreamHandle,
    ) -> Result<()>;

    /// Ends a call that hangs: a call on another thread returns, and enqueued work ends without a
    /// result. The interrupted call may use the communicator until it returns. This is the only
    /// function that may be called during another call on the communicator. It is called once, by
    /// one thread. Afterwards, only [`Nccl::comm_abort`] may be called.
    unsafe fn comm_interrupt(&self, comm: CommHandle) -> Result<()>;

    /// Ends and frees a communicator, in any state. Enqueued work ends without a result. The NCCL
    /// library waits until the graphs that hold calls of the communicator are destroyed. The handle
    /// is invalid afterwards.
    unsafe fn comm_abort(&self, comm: CommHandle) -> Result<()>;
}
