//! Uses of storages by a graph's replays, recorded once for all storages.
//!
//! Invariant: a replay costs the host the same, however many tensors its graph uses.
//!
//! A storage is *attached* to a graph while its last use is the graph's last replay. The graph's record holds this use,
//! and the marks that it causes, for all attached storages. A replay updates only the record, and accesses no storage.
//! Any other use locks the `Uses` of its storage; locking them records the last replay there and ends the attachment.
//! The next replay waits for the uses of unattached storages and attaches these storages again.
//!
//! A replay visits all storages, attached or not, if it runs on a different stream than the last replay. It also does
//! so if the record cannot tell the marks: if the replay's inputs depend on pending work other than the last replay's
//! kernels, if other work may have overwritten pending results of the last replay, or if the last replay has failed or
//! may still fail without a failure of this replay.
//!
//! Graphs with collectives, and graphs under `SyncPolicy::Manual`, attach nothing. Page-locked
//! memory, and memory that is shared with other processes, is never attached.

use std::collections::HashSet;
use std::ops::DerefMut;
use std::sync::{Arc, PoisonError};

use slab::Slab;
use warpline_stream::{CheckOutcome, CheckedLaunch, KernelSet, OpNumber, Stream};
use warpline_sync::{Mutex, MutexGuard};

use super::{
    Dependencies, Dependency, ReplayDependencies, Storage, StorageMarks, Uses, WeakStorage,
};
use crate::{Site, SyncPolicy};

/// Uses of storages by a graph's replays.
///
/// The [`Uses`] of an attached storage lack the replays since it was attached. All these replays
/// ran on one stream, so recording the last of them when the storage stops being attached is enough.
#[derive(Debug)]
pub(crate) struct ReplayUses {
    /// Kernels that check indices and whose results the next replay reads before it overwrites
    /// them.
    loop_carried: Option<KernelSet>,
    /// Lock this after the uses of storages.
    state: Mutex<ReplayRecord>,
}

#[derive(Debug)]
struct ReplayRecord {
    storages: Slab<ReplayedStorage>,
    /// Unattached storages, by their keys in `storages`.
    unattached: Vec<usize>,
    /// The last replay that was recorded here. `None` before the first.
    last: Option<LastReplay>,
    /// Dependencies of the next replay's inputs in attached storages, without dependencies on the graph's own replays.
    external: Dependencies,
}

/// A storage that replays use.
#[derive(Debug)]
pub(crate) struct ReplayedStorage {
    pub(crate) storage: WeakStorage,
    /// Whether captured work writes it.
    pub(crate) write: bool,
    /// Whether the storage lies in the graph's pool, where storages may reuse each other's memory.
    pub(crate) of_pool: bool,
    /// The storage's marks in the capture. `None` if the capture did not use it, and for the pool's seed and offset.
    pub(crate) captured_marks: Option<Arc<StorageMarks>>,
}

/// The last enqueued replay.
#[derive(Debug)]
struct LastReplay {
    stream: Stream,
    op: OpNumber,
    site: Site,
    /// The replay, if its kernels check indices.
    own: Option<CheckedLaunch>,
    /// Dependencies of the replay's inputs, except `former`.
    inputs: Dependencies,
    /// The previous replay, if this replay visited no storage. Its loop-carried kernels wrote inputs of this replay.
    former: Option<CheckedLaunch>,
}

/// Link from a storage to the replays that it is attached to.
#[derive(Debug)]
pub(super) struct Attachment {
    replays: Arc<ReplayUses>,
    key: usize,
    /// The operation of the replay that attached the storage. The storage's uses contain this
    /// operation.
    op: OpNumber,
}

/// A storage that a replay visits, with the fields of its [`ReplayedStorage`].
pub(crate) struct VisitedStorage {
    pub(crate) storage: Storage,
    pub(crate) write: bool,
    pub(crate) captured_marks: Option<Arc<StorageMarks>>,
    key: usize,
}

/// Exclusive right to record the next replay.
pub(crate) struct ReplayGuard<'a> {
    replays: &'a Arc<ReplayUses>,
    state: MutexGuard<'a, ReplayRecord>,
    /// Whether the replay visits every attached storage.
    visits_all: bool,
}

impl ReplayUses {
    pub(crate) fn new(members: impl IntoIterator<Item = ReplayedStorage>) -> Self {
        let storages: Slab<ReplayedStorage> = members.into_iter().enumerate().collect();
        let mut loop_carried: Option<KernelSet> = None;
        let captured_marks =
            storages.iter().filter_map(|(_, member)| member.captured_marks.as_deref());
        for kernels in captured_marks.flat_map(loop_carried_in) {
            loop_carried.get_or_insert_with(|| kernels.clone()).join(kernels);
        }
        let unattached = storages.iter().map(|(key, _)| key).collect();
        let state =
            ReplayRecord { storages, unattached, last: None, external: Dependencies::new() };
        Self { loop_carried, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, ReplayRecord> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds storages made in the graph's pool. Ignores storages that were added before.
    pub(crate) fn add(&self, made: Vec<Storage>) {
        let mut state = self.state();
        let known: HashSet<usize> = state.storages.iter().map(|(_, m)| m.storage.key()).collect();
        for storage in made.iter().filter(|storage| !known.contains(&storage.key())) {
            let storage = storage.downgrade();
            let member =
                ReplayedStorage { storage, write: true, of_pool: true, captured_marks: None };
            let key = state.storages.insert(member);
            state.unattached.push(key);
        }
    }

    /// Returns the unattached storages, or all storages, in lock order.
    pub(crate) fn visit(&self, policy: SyncPolicy, all: bool) -> Vec<VisitedStorage> {
        let mut state = self.state();
        state.remove_dropped();
        let mut visited = Vec::new();
        let mut visit = |key: usize, member: &ReplayedStorage| {
            let write = match policy {
                SyncPolicy::Auto => member.writes(),
                SyncPolicy::Manual if member.of_pool && member.captured_marks.is_none() => return,
                SyncPolicy::Manual => member.write,
            };
            let storage = member.storage.upgrade();
            visited.extend(storage.map(|storage| {
                let captured_marks = member.captured_marks.clone();
                VisitedStorage { storage, write, captured_marks, key }
            }));
        };
        if all {
            state.storages.iter().for_each(|(key, member)| visit(key, member));
        } else {
            state.unattached.iter().for_each(|&key| visit(key, &state.storages[key]));
        }
        drop(state);
        visited.sort_unstable_by_key(|visited| visited.storage.key());
        visited
    }

    /// Detaches all storages, when the graph is dropped.
    pub(crate) fn detach_all(&self) {
        for visited in self.visit(SyncPolicy::Auto, true) {
            drop(visited.storage.uses());
        }
    }

    /// Begins a replay that visits no storage. Returns `None` if it must visit some. The replay must
    /// also visit all storages if [`ReplayGuard::needs_no_marks`] returns `false`, for example
    /// because the last replay failed.
    pub(crate) fn begin_attached(self: &Arc<Self>, stream: &Stream) -> Option<ReplayGuard<'_>> {
        let mut state = self.state();
        state.remove_dropped();
        let ReplayRecord { unattached, last, external, .. } = &mut *state;
        external.remove_passed();
        let same_stream = last.as_ref().is_some_and(|last| last.stream == *stream);
        let attached = same_stream && unattached.is_empty() && external.is_empty();
        attached.then_some(ReplayGuard { replays: self, state, visits_all: false })
    }

    /// Begins a replay. The caller holds the locks on the uses of `visited`. Returns `None` if
    /// other storages were detached since the call of `visit`.
    pub(crate) fn begin(
        self: &Arc<Self>,
        visited: &[VisitedStorage],
        all: bool,
    ) -> Option<ReplayGuard<'_>> {
        let mut state = self.state();
        state.remove_dropped();
        let visits_all = all || state.unattached.len() == state.storages.len();
        // Locking the uses of the visited storages has detached these storages, so `unattached` contains all of them.
        // If both lists are equally long, no other storage is unattached.
        let current = state.unattached.len() == visited.len();
        current.then_some(ReplayGuard { replays: self, state, visits_all })
    }

    /// Detaches a storage: records the last replay in its uses, unless that is replay `op`, which
    /// the uses already contain.
    fn detach(&self, key: usize, op: OpNumber, uses: &mut Uses) {
        let mut state = self.state();
        state.unattached.push(key);
        let ReplayRecord { storages, last, .. } = &mut *state;
        let (Some(member), Some(last)) = (storages.get(key), last) else { return };
        if last.op == op {
            return;
        }
        uses.record(&last.stream, last.op, member.writes(), last.site);
        if let Some(captured_marks) = member.captured_marks.as_ref().filter(|_| member.writes()) {
            if let Some((former, kernels)) = last.former.take().zip(self.loop_carried.as_ref()) {
                last.inputs.push(Dependency::Launch(former.of_kernels(kernels)));
            }
            let own = last.own.clone().map(Dependency::Launch);
            let mut replay = ReplayDependencies::new(&last.inputs, own.as_slice());
            uses.marks = captured_marks.after_replay(&uses.marks, &mut replay);
            uses.marks.merge_launches(&last.stream, last.op);
        }
    }
}

/// Returns the index-checking kernels whose results in this storage are inputs of the next replay.
/// The replay reads an input before it overwrites the bytes.
fn loop_carried_in(captured_marks: &StorageMarks) -> impl Iterator<Item = &KernelSet> {
    let read = captured_marks
        .replay_inputs()
        .into_iter()
        .flat_map(|bytes| captured_marks.dependencies(bytes));
    read.filter_map(|dependency| match dependency {
        Dependency::CapturedKernels(kernels) => Some(kernels),
        _ => None,
    })
}

impl ReplayRecord {
    fn remove_dropped(&mut self) {
        let Self { storages, unattached, .. } = self;
        unattached.retain(|&key| {
            let alive = storages[key].storage.is_alive();
            if !alive {
                storages.remove(key);
            }
            alive
        });
    }
}

impl ReplayedStorage {
    fn writes(&self) -> bool {
        self.write || self.of_pool
    }
}

impl ReplayGuard<'_> {
    /// Returns the dependencies of the replay's inputs, given those of the inputs in visited
    /// storages. Returns `None` if the replay must visit all storages.
    pub(crate) fn input_dependencies(
        &mut self,
        stream: &Stream,
        visited: &[VisitedStorage],
        visited_inputs: &Dependencies,
    ) -> Option<Dependencies> {
        if self.visits_all {
            return Some(visited_inputs.clone());
        }
        let ReplayRecord { last, external, .. } = &mut *self.state;
        external.remove_passed();
        let last = last.as_ref().filter(|last| last.stream == *stream)?;
        if !visited_inputs.is_empty() || !external.is_empty() {
            return None;
        }
        let Some(own) = &last.own else { return Some(Dependencies::new()) };
        match own.outcome() {
            CheckOutcome::Pending => {
                // Other work may have overwritten the last replay's results in a visited storage.
                // The inputs of this replay then depend on fewer kernels than `loop_carried` lists.
                let mut captured_marks =
                    visited.iter().filter_map(|visited| visited.captured_marks.as_deref());
                let exact = !captured_marks
                    .any(|captured_marks| loop_carried_in(captured_marks).next().is_some());
                let kernels = self.replays.loop_carried.iter();
                let inputs = || kernels.map(|kernels| Dependency::Launch(own.of_kernels(kernels)));
                exact.then(|| inputs().collect())
            }
            CheckOutcome::Passed => Some(Dependencies::new()),
            CheckOutcome::Failed(_) => None,
        }
    }

    /// Returns whether the former replay needs no marks in attached storages. This holds if it passed,
    /// if its failure also counts as a failure of `replay`, or if this replay visits every attached
    /// storage.
    pub(crate) fn needs_no_marks(&self, replay: Option<&CheckedLaunch>) -> bool {
        let former = self.state.last.as_ref().and_then(|last| last.own.as_ref());
        self.visits_all
            || former.is_none_or(|former| {
                replay.is_some_and(|replay| replay.covers(former))
                    || former.outcome() == CheckOutcome::Passed
            })
    }

    /// Records the replay, enqueued as operation `op` of the stream, and attaches the visited
    /// storages. Their uses must contain the replay already.
    pub(crate) fn record(
        &mut self,
        (stream, op, site): (&Stream, OpNumber, Site),
        (own, inputs): (Option<CheckedLaunch>, Dependencies),
        visited: &[VisitedStorage],
        uses: &mut [impl DerefMut<Target = Uses>],
    ) {
        let ReplayRecord { unattached, external, last, .. } = &mut *self.state;
        if self.visits_all {
            *external = Dependencies::new();
        }
        // The dependencies that the next replay assumes for its inputs in attached storages.
        let loop_carried = own.as_ref().zip(self.replays.loop_carried.as_ref());
        let loop_carried = loop_carried
            .filter(|_| !visited.is_empty())
            .map(|(launch, kernels)| Dependency::Launch(launch.of_kernels(kernels)));
        unattached.clear();
        for (visited, uses) in visited.iter().zip(uses) {
            if !visited.storage.is_device_memory() {
                unattached.push(visited.key);
                continue;
            }
            let read = visited
                .captured_marks
                .as_ref()
                .and_then(|captured_marks| captured_marks.replay_inputs());
            for dependency in read.into_iter().flat_map(|bytes| uses.marks.dependencies(bytes)) {
                if !loop_carried
                    .as_ref()
                    .is_some_and(|loop_carried| loop_carried.covers(dependency))
                {
                    external.insert(dependency);
                }
            }
            uses.attached =
                Some(Attachment { replays: Arc::clone(self.replays), key: visited.key, op });
        }
        *last = Some(LastReplay { stream: stream.clone(), op, site, own, inputs, former: None });
    }

    /// Records a replay that visited no storage, enqueued as operation `op`.
    pub(crate) fn record_attached(&mut self, op: OpNumber, site: Site, own: Option<CheckedLaunch>) {
        let Some(last) = &mut self.state.last else { return };
        (last.op, last.site) = (op, site);
        last.former = std::mem::replace(&mut last.own, own);
        last.inputs = Dependencies::new();
    }
}

impl Uses {
    /// Records the last replay if the storage is attached, and ends the attachment.
    pub(super) fn detach(&mut self) {
        if let Some(Attachment { replays, key, op }) = self.attached.take() {
            replays.detach(key, op, self);
        }
    }
}
