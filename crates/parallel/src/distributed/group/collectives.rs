//! Collectives of one tensor, or one in and one out.

use std::panic::Location;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use warpline::{DType, Tensor, with_runtime, zeros};
use warpline_cuda_sys_safe::nccl::ReduceOp;
use warpline_kernels::collective::{self, Op};

use super::super::signature::Signature;
use super::super::{Result, Work};
use super::ProcessGroup;

impl ProcessGroup {
    /// Combines a tensor of all ranks, in place, on every rank (`torch.distributed.all_reduce`).
    ///
    /// # Errors
    /// an error of the tensors for a tensor that is not contiguous, is on another
    /// device or of a dtype that NCCL does not have (`int16`; of bools, the mean);
    /// [`GroupError::CollectiveTimeout`](GroupError::CollectiveTimeout) and
    /// [`GroupError::PeerFailed`](GroupError::PeerFailed) once the group has failed;
    /// [`GroupError::Mismatch`](GroupError::Mismatch) in debug mode.
    #[track_caller]
    pub fn all_reduce(&self, tensor: &Tensor, op: ReduceOp, async_op: bool) -> Result<Work> {
        self.all_reduce_coalesced_at(
            "all_reduce",
            std::slice::from_ref(tensor),
            (op, async_op),
            Location::caller(),
        )
    }

    /// [`ProcessGroup::all_reduce`] of several tensors in one launch
    /// (`torch.distributed.all_reduce_coalesced`).
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`]; for tensors that share memory.
    #[track_caller]
    pub fn all_reduce_coalesced(
        &self,
        tensors: &[Tensor],
        op: ReduceOp,
        async_op: bool,
    ) -> Result<Work> {
        let name = "all_reduce_coalesced";
        self.all_reduce_coalesced_at(name, tensors, (op, async_op), Location::caller())
    }

    fn all_reduce_coalesced_at(
        &self,
        name: &'static str,
        tensors: &[Tensor],
        (op, async_op): (ReduceOp, bool),
        location: &'static Location<'static>,
    ) -> Result<Work> {
        let signature = tensors.iter().fold(Signature::new(name).reduce(op), Signature::of);
        self.launch((signature, async_op), location, tensors.into(), |target, comm| {
            let ops = tensors.iter().map(Tensor::as_view);
            let ops: SmallVec<[_; 1]> =
                ops.map(|view| Op::AllReduce { input: view, output: view, op }).collect();
            collective::run(target, comm, name, &ops, location)
        })
    }

    /// Gives all ranks the tensor of rank `src`, in place (`torch.distributed.broadcast`).
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`]; for a rank that there is not.
    #[track_caller]
    pub fn broadcast(&self, tensor: &Tensor, src: usize, async_op: bool) -> Result<Work> {
        let location = Location::caller();
        let view = tensor.as_view();
        let op = Op::Broadcast { input: view, output: view, root: src };
        let signature = Signature::new("broadcast").of(tensor).root(src);
        self.launch((signature, async_op), location, smallvec![tensor.clone()], |target, comm| {
            collective::run(target, comm, "broadcast", &[op], location)
        })
    }

    /// Combines a tensor of all ranks, in place, on rank `dst`; what the others' hold then is left as
    /// it was (`torch.distributed.reduce`).
    ///
    /// # Errors
    /// As [`ProcessGroup::broadcast`].
    #[track_caller]
    pub fn reduce(
        &self,
        tensor: &Tensor,
        dst: usize,
        op: ReduceOp,
        async_op: bool,
    ) -> Result<Work> {
        let location = Location::caller();
        let view = tensor.as_view();
        let call = Op::Reduce { input: view, output: view, op, root: dst };
        let signature = Signature::new("reduce").of(tensor).reduce(op).root(dst);
        self.launch((signature, async_op), location, smallvec![tensor.clone()], |target, comm| {
            collective::run(target, comm, "reduce", &[call], location)
        })
    }

    /// `output` is `input` of all ranks, one after the other
    /// (`torch.distributed.all_gather_into_tensor`).
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`]; for an output that has not as many elements.
    #[track_caller]
    pub fn all_gather_into_tensor(
        &self,
        output: &Tensor,
        input: &Tensor,
        async_op: bool,
    ) -> Result<Work> {
        let location = Location::caller();
        let op = Op::AllGather { input: input.as_view(), output: output.as_view() };
        let signature = Signature::new("all_gather_into_tensor").of(output).of(input);
        let keep = smallvec![output.clone(), input.clone()];
        self.launch((signature, async_op), location, keep, |target, comm| {
            collective::run(target, comm, "all_gather_into_tensor", &[op], location)
        })
    }

    /// `output` is this rank's part of `input` of all ranks, combined
    /// (`torch.distributed.reduce_scatter_tensor`).
    ///
    /// # Errors
    /// As [`ProcessGroup::all_gather_into_tensor`].
    #[track_caller]
    pub fn reduce_scatter_tensor(
        &self,
        output: &Tensor,
        input: &Tensor,
        op: ReduceOp,
        async_op: bool,
    ) -> Result<Work> {
        let location = Location::caller();
        let call = Op::ReduceScatter { input: input.as_view(), output: output.as_view(), op };
        let signature = Signature::new("reduce_scatter_tensor").of(output).of(input).reduce(op);
        let keep = smallvec![output.clone(), input.clone()];
        self.launch((signature, async_op), location, keep, |target, comm| {
            collective::run(target, comm, "reduce_scatter_tensor", &[call], location)
        })
    }

    /// Blocks the host until all ranks have come here, and what the current stream was given before
    /// is done (`torch.distributed.barrier`).
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`]; what earlier work on the device failed with; while the
    /// current stream is captured.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        let location = Location::caller();
        let shared = self.shared();
        self.refuse_capture("barrier")?;
        if shared.barrier.get().is_none() {
            let options = (DType::U8, self.device());
            let made = with_runtime(&shared.parts.runtime, || zeros([1], options));
            let made = made.map_err(|e| e.of("barrier").at(location))?;
            let _ = shared.barrier.set(made);
        }
        let Some(tensor) = shared.barrier.get() else { return Ok(()) };
        let view = tensor.as_view();
        let op = Op::AllReduce { input: view, output: view, op: ReduceOp::Max };
        let signature = Signature::new("barrier");
        let work = self.launch(
            (signature, false),
            location,
            smallvec![tensor.clone()],
            |target, comm| collective::run(target, comm, "barrier", &[op], location),
        )?;
        work.synchronize()
    }

    /// Waits on the host for all that the group was given.
    pub(super) fn drain(&self) -> Result<()> {
        let shared = Arc::clone(self.shared());
        loop {
            shared.check_alive()?;
            let mut ring = shared.ring();
            ring.settle();
            if ring.oldest_unfinished().is_none() {
                return Ok(());
            }
            drop(ring);
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }
}
