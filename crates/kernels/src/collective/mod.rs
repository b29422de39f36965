//! Collectives between devices, by NCCL. They are launches like any other: in order with other uses
//! of their tensors, looked at for races, named in error reports, captured in graphs.

mod check;
#[cfg(test)]
mod tests;

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;
use warpline_cuda_sys_safe::nccl::{Collective, NcclType, ReduceOp};
use warpline_cuda_sys_safe::owned::Communicator;
use warpline_cuda_sys_safe::{DevicePtr, HostLaunch, StreamHandle};

use warpline_runtime::launch::{self, Call, address};
use warpline_runtime::{
    Completion, DType, Device, ErrorKind, Operand, Replays, Result, Target, View,
};

/// One call on a communicator, of contiguous tensors on its device. `output` may be `input`, of
/// [`Op::AllGather`] and [`Op::ReduceScatter`] the rank's own part of the larger one; otherwise they
/// share no memory.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// `output` is `input` of all ranks, combined.
    AllReduce {
        /// What this rank gives.
        input: View<'a>,
        /// What it gets: as many elements.
        output: View<'a>,
        /// How they are combined.
        op: ReduceOp,
    },
    /// `output` is `input` of rank `root`.
    Broadcast {
        /// What `root` gives; not used elsewhere.
        input: View<'a>,
        /// What each rank gets: as many elements.
        output: View<'a>,
        /// Who gives.
        root: usize,
    },
    /// `output` of rank `root` is `input` of all ranks, combined.
    Reduce {
        /// What this rank gives.
        input: View<'a>,
        /// What `root` gets: as many elements; not used elsewhere.
        output: View<'a>,
        /// How they are combined.
        op: ReduceOp,
        /// Who gets it.
        root: usize,
    },
    /// `output` is `input` of all ranks, one after the other.
    AllGather {
        /// What this rank gives.
        input: View<'a>,
        /// What it gets: as many elements for each rank.
        output: View<'a>,
    },
    /// `output` is this rank's part of `input` of all ranks, combined.
    ReduceScatter {
        /// What this rank gives: as many elements for each rank as `output` has.
        input: View<'a>,
        /// What it gets.
        output: View<'a>,
        /// How they are combined.
        op: ReduceOp,
    },
    /// `input` goes to rank `peer`.
    Send {
        /// What is sent.
        input: View<'a>,
        /// To whom.
        peer: usize,
    },
    /// `output` comes from rank `peer`.
    Recv {
        /// What is received: as many elements as are sent.
        output: View<'a>,
        /// From whom.
        peer: usize,
    },
}

/// A communicator to call a collective on, and perhaps the call's number in a [`Completion`], by
/// which what it writes is refused should it fail.
#[derive(Clone, Copy)]
pub struct Watched<'a> {
    comm: &'a Communicator,
    number: Option<(&'a Completion, u64)>,
    replays: Option<&'a dyn Fn() -> Arc<dyn Replays>>,
}

impl<'a> Watched<'a> {
    /// Numbers begin with 1 and are those of the calls' order. A graph in which the call is captured
    /// keeps what `replays` returns.
    #[must_use]
    pub fn new(
        comm: &'a Communicator,
        completion: &'a Completion,
        number: u64,
        replays: &'a dyn Fn() -> Arc<dyn Replays>,
    ) -> Self {
        Self { comm, number: Some((completion, number)), replays: Some(replays) }
    }
}

impl<'a> From<&'a Communicator> for Watched<'a> {
    fn from(comm: &'a Communicator) -> Self {
        Self { comm, number: None, replays: None }
    }
}

impl fmt::Debug for Watched<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched")
            .field("comm", &self.comm)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// What a rank does with its tensors in one call.
type Operands<'a> = SmallVec<[Operand<'a>; 2]>;

/// Enqueues calls on a communicator as one group, which waits for no order among them: an
/// all-to-all is a [`Op::Send`] to and a [`Op::Recv`] from every rank. Calls without elements are
/// left out, so they have to be without on every rank.
///
/// Bools are sent as `u8`, of which [`ReduceOp::Sum`] is the largest, as in PyTorch.
///
/// # Errors
/// [`ErrorKind::DeviceMismatch`] for tensors that are not on the communicator's device, a CPU target
/// included; [`ErrorKind::UnsupportedDType`] for `int16` and for the mean of bools;
/// [`ErrorKind::DTypeMismatch`]; [`ErrorKind::ShapeMismatch`]; [`ErrorKind::OverlappingOperands`];
/// [`ErrorKind::InvalidArgument`] for what is not contiguous, for a rank that there is not, and for sends
/// to this very rank that are not received in the group; otherwise as [`launch::run`], with NCCL's
/// own as [`ErrorKind::Driver`].
///
/// ```
/// use std::{panic::Location, thread, time::Duration};
/// use warpline_cuda_sys_safe::nccl::ReduceOp;
/// use warpline_cuda_sys_safe::{owned::Communicator, sim::SimConfig};
/// use warpline_kernels::collective::{self, Op};
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
///     let sum = Op::AllReduce { input: x, output: x, op: ReduceOp::Sum };
///     collective::run(target, &comm, "all_reduce", &[sum], Location::caller())?;
///     stream.synchronize()?; // before the communicator is dropped, which ends what is under way
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
    comm: impl Into<Watched<'a>>,
    name: &'static str,
    ops: &[Op<'_>],
    location: &'static Location<'static>,
) -> Result<()> {
    let Watched { comm, number, replays } = comm.into();
    let Target::Cuda(_, device, _) = target else {
        let (first, second) = (Device::cuda(comm.device()), Device::Cpu);
        return Err(ErrorKind::device_mismatch(first, second).of(name));
    };
    check::device(name, comm, device)?;
    let mut operands = Operands::new();
    let mut calls: SmallVec<[Collective; 2]> = SmallVec::new();
    for op in ops {
        check::one(name, comm, op)?;
        if op.numel() > 0 {
            op.operands(comm.rank(), &mut operands);
            calls.push(op.call(name)?);
        }
    }
    check::group(name, comm, ops)?;
    let enqueue = |stream_handle: StreamHandle| {
        // SAFETY: the driver calls this with the live stream of the device; the addresses are of the
        // operands, checked for size, which the launch keeps alive; graphs replay in `while_usable`.
        unsafe { comm.enqueue(&calls, stream_handle) }
    };
    let call = Call {
        op: name,
        operands: &operands,
        params: &[],
        checks_indices: false,
        host: no_host,
        code: launch::Collective { enqueue: &enqueue, comm, number, replays }.into(),
        location,
    };
    // SAFETY: NCCL reads inputs and writes outputs, of the sizes that were checked.
    unsafe { launch::run(target, &call) }
}

/// Never called: collectives enqueue themselves, on simulated devices too.
///
/// # Safety
/// None is needed.
unsafe fn no_host(_: &HostLaunch<'_>) {}

impl<'a> Op<'a> {
    /// What it takes and what it gives, as far as there is either.
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

    /// Adds what this rank reads and writes.
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

    /// It as NCCL is asked for it.
    #[track_caller]
    fn call(&self, name: &'static str) -> Result<Collective> {
        let (input, output) = self.views();
        let dtype = input.or(output).map_or(DType::F32, |view| view.dtype);
        let at = |view: Option<View<'_>>| view.map_or(Ok(DevicePtr::NULL), |v| address(name, &v));
        let (send, recv) = (at(input)?, at(output)?);
        let (bool, dtype) = (dtype == DType::Bool, nccl_type(name, dtype)?);
        let combine = |op| if bool && op == ReduceOp::Sum { ReduceOp::Max } else { op };
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

/// What NCCL calls a dtype.
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
