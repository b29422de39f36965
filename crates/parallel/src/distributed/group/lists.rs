//! Collectives of lists of tensors, with one tensor per rank.

use std::panic::Location;

use smallvec::smallvec;
use warpline::{IntoOptions, OrDefault, Tensor};
use warpline_kernels::collective::CollectiveOp;

use super::super::signature::Signature;
use super::super::work::CallTensors;
use super::super::{Result, Work};
use super::{ProcessGroup, ReduceOptions};

warpline::__options! {
    /// Options of [`ProcessGroup::all_to_all_single`].
    #[derive(Clone, Copy, Debug)]
    AllToAllOptions ['a] ['a] {
        /// Sets the lengths of the received parts along the first dimension, one for each rank. Default: equal parts.
        output_split_sizes: Option<&'a [usize]> = None, &'a (impl AsRef<[usize]> + ?Sized) => |sizes: &'a _| Some(AsRef::as_ref(sizes));
        /// Sets the lengths of the sent parts along the first dimension, one for each rank. Default: equal parts.
        input_split_sizes: Option<&'a [usize]> = None, &'a (impl AsRef<[usize]> + ?Sized) => |sizes: &'a _| Some(AsRef::as_ref(sizes));
        /// Sets whether the call runs concurrently with the current stream. That stream waits for the result only at
        /// [`Work::wait`]. Default: `false`.
        async_op: bool = false, bool;
    }
}

impl ProcessGroup {
    #[track_caller]
    fn check_list(&self, op: &'static str, what: &str, list: &[Tensor]) -> Result<()> {
        if list.len() == self.world_size() {
            return Ok(());
        }
        let (found, wanted) = (list.len(), self.world_size());
        Err(self.invalid(
            op,
            format!("{what} has {found} tensors, but must have {wanted}, one for each rank"),
        ))
    }

    #[track_caller]
    fn check_rank(&self, op: &'static str, rank: usize) -> Result<()> {
        if rank < self.world_size() {
            return Ok(());
        }
        Err(self.invalid(op, format!("there is no rank {rank} among {} ranks", self.world_size())))
    }

    /// Copies `input` of rank `r` to `outputs[r]` on every rank (`torch.distributed.all_gather`). The sizes may differ
    /// from rank to rank.
    ///
    /// # Errors
    /// The same as [`ProcessGroup::all_reduce`]; [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument)
    /// if there is not one output per rank; [`ErrorKind::ShapeMismatch`](warpline::ErrorKind::ShapeMismatch) if `input`
    /// does not have as many elements as `outputs[rank]`;
    /// [`ErrorKind::DTypeMismatch`](warpline::ErrorKind::DTypeMismatch) if their dtypes differ;
    /// [`ErrorKind::OverlappingOperands`](warpline::ErrorKind::OverlappingOperands) if tensors share memory,
    /// except `input` with `outputs[rank]`.
    #[track_caller]
    pub fn all_gather(
        &self,
        outputs: &[Tensor],
        input: &Tensor,
        async_op: impl IntoOptions<OrDefault<bool>>,
    ) -> Result<Work> {
        let async_op = async_op.into_options().or(false);
        const NAME: &str = "all_gather";
        let location = Location::caller();
        self.check_list(NAME, "the list of outputs", outputs)?;
        let rank = self.rank();
        let ops = outputs.iter().enumerate().map(|(root, output)| {
            let source = if root == rank { input } else { output };
            CollectiveOp::Broadcast { input: source.as_view(), output: output.as_view(), root }
        });
        let ops: Vec<_> = ops.collect();
        let signature = outputs.iter().fold(Signature::new(NAME), Signature::of);
        let keep = outputs.iter().chain([input]).cloned().collect();
        self.launch((signature, async_op), location, keep, &ops)
    }

    /// Reduces `inputs[r]` of all ranks, and writes the result to `output` of rank `r`
    /// (`torch.distributed.reduce_scatter`). The sizes may differ from rank to rank.
    ///
    /// # Errors
    /// The same as [`ProcessGroup::all_reduce`]; [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument)
    /// if there is not one input per rank; [`ErrorKind::ShapeMismatch`](warpline::ErrorKind::ShapeMismatch) if `output`
    /// does not have as many elements as `inputs[rank]`;
    /// [`ErrorKind::DTypeMismatch`](warpline::ErrorKind::DTypeMismatch) if `output` and `inputs[rank]` differ in dtype;
    /// [`ErrorKind::OverlappingOperands`](warpline::ErrorKind::OverlappingOperands) if tensors share memory,
    /// except `output` with `inputs[rank]`.
    #[track_caller]
    pub fn reduce_scatter(
        &self,
        output: &Tensor,
        inputs: &[Tensor],
        options: impl IntoOptions<ReduceOptions>,
    ) -> Result<Work> {
        let ReduceOptions { op, async_op } = options.into_options();
        const NAME: &str = "reduce_scatter";
        let location = Location::caller();
        self.check_list(NAME, "the list of inputs", inputs)?;
        let rank = self.rank();
        let ops = inputs.iter().enumerate().map(|(root, input)| {
            let target = if root == rank { output } else { input };
            CollectiveOp::Reduce { input: input.as_view(), output: target.as_view(), op, root }
        });
        let ops: Vec<_> = ops.collect();
        let signature = inputs.iter().fold(Signature::new(NAME).reduce(op), Signature::of);
        let keep = [output].into_iter().chain(inputs).cloned().collect();
        self.launch((signature, async_op), location, keep, &ops)
    }

    /// Sends `inputs[r]` to rank `r`, and receives from rank `r` into `outputs[r]` (`torch.distributed.all_to_all`).
    ///
    /// # Errors
    /// The same as [`ProcessGroup::all_reduce`]; [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument)
    /// if there is not one input and one output per rank;
    /// [`ErrorKind::OverlappingOperands`](warpline::ErrorKind::OverlappingOperands) if an output shares memory with
    /// another tensor.
    #[track_caller]
    pub fn all_to_all(
        &self,
        outputs: &[Tensor],
        inputs: &[Tensor],
        async_op: impl IntoOptions<OrDefault<bool>>,
    ) -> Result<Work> {
        let async_op = async_op.into_options().or(false);
        const NAME: &str = "all_to_all";
        self.check_list(NAME, "the list of outputs", outputs)?;
        self.check_list(NAME, "the list of inputs", inputs)?;
        let keep = outputs.iter().chain(inputs).cloned().collect();
        let signature = Signature::new(NAME);
        self.exchange((signature, async_op), (outputs, inputs), keep, Location::caller())
    }

    /// Sends a part of `input` to each rank, and concatenates the received parts in `output`
    /// (`torch.distributed.all_to_all_single`).
    ///
    /// # Errors
    /// The same as [`ProcessGroup::all_reduce`]; [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument)
    /// if `input` or `output` has no dimension, if there is not one split per rank, if the splits do not add up to the
    /// size of the first dimension, or if that size cannot be divided into the default of equal parts;
    /// [`ErrorKind::OverlappingOperands`](warpline::ErrorKind::OverlappingOperands) if `input` and `output` share
    /// memory.
    #[track_caller]
    pub fn all_to_all_single<'a>(
        &self,
        output: &Tensor,
        input: &Tensor,
        options: impl IntoOptions<AllToAllOptions<'a>>,
    ) -> Result<Work> {
        let AllToAllOptions { output_split_sizes, input_split_sizes, async_op } =
            options.into_options();
        const NAME: &str = "all_to_all_single";
        let location = Location::caller();
        let outputs = self.parts(NAME, "the output", output, output_split_sizes)?;
        let inputs = self.parts(NAME, "the input", input, input_split_sizes)?;
        // The sizes may differ between ranks, so only the dtype is compared.
        let signature = Signature::new(NAME).of_dtype(input);
        let keep = smallvec![output.clone(), input.clone()];
        self.exchange((signature, async_op), (&outputs, &inputs), keep, location)
    }

    /// Splits a tensor along the first dimension into one part per rank.
    #[track_caller]
    fn parts(
        &self,
        op: &'static str,
        what: &str,
        tensor: &Tensor,
        splits: Option<&[usize]>,
    ) -> Result<Vec<Tensor>> {
        let ranks = self.world_size();
        let length = tensor.size().first().copied().unwrap_or(0);
        let equal = vec![length / ranks; ranks];
        let splits = splits.unwrap_or(&equal);
        if splits.len() != ranks || splits.iter().sum::<usize>() != length || tensor.dim() == 0 {
            let text = format!(
                "{what} has sizes {:?}; its first dimension cannot be split into {splits:?} for {ranks} ranks",
                tensor.size()
            );
            return Err(self.invalid(op, text));
        }
        let mut start = 0;
        let part = |&length: &usize| {
            let part = tensor.narrow(0, start as isize, length);
            start += length;
            part
        };
        splits.iter().map(part).collect::<warpline::Result<_>>()
    }

    fn exchange(
        &self,
        (signature, async_op): (Signature, bool),
        (outputs, inputs): (&[Tensor], &[Tensor]),
        keep: CallTensors,
        location: &'static Location<'static>,
    ) -> Result<Work> {
        let sends = inputs.iter().enumerate();
        let sends = sends.map(|(peer, input)| CollectiveOp::Send { input: input.as_view(), peer });
        let recvs = outputs.iter().enumerate();
        let recvs =
            recvs.map(|(peer, output)| CollectiveOp::Recv { output: output.as_view(), peer });
        let ops: Vec<_> = sends.chain(recvs).collect();
        let call = match self.shared().parts.debug {
            true => {
                let both = inputs.iter().map(|t| (t, true)).enumerate();
                let both = both.chain(outputs.iter().map(|t| (t, false)).enumerate());
                let part = |(peer, (t, sends)): (usize, (&Tensor, bool))| {
                    Signature::new(if sends { "send" } else { "recv" }).of(t).peer(peer, sends)
                };
                signature.parts(both.map(part))
            }
            false => signature,
        };
        self.launch((call, async_op), location, keep, &ops)
    }

    /// Copies `tensor` of rank `r` to `outputs[r]` of rank `dst` (`torch.distributed.gather`). Only rank `dst` passes a
    /// list; the other ranks pass `None`.
    ///
    /// # Errors
    /// The same as [`ProcessGroup::all_reduce`]; [`ErrorKind::InvalidArgument`](warpline::ErrorKind::InvalidArgument)
    /// if there is no rank `dst`, rank `dst` does not pass a list with one tensor per rank, or another rank passes a
    /// list; [`ErrorKind::OverlappingOperands`](warpline::ErrorKind::OverlappingOperands) if a tensor that is written
    /// shares memory with another tensor.
    #[track_caller]
    pub fn gather(
        &self,
        tensor: &Tensor,
        outputs: Option<&[Tensor]>,
        dst: usize,
        async_op: impl IntoOptions<OrDefault<bool>>,
    ) -> Result<Work> {
        let async_op = async_op.into_options().or(false);
        const NAME: &str = "gather";
        let location = Location::caller();
        let outputs = self.list_at(NAME, outputs, dst)?;
        let recvs = outputs.iter().enumerate();
        let recvs =
            recvs.map(|(peer, output)| CollectiveOp::Recv { output: output.as_view(), peer });
        let send = CollectiveOp::Send { input: tensor.as_view(), peer: dst };
        let ops: Vec<_> = recvs.chain([send]).collect();
        let signature = Signature::new(NAME).of(tensor).root(dst);
        let keep = outputs.iter().chain([tensor]).cloned().collect();
        self.launch((signature, async_op), location, keep, &ops)
    }

    /// Copies `inputs[r]` of rank `src` to `tensor` of rank `r` (`torch.distributed.scatter`). Only rank `src` passes a
    /// list; the other ranks pass `None`.
    ///
    /// # Errors
    /// The same as [`ProcessGroup::gather`], with `src` instead of `dst`.
    #[track_caller]
    pub fn scatter(
        &self,
        tensor: &Tensor,
        inputs: Option<&[Tensor]>,
        src: usize,
        async_op: impl IntoOptions<OrDefault<bool>>,
    ) -> Result<Work> {
        let async_op = async_op.into_options().or(false);
        const NAME: &str = "scatter";
        let location = Location::caller();
        let inputs = self.list_at(NAME, inputs, src)?;
        let sends = inputs.iter().enumerate();
        let sends = sends.map(|(peer, input)| CollectiveOp::Send { input: input.as_view(), peer });
        let recv = CollectiveOp::Recv { output: tensor.as_view(), peer: src };
        let ops: Vec<_> = sends.chain([recv]).collect();
        let signature = Signature::new(NAME).of(tensor).root(src);
        let keep = [tensor].into_iter().chain(inputs).cloned().collect();
        self.launch((signature, async_op), location, keep, &ops)
    }

    /// Returns the list on rank `root`, and an empty list on the other ranks.
    #[track_caller]
    fn list_at<'a>(
        &self,
        op: &'static str,
        list: Option<&'a [Tensor]>,
        root: usize,
    ) -> Result<&'a [Tensor]> {
        self.check_rank(op, root)?;
        match list {
            Some(list) if self.rank() == root => {
                self.check_list(op, "the list", list).map(|()| list)
            }
            None if self.rank() != root => Ok(&[]),
            Some(_) => {
                Err(self.invalid(op, format!("only rank {root} may pass a list of tensors")))
            }
            None => {
                Err(self
                    .invalid(op, "this rank must pass a list of tensors, one for each rank".into()))
            }
        }
    }
}
