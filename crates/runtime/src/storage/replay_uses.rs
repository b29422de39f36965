//! Uses of storages by a graph's replays, recorded once for all storages.
//!
//! Invariant: a replay costs the host the same, however many tensors its graph uses.
//!
//! A storage is *attached* to a graph while the graph's last replay is its last use. The graph's
//! record then holds this use and its marks for all attached storages, and a replay updates only
//! the record. Any other use locks the storage's `Uses`, which enters the last replay there and
//! detaches the storage. The next replay orders itself after the uses of the detached storages and
//! attaches them again.
//!
//! A replay visits all storages if it runs on another stream than the last one, if bytes that it
//! reads depend on pending checks other than those of the last replay's own kernels, or if the last
//! replay failed.
//!
//! Graphs with collectives, and graphs under `SyncPolicy::Manual`, attach nothing. Page-locked
//! memory, and memory that is shared with other processes, is never attached.

use std::collections::HashSet;
use std::ops::DerefMut;
use std::sync::{Arc, PoisonError};

use slab::Slab;
use warpline_stream::{CheckOutcome, CheckedLaunch, KernelSet, OpNumber, Stream};
use warpline_sync::{Mutex, MutexGuard};

use super::{Marks, Replaying, Source, Sources, Storage, Uses, WeakStorage};
use crate::{Site, SyncPolicy};

/// Uses of storages by a graph's replays. A replay is recorded here instead of in each of its
/// storages, so that its cost does not grow with their number.
///
/// A storage is *attached* while the graph's last replay is its last use. Its own [`Uses`] then
/// lack the replays since it was attached, which all ran on one stream. Locking them records the
/// last replay and detaches the storage. The next replay visits only detached storages.
#[derive(Debug)]
pub(crate) struct ReplayUses {
    /// Kernels that check indices and write bytes that the next replay reads before it overwrites
    /// them.
    looped: Option<KernelSet>,
    /// Locked after the uses of storages.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    storages: Slab<Member>,
    /// Detached storages, by their keys in `storages`.
    detached: Vec<usize>,
    /// `Some` while storages are attached.
    last: Option<LastReplay>,
    /// Dependencies of the bytes of attached storages that replays read, other than replays.
    foreign: Sources,
}

/// A storage that replays use.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) storage: WeakStorage,
    /// Whether captured work writes it.
    pub(crate) write: bool,
    /// Whether the storage lies in the graph's pool, where several storages may have used the same
    /// memory.
    pub(crate) of_pool: bool,
    /// The storage's marks in the capture. `None` if the capture did not use it.
    pub(crate) flow: Option<Arc<Marks>>,
}

/// The last enqueued replay.
#[derive(Debug)]
struct LastReplay {
    stream: Stream,
    op: OpNumber,
    site: Site,
    /// The replay itself, if its kernels check indices.
    own: Sources,
    /// Dependencies of the bytes that the replay read.
    found: Sources,
}

/// Link from a storage to the replays that it is attached to.
#[derive(Debug)]
pub(super) struct Attached {
    replays: Arc<ReplayUses>,
    key: usize,
    /// The operation of the replay that attached the storage. It is recorded in the storage's uses.
    op: OpNumber,
}

/// A storage that a replay visits, with the fields of its [`Member`].
pub(crate) struct Visited {
    pub(crate) storage: Storage,
    pub(crate) write: bool,
    pub(crate) flow: Option<Arc<Marks>>,
    key: usize,
}

/// Exclusive right to record the next replay.
pub(crate) struct Turn<'a> {
    replays: &'a Arc<ReplayUses>,
    state: MutexGuard<'a, State>,
    /// Whether the replay visits every attached storage.
    visits_all: bool,
}

impl ReplayUses {
    pub(crate) fn new(members: impl IntoIterator<Item = Member>) -> Self {
        let storages: Slab<Member> = members.into_iter().enumerate().collect();
        let mut looped: Option<KernelSet> = None;
        let flows = storages.iter().filter_map(|(_, member)| member.flow.as_deref());
        for kernels in flows.flat_map(looped_in) {
            looped.get_or_insert_with(|| kernels.clone()).join(kernels);
        }
        let detached = storages.iter().map(|(key, _)| key).collect();
        let state = State { storages, detached, last: None, foreign: Sources::new() };
        Self { looped, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds storages made in the graph's pool, except those already known.
    pub(crate) fn add(&self, made: Vec<Storage>) {
        let mut state = self.state();
        let known: HashSet<usize> = state.storages.iter().map(|(_, m)| m.storage.key()).collect();
        for storage in made.iter().filter(|storage| !known.contains(&storage.key())) {
            let storage = storage.downgrade();
            let member = Member { storage, write: true, of_pool: true, flow: None };
            let key = state.storages.insert(member);
            state.detached.push(key);
        }
    }

    /// Returns the storages that a replay visits, in lock order: the detached storages, or all of
    /// them.
    pub(crate) fn visit(&self, policy: SyncPolicy, all: bool) -> Vec<Visited> {
        let mut state = self.state();
        state.forget_dropped();
        let mut visited = Vec::new();
        let mut visit = |key: usize, member: &Member| {
            let write = match policy {
                SyncPolicy::Auto => member.writes(),
                SyncPolicy::Manual if member.of_pool && member.flow.is_none() => return,
                SyncPolicy::Manual => member.write,
            };
            let storage = member.storage.upgrade();
            visited.extend(storage.map(|storage| {
                let flow = member.flow.clone();
                Visited { storage, write, flow, key }
            }));
        };
        if all {
            state.storages.iter().for_each(|(key, member)| visit(key, member));
        } else {
            state.detached.iter().for_each(|&key| visit(key, &state.storages[key]));
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

    /// Begins a replay. The caller holds the locks on the uses of `visited`. `None` if storages
    /// were detached since, so that the replay must visit more.
    pub(crate) fn begin(self: &Arc<Self>, visited: &[Visited], all: bool) -> Option<Turn<'_>> {
        let mut state = self.state();
        state.forget_dropped();
        let visits_all = all || state.detached.len() == state.storages.len();
        // All visited storages are detached, because their uses are locked.
        let current = state.detached.len() == visited.len();
        current.then_some(Turn { replays: self, state, visits_all })
    }

    /// Records the last replay in the uses of a storage that is detached. Replay `op` is recorded
    /// there already.
    fn detach(&self, key: usize, op: OpNumber, uses: &mut Uses) {
        let mut state = self.state();
        state.detached.push(key);
        let (Some(member), Some(last)) = (state.storages.get(key), &state.last) else { return };
        if last.op == op {
            return;
        }
        uses.enter(&last.stream, last.op, member.writes(), last.site);
        if let Some(flow) = member.flow.as_ref().filter(|_| member.writes()) {
            uses.marks = flow.replayed(&uses.marks, &mut Replaying::new(&last.found, &last.own));
            uses.marks.unite(&last.stream, last.op);
        }
    }
}

/// Returns the kernels that check indices and write bytes of a storage that the next replay reads
/// before it overwrites them.
fn looped_in(flow: &Marks) -> impl Iterator<Item = &KernelSet> {
    let read = flow.found().into_iter().flat_map(|bytes| flow.sources(bytes));
    read.filter_map(|source| match source {
        Source::Captured(kernels) => Some(kernels),
        _ => None,
    })
}

impl State {
    fn forget_dropped(&mut self) {
        let Self { storages, detached, .. } = self;
        detached.retain(|&key| {
            let alive = storages[key].storage.is_alive();
            if !alive {
                storages.remove(key);
            }
            alive
        });
    }
}

impl Member {
    fn writes(&self) -> bool {
        self.write || self.of_pool
    }
}

impl Turn<'_> {
    /// Returns the dependencies of the bytes that the replay reads. `carried` are those in the
    /// visited storages. `None` if the replay must visit all storages.
    pub(crate) fn found(
        &mut self,
        stream: &Stream,
        visited: &[Visited],
        carried: &Sources,
    ) -> Option<Sources> {
        if self.visits_all {
            return Some(carried.clone());
        }
        let State { last, foreign, .. } = &mut *self.state;
        foreign.forget_passed();
        let last = last.as_ref().filter(|last| last.stream == *stream)?;
        if !carried.is_empty() || !foreign.is_empty() {
            return None;
        }
        let Some(own) = last.own.iter().find_map(Source::launch) else {
            return Some(Sources::new());
        };
        let looped = self.replays.looped.as_ref().map(|kernels| own.of_kernels(kernels));
        match own.outcome() {
            CheckOutcome::Pending => {
                // Their bytes may have been overwritten since.
                let mut flows = visited.iter().filter_map(|visited| visited.flow.as_deref());
                let exact = !flows.any(|flow| looped_in(flow).next().is_some());
                exact.then(|| looped.into_iter().map(Source::Launch).collect())
            }
            CheckOutcome::Passed => Some(Sources::new()),
            CheckOutcome::Failed(_) => None,
        }
    }

    /// Returns whether attached storages need no marks of the former replay: it passed, or `replay`
    /// fails if it did.
    pub(crate) fn succeeds(&self, replay: Option<&CheckedLaunch>) -> bool {
        let former = self.state.last.as_ref();
        let former = former.and_then(|last| last.own.iter().find_map(Source::launch));
        self.visits_all
            || former.is_none_or(|former| {
                replay.is_some_and(|replay| replay.covers(former))
                    || former.outcome() == CheckOutcome::Passed
            })
    }

    /// Records the replay, enqueued as operation `op` of the stream, and attaches the storages that
    /// it visited. Their uses contain the replay already.
    pub(crate) fn enter(
        &mut self,
        (stream, op, site): (&Stream, OpNumber, Site),
        (own, found): (Sources, Sources),
        visited: &[Visited],
        uses: &mut [impl DerefMut<Target = Uses>],
    ) {
        let State { detached, foreign, last, .. } = &mut *self.state;
        if self.visits_all {
            *foreign = Sources::new();
        }
        let launch = own.iter().find_map(Source::launch);
        // The next replay finds these in attached storages.
        let looped = launch.zip(self.replays.looped.as_ref());
        let looped = looped.map(|(launch, kernels)| Source::Launch(launch.of_kernels(kernels)));
        detached.clear();
        for (visited, uses) in visited.iter().zip(uses) {
            if !visited.storage.is_device_memory() {
                detached.push(visited.key);
                continue;
            }
            let read = visited.flow.as_ref().and_then(|flow| flow.found());
            for source in read.into_iter().flat_map(|bytes| uses.marks.sources(bytes)) {
                if !looped.as_ref().is_some_and(|looped| looped.covers(source)) {
                    foreign.join_one(source);
                }
            }
            uses.attached =
                Some(Attached { replays: Arc::clone(self.replays), key: visited.key, op });
        }
        *last = Some(LastReplay { stream: stream.clone(), op, site, own, found });
    }
}

impl Uses {
    /// Records the last replay if the storage is attached, and detaches the storage.
    pub(super) fn detach(&mut self) {
        if let Some(Attached { replays, key, op }) = self.attached.take() {
            replays.detach(key, op, self);
        }
    }
}
