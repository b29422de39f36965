//! Collectives between devices, through NCCL, and the parts of collectives between hosts that do not
//! depend on the transport.
//!
//! A collective of devices is a launch: it is ordered after earlier uses of its tensors, checked for races,
//! named in error reports, and can be captured in graphs.

mod check;

use std::panic::Location;

use smallvec::SmallVec;
use warpline_cuda_sys_safe::nccl::{Collective, NcclType, ReduceOp};
use warpline_cuda_sys_safe::{DevicePtr, DriverError, StreamHandle};

use warpline_runtime::launch::{self, CollectiveCalls, address};
use warpline_runtime::{DType, Device, Error, ErrorKind, Operand, Result, Site, Target, View};

pub use warpline_runtime::launch::TrackedCommunicator;

/// A collective call on a communicator, for contiguous tensors on the communicator's device.
///
/// `output` may be `input` itself. In [`CollectiveOp::AllGather`], `input` may be this rank's part of
/// `output`; in [`CollectiveOp::ReduceScatter`], `output` may be this rank's part of `input`. Any other
/// overlap is an error.
#[derive(Clone, Copy, Debug)]
pub enum CollectiveOp<'a> {
    /// Combines the `input` of all ranks into the `output` of every rank.
    AllReduce {
        /// This rank's contribution.
        input: View<'a>,
        /// The combined elements, as many as `input` has.
        output: View<'a>,
        /// The operation that combines elements.
        op: ReduceOp,
    },
    /// Copies the `input` of rank `root` to the `output` of every rank.
    Broadcast {
        /// The elements that `root` sends. Not read on other ranks.
        input: View<'a>,
        /// The received elements, as many as `input` has.
        output: View<'a>,
        /// The rank that sends.
        root: usize,
    },
    /// Combines the `input` of all ranks into the `output` of rank `root`.
    Reduce {
        /// This rank's contribution.
        input: View<'a>,
        /// The combined elements, as many as `input` has. Not written on ranks other than `root`.
        output: View<'a>,
        /// The operation that combines elements.
        op: ReduceOp,
        /// The rank that receives the result.
        root: usize,
    },
    /// Concatenates the `input` of all ranks, in rank order, into the `output` of every rank.
    AllGather {
        /// This rank's contribution.
        input: View<'a>,
        /// The concatenation: as many elements as `input` has, times the number of ranks.
        output: View<'a>,
    },
    /// Combines the `input` of all ranks, and gives each rank one part of the result, in rank
    /// order.
    ReduceScatter {
        /// This rank's contribution: as many elements as `output` has, times the number of ranks.
        input: View<'a>,
        /// This rank's part of the combined elements.
        output: View<'a>,
        /// The operation that combines elements.
        op: ReduceOp,
    },
    /// Sends `input` to rank `peer`.
    Send {
        /// The elements to send.
        input: View<'a>,
        /// The receiving rank.
        peer: usize,
    },
    /// Receives `output` from rank `peer`.
    Recv {
        /// The received elements, as many as `peer` sends.
        output: View<'a>,
        /// The sending rank.
        peer: usize,
    },
}

/// The operands of one group of calls.
type Operands<'a> = SmallVec<[Operand<'a>; 2]>;

/// Enqueues calls on a communicator as one NCCL group. The group does not order its calls, so an
/// all-to-all consists of a [`CollectiveOp::Send`] to each rank and a [`CollectiveOp::Recv`] from
/// each rank. Calls without elements are skipped, so a call must be empty on all ranks or on none.
///
/// Bools are sent as `u8`. [`ReduceOp::Sum`] of bools is computed as their maximum, as in PyTorch.
///
/// # Errors
/// - [`ErrorKind::DeviceMismatch`] if the target is the CPU or another device, or a tensor is not
///   on the communicator's device.
/// - [`ErrorKind::RuntimeMismatch`] if the communicator and the target's device have different
///   drivers.
/// - [`ErrorKind::UnsupportedDType`] for `int16`, and for [`ReduceOp::Avg`] of bools.
/// - [`ErrorKind::DTypeMismatch`] if `input` and `output` of a call have different dtypes.
/// - [`ErrorKind::ShapeMismatch`] if `input` and `output` do not have the numbers of elements that
///   [`CollectiveOp`] requires for the call.
/// - [`ErrorKind::OutOfStorage`] if a view reaches outside its storage.
/// - [`ErrorKind::OverlappingOperands`] if an output shares memory with another view of the group,
///   except where [`CollectiveOp`] permits this within a call.
/// - [`ErrorKind::InvalidArgument`] if a view is not contiguous, if `root` or `peer` is not a rank,
///   or if the group does not have as many receives from this rank itself as sends to it.
/// - [`ErrorKind::Driver`] if NCCL fails.
/// - The other errors of [`launch::run_collectives`].
///
/// ```
/// use std::{panic::Location, thread, time::Duration};
/// use warpline_cuda_sys_safe::nccl::ReduceOp;
/// use warpline_cuda_sys_safe::{owned::Communicator, sim::SimConfig};
/// use warpline_kernels::collective::{self, CollectiveOp};
/// use warpline_kernels::fill;
/// use warpline_runtime::{DType, Layout, Runtime, RuntimeConfig, Storage, Target, View};
///
/// let runtime = Runtime::new(SimConfig::new(2).build(), RuntimeConfig::default())?;
/// let id = runtime.driver()?.nccl()?.unique_id()?;
/// let rank = |rank: usize| -> Result<(), warpline_runtime::Error> {
///     let limit = Duration::from_secs(60);
///     let driver = runtime.driver()?;
///     let comm = Communicator::new(driver, rank, &id, 2, rank, limit).expect("two ranks");
///     let device = runtime.device(rank)?;
///     let stream = device.device().stream_from_pool(0)?;
///     let target = Target::Cuda(&runtime, device, &stream);
///     let (storage, layout) = (Storage::device(&runtime, 16, &stream)?, Layout::contiguous(&[4])?);
///     let x = View { storage: &storage, layout: &layout, dtype: DType::F32 };
///     fill::fill(target, x, 1.5.into())?;
///     let sum = CollectiveOp::AllReduce { input: x, output: x, op: ReduceOp::Sum };
///     collective::run(target, &comm, "all_reduce", &[sum], Location::caller())?;
///     stream.synchronize()?; // dropping the communicator would abort running work
///     Ok(())
/// };
/// thread::scope(|s| [0, 1].map(|r| s.spawn(move || rank(r))).map(|t| t.join().unwrap()))
///     .into_iter()
///     .collect::<Result<(), _>>()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn run<'a>(
    target: Target<'_>,
    comm: impl Into<TrackedCommunicator<'a>>,
    name: &'static str,
    ops: &[CollectiveOp<'a>],
    location: &'static Location<'static>,
) -> Result<()> {
    let group = Group::new(name, comm.into(), ops)?;
    launch::run_collectives(target, Site { op: name, location }, &group)
}

/// A rank of a group, for the checks of its calls.
#[derive(Clone, Copy, Debug)]
pub struct GroupMember {
    /// The device of the rank's tensors.
    pub device: Device,
    /// Number of the rank.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
}

/// Checks calls as [`run`] does, and enqueues nothing. For transports other than NCCL.
///
/// # Errors
/// The same as [`run`], except [`ErrorKind::RuntimeMismatch`], [`ErrorKind::Driver`] and the errors of
/// the launch. [`ErrorKind::InvalidArgument`] if `member.rank` is not less than `member.ranks`.
#[track_caller]
pub fn check(name: &'static str, member: GroupMember, ops: &[CollectiveOp<'_>]) -> Result<()> {
    if member.rank >= member.ranks {
        let reason = format!("there is no rank {} among {} ranks", member.rank, member.ranks);
        return Err(Error::invalid(name, reason));
    }
    for op in ops {
        check::call(name, member, op)?;
    }
    check::group(name, member, ops)
}

/// Combines the elements of all ranks on the host, in the order of ranks. Each input has the bytes of
/// one rank's elements. The result is that of the simulated NCCL
/// ([`nccl::reduce`](warpline_cuda_sys_safe::nccl::reduce())).
///
/// # Errors
/// [`ErrorKind::UnsupportedDType`] for `int16`, which NCCL does not have.
#[track_caller]
pub fn reduce(name: &'static str, dtype: DType, op: ReduceOp, inputs: &[&[u8]]) -> Result<Vec<u8>> {
    let op = combining_op(dtype == DType::Bool, op);
    Ok(warpline_cuda_sys_safe::nccl::reduce(nccl_type(name, dtype)?, op, inputs))
}

/// Returns the operation that NCCL performs. A sum of bools is their maximum, because they are sent as
/// `u8`.
fn combining_op(is_bool: bool, op: ReduceOp) -> ReduceOp {
    if is_bool && op == ReduceOp::Sum { ReduceOp::Max } else { op }
}

/// A group of checked calls.
struct Group<'a> {
    watched: TrackedCommunicator<'a>,
    operands: Operands<'a>,
    calls: SmallVec<[Collective; 2]>,
}

impl<'a> Group<'a> {
    #[track_caller]
    fn new(
        name: &'static str,
        watched: TrackedCommunicator<'a>,
        ops: &[CollectiveOp<'a>],
    ) -> Result<Self> {
        let comm = watched.comm();
        let (rank, ranks) = (comm.rank(), comm.ranks());
        check(name, GroupMember { device: Device::cuda(comm.device()), rank, ranks }, ops)?;
        let mut group = Self { watched, operands: SmallVec::new(), calls: SmallVec::new() };
        for op in ops.iter().filter(|op| op.numel() > 0) {
            op.operands(rank, &mut group.operands);
            group.calls.push(op.call(name)?);
        }
        Ok(group)
    }
}

// SAFETY: `new` has checked the operands and made the calls from them. NCCL reads the inputs and
// writes the outputs.
unsafe impl CollectiveCalls for Group<'_> {
    fn operands(&self) -> &[Operand<'_>] {
        &self.operands
    }

    fn watched(&self) -> TrackedCommunicator<'_> {
        self.watched
    }

    unsafe fn enqueue(&self, stream: StreamHandle) -> Result<(), DriverError> {
        // SAFETY: the addresses are those of the operands, whose sizes `check` has compared. The
        // caller guarantees the remaining conditions.
        unsafe { self.watched.comm().enqueue(&self.calls, stream) }
    }
}

impl<'a> CollectiveOp<'a> {
    /// Returns the input and the output, each `None` if the call has none.
    fn views(&self) -> (Option<View<'a>>, Option<View<'a>>) {
        match *self {
            Self::AllReduce { input, output, .. }
            | Self::Broadcast { input, output, .. }
            | Self::Reduce { input, output, .. }
            | Self::AllGather { input, output }
            | Self::ReduceScatter { input, output, .. } => (Some(input), Some(output)),
            Self::Send { input, .. } => (Some(input), None),
            Self::Recv { output, .. } => (None, Some(output)),
        }
    }

    fn numel(&self) -> usize {
        let (input, output) = self.views();
        input.or(output).map_or(0, |view| view.numel())
    }

    /// Appends the views that this rank reads and writes.
    fn operands(&self, rank: usize, all: &mut Operands<'a>) {
        let (mut input, mut output) = self.views();
        match *self {
            Self::Broadcast { root, .. } if root != rank => input = None,
            Self::Reduce { root, .. } if root != rank => output = None,
            _ => {}
        }
        all.extend(input.map(View::read));
        all.extend(output.map(View::write));
    }

    /// Converts the call to NCCL's terms.
    #[track_caller]
    fn call(&self, name: &'static str) -> Result<Collective> {
        let (input, output) = self.views();
        let dtype = input.or(output).map_or(DType::F32, |view| view.dtype);
        let at = |view: Option<View<'_>>| view.map_or(Ok(DevicePtr::NULL), |v| address(name, &v));
        let (send, recv) = (at(input)?, at(output)?);
        let (bool, dtype) = (dtype == DType::Bool, nccl_type(name, dtype)?);
        let combine = |op| combining_op(bool, op);
        let count = self.numel();
        Ok(match *self {
            Self::AllReduce { op, .. } => {
                Collective::AllReduce { send, recv, count, dtype, op: combine(op) }
            }
            Self::Broadcast { root, .. } => {
                Collective::Broadcast { send, recv, count, dtype, root }
            }
            Self::Reduce { op, root, .. } => {
                Collective::Reduce { send, recv, count, dtype, op: combine(op), root }
            }
            Self::AllGather { .. } => Collective::AllGather { send, recv, count, dtype },
            Self::ReduceScatter { output, op, .. } => {
                let (count, op) = (output.numel(), combine(op));
                Collective::ReduceScatter { send, recv, count, dtype, op }
            }
            Self::Send { peer, .. } => Collective::Send { send, count, dtype, peer },
            Self::Recv { peer, .. } => Collective::Recv { recv, count, dtype, peer },
        })
    }
}

/// Returns NCCL's name of a dtype.
#[track_caller]
fn nccl_type(op: &'static str, dtype: DType) -> Result<NcclType> {
    Ok(match dtype {
        DType::Bool | DType::U8 => NcclType::U8,
        DType::I8 => NcclType::I8,
        DType::I16 => {
            return Err(ErrorKind::UnsupportedDType { dtype }.of(op));
        }
        DType::I32 => NcclType::I32,
        DType::I64 => NcclType::I64,
        DType::F16 => NcclType::F16,
        DType::BF16 => NcclType::BF16,
        DType::F32 => NcclType::F32,
        DType::F64 => NcclType::F64,
    })
}
