//! Uneven inputs: ranks whose inputs have ended take part in the collectives of the ranks that still have inputs
//! (`DistributedDataParallel.join`).
//!
//! Each forward pass of a rank that has inputs begins with an all-reduce of a 1. A rank without inputs contributes a 0,
//! reads the number of ranks that still have inputs, and makes the collectives of that iteration: the rebuilding of the
//! buckets, the broadcast of the buffers, the exchange of whether gradients are reduced, and the reductions. Both sides
//! make these calls in the same order (`announce_forward` and `shadow_iteration`).

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use warpline::{DType, IntoOptions, Result, Tensor, tensor};
use warpline_nn::Module;

use super::super::ReduceOp;
use super::sync::broadcast_coalesced;
use super::{DdpError, DistributedDataParallel};

warpline::__options! {
    /// Options of [`DistributedDataParallel::join`].
    #[derive(Clone, Copy, Debug)]
    JoinOptions [] [] {
        /// Sets whether gradients are divided by the number of all ranks. With `false`, they are divided by the number
        /// of ranks that still have inputs, and the host waits for this number in each iteration. Default: `true`.
        divide_by_initial_world_size: bool = true, bool;
        /// Sets whether all ranks fail as soon as one rank has no more inputs. Default: `false`.
        throw_on_early_termination: bool = false, bool;
    }
}

impl<M: Module> DistributedDataParallel<M> {
    /// Runs a training loop whose number of iterations may differ between ranks (`join`). A rank that has left the loop
    /// contributes zeros to the reductions of the other ranks until all ranks have left it. Then all ranks get the
    /// model of the rank that left last. All ranks must call this function.
    ///
    /// ```
    /// use warpline::ones;
    /// use warpline_nn::Linear;
    /// use warpline_parallel::distributed::{DistributedDataParallel, spawn};
    ///
    /// spawn(2, |group| {
    ///     let batches = 1 + group.rank(); // rank 1 has one batch more
    ///     let net = DistributedDataParallel::new(Linear::new(4, 2, ())?, group, ())?;
    ///     net.join((), || {
    ///         for _ in 0..batches {
    ///             net.forward(ones([3, 4], ())?)?.sum(())?.backward()?;
    ///         }
    ///         Ok(())
    ///     })
    /// })?;
    /// # Ok::<(), warpline::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of `f`. This rank then takes part in no further collectives. Otherwise
    /// [`ErrorKind::ProcessGroup`](warpline::ErrorKind::ProcessGroup) with the source [`DdpError::EarlyTermination`] if
    /// [`JoinOptions::throw_on_early_termination`] is set and a rank has left; errors of the collectives
    /// ([`ProcessGroup::all_reduce`](crate::distributed::ProcessGroup::all_reduce)).
    #[track_caller]
    pub fn join<R>(
        &self,
        options: impl IntoOptions<JoinOptions>,
        f: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let options = options.into_options();
        let set = |join| *self.join.lock().unwrap_or_else(PoisonError::into_inner) = join;
        set(Some(options));
        let result = f();
        set(None);
        let result = result?;
        let mut left_last = true;
        loop {
            let active = self.sum(0)?;
            if active == 0 {
                break;
            }
            if options.throw_on_early_termination {
                self.sum(1)?;
                return Err(DdpError::EarlyTermination { rank: self.group().rank() }.into());
            }
            left_last = false;
            if !options.divide_by_initial_world_size {
                self.reducer.set_divisor(active);
            }
            self.shadow_iteration()?;
        }
        self.reducer.set_divisor(self.group().world_size());
        let src = self.last_rank(left_last)?;
        broadcast_coalesced(self.group(), &self.members(), src)?;
        Ok(result)
    }

    /// Tells the ranks that have left the loop that an iteration begins.
    pub(super) fn announce_forward(&self, options: JoinOptions) -> Result<()> {
        let reads = !options.divide_by_initial_world_size;
        let active = self.all_reduce_number(1, ReduceOp::Sum)?;
        if reads {
            self.reducer.set_divisor(read_number(&active)?);
        }
        if options.throw_on_early_termination && self.sum(0)? > 0 {
            return Err(DdpError::EarlyTermination { rank: self.group().rank() }.into());
        }
        Ok(())
    }

    /// Tells the ranks that have left the loop whether the backward pass will reduce gradients.
    pub(super) fn announce_backward(&self, reduces: bool) -> Result<()> {
        self.all_reduce_number(usize::from(reduces), ReduceOp::Sum).map(drop)
    }

    /// Takes part in the collectives of one iteration of the other ranks.
    fn shadow_iteration(&self) -> Result<()> {
        self.reducer.rebuild()?;
        if self.copies_buffers() {
            let src = self.last_rank(false)?;
            broadcast_coalesced(self.group(), &self.module.buffers(), src)?;
        }
        let reduces = self.sum(0)? > 0;
        self.synced_forward.store(reduces, Ordering::Relaxed);
        if reduces { self.reducer.shadow() } else { Ok(()) }
    }

    /// Returns the highest rank for which `candidate` is true.
    pub(super) fn last_rank(&self, candidate: bool) -> Result<usize> {
        let number = if candidate { self.group().rank() + 1 } else { 0 };
        Ok(read_number(&self.all_reduce_number(number, ReduceOp::Max)?)?.saturating_sub(1))
    }

    fn sum(&self, number: usize) -> Result<usize> {
        read_number(&self.all_reduce_number(number, ReduceOp::Sum)?)
    }

    fn all_reduce_number(&self, number: usize, op: ReduceOp) -> Result<Tensor> {
        let group = self.group();
        let reduced = tensor(vec![number as i64], (DType::I64, group.device()))?;
        group.all_reduce(&reduced, op)?;
        Ok(reduced)
    }
}

fn read_number(tensor: &Tensor) -> Result<usize> {
    Ok(usize::try_from(tensor.item::<i64>()?).unwrap_or(0))
}
