//! The state of a rank in a communicator, in the rank's own process.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::call::CallDesc;
use super::hub::{
    Bytes, Departure, DeviceId, Endpoint, EventSink, HubMember, HubRequest, RankEvent, RequestSink,
};
use super::progress;
use crate::{DriverError, Result};

/// A driver that runs the work of the ranks on its devices.
pub(crate) trait Advance: Send + Sync {
    /// Runs one operation toward the first unfinished operation of a communicator. If `needed` is
    /// set, streams that are held back continue. Returns whether an operation ran and, if none did,
    /// the communicator that blocks it.
    fn advance(
        &self,
        participant: &Arc<Participant>,
        needed: bool,
    ) -> (bool, Option<Arc<Participant>>);
}

/// A rank of a communicator, in its own process. Receives the events that the hub sends to it.
pub(crate) struct Participant {
    /// Identifies the communicators of one id.
    id: (u64, u64),
    hub: Arc<dyn RequestSink>,
    driver: Weak<dyn Advance>,
    device_id: DeviceId,
    state: Mutex<ParticipantState>,
}

#[derive(Default)]
struct ParticipantState {
    member: Option<(HubMember, usize)>,
    ready: bool,
    failure: Option<DriverError>,
    over: bool,
    next_op: u64,
    /// The machine of each rank.
    machines: Arc<[usize]>,
    /// Unfinished operations. For each call that is done, its output and the virtual time at which
    /// the last rank began it.
    begun: BTreeMap<u64, Vec<Option<(Bytes, f64)>>>,
    /// The rank whose split created this rank, and the number of the split.
    origin: Option<(HubMember, u64)>,
    begun_splits: u64,
    /// The new ranks that this rank's unfinished splits create, oldest first.
    splits: VecDeque<Option<Arc<Participant>>>,
    /// Whether another process waits for this rank.
    progress_requested: bool,
    /// Whether other processes know that a thread of this process waits.
    progress_announced: bool,
}

/// The outcome of an operation.
pub(crate) enum GroupOutcome {
    /// The operation waits for other ranks.
    Blocked,
    /// The operation is done. For each call, contains the output and the virtual time at which the
    /// last rank began the call.
    Done(Vec<(Bytes, f64)>),
    /// The communicator was aborted.
    Aborted,
}

impl Participant {
    pub(super) fn new(
        id: (u64, u64),
        hub: Arc<dyn RequestSink>,
        driver: Weak<dyn Advance>,
        device_id: DeviceId,
    ) -> Arc<Self> {
        let state = Mutex::default();
        let participant = Arc::new(Self { id, hub, driver, device_id, state });
        progress::register(&participant);
        participant
    }

    fn lock(&self) -> MutexGuard<'_, ParticipantState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn endpoint(self: &Arc<Self>) -> Endpoint {
        Endpoint { sink: Arc::clone(self) as Arc<dyn EventSink>, device_id: self.device_id }
    }

    /// Begins to join the communicator.
    pub(super) fn join(self: &Arc<Self>, ranks: usize, rank: usize) {
        self.lock().member = Some((HubMember { comm: 0, rank }, ranks));
        self.hub.submit(HubRequest::Join { ranks, rank, endpoint: self.endpoint() });
    }

    /// Returns the rank and the number of ranks.
    pub(crate) fn rank(&self) -> Option<(usize, usize)> {
        self.lock().member.map(|(member, ranks)| (member.rank, ranks))
    }

    /// Returns `true` if the communicator has no unfinished join or split.
    pub(crate) fn is_ready(&self) -> Result<bool> {
        let state = self.lock();
        match &state.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(state.ready && state.splits.is_empty()),
        }
    }

    /// Returns the machine of each rank.
    pub(crate) fn machines(&self) -> Arc<[usize]> {
        Arc::clone(&self.lock().machines)
    }

    /// Begins a group at a virtual time. Returns the group's number, or `None` if the communicator
    /// has ended.
    pub(crate) fn begin(&self, begin: f64, calls: Vec<(CallDesc, Vec<u8>)>) -> Option<u64> {
        let (member, op) = {
            let mut state = self.lock();
            let (member, _) = state.member.filter(|_| !state.over)?;
            let op = state.next_op;
            state.next_op += 1;
            state.begun.insert(op, vec![None; calls.len()]);
            (member, op)
        };
        self.hub.submit(HubRequest::Begin { member, op, begin, calls });
        Some(op)
    }

    /// Returns `true` if an operation that has begun waits for other ranks.
    pub(crate) fn is_blocked(&self, op: u64) -> bool {
        let state = self.lock();
        let parts = state.begun.get(&op);
        !state.over && parts.is_some_and(|parts| parts.iter().any(Option::is_none))
    }

    /// Ends an operation that is not blocked.
    pub(crate) fn end(&self, op: u64) -> GroupOutcome {
        let mut state = self.lock();
        if state.over {
            return GroupOutcome::Aborted;
        }
        let Some(parts) = state.begun.remove(&op) else { return GroupOutcome::Aborted };
        if parts.iter().any(Option::is_none) {
            state.begun.insert(op, parts);
            return GroupOutcome::Blocked;
        }
        GroupOutcome::Done(parts.into_iter().flatten().collect())
    }

    /// Begins to split the communicator.
    pub(super) fn split(self: &Arc<Self>, color: Option<u32>, key: usize) -> Option<Arc<Self>> {
        let child = color.map(|_| {
            Self::new(self.id, Arc::clone(&self.hub), self.driver.clone(), self.device_id)
        });
        let member = {
            let mut state = self.lock();
            let (member, _) = state.member?;
            if let Some(child) = &child {
                child.lock().origin = Some((member, state.begun_splits));
            }
            state.begun_splits += 1;
            state.splits.push_back(child.clone());
            member
        };
        let endpoint = child.as_ref().map(Self::endpoint);
        self.hub.submit(HubRequest::Split { member, color, key, endpoint });
        child
    }

    /// Leaves the communicator. Operations that have begun end.
    pub(crate) fn abort(&self) {
        self.leave(Departure::Aborted);
        let splits = {
            let mut state = self.lock();
            state.over = true;
            std::mem::take(&mut state.splits)
        };
        let why = "the communicator to be split was aborted";
        let error = super::hub::failed("ncclCommGetAsyncError", "ncclInvalidUsage", why.to_owned());
        for child in splits.into_iter().flatten() {
            child.deliver(RankEvent::Failed(error.clone()));
        }
        progress::notify_change();
    }

    /// Leaves the communicator as if the process had died. Operations that have begun stay blocked.
    pub(crate) fn die(&self) {
        self.leave(Departure::Died);
        let mut state = self.lock();
        let dead = || super::hub::failed("ncclCommGetAsyncError", "ncclSystemError", DEAD.into());
        state.failure.get_or_insert_with(dead);
        drop(state);
        progress::notify_change();
    }

    fn leave(&self, why: Departure) {
        let (member, origin) = {
            let state = self.lock();
            (state.member, state.origin)
        };
        match (member, origin) {
            (Some((member, _)), _) => self.hub.submit(HubRequest::Leave { member, why }),
            // The split that makes this rank is unfinished, or its end has not been delivered yet.
            (None, Some((member, split))) => {
                self.hub.submit(HubRequest::Abandon { member, split, why });
            }
            (None, None) => {}
        }
    }

    /// Tells other processes that a thread of this process waits.
    pub(super) fn request_progress(&self) {
        let member = {
            let mut state = self.lock();
            // One request suffices, because the other processes remember it.
            if std::mem::replace(&mut state.progress_announced, true) { None } else { state.member }
        };
        if let Some((member, _)) = member {
            self.hub.submit(HubRequest::Progress { member });
        }
    }

    /// Returns `true` if another process waits for this rank.
    pub(super) fn is_progress_requested(&self) -> bool {
        let state = self.lock();
        state.progress_requested && !state.over
    }

    /// Returns `true` if `self` and `other` are ranks of the same communicator.
    pub(super) fn is_with(&self, other: &Self) -> bool {
        let comm = |participant: &Self| participant.lock().member.map(|(member, _)| member.comm);
        self.id == other.id && comm(self).is_some_and(|own| Some(own) == comm(other))
    }

    /// Returns the driver of the rank's device, if it still exists.
    pub(super) fn driver(&self) -> Option<Arc<dyn Advance>> {
        self.driver.upgrade()
    }

    pub(crate) fn device(&self) -> usize {
        self.device_id.device
    }
}

const DEAD: &str = "this rank has died";

impl EventSink for Participant {
    fn deliver(&self, event: RankEvent) {
        let mut state = self.lock();
        match event {
            RankEvent::Ready(machines) => (state.machines, state.ready) = (machines.into(), true),
            RankEvent::Done { op, part, output, begin } => {
                if let Some(parts) = state.begun.get_mut(&op) {
                    parts[part] = Some((output, begin));
                }
            }
            RankEvent::Failed(error) => {
                // The unfinished splits never complete.
                for child in state.splits.iter().flatten() {
                    child.lock().failure.get_or_insert_with(|| error.clone());
                }
                state.failure.get_or_insert(error);
            }
            RankEvent::Split(now) => {
                if let Some(Some(child)) = state.splits.pop_front() {
                    let mut child = child.lock();
                    child.ready = true;
                    if let Some((member, machines)) = now {
                        child.member = Some((member, machines.len()));
                        child.machines = machines.into();
                    }
                }
            }
            RankEvent::ProgressRequested => state.progress_requested = true,
        }
        let progress_requested = state.progress_requested;
        drop(state);
        if progress_requested {
            progress::serve();
        }
        progress::notify_change();
    }
}

impl fmt::Debug for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Participant").field("device_id", &self.device_id).finish_non_exhaustive()
    }
}
