//! Replays of graphs on streams.

use std::cell::RefCell;
use std::sync::Arc;

use warpline_cuda_sys_safe::DriverError;
use warpline_cuda_sys_safe::owned::GraphExec;
use warpline_stream::{CapturedChecks, CheckedLaunch, OpNumber, Stream};

use super::cpu::with_host_locks;
use super::cuda::{located, refuse_captured};
use super::ordered::{OrderedWork, wait_for_own};
use super::{ResultMarks, TOKEN};
use crate::captured_collectives::CapturedCommunicator;
use crate::race::Touch;
use crate::storage::{Dependencies, Dependency, ReplayGuard, ReplayUses};
use crate::{Error, Runtime, Site, Storage, SyncPolicy};

type Result<T, E = crate::Error> = std::result::Result<T, E>;

/// A graph to replay.
pub(crate) struct GraphReplay<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) exec: &'a GraphExec,
    /// Uses of the storages by replays.
    pub(crate) uses: &'a Arc<ReplayUses>,
    /// The page-locked storages. The flag is set if replays write the storage.
    pub(crate) pinned: &'a [(Storage, bool)],
    /// Reports of failed index checks by the graph's kernels.
    pub(crate) checks: &'a Arc<CapturedChecks>,
    pub(crate) communicators: &'a [CapturedCommunicator],
    /// Call numbers of the replay on the watched communicators.
    pub(crate) numbers: &'a Dependencies,
}

/// Outcome of an attempt to launch a replay.
enum Attempt {
    Launched,
    /// Another thread used storages of the graph during the attempt, so these storages are no
    /// longer attached.
    Overtaken,
    /// The replay must also visit the attached storages.
    MustVisitAll,
}

/// Reason why a replay was not launched.
enum NotLaunched {
    Failed(Error),
    MustVisitAll,
}

impl From<Error> for NotLaunched {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl GraphReplay<'_> {
    /// Enqueues the replay.
    ///
    /// # Safety
    /// `uses` and `communicators` must contain all storages and communicators of the captured work.
    /// The pool's memory and the modules must be kept until the replay is complete.
    #[track_caller]
    pub(crate) unsafe fn enqueue(&self, stream: &Stream, site: Site) -> Result<()> {
        // SAFETY: the caller guarantees that `uses` and `communicators` are complete and that pool
        // and modules are kept.
        let in_order = || unsafe { self.in_order(stream, site) };
        let enqueued = if self.pinned.is_empty() {
            in_order()
        } else {
            let pinned = self.pinned.iter().map(|(storage, write)| (storage, *write));
            with_host_locks(site.op, pinned, in_order)
        };
        enqueued.map_err(|e| located(e, stream, site))
    }

    /// Enqueues the replay after the other uses of its storages.
    ///
    /// # Safety
    /// The conditions of [`GraphReplay::enqueue`].
    #[track_caller]
    unsafe fn in_order(&self, stream: &Stream, site: Site) -> Result<()> {
        // Read once, because another thread may change the policy.
        let policy = self.runtime.sync_policy();
        // A graph with collectives attaches nothing, because each replay marks its results with new call numbers.
        let attaches = policy == SyncPolicy::Auto && self.communicators.is_empty();
        // SAFETY: the caller guarantees that `uses` and `communicators` are complete and that pool
        // and modules are kept.
        if attaches && unsafe { self.enqueue_attached(stream, site) }? {
            return Ok(());
        }
        let mut all = !attaches;
        loop {
            // SAFETY: the caller guarantees that `uses` and `communicators` are complete and that pool and modules are
            // kept.
            match unsafe { self.attempt(stream, site, policy, [attaches, all]) }? {
                Attempt::Launched => return Ok(()),
                Attempt::Overtaken => {}
                Attempt::MustVisitAll => all = true,
            }
        }
    }

    /// Enqueues the replay if it need not visit a storage. Returns whether the replay was enqueued.
    ///
    /// # Safety
    /// The conditions of [`GraphReplay::enqueue`].
    #[track_caller]
    unsafe fn enqueue_attached(&self, stream: &Stream, site: Site) -> Result<bool> {
        let Some(mut guard) = self.uses.begin_attached(stream) else { return Ok(false) };
        // SAFETY: the caller guarantees that `uses` and `communicators` are complete and that pool
        // and modules are kept. The replay is recorded as the last use of the attached storages
        // below, before the guard is dropped.
        let (own, op) = match unsafe { self.submit(stream, site, Some(&guard)) } {
            Ok(launched) => launched,
            Err(NotLaunched::Failed(error)) => return Err(error),
            Err(NotLaunched::MustVisitAll) => return Ok(false),
        };
        let checks = own.is_some();
        let blocking = self.runtime.launch_blocking().then(|| own.clone());
        guard.record_attached(op, site, own);
        drop(guard);
        if checks {
            stream.mailbox().watch(stream);
        }
        if let Some(own) = blocking {
            let own = RefCell::new(own.into_iter().map(Dependency::Launch).collect());
            let result_marks = ResultMarks { own, visited: None };
            wait_for_own(self.runtime, stream, op, site, &result_marks)?;
        }
        Ok(true)
    }

    /// Enqueues the replay after the other uses of the unattached storages, or of all storages.
    ///
    /// # Safety
    /// The conditions of [`GraphReplay::enqueue`].
    #[track_caller]
    unsafe fn attempt(
        &self,
        stream: &Stream,
        site: Site,
        policy: SyncPolicy,
        [attaches, all]: [bool; 2],
    ) -> Result<Attempt> {
        let runtime = self.runtime;
        let detects_races = policy == SyncPolicy::Manual && runtime.detects_races();
        let visited = self.uses.visit(policy, all);
        let storages: Vec<(&Storage, bool)> =
            visited.iter().map(|visited| (&visited.storage, visited.write)).collect();
        let touches: Vec<Touch<'_>> = match detects_races {
            true => storages.iter().copied().map(Touch::from).collect(),
            false => Vec::new(),
        };
        let result_marks = ResultMarks { visited: Some(&visited), ..ResultMarks::default() };
        let mut work = OrderedWork::begin(
            (policy, detects_races),
            stream,
            &storages,
            &touches,
            site,
            &result_marks,
        )?;
        let mut guard = None;
        if attaches {
            let Some(mut begun) = self.uses.begin(&visited, all) else {
                return Ok(Attempt::Overtaken);
            };
            let Some(inputs) = begun.input_dependencies(stream, &visited, &work.inputs) else {
                return Ok(Attempt::MustVisitAll);
            };
            work.inputs = inputs;
            guard = Some(begun);
        }
        // SAFETY: the caller guarantees that `uses` and `communicators` are complete and that pool and modules are
        // kept. The replay is recorded as a use of the storages below, before their locks are released, so their memory
        // is not reused before the replay is complete.
        let (own, op) = match unsafe { self.submit(stream, site, guard.as_ref()) } {
            Ok(launched) => launched,
            Err(NotLaunched::Failed(error)) => return Err(error),
            Err(NotLaunched::MustVisitAll) => return Ok(Attempt::MustVisitAll),
        };
        let launch = own.iter().cloned().map(Dependency::Launch);
        result_marks.own.borrow_mut().extend(launch.chain(self.numbers.iter().cloned()));
        let inputs = work.inputs.clone();
        work.record(op);
        if let Some(guard) = &mut guard {
            guard.record((stream, op, site), (own, inputs), &visited, &mut work.uses);
        }
        drop((guard, work));
        if runtime.launch_blocking() {
            wait_for_own(runtime, stream, op, site, &result_marks)?;
        }
        Ok(Attempt::Launched)
    }

    /// Launches the graph on the stream. Returns the launch of its kernels that check indices.
    ///
    /// # Safety
    /// The conditions of [`GraphReplay::enqueue`]. The replay must be recorded as a use of the storages.
    unsafe fn submit(
        &self,
        stream: &Stream,
        site: Site,
        guard: Option<&ReplayGuard<'_>>,
    ) -> Result<(Option<CheckedLaunch>, OpNumber), NotLaunched> {
        let launch = |_| {
            refuse_captured(stream, site)?;
            // Begin the replay before the launch, because the replay's kernels may already fail before `launch`
            // returns.
            let replay = self.checks.begin_replay(TOKEN, stream, stream.last_op() + 1);
            let withdraw = || replay.iter().for_each(|replay| stream.mailbox().withdraw(replay));
            if guard.is_some_and(|guard| !guard.needs_no_marks(replay.as_ref())) {
                withdraw();
                return Err(NotLaunched::MustVisitAll);
            }
            // SAFETY: the caller guarantees that all storages, communicators, memory and modules of
            // the graph are kept. `while_usable` prevents aborts of the communicators meanwhile.
            let launch = || unsafe { self.exec.launch(stream.raw()) };
            while_usable(self.communicators, &launch).map_err(|error| {
                withdraw();
                Error::from(error)
            })?;
            stream.note_launch(site, std::iter::empty());
            Ok(replay)
        };
        stream.submit(TOKEN, launch)
    }
}

/// Launches a graph while its communicators are usable, and keeps them from being aborted
/// meanwhile.
#[track_caller]
fn while_usable(
    communicators: &[CapturedCommunicator],
    launch: &dyn Fn() -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    match communicators {
        [] => launch(),
        [first, rest @ ..] => first.comm.while_usable(|| while_usable(rest, launch))?,
    }
}
