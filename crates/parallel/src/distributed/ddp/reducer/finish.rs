//! The end of an iteration: reduced gradients go back to the parameters.

use std::sync::Arc;

use warpline::autograd::{Reclaimed, no_grad};
use warpline::{DType, Result, Tensor, tensor};

use super::super::super::{ReduceOp, Work};
use super::super::buckets::is_view;
use super::{GlobalUsage, Reducer, ReducerState};

impl Reducer {
    /// Starts the all-reduce that counts the ranks that used each parameter, if this iteration needs the counts.
    pub(super) fn exchange_usage(&self, state: &mut ReducerState) -> Result<()> {
        if self.exchanges_usage(state) {
            let used: Vec<i32> = state.used.iter().map(|used| i32::from(*used)).collect();
            let counts = tensor(used, (DType::I32, self.group.device()))?;
            let label: Arc<str> = "the used parameters".into();
            let work = self.group.all_reduce_labeled(&counts, ReduceOp::Sum, &label)?;
            state.usage = GlobalUsage::Pending(counts, Reclaimed::new(work));
        }
        Ok(())
    }

    /// Returns whether no rank used a parameter. If this rank did not use it, waits on the host for the counts.
    fn is_globally_unused(&self, state: &mut ReducerState, index: usize) -> Result<bool> {
        if state.used[index] {
            return Ok(false);
        }
        if let GlobalUsage::Pending(counts, work) = &state.usage {
            work.wait()?;
            let used = counts.to_vec::<i32>()?.into_iter().map(|count| count > 0).collect();
            state.usage = GlobalUsage::Known(used);
        }
        Ok(matches!(&state.usage, GlobalUsage::Known(used) if !used[index]))
    }

    /// Ends an iteration: makes the current stream wait for the reductions, and gives the parameters their gradients.
    pub(super) fn finish(&self) -> Result<()> {
        let mut state = self.state();
        state.expects_gradients = false;
        for number in 0..state.buckets.len() {
            let bucket = &mut state.buckets[number];
            let (buffer, views) = (bucket.buffer.clone(), bucket.views.clone());
            let indices = bucket.parameters.clone();
            if let Some(reduction) = bucket.reduction.take() {
                reduction.work.as_ref().map_or(Ok(()), Work::wait)?;
                if !is_view(&reduction.tensor, &buffer) {
                    let reduced = reduction.tensor.view(-1)?;
                    no_grad(|| buffer.copy_(&reduced, true).map(drop))?;
                }
            }
            for (index, view) in indices.into_iter().zip(views) {
                if !self.is_globally_unused(&mut state, index)? {
                    self.set_gradient(&self.parameters[index].tensor, view)?;
                }
            }
        }
        state.unfinished = false;
        if self.options.static_graph {
            if !state.first_iteration {
                for index in state.unused.clone() {
                    self.push_arrival(&mut state, index);
                }
            }
            state.first_iteration = false;
        } else {
            state.first_iteration = false;
            state.used.fill(false);
            if let GlobalUsage::Pending(_, work) =
                std::mem::replace(&mut state.usage, GlobalUsage::NotExchanged)
            {
                work.wait()?;
            }
        }
        Ok(())
    }

    fn set_gradient(&self, parameter: &Tensor, view: Tensor) -> Result<()> {
        match parameter.grad() {
            Some(grad) if is_view(&grad, &view) => Ok(()),
            _ if self.options.gradient_as_bucket_view => parameter.set_grad(&view),
            Some(grad) => no_grad(|| grad.copy_(&view, true).map(drop)),
            None => parameter.set_grad(&no_grad(|| view.copy())?),
        }
    }

    /// Reduces all buckets of a static graph at the end of its first iteration, when the unused parameters are known.
    pub(in crate::distributed::ddp) fn reduce_at_end(self: &Arc<Self>) -> Result<()> {
        let mut state = self.state();
        let count = self.parameters.len();
        state.unused =
            (0..count).filter(|index| state.arrivals_per_iteration[*index] == 0).collect();
        (0..count).try_for_each(|index| self.mark_ready(&mut state, index))?;
        drop(state);
        self.launch_ready()
    }

    /// Contributes zeros to the reductions of an iteration, after this rank's inputs have ended.
    pub(in crate::distributed::ddp) fn shadow(&self) -> Result<()> {
        let (count, divisor) = {
            let mut state = self.state();
            state.restart();
            (state.buckets.len(), state.divisor)
        };
        for index in 0..count {
            let mut bucket = self.grad_bucket(&self.state(), index);
            bucket.buffer = no_grad(|| bucket.buffer.zeros_like(()))?;
            for view in &mut bucket.gradients {
                let (size, stride) = (view.size().to_vec(), view.stride().to_vec());
                *view = bucket.buffer.as_strided(&size[..], &stride[..], view.storage_offset())?;
            }
            let reduction = self.reduce(&bucket, divisor)?;
            reduction.work.as_ref().map_or(Ok(()), Work::wait)?;
        }
        let mut state = self.state();
        self.exchange_usage(&mut state)?;
        // Make `rebuild` due on this rank in the same iteration as on the ranks that have inputs.
        for index in 0..self.parameters.len() {
            if !self.is_first_static(&state) {
                self.push_arrival(&mut state, index);
            }
        }
        state.first_iteration = false;
        Ok(())
    }
}
