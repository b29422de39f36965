//! The transports of a group's tensors: NCCL between GPUs, the store between CPUs.

use std::time::Duration;

use warpline::cuda::Stream;
use warpline::{Device, Error, Result, Runtime};
use warpline_cuda_sys_safe::owned::Communicator;

use super::cpu::CpuTransport;

/// The transport of a group's tensors (`backend` of `torch.distributed.init_process_group`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// NCCL, between GPUs: each rank has its own GPU.
    #[default]
    Nccl,
    /// The group's store, between CPU tensors, for tests and for machines without GPUs (PyTorch's `gloo`). Supports all
    /// collectives, and every dtype that NCCL supports. Reductions combine the ranks in ascending order, so their
    /// results are the same in each run. A call returns when the collective is done.
    Cpu,
}

/// A rank's end of the transport.
#[derive(Debug)]
pub(in crate::distributed) enum Transport {
    Nccl {
        comm: Communicator,
        /// The stream of calls with `async_op`.
        stream: Stream,
    },
    Cpu(CpuTransport),
}

impl Transport {
    pub(in crate::distributed) fn nccl(runtime: &Runtime, comm: Communicator) -> Result<Self> {
        let stream = runtime.device(comm.device())?.device().exclusive_stream(0)?;
        Ok(Self::Nccl { comm, stream })
    }

    pub(in crate::distributed) fn cpu(rank: usize, ranks: usize) -> Self {
        Self::Cpu(CpuTransport::new(rank, ranks))
    }

    pub(in crate::distributed) fn rank(&self) -> usize {
        match self {
            Self::Nccl { comm, .. } => comm.rank(),
            Self::Cpu(cpu) => cpu.rank(),
        }
    }

    pub(in crate::distributed) fn ranks(&self) -> usize {
        match self {
            Self::Nccl { comm, .. } => comm.ranks(),
            Self::Cpu(cpu) => cpu.ranks(),
        }
    }

    /// Returns the device of the rank's tensors.
    pub(super) fn device(&self) -> Device {
        match self {
            Self::Nccl { comm, .. } => Device::cuda(comm.device()),
            Self::Cpu(_) => Device::Cpu,
        }
    }

    /// Returns the error of the NCCL communicator, after which the group cannot be used. `None` on the CPU.
    pub(in crate::distributed) fn error(&self) -> Option<String> {
        match self {
            Self::Nccl { comm, .. } => comm.state().err().map(|error| error.to_string()),
            Self::Cpu(_) => None,
        }
    }

    /// Ends hanging NCCL calls. Calls on the CPU end by themselves once the group has failed.
    pub(super) fn abort(&self) {
        if let Self::Nccl { comm, .. } = self {
            comm.abort();
        }
    }

    /// Forms the transport of a subgroup with these ranks, in ascending order. Returns `None` on ranks that are not
    /// members. All ranks must call this function.
    pub(super) fn split(
        &self,
        op: &'static str,
        runtime: &Runtime,
        members: &[usize],
        timeout: Duration,
    ) -> Result<Option<Self>> {
        let place = members.iter().position(|member| *member == self.rank());
        match self {
            Self::Nccl { comm, .. } => {
                let comm = comm.split(place.map(|_| 0), comm.rank(), timeout);
                let comm = comm.map_err(|error| Error::driver(op, error))?;
                comm.map(|comm| Self::nccl(runtime, comm)).transpose()
            }
            Self::Cpu(_) => Ok(place.map(|rank| Self::cpu(rank, members.len()))),
        }
    }
}
