//! The hub of a communicator id: it matches the calls of all ranks, computes the results and sends
//! them to the ranks (`participant.rs`). The process that made the id owns the hub. Ranks of that
//! process call the hub directly. Ranks of other processes send the same requests through a socket
//! (`process.rs`).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::call::CallDesc;
use crate::DriverError;

/// Bytes delivered to several ranks.
pub(super) type Bytes = Arc<[u8]>;

/// A rank of a communicator. The hub numbers its communicators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct HubMember {
    pub(super) comm: usize,
    pub(super) rank: usize,
}

/// Identifies a device among all processes. Two ranks of a communicator must not share a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceId {
    pub(super) process: u64,
    pub(super) driver: u64,
    pub(super) device: usize,
    pub(super) machine: usize,
}

/// A message from the hub to a rank.
#[derive(Clone, Debug)]
pub(super) enum RankEvent {
    /// All ranks have joined. Contains the machine of each rank.
    Ready(Vec<usize>),
    /// Part `part` of the rank's operation `op` is done. The last rank began it at the virtual time
    /// `begin`.
    Done { op: u64, part: usize, output: Bytes, begin: f64 },
    /// The communicator has failed. No operation will be done any more.
    Failed(DriverError),
    /// The rank's oldest split is done. Contains the rank in the new communicator, if any, and the
    /// machine of each rank.
    Split(Option<(HubMember, Vec<usize>)>),
    /// Another process waits for work of the rank.
    ProgressRequested,
}

/// The receiver of a rank's events.
pub(super) trait EventSink: Send + Sync {
    /// Delivers an event. The hub may be locked during the call, so the receiver must neither call
    /// the hub nor wait for another rank.
    fn deliver(&self, event: RankEvent);

    /// Returns `true` if the rank is in another process.
    fn is_elsewhere(&self) -> bool {
        false
    }
}

pub(super) type Sink = Arc<dyn EventSink>;

/// A rank that can receive events: the receiver and the rank's device.
#[derive(Clone)]
pub(super) struct Endpoint {
    pub(super) sink: Sink,
    pub(super) device_id: DeviceId,
}

/// The reason why a rank is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    Aborted,
    Died,
}

/// A request from a rank to the hub.
pub(super) enum HubRequest {
    Join {
        ranks: usize,
        rank: usize,
        endpoint: Endpoint,
    },
    /// Begins a group at a virtual time, with its calls and their input.
    Begin {
        member: HubMember,
        op: u64,
        begin: f64,
        calls: Vec<(CallDesc, Vec<u8>)>,
    },
    /// Begins a split. `endpoint` receives the events of the new communicator.
    Split {
        member: HubMember,
        color: Option<u32>,
        key: usize,
        endpoint: Option<Endpoint>,
    },
    Leave {
        member: HubMember,
        why: Departure,
    },
    /// Leaves the new communicator of a split, finished or not. `split` is the number of the split.
    Abandon {
        member: HubMember,
        split: u64,
        why: Departure,
    },
    /// Reports that a thread waits for the rank's operations.
    Progress {
        member: HubMember,
    },
}

/// A receiver of requests: a hub, or a connection to a hub.
pub(super) trait RequestSink: Send + Sync + fmt::Debug {
    fn submit(&self, request: HubRequest);
}

/// A rank's call that waits for other ranks.
pub(super) struct PendingCall {
    pub(super) desc: CallDesc,
    pub(super) op: u64,
    pub(super) part: usize,
    pub(super) input: Vec<u8>,
    /// Virtual time at which the rank began the call, in microseconds.
    pub(super) begin: f64,
}

/// A communicator.
pub(super) struct HubComm {
    pub(super) endpoints: Vec<Option<Endpoint>>,
    pub(super) departed: Vec<Option<Departure>>,
    pub(super) failure: Option<DriverError>,
    /// Incomplete collectives, by sequence number: the input of each rank that has made the call.
    pub(super) rounds: BTreeMap<u64, Vec<Option<PendingCall>>>,
    /// Sequence number of each rank's next collective.
    pub(super) next: Vec<u64>,
    /// Unmatched sends and receives, by sending and receiving rank.
    pub(super) pairs: BTreeMap<(usize, usize), PendingPair>,
    /// Unfinished splits, by rank.
    pub(super) splits: Vec<VecDeque<SplitRequest>>,
    /// Number of splits that each rank has begun.
    begun_splits: Vec<u64>,
    /// Each rank's origin: its rank in the communicator that was split, and the number of the
    /// split.
    origins: Vec<Option<(HubMember, u64)>>,
}

#[derive(Default)]
pub(super) struct PendingPair {
    pub(super) sends: VecDeque<PendingCall>,
    pub(super) recvs: VecDeque<PendingCall>,
}

/// The part of a rank in a split.
pub(super) struct SplitRequest {
    pub(super) color: Option<u32>,
    pub(super) key: usize,
    pub(super) endpoint: Option<Endpoint>,
    number: u64,
    /// The reason if the rank left the new communicator before the split was done.
    departed: Option<Departure>,
}

/// All communicators of one id. The first was made with the id; the others were split off.
#[derive(Default)]
pub(super) struct Hub {
    comms: Mutex<Vec<HubComm>>,
}

/// The hubs of this process whose ranks have not all joined yet, by number.
static HUBS: Mutex<Option<HashMap<u64, Arc<Hub>>>> = Mutex::new(None);

impl Hub {
    /// Opens a hub. Ranks find it by the identifier `number` until all ranks have joined.
    pub(super) fn open(number: u64) {
        let mut hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
        hubs.get_or_insert_default().insert(number, Arc::default());
    }

    pub(super) fn find(number: u64) -> Option<Arc<Self>> {
        let hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
        hubs.as_ref()?.get(&number).cloned()
    }

    fn close(hub: &Self) {
        let mut hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hubs) = hubs.as_mut() {
            hubs.retain(|_, other| !std::ptr::eq(&**other, hub));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<HubComm>> {
        self.comms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rank. Returns `true` if all ranks have joined now.
    fn join(comms: &mut Vec<HubComm>, ranks: usize, rank: usize, endpoint: Endpoint) -> bool {
        if comms.is_empty() {
            comms.push(HubComm::new(vec![None; ranks]));
        }
        let comm = &mut comms[0];
        let have = comm.endpoints.len();
        let refusal = if ranks != have {
            Some(format!("rank {rank} expects {ranks} ranks, but an earlier rank {have}"))
        } else if comm.endpoints[rank].is_some() || comm.departed[rank].is_some() {
            Some(format!("rank {rank} of {ranks} joins twice"))
        } else {
            comm.endpoints
                .iter()
                .position(|g| g.as_ref().is_some_and(|g| g.device_id == endpoint.device_id))
                .map(|other| {
                    let device = endpoint.device_id.device;
                    format!("duplicate GPU: rank {rank} and rank {other} are both on cuda:{device}")
                })
        };
        if let Some(why) = refusal {
            let error = failed("ncclCommInitRankConfig", "ncclInvalidUsage", why);
            endpoint.sink.deliver(RankEvent::Failed(error.clone()));
            comm.fail(error);
            return false;
        }
        if let Some(failure) = &comm.failure {
            endpoint.sink.deliver(RankEvent::Failed(failure.clone()));
            return false;
        }
        comm.endpoints[rank] = Some(endpoint);
        if comm.endpoints.iter().all(Option::is_some) {
            let machines: Vec<_> =
                comm.endpoints.iter().flatten().map(|rank| rank.device_id.machine).collect();
            comm.notify_all(|_| Some(RankEvent::Ready(machines.clone())));
            return true;
        }
        false
    }

    fn split(
        comms: &mut Vec<HubComm>,
        member: HubMember,
        color: Option<u32>,
        key: usize,
        endpoint: Option<Endpoint>,
    ) {
        let comm = &mut comms[member.comm];
        let number = comm.begun_splits[member.rank];
        comm.begun_splits[member.rank] += 1;
        comm.splits[member.rank].push_back(SplitRequest {
            color,
            key,
            endpoint,
            number,
            departed: None,
        });
        comm.check_departed();
        if comm.failure.is_some() || comm.splits.iter().any(VecDeque::is_empty) {
            return;
        }
        let mut splits: Vec<Option<SplitRequest>> =
            comm.splits.iter_mut().map(VecDeque::pop_front).collect();
        let mut parts: BTreeMap<u32, Vec<(usize, usize)>> = BTreeMap::new();
        for (rank, split) in splits.iter().enumerate() {
            let Some(SplitRequest { color, key, .. }) = split else { continue };
            match color {
                Some(color) => parts.entry(*color).or_default().push((*key, rank)),
                None => comm.notify(rank, RankEvent::Split(None)),
            }
        }
        for mut part in parts.into_values() {
            part.sort_unstable();
            let (id, ranks) = (comms.len(), part.len());
            let mut comm = HubComm::new(vec![None; ranks]);
            let mut machines = vec![0; ranks];
            for (new, &(_, rank)) in part.iter().enumerate() {
                let Some(split) = splits[rank].take() else { continue };
                machines[new] = split.endpoint.as_ref().map_or(0, |rank| rank.device_id.machine);
                comm.origins[new] = Some((HubMember { comm: member.comm, rank }, split.number));
                // A rank that has left the communicator being split has also left the new
                // communicator.
                comm.departed[new] = split.departed.or(comms[member.comm].departed[rank]);
                comm.endpoints[new] = split.endpoint.filter(|_| comm.departed[new].is_none());
            }
            comms.push(comm);
            for (new, (_, rank)) in part.into_iter().enumerate() {
                let now = (HubMember { comm: id, rank: new }, machines.clone());
                comms[member.comm].notify(rank, RankEvent::Split(Some(now)));
            }
        }
    }

    /// Makes a rank leave the new communicator of its split, finished or not.
    fn abandon(comms: &mut [HubComm], origin: (HubMember, u64), why: Departure) {
        let (member, number) = origin;
        let mut under_way = comms[member.comm].splits[member.rank].iter_mut();
        if let Some(split) = under_way.find(|split| split.number == number) {
            split.departed.get_or_insert(why);
            return;
        }
        for comm in comms {
            if let Some(rank) = comm.origins.iter().position(|&from| from == Some(origin)) {
                return comm.leave(rank, why);
            }
        }
    }
}

impl RequestSink for Hub {
    fn submit(&self, request: HubRequest) {
        let mut comms = self.lock();
        // Another process may send invalid numbers.
        let known = |member: HubMember| {
            comms.get(member.comm).is_some_and(|comm| member.rank < comm.endpoints.len())
        };
        match &request {
            HubRequest::Join { ranks, rank, .. } if rank >= ranks => return,
            HubRequest::Begin { member, .. }
            | HubRequest::Split { member, .. }
            | HubRequest::Leave { member, .. }
            | HubRequest::Abandon { member, .. }
            | HubRequest::Progress { member }
                if !known(*member) =>
            {
                return;
            }
            _ => {}
        }
        match request {
            HubRequest::Join { ranks, rank, endpoint } => {
                if Self::join(&mut comms, ranks, rank, endpoint) {
                    // All ranks have joined, so no rank looks for the hub by its id any more.
                    Self::close(self);
                }
            }
            HubRequest::Begin { member, op, begin, calls } => {
                comms[member.comm].begin(member.rank, (op, begin), calls);
            }
            HubRequest::Split { member, color, key, endpoint } => {
                Self::split(&mut comms, member, color, key, endpoint);
            }
            HubRequest::Abandon { member, split, why } => {
                Self::abandon(&mut comms, (member, split), why);
            }
            HubRequest::Leave { member, why } => comms[member.comm].leave(member.rank, why),
            HubRequest::Progress { member } => comms[member.comm].request_progress(member.rank),
        }
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}

impl HubComm {
    fn new(endpoints: Vec<Option<Endpoint>>) -> Self {
        let ranks = endpoints.len();
        Self {
            endpoints,
            departed: vec![None; ranks],
            failure: None,
            rounds: BTreeMap::new(),
            next: vec![0; ranks],
            pairs: BTreeMap::new(),
            splits: (0..ranks).map(|_| VecDeque::new()).collect(),
            begun_splits: vec![0; ranks],
            origins: vec![None; ranks],
        }
    }

    pub(super) fn notify(&self, rank: usize, event: RankEvent) {
        if let Some(endpoint) = &self.endpoints[rank] {
            endpoint.sink.deliver(event);
        }
    }

    /// Delivers an event to all ranks, to other processes first: this process may end when its own
    /// rank receives the event.
    pub(super) fn notify_all(&self, mut event: impl FnMut(usize) -> Option<RankEvent>) {
        for elsewhere in [true, false] {
            for (rank, endpoint) in self.endpoints.iter().enumerate() {
                let Some(endpoint) = endpoint else { continue };
                if endpoint.sink.is_elsewhere() == elsewhere
                    && let Some(event) = event(rank)
                {
                    endpoint.sink.deliver(event);
                }
            }
        }
    }

    /// Fails the communicator for all ranks. Only the first error counts.
    pub(super) fn fail(&mut self, error: DriverError) {
        if self.failure.is_none() {
            self.notify_all(|_| Some(RankEvent::Failed(error.clone())));
            self.failure = Some(error);
            // No call of a failed communicator completes any more.
            self.rounds.clear();
            self.pairs.clear();
        }
    }

    fn leave(&mut self, rank: usize, why: Departure) {
        self.departed[rank].get_or_insert(why);
        self.endpoints[rank] = None;
        self.check_departed();
    }

    /// Asks the ranks in other processes to run the work for which this rank waits.
    fn request_progress(&self, rank: usize) {
        let Some(Some(endpoint)) = self.endpoints.get(rank) else { return };
        let elsewhere = |other: &&Endpoint| other.device_id.process != endpoint.device_id.process;
        for other in self.endpoints.iter().flatten().filter(elsewhere) {
            other.sink.deliver(RankEvent::ProgressRequested);
        }
    }
}

/// Creates an error in the form of NCCL's.
pub(super) fn failed(call: &'static str, status: &str, detail: String) -> DriverError {
    DriverError::LibraryCall { call, status: status.into(), detail, location: None }
}
