//! Replays of graphs on streams.

use std::sync::Arc;

use warpline_cuda_sys_safe::DriverError;
use warpline_cuda_sys_safe::owned::GraphExec;
use warpline_stream::{CapturedChecks, OpNumber, Stream};

use super::cpu::with_host_locks;
use super::cuda::{located, refuse_captured};
use super::ordered::{Ordered, wait_for_own};
use super::{Marking, TOKEN};
use crate::race::Touch;
use crate::replays::Captured;
use crate::storage::{ReplayUses, Source, Sources, Turn};
use crate::{Error, Runtime, Site, Storage, SyncPolicy};

type Result<T, E = crate::Error> = std::result::Result<T, E>;

/// A graph to replay.
pub(crate) struct Replay<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) exec: &'a GraphExec,
    /// Uses of the storages by replays.
    pub(crate) uses: &'a Arc<ReplayUses>,
    /// The page-locked storages, with whether replays write them.
    pub(crate) pinned: &'a [(Storage, bool)],
    /// Reports of failed checks by the graph's kernels.
    pub(crate) checks: &'a Arc<CapturedChecks>,
    pub(crate) communicators: &'a [Captured],
    /// Numbers of the replay on the watched communicators.
    pub(crate) numbers: &'a Sources,
}

/// Result of an attempt to launch a replay.
enum Attempt {
    Launched,
    /// Other uses of the storages came in between.
    Overtaken,
    /// The replay must visit the attached storages too.
    MustVisitAll,
}

/// The cause why a replay was not launched.
enum Unlaunched {
    Failed(Error),
    MustVisitAll,
}

impl From<Error> for Unlaunched {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Replay<'_> {
    /// Enqueues the replay.
    ///
    /// # Safety
    /// The storages and communicators must be all that were captured, and the pool's memory and the
    /// modules must be kept.
    #[track_caller]
    pub(crate) unsafe fn enqueue(&self, stream: &Stream, site: Site) -> Result<()> {
        let pinned = self.pinned.iter().map(|(storage, write)| (storage, *write));
        // SAFETY: the caller's.
        with_host_locks(site.op, pinned, || unsafe { self.in_order(stream, site) })
            .map_err(|e| located(e, stream, site))
    }

    /// Enqueues the replay after the other uses of its storages.
    ///
    /// # Safety
    /// The conditions of [`Replay::enqueue`].
    #[track_caller]
    unsafe fn in_order(&self, stream: &Stream, site: Site) -> Result<()> {
        // The numbers of collectives differ from replay to replay: each storage is marked with them.
        // Read once: another thread may change the policy meanwhile.
        let policy = self.runtime.sync_policy();
        let attaches = policy == SyncPolicy::Auto && self.communicators.is_empty();
        let mut all = !attaches;
        loop {
            // SAFETY: the caller's.
            match unsafe { self.attempt(stream, site, policy, [attaches, all]) }? {
                Attempt::Launched => return Ok(()),
                Attempt::Overtaken => {}
                Attempt::MustVisitAll => all = true,
            }
        }
    }

    /// Enqueues the replay after the other uses of the detached storages, or of all storages.
    ///
    /// # Safety
    /// The conditions of [`Replay::enqueue`].
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
        let marking = Marking { visited: Some(&visited), ..Marking::default() };
        let mut work =
            Ordered::begin((policy, detects_races), stream, &storages, &touches, site, &marking)?;
        let mut turn = None;
        if attaches {
            let Some(mut begun) = self.uses.begin(&visited, all) else {
                return Ok(Attempt::Overtaken);
            };
            let Some(found) = begun.found(stream, &visited, &work.carried) else {
                return Ok(Attempt::MustVisitAll);
            };
            work.carried = found;
            turn = Some(begun);
        }
        // SAFETY: the caller's; the replay is entered as a use of the storages, so that their
        // memory goes to nobody else before it is done.
        let op = match unsafe { self.submit(stream, site, &marking, turn.as_ref()) } {
            Ok(op) => op,
            Err(Unlaunched::Failed(error)) => return Err(error),
            Err(Unlaunched::MustVisitAll) => return Ok(Attempt::MustVisitAll),
        };
        let found = work.carried.clone();
        work.enter(op);
        if let Some(turn) = &mut turn {
            let own = marking.own.borrow().clone();
            turn.enter((stream, op, site), (own, found), &visited, &mut work.uses);
        }
        drop((turn, work));
        if runtime.launch_blocking() {
            wait_for_own(runtime, stream, op, site, &marking)?;
        }
        Ok(Attempt::Launched)
    }

    /// Launches the graph on the stream.
    ///
    /// # Safety
    /// The conditions of [`Replay::enqueue`]. The replay must be recorded as a use of the storages.
    unsafe fn submit(
        &self,
        stream: &Stream,
        site: Site,
        marking: &Marking<'_>,
        turn: Option<&Turn<'_>>,
    ) -> Result<OpNumber, Unlaunched> {
        let launch = |_| {
            refuse_captured(stream, site)?;
            // Before the launch: it may have failed by the time that this returns.
            let replay = self.checks.begin_replay(TOKEN, stream, stream.last_op() + 1);
            let withdraw = || replay.iter().for_each(|replay| stream.mailbox().withdraw(replay));
            if turn.is_some_and(|turn| !turn.succeeds(replay.as_ref())) {
                withdraw();
                return Err(Unlaunched::MustVisitAll);
            }
            // SAFETY: the caller's; no communicator is aborted meanwhile.
            let launch = || unsafe { self.exec.launch(stream.raw()) };
            while_usable(self.communicators, &launch).map_err(|error| {
                withdraw();
                Error::from(error)
            })?;
            let own = replay.into_iter().map(Source::Launch);
            marking.own.borrow_mut().extend(own.chain(self.numbers.iter().cloned()));
            stream.note_launch(site, std::iter::empty());
            Ok(())
        };
        Ok(stream.submit(TOKEN, launch)?.1)
    }
}

/// Launches a graph while its communicators are usable, and keeps them from being aborted
/// meanwhile.
#[track_caller]
fn while_usable(
    communicators: &[Captured],
    launch: &dyn Fn() -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    match communicators {
        [] => launch(),
        [first, rest @ ..] => first.comm.while_usable(|| while_usable(rest, launch))?,
    }
}
