//! The reducer: puts gradients into buckets as they arrive, and reduces the buckets in their order.
//!
//! An iteration is: `rebuild` before the forward pass, `prepare` after it, `gradient_arrived` for each parameter in the
//! backward pass, and `finish` (`finish.rs`) as the pass's last callback.
//!
//! Invariant: all ranks launch the reductions of an iteration in the order of the buckets, even if gradients arrive in
//! a different order. `launch_ready` launches a bucket only after all buckets before it.
//!
//! Invariant: no code of the program, such as a communication hook or the `Drop` of a value that a tensor owns, runs
//! while `state` is locked. The exceptions are observers of the allocator, and a `Store` that the program implements,
//! which collectives call while buckets are rebuilt or usage is exchanged.

mod finish;

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpline::autograd::{
    DeferredDrops, Reclaimed, check_not_moved, no_grad, queue_callback, reachable_leaves,
};
use warpline::{Result, Tensor, tensor};

use super::super::{ProcessGroup, Work};
use super::buckets::{
    Bucket, BucketPlace, NamedParameter, TensorSize, assign_buckets, is_view, make_buckets,
};
use super::hooks::{CommHook, GradBucket, mean};
use super::{DdpError, DdpOptions};

/// The locked state. While the guard lives, `_drops` defers the drops of values that graphs and hooks own, so that user
/// code does not run under the lock. `state` is declared first, so that the lock is released before the deferred drops.
struct StateGuard<'a> {
    state: MutexGuard<'a, ReducerState>,
    _drops: DeferredDrops,
}

impl Deref for StateGuard<'_> {
    type Target = ReducerState;

    fn deref(&self) -> &ReducerState {
        &self.state
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut ReducerState {
        &mut self.state
    }
}

pub(super) struct Reducer {
    pub(super) group: ProcessGroup,
    pub(super) options: DdpOptions,
    pub(super) parameters: Vec<NamedParameter>,
    hook: Mutex<Option<Arc<CommHook>>>,
    state: Mutex<ReducerState>,
}

struct ReducerState {
    buckets: Vec<Bucket>,
    /// The bucket of each parameter, and its index there.
    places: Vec<BucketPlace>,
    /// Number of the next bucket to launch.
    next_bucket: usize,
    /// Whether gradients are to be reduced in the coming backward pass.
    expects_gradients: bool,
    /// Whether gradients were put into buckets and `finish` has not run since then.
    unfinished: bool,
    /// Whether the gradient of each parameter is in its bucket, in this iteration.
    ready: Vec<bool>,
    /// Parameters in the order in which their gradients arrived, until the buckets are rebuilt.
    arrivals: Vec<usize>,
    rebuilt: bool,
    /// Parameters that get no gradient in this iteration.
    unused: Vec<usize>,
    marked_unused: bool,
    /// Whether each parameter got a gradient on this rank.
    used: Vec<bool>,
    usage: GlobalUsage,
    /// For a static graph: the number of gradients of each parameter per iteration, counted in the first iteration.
    arrivals_per_iteration: Vec<usize>,
    /// Number of gradients of each parameter that have not arrived in this iteration.
    outstanding: Vec<usize>,
    first_iteration: bool,
    /// The number by which gradients are divided before they are summed.
    divisor: usize,
}

/// The parameters that at least one rank used.
enum GlobalUsage {
    /// The usage is not exchanged.
    NotExchanged,
    /// The number of ranks that used each parameter. Valid after the work is done.
    Pending(Tensor, Reclaimed<Work>),
    Known(Vec<bool>),
}

impl ReducerState {
    fn restart(&mut self) {
        self.next_bucket = 0;
        self.marked_unused = false;
        self.ready.fill(false);
        self.outstanding.clone_from(&self.arrivals_per_iteration);
        for bucket in &mut self.buckets {
            bucket.pending = bucket.parameters.len();
            bucket.streams.clear();
            bucket.reduction = None;
        }
    }
}

impl Reducer {
    pub(super) fn new(
        group: ProcessGroup,
        options: DdpOptions,
        parameters: Vec<NamedParameter>,
    ) -> Result<Self> {
        let count = parameters.len();
        let sizes: Vec<_> = parameters.iter().map(|p| TensorSize::of(&p.tensor)).collect();
        // Gradients arrive roughly in the reverse order of the parameters.
        let mut assignment = assign_buckets(&sizes, &options.initial_capacities(), None);
        assignment.reverse();
        let (buckets, places) = make_buckets(assignment, &parameters)?;
        let divisor = group.world_size();
        let state = Mutex::new(ReducerState {
            buckets,
            places,
            next_bucket: 0,
            expects_gradients: false,
            unfinished: false,
            ready: vec![false; count],
            arrivals: Vec::new(),
            rebuilt: false,
            unused: Vec::new(),
            marked_unused: false,
            used: vec![false; count],
            usage: GlobalUsage::NotExchanged,
            arrivals_per_iteration: vec![0; count],
            outstanding: vec![0; count],
            first_iteration: true,
            divisor,
        });
        Ok(Self { group, options, parameters, hook: Mutex::default(), state })
    }

    fn state(&self) -> StateGuard<'_> {
        let drops = DeferredDrops::begin();
        StateGuard {
            state: self.state.lock().unwrap_or_else(PoisonError::into_inner),
            _drops: drops,
        }
    }

    pub(super) fn set_hook(&self, hook: Arc<CommHook>) {
        let former = self.hook.lock().unwrap_or_else(PoisonError::into_inner).replace(hook);
        drop(former);
    }

    /// Sets the number by which gradients are divided, until the next call.
    pub(super) fn set_divisor(&self, divisor: usize) {
        self.state().divisor = divisor;
    }

    /// Returns the parameters of each bucket.
    pub(super) fn assignment(&self) -> Vec<Vec<usize>> {
        self.state().buckets.iter().map(|bucket| bucket.parameters.clone()).collect()
    }

    fn is_first_static(&self, state: &ReducerState) -> bool {
        self.options.static_graph && state.first_iteration
    }

    /// Returns whether the ranks exchange the used parameters in this iteration.
    fn exchanges_usage(&self, state: &ReducerState) -> bool {
        match self.options.static_graph {
            true => state.first_iteration,
            false => self.options.find_unused_parameters,
        }
    }

    /// Fails if a move of the module has replaced a parameter, because the reducer would continue to use the old
    /// parameter.
    #[track_caller]
    pub(super) fn check_not_moved(&self) -> Result<()> {
        let mut parameters = self.parameters.iter();
        parameters.try_for_each(|p| check_not_moved("DistributedDataParallel", &p.tensor))
    }

    /// Returns whether the next backward pass is the first one of a static graph, which starts the reductions only at
    /// its end.
    pub(super) fn reduces_at_end(&self) -> bool {
        self.is_first_static(&self.state())
    }

    /// Rebuilds the buckets once, in the order in which rank 0's gradients arrived in the first iteration, or in the
    /// second iteration of a static graph. Called by all ranks before a forward pass that records gradients.
    pub(super) fn rebuild(&self) -> Result<()> {
        let mut state = self.state();
        if state.unfinished {
            return Err(self.not_reduced(&state));
        }
        let count = self.parameters.len();
        let due =
            self.options.rebuilds_buckets() && !state.rebuilt && state.arrivals.len() == count;
        if !due {
            return Ok(());
        }
        let order = std::mem::take(&mut state.arrivals);
        let sizes: Vec<_> = self.parameters.iter().map(|p| TensorSize::of(&p.tensor)).collect();
        let assignment = assign_buckets(&sizes, &self.options.capacities(), Some(&order));
        let numbered = assignment.iter().enumerate();
        let pairs =
            numbered.flat_map(|(bucket, all)| all.iter().map(move |index| [bucket, *index]));
        let pairs: Vec<i64> = pairs.flatten().map(|number| number as i64).collect();
        let pairs = tensor(pairs, self.group.device())?;
        self.group.broadcast(&pairs, 0, ())?;
        let mut assignment: Vec<Vec<usize>> = Vec::new();
        for pair in pairs.to_vec::<i64>()?.as_chunks::<2>().0 {
            let [bucket, index] = pair.map(|number| number as usize);
            assignment.resize(assignment.len().max(bucket + 1), Vec::new());
            assignment[bucket].push(index);
        }
        let (buckets, places) = make_buckets(assignment, &self.parameters)?;
        state.buckets = buckets;
        state.places = places;
        state.rebuilt = true;
        if self.options.gradient_as_bucket_view {
            self.move_gradients(&state)?;
        }
        Ok(())
    }

    /// Makes existing gradients views of the buckets.
    fn move_gradients(&self, state: &ReducerState) -> Result<()> {
        for (parameter, &(bucket, place)) in self.parameters.iter().zip(&state.places) {
            if let Some(grad) = parameter.tensor.grad() {
                let view = &state.buckets[bucket].views[place];
                no_grad(|| view.copy_(&grad, true).map(drop))?;
                parameter.tensor.set_grad(view)?;
            }
        }
        Ok(())
    }

    #[track_caller]
    fn not_reduced(&self, state: &ReducerState) -> warpline::Error {
        let missing = self.parameters.iter().zip(&state.ready).filter(|(_, ready)| !**ready);
        let parameters = missing.map(|(parameter, _)| parameter.name.clone()).collect();
        DdpError::NotReduced { rank: self.group.rank(), parameters }.into()
    }

    /// Begins an iteration. If [`DdpOptions::find_unused_parameters`] is set and the graph is not static, searches the
    /// graph of the forward pass's `outputs` for unused parameters.
    pub(super) fn prepare(&self, outputs: &[Tensor]) {
        let searches = self.options.find_unused_parameters && !self.options.static_graph;
        let unused = searches.then(|| self.unreachable_from(outputs));
        let mut state = self.state();
        state.restart();
        state.expects_gradients = true;
        if let Some(unused) = unused {
            state.unused = unused;
        }
    }

    fn unreachable_from(&self, outputs: &[Tensor]) -> Vec<usize> {
        let leaves = reachable_leaves(outputs);
        let addresses: std::collections::HashSet<_> =
            leaves.iter().map(|leaf| std::ptr::from_ref(leaf.storage())).collect();
        let reached = |parameter: &NamedParameter| {
            // All handles of a tensor have its `Storage` at one address. A set of addresses makes the search linear.
            addresses.contains(&std::ptr::from_ref(parameter.tensor.storage()))
        };
        (0..self.parameters.len()).filter(|index| !reached(&self.parameters[*index])).collect()
    }

    /// Puts a parameter's gradient into its bucket. Called by the parameter's hook, after the accumulation.
    pub(super) fn gradient_arrived(self: &Arc<Self>, index: usize) -> Result<()> {
        let mut state = self.state();
        if !state.expects_gradients {
            return Ok(());
        }
        state.used[index] = true;
        if self.is_first_static(&state) {
            state.arrivals_per_iteration[index] += 1;
            return Ok(());
        }
        if !state.marked_unused {
            state.marked_unused = true;
            for unused in state.unused.clone() {
                self.mark_ready(&mut state, unused)?;
            }
        }
        if self.options.static_graph {
            let (rank, name) = (self.group.rank(), || self.parameters[index].name.clone());
            let Some(left) = state.outstanding[index].checked_sub(1) else {
                return Err(DdpError::GraphChanged { rank, parameter: name() }.into());
            };
            state.outstanding[index] = left;
            if left > 0 {
                return Ok(());
            }
        }
        self.push_arrival(&mut state, index);
        self.mark_ready(&mut state, index)?;
        drop(state);
        self.launch_ready()
    }

    fn push_arrival(&self, state: &mut ReducerState, index: usize) {
        if self.options.rebuilds_buckets() && !state.rebuilt {
            state.arrivals.push(index);
        }
    }

    /// Copies the gradient of a parameter to its bucket, or zeros if the parameter has no gradient.
    fn mark_ready(&self, state: &mut ReducerState, index: usize) -> Result<()> {
        let NamedParameter { name, tensor } = &self.parameters[index];
        if std::mem::replace(&mut state.ready[index], true) {
            let (rank, parameter) = (self.group.rank(), name.clone());
            return Err(DdpError::ReadyTwice { rank, parameter }.into());
        }
        state.unfinished = true;
        let (bucket, place) = state.places[index];
        let bucket = &mut state.buckets[bucket];
        let view = &bucket.views[place];
        match tensor.grad() {
            Some(grad) if is_view(&grad, view) => {}
            Some(grad) => {
                no_grad(|| view.copy_(&grad, true).map(drop))?;
                if self.options.gradient_as_bucket_view {
                    tensor.set_grad(view)?;
                }
            }
            None => no_grad(|| view.fill_(0.0).map(drop))?,
        }
        bucket.gradient_written()
    }

    /// Launches the reductions of complete buckets, in the order of buckets. After the last bucket, queues `finish`.
    fn launch_ready(self: &Arc<Self>) -> Result<()> {
        loop {
            let (bucket, divisor) = {
                let mut state = self.state();
                let index = state.next_bucket;
                match state.buckets.get_mut(index) {
                    Some(bucket) if bucket.pending == 0 => bucket.wait_for_gradients()?,
                    _ => return Ok(()),
                }
                state.next_bucket += 1;
                (self.grad_bucket(&state, index), state.divisor)
            };
            let reduction = self.reduce(&bucket, divisor)?;
            let mut state = self.state();
            state.buckets[bucket.index].reduction = Some(Reclaimed::new(reduction));
            if bucket.is_last() {
                self.exchange_usage(&mut state)?;
                drop(state);
                let reducer = Arc::clone(self);
                return queue_callback(move || reducer.finish());
            }
        }
    }

    fn grad_bucket(&self, state: &ReducerState, index: usize) -> GradBucket {
        let bucket = &state.buckets[index];
        let parameters = bucket.parameters.iter().map(|index| &self.parameters[*index].tensor);
        GradBucket {
            group: self.group.clone(),
            index,
            count: state.buckets.len(),
            buffer: bucket.buffer.clone(),
            gradients: bucket.views.clone(),
            parameters: parameters.cloned().collect(),
            label: Arc::clone(&bucket.label),
        }
    }

    fn reduce(&self, bucket: &GradBucket, divisor: usize) -> Result<super::BucketReduction> {
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(hook) = hook else { return mean(bucket, bucket.buffer.clone(), divisor) };
        let reduction = hook(bucket)?;
        let (expected, found) = (bucket.buffer.numel(), reduction.tensor.numel());
        if expected != found {
            let (rank, bucket) = (self.group.rank(), bucket.label.to_string());
            return Err(DdpError::HookResult { rank, bucket, expected, found }.into());
        }
        Ok(reduction)
    }
}
