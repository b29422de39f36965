//! Collectives of one tensor, or of one input and one output.

use std::panic::Location;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use warpline::{DType, IntoOptions, OrDefault, Tensor, with_runtime, zeros};
use warpline_cuda_sys_safe::nccl::ReduceOp;
use warpline_kernels::collective::CollectiveOp;

use super::super::signature::Signature;
use super::super::{Result, Work};
use super::ProcessGroup;

warpline::__options! {
    /// Options of the collectives that reduce. A [`ReduceOp`] converts into options with that `op`.
    #[derive(Clone, Copy, Debug)]
    ReduceOptions [] [] {
        /// Sets how elements are combined. Default: [`ReduceOp::Sum`].
        op: ReduceOp = ReduceOp::Sum, ReduceOp;
        /// Sets whether the call runs concurrently with the current stream, which waits for the result only at
        /// [`Work::wait`]. Default: `false`.
        async_op: bool = false, bool;
    }
}

impl From<ReduceOp> for ReduceOptions {
    fn from(op: ReduceOp) -> Self {
        Self::new().op(op)
    }
}

impl ProcessGroup {
    /// Reduces the tensors of all ranks element by element, and overwrites the tensor of every rank with the result
    /// (`torch.distributed.all_reduce`).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument) if a tensor is not contiguous;
    /// [`ErrorKind::DeviceMismatch`](warpline::ErrorKind::DeviceMismatch) if a tensor is not on the group's device;
    /// [`ErrorKind::UnsupportedDType`](warpline::ErrorKind::UnsupportedDType) for `int16`, and for the mean of `bool`s;
    /// [`ErrorKind::RuntimeMismatch`](warpline::ErrorKind::RuntimeMismatch) if a tensor on a GPU belongs to another
    /// runtime.
    ///
    /// [`ErrorKind::ProcessGroup`](warpline::ErrorKind::ProcessGroup) with a
    /// [`GroupError`](crate::distributed::GroupError) as its source:
    /// [`GroupError::CollectiveTimeout`](crate::distributed::GroupError::CollectiveTimeout) or
    /// [`GroupError::PeerFailed`](crate::distributed::GroupError::PeerFailed) once the group has failed,
    /// [`GroupError::Mismatch`](crate::distributed::GroupError::Mismatch) if the ranks' calls differ in debug mode; or
    /// with a [`StoreError`](crate::distributed::StoreError) if the store fails in debug mode. Errors of the launch
    /// ([`collective::run`](warpline_kernels::collective::run)).
    #[track_caller]
    pub fn all_reduce(
        &self,
        tensor: &Tensor,
        options: impl IntoOptions<ReduceOptions>,
    ) -> Result<Work> {
        self.all_reduce_coalesced_at(
            "all_reduce",
            std::slice::from_ref(tensor),
            options.into_options(),
            Location::caller(),
        )
    }

    /// Reduces several tensors like [`ProcessGroup::all_reduce`], in one launch
    /// (`torch.distributed.all_reduce_coalesced`).
    ///
    /// # Errors
    /// The same as [`ProcessGroup::all_reduce`];
    /// [`ErrorKind::OverlappingOperands`](warpline::ErrorKind::OverlappingOperands) if tensors share memory.
    #[track_caller]
    pub fn all_reduce_coalesced(
        &self,
        tensors: &[Tensor],
        options: impl IntoOptions<ReduceOptions>,
    ) -> Result<Work> {
        let name = "all_reduce_coalesced";
        self.all_reduce_coalesced_at(name, tensors, options.into_options(), Location::caller())
    }

    /// Reduces a tensor like [`ProcessGroup::all_reduce`] with `async_op`. Errors and the flight recorder describe the
    /// call with `label`.
    #[track_caller]
    pub(in crate::distributed) fn all_reduce_labeled(
        &self,
        tensor: &Tensor,
        op: ReduceOp,
        label: &Arc<str>,
    ) -> Result<Work> {
        let signature = Signature::new("all_reduce").of(tensor).reduce(op).label(label);
        let view = tensor.as_view();
        let op = CollectiveOp::AllReduce { input: view, output: view, op };
        self.launch((signature, true), Location::caller(), smallvec![tensor.clone()], &[op])
    }

    fn all_reduce_coalesced_at(
        &self,
        name: &'static str,
        tensors: &[Tensor],
        ReduceOptions { op, async_op }: ReduceOptions,
        location: &'static Location<'static>,
    ) -> Result<Work> {
        let signature = tensors.iter().fold(Signature::new(name).reduce(op), Signature::of);
        let ops = tensors.iter().map(Tensor::as_view);
        let ops: SmallVec<[_; 1]> =
            ops.map(|view| CollectiveOp::AllReduce { input: view, output: view, op }).collect();
        self.launch((signature, async_op), location, tensors.into(), &ops)
    }

    /// Copies the tensor of rank `src` into the tensors of all other ranks (`torch.distributed.broadcast`).
    ///
    /// # Errors
    /// The same as [`ProcessGroup::all_reduce`]; [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument)
    /// if there is no rank `src`.
    #[track_caller]
    pub fn broadcast(
        &self,
        tensor: &Tensor,
        src: usize,
        async_op: impl IntoOptions<OrDefault<bool>>,
    ) -> Result<Work> {
        let async_op = async_op.into_options().or(false);
        let location = Location::caller();
        let view = tensor.as_view();
        let op = CollectiveOp::Broadcast { input: view, output: view, root: src };
        let signature = Signature::new("broadcast").of(tensor).root(src);
        self.launch((signature, async_op), location, smallvec![tensor.clone()], &[op])
    }

    /// Reduces the tensors of all ranks element by element, and overwrites the tensor of rank `dst` with the result
    /// (`torch.distributed.reduce`). The tensors of the other ranks do not change.
    ///
    /// # Errors
    /// The same as [`ProcessGroup::all_reduce`]; [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument)
    /// if there is no rank `dst`.
    #[track_caller]
    pub fn reduce(
        &self,
        tensor: &Tensor,
        dst: usize,
        options: impl IntoOptions<ReduceOptions>,
    ) -> Result<Work> {
        let ReduceOptions { op, async_op } = options.into_options();
        let location = Location::caller();
        let view = tensor.as_view();
        let call = CollectiveOp::Reduce { input: view, output: view, op, root: dst };
        let signature = Signature::new("reduce").of(tensor).reduce(op).root(dst);
        self.launch((signature, async_op), location, smallvec![tensor.clone()], &[call])
    }

    /// Concatenates the `input`s of all ranks in `output`, on every rank (`torch.distributed.all_gather_into_tensor`).
    /// `output` has `world_size` times as many elements as `input`.
    ///
    /// # Errors
    /// The same as [`ProcessGroup::all_reduce`]; [`ErrorKind::ShapeMismatch`](warpline::ErrorKind::ShapeMismatch) if
    /// `output` does not have `world_size` times as many elements as `input`;
    /// [`ErrorKind::DTypeMismatch`](warpline::ErrorKind::DTypeMismatch) if the dtypes differ;
    /// [`ErrorKind::OverlappingOperands`](warpline::ErrorKind::OverlappingOperands) if `input` shares memory with
    /// `output` without being exactly this rank's part of it.
    #[track_caller]
    pub fn all_gather_into_tensor(
        &self,
        output: &Tensor,
        input: &Tensor,
        async_op: impl IntoOptions<OrDefault<bool>>,
    ) -> Result<Work> {
        let async_op = async_op.into_options().or(false);
        let location = Location::caller();
        let op = CollectiveOp::AllGather { input: input.as_view(), output: output.as_view() };
        let signature = Signature::new("all_gather_into_tensor").of(output).of(input);
        let keep = smallvec![output.clone(), input.clone()];
        self.launch((signature, async_op), location, keep, &[op])
    }

    /// Reduces the `input`s of all ranks, and writes the part of this rank to `output`
    /// (`torch.distributed.reduce_scatter_tensor`). `input` has `world_size` times as many elements as `output`.
    ///
    /// # Errors
    /// The same as [`ProcessGroup::all_gather_into_tensor`], with `input` and `output` exchanged.
    #[track_caller]
    pub fn reduce_scatter_tensor(
        &self,
        output: &Tensor,
        input: &Tensor,
        options: impl IntoOptions<ReduceOptions>,
    ) -> Result<Work> {
        let ReduceOptions { op, async_op } = options.into_options();
        let location = Location::caller();
        let call =
            CollectiveOp::ReduceScatter { input: input.as_view(), output: output.as_view(), op };
        let signature = Signature::new("reduce_scatter_tensor").of(output).of(input).reduce(op);
        let keep = smallvec![output.clone(), input.clone()];
        self.launch((signature, async_op), location, keep, &[call])
    }

    /// Blocks the host until all ranks have called `barrier` and the earlier work on the current stream is done
    /// (`torch.distributed.barrier`).
    ///
    /// # Errors
    /// The same as [`ProcessGroup::all_reduce`]; [`ErrorKind::Surfaced`](warpline::ErrorKind::Surfaced) if earlier work
    /// on the device failed; [`ErrorKind::Capture`](warpline::ErrorKind::Capture) while the current stream is captured.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        let location = Location::caller();
        let shared = self.shared();
        self.check_not_capturing("barrier")?;
        if shared.barrier.get().is_none() {
            let options = (DType::U8, self.device());
            let tensor = with_runtime(&shared.parts.runtime, || zeros([1], options));
            let tensor = tensor.map_err(|e| e.of("barrier").at(location))?;
            let _ = shared.barrier.set(tensor);
        }
        let Some(tensor) = shared.barrier.get() else { return Ok(()) };
        let view = tensor.as_view();
        let op = CollectiveOp::AllReduce { input: view, output: view, op: ReduceOp::Max };
        let signature = Signature::new("barrier");
        self.launch((signature, false), location, smallvec![tensor.clone()], &[op])?.synchronize()
    }

    /// Blocks the host until all calls of the group are done.
    pub(super) fn drain(&self) -> Result<()> {
        let shared = Arc::clone(self.shared());
        loop {
            shared.check_alive()?;
            let mut recorder = shared.recorder();
            recorder.poll_finished();
            if recorder.oldest_unfinished().is_none() {
                return Ok(());
            }
            drop(recorder);
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }
}
