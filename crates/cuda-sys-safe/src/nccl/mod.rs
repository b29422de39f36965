//! Collectives between devices: NCCL's interface, with its own names.
//!
//! [`Nccl`] is to NCCL what [`Driver`](crate::Driver) is to the CUDA driver.
//! [`Driver::nccl`](crate::Driver::nccl) returns the implementation that belongs to a driver: the
//! NCCL library for the real driver, a simulated one for the simulated driver.
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
//!    graphs that hold calls of the communicator are destroyed. A thread that owns such a graph may
//!    try to launch it first; the launch is refused.
//!
//! `state` and `is_aborted` wait for no lock. While the process ends, aborts are let in until the
//! running calls have returned.
//!
//! A graph keeps the communicators of its captured calls. They are locked during a launch of the
//! graph, so that no communicator is aborted under it. After an abort, launches of the graph are
//! refused.

pub(crate) mod null;
pub(crate) mod real;
pub(crate) mod sim;

use std::fmt;

use crate::{DevicePtr, Result, StreamHandle};

/// What all ranks of a communicator are given to find each other (`ncclUniqueId`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UniqueId([u8; Self::BYTES]);

impl UniqueId {
    /// Its size.
    pub const BYTES: usize = 128;

    /// The id that these bytes of another rank's stand for.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// What is sent to the other ranks.
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
    /// The handle that an implementation of [`Nccl`] made.
    ///
    /// # Safety
    /// `raw` is that implementation's communicator on this device.
    #[must_use]
    pub const unsafe fn new(raw: u64, device: usize) -> Self {
        Self { raw, device }
    }

    /// The implementation's own value.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.raw
    }

    /// The device it is on.
    #[must_use]
    pub const fn device(self) -> usize {
        self.device
    }
}

/// Whether a communicator's last call is through (`ncclCommGetAsyncError`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommState {
    /// All is done that was asked for; work may be enqueued.
    Ready,
    /// A call goes on in the background (`ncclInProgress`). Nothing may be given to its stream.
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

    /// Bytes per element.
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

/// How elements are combined (`ncclRedOp_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Their sum.
    Sum,
    /// Their product.
    Product,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// Their mean.
    Avg,
}

impl ReduceOp {
    /// Every way, in declaration order.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Product, Self::Max, Self::Min, Self::Avg];
}

/// One call on a communicator; counts are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // as in NCCL's documentation
pub enum Collective {
    /// `count` elements of each rank, combined, to every rank.
    AllReduce { send: DevicePtr, recv: DevicePtr, count: usize, dtype: NcclType, op: ReduceOp },
    /// `count` elements of `root` to every rank; `send` is not read elsewhere.
    Broadcast { send: DevicePtr, recv: DevicePtr, count: usize, dtype: NcclType, root: usize },
    /// `count` elements of each rank, combined, to `root`; `recv` is not written elsewhere.
    Reduce {
        send: DevicePtr,
        recv: DevicePtr,
        count: usize,
        dtype: NcclType,
        op: ReduceOp,
        root: usize,
    },
    /// `count` elements of each rank, one after the other, to every rank.
    AllGather { send: DevicePtr, recv: DevicePtr, count: usize, dtype: NcclType },
    /// `count` elements for each rank, combined over all ranks.
    ReduceScatter { send: DevicePtr, recv: DevicePtr, count: usize, dtype: NcclType, op: ReduceOp },
    /// `count` elements to `peer`.
    Send { send: DevicePtr, count: usize, dtype: NcclType, peer: usize },
    /// `count` elements from `peer`.
    Recv { recv: DevicePtr, count: usize, dtype: NcclType, peer: usize },
}

/// NCCL: the library, or a simulated one.
///
/// # Safety
/// An implementation enqueues on the stream that it is given and nowhere else, and touches no memory
/// but what a [`Collective`] names, before the stream's later work begins.
///
/// # Safety of the `unsafe` methods
/// Communicators are alive and used by one thread at a time; memory stays valid until the work is
/// done or the communicator's abort has returned. [`owned::Communicator`](crate::owned::Communicator)
/// sees to the former.
#[allow(clippy::missing_safety_doc)] // one contract for all of them, stated above
pub unsafe trait Nccl: Send + Sync + fmt::Debug {
    /// Major · 10 000 + minor · 100 + patch.
    fn version(&self) -> Result<u32>;

    /// A new id, for one communicator. The process that makes it has to live until all have joined.
    fn unique_id(&self) -> Result<UniqueId>;

    /// Begins to join a communicator of `ranks` as `rank`; usable once it is [`CommState::Ready`].
    fn comm_init(
        &self,
        device: usize,
        id: &UniqueId,
        ranks: usize,
        rank: usize,
    ) -> Result<CommHandle>;

    /// Begins to split a communicator: ranks of one `color` make one, in the order of `key`; `None`
    /// takes part and gets none (`ncclCommSplit`). The new one is usable once it is `Ready`.
    unsafe fn comm_split(
        &self,
        comm: CommHandle,
        color: Option<u32>,
        key: usize,
    ) -> Result<Option<CommHandle>>;

    /// Its rank in the communicator, and how many there are (`ncclCommUserRank`, `ncclCommCount`);
    /// of one that was [`CommState::Ready`].
    unsafe fn comm_rank(&self, comm: CommHandle) -> Result<(usize, usize)>;

    /// Whether the last call is through. Errors are of whatever was asked of it before, such as a
    /// rank that is gone.
    unsafe fn comm_state(&self, comm: CommHandle) -> Result<CommState>;

    /// Enqueues calls as one group: they begin together and wait for no order among them. It may
    /// block until all ranks have called it, and while another communicator's call does for one of the
    /// same device.
    unsafe fn enqueue(
        &self,
        comm: CommHandle,
        calls: &[Collective],
        stream: StreamHandle,
    ) -> Result<()>;

    /// Ends what hangs: what it enqueued ends without a result, and a call on another thread returns,
    /// whose use goes on unharmed until then. Of the communicator's calls this is the one that may be
    /// made while another is under way; it is made once, by one thread. After it, only
    /// [`Nccl::comm_abort`] may be called.
    unsafe fn comm_interrupt(&self, comm: CommHandle) -> Result<()>;

    /// Ends a communicator at once, whatever its state: what it enqueued ends without a result. The
    /// handle is invalid afterwards.
    unsafe fn comm_abort(&self, comm: CommHandle) -> Result<()>;
}
