//! Collectives of several tensors, one for each rank.

use std::panic::Location;

use smallvec::smallvec;
use warpline::Tensor;
use warpline_cuda_sys_safe::nccl::ReduceOp;
use warpline_kernels::collective::{self, Op};

use super::super::signature::Signature;
use super::super::work::Tensors;
use super::super::{Result, Work};
use super::ProcessGroup;

impl ProcessGroup {
    fn check_list(&self, op: &'static str, what: &str, list: &[Tensor]) -> Result<()> {
        if list.len() == self.world_size() {
            return Ok(());
        }
        let (found, wanted) = (list.len(), self.world_size());
        Err(self.invalid(
            op,
            format!("{what} has {found} tensors; one for each of the {wanted} ranks is needed"),
        ))
    }

    fn check_rank(&self, op: &'static str, rank: usize) -> Result<()> {
        if rank < self.world_size() {
            return Ok(());
        }
        Err(self.invalid(op, format!("there is no rank {rank}: there are {}", self.world_size())))
    }

    /// `outputs[r]` is `input` of rank `r` (`torch.distributed.all_gather`). They may differ in size
    /// from rank to rank.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`]; where there is not an output for each rank.
    #[track_caller]
    pub fn all_gather(&self, outputs: &[Tensor], input: &Tensor, async_op: bool) -> Result<Work> {
        const NAME: &str = "all_gather";
        let location = Location::caller();
        self.check_list(NAME, "the list of outputs", outputs)?;
        let rank = self.rank();
        let ops = outputs.iter().enumerate().map(|(root, output)| {
            let given = if root == rank { input } else { output };
            Op::Broadcast { input: given.as_view(), output: output.as_view(), root }
        });
        let ops: Vec<_> = ops.collect();
        let signature = outputs.iter().fold(Signature::new(NAME), Signature::of);
        let keep = outputs.iter().chain([input]).cloned().collect();
        self.launch((signature, async_op), location, keep, |target, comm| {
            collective::run(target, comm, NAME, &ops, location)
        })
    }

    /// `output` is `inputs[own rank]` of all ranks, combined (`torch.distributed.reduce_scatter`).
    /// They may differ in size from rank to rank.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`]; where there is not an input for each rank.
    #[track_caller]
    pub fn reduce_scatter(
        &self,
        output: &Tensor,
        inputs: &[Tensor],
        op: ReduceOp,
        async_op: bool,
    ) -> Result<Work> {
        const NAME: &str = "reduce_scatter";
        let location = Location::caller();
        self.check_list(NAME, "the list of inputs", inputs)?;
        let rank = self.rank();
        let ops = inputs.iter().enumerate().map(|(root, input)| {
            let taken = if root == rank { output } else { input };
            Op::Reduce { input: input.as_view(), output: taken.as_view(), op, root }
        });
        let ops: Vec<_> = ops.collect();
        let signature = inputs.iter().fold(Signature::new(NAME).reduce(op), Signature::of);
        let keep = [output].into_iter().chain(inputs).cloned().collect();
        self.launch((signature, async_op), location, keep, |target, comm| {
            collective::run(target, comm, NAME, &ops, location)
        })
    }

    /// `outputs[r]` is `inputs[own rank]` of rank `r` (`torch.distributed.all_to_all`).
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`]; where there is not a tensor for each rank.
    #[track_caller]
    pub fn all_to_all(
        &self,
        outputs: &[Tensor],
        inputs: &[Tensor],
        async_op: bool,
    ) -> Result<Work> {
        const NAME: &str = "all_to_all";
        self.check_list(NAME, "the list of outputs", outputs)?;
        self.check_list(NAME, "the list of inputs", inputs)?;
        let keep = outputs.iter().chain(inputs).cloned().collect();
        let signature = Signature::new(NAME);
        self.exchange((signature, async_op), (outputs, inputs), keep, Location::caller())
    }

    /// Sends a part of `input` to each rank, and puts what each sends one after the other into
    /// `output` (`torch.distributed.all_to_all_single`). The parts' lengths along the first
    /// dimension are given by the splits; `None` makes equal parts.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`]; for splits that are not one for each rank or do not add up.
    #[track_caller]
    pub fn all_to_all_single(
        &self,
        output: &Tensor,
        input: &Tensor,
        output_splits: Option<&[usize]>,
        input_splits: Option<&[usize]>,
        async_op: bool,
    ) -> Result<Work> {
        const NAME: &str = "all_to_all_single";
        let location = Location::caller();
        let outputs = self.parts(NAME, "the output", output, output_splits)?;
        let inputs = self.parts(NAME, "the input", input, input_splits)?;
        // Sizes may differ, however they were given.
        let signature = Signature::new(NAME).of_dtype(input);
        let keep = smallvec![output.clone(), input.clone()];
        self.exchange((signature, async_op), (&outputs, &inputs), keep, location)
    }

    /// A tensor's parts for all ranks.
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
        keep: Tensors,
        location: &'static Location<'static>,
    ) -> Result<Work> {
        let sends = inputs.iter().enumerate();
        let sends = sends.map(|(peer, input)| Op::Send { input: input.as_view(), peer });
        let recvs = outputs.iter().enumerate();
        let recvs = recvs.map(|(peer, output)| Op::Recv { output: output.as_view(), peer });
        let ops: Vec<_> = sends.chain(recvs).collect();
        let name = signature.op;
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
        self.launch((call, async_op), location, keep, |target, comm| {
            collective::run(target, comm, name, &ops, location)
        })
    }

    /// `outputs[r]` of rank `dst` is `tensor` of rank `r`; only there is a list given
    /// (`torch.distributed.gather`).
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`]; where `dst` gives no list of one tensor for each rank, or
    /// another rank gives one.
    #[track_caller]
    pub fn gather(
        &self,
        tensor: &Tensor,
        outputs: Option<&[Tensor]>,
        dst: usize,
        async_op: bool,
    ) -> Result<Work> {
        const NAME: &str = "gather";
        let location = Location::caller();
        let outputs = self.list_at(NAME, outputs, dst)?;
        let recvs = outputs.iter().enumerate();
        let recvs = recvs.map(|(peer, output)| Op::Recv { output: output.as_view(), peer });
        let send = Op::Send { input: tensor.as_view(), peer: dst };
        let ops: Vec<_> = recvs.chain([send]).collect();
        let signature = Signature::new(NAME).of(tensor).root(dst);
        let keep = outputs.iter().chain([tensor]).cloned().collect();
        self.launch((signature, async_op), location, keep, |target, comm| {
            collective::run(target, comm, NAME, &ops, location)
        })
    }

    /// `tensor` is `inputs[own rank]` of rank `src`; only there is a list given
    /// (`torch.distributed.scatter`).
    ///
    /// # Errors
    /// As [`ProcessGroup::gather`].
    #[track_caller]
    pub fn scatter(
        &self,
        tensor: &Tensor,
        inputs: Option<&[Tensor]>,
        src: usize,
        async_op: bool,
    ) -> Result<Work> {
        const NAME: &str = "scatter";
        let location = Location::caller();
        let inputs = self.list_at(NAME, inputs, src)?;
        let sends = inputs.iter().enumerate();
        let sends = sends.map(|(peer, input)| Op::Send { input: input.as_view(), peer });
        let recv = Op::Recv { output: tensor.as_view(), peer: src };
        let ops: Vec<_> = sends.chain([recv]).collect();
        let signature = Signature::new(NAME).of(tensor).root(src);
        let keep = [tensor].into_iter().chain(inputs).cloned().collect();
        self.launch((signature, async_op), location, keep, |target, comm| {
            collective::run(target, comm, NAME, &ops, location)
        })
    }

    /// The list that only `root` gives.
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
                Err(self.invalid(op, format!("a list was given, but only rank {root} gives one")))
            }
            None => Err(self
                .invalid(op, "a list of tensors, one for each rank, has to be given here".into())),
        }
    }
}
