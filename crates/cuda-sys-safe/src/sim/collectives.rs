//! Collectives as operations of streams: begun, blocked until other ranks have begun theirs, ended.

use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::capture::Graph;
use super::exec::{Pick, RunError, kernel_time};
use super::memory::User;
use super::session::{Guard, Step};
use super::state::{Label, State};
use super::streams::{Op, OpKind, Point, Work};
use super::{CallKind, SimDriver};
use crate::nccl::sim::{CallDesc, Outcome, Seat};
use crate::nccl::{Collective, CommHandle};
use crate::*;

/// A rank's end of a communicator, as its driver knows it.
pub(super) struct Comm {
    seat: Arc<Seat>,
    /// The end of what it was given last: what it is given next comes after it.
    latest: Option<Point>,
}

/// Calls that begin together.
pub(super) struct Group {
    comm: u64,
    seat: Arc<Seat>,
    calls: Vec<Collective>,
    rank: usize,
    ranks: usize,
}

impl Group {
    pub(super) fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }
}

/// How far an operation has come that does not run in one go.
pub(super) enum Begun {
    /// A group, by the number that its communicator gave it.
    Group(u64),
    Graph(Replay),
}

/// A replay under way. Each node and each dependency is looked at once.
pub(super) struct Replay {
    /// For each node, the dependencies that have not ended.
    waits: Vec<usize>,
    /// Nodes that can begin.
    pub(super) ready: Vec<usize>,
    /// Groups that have begun, by their nodes.
    pub(super) begun: Vec<(usize, Arc<Seat>, u64)>,
    pub(super) time: f64,
}

impl Replay {
    pub(super) fn new(graph: &Graph) -> Self {
        let waits: Vec<usize> = graph.nodes.iter().map(|node| node.after.len()).collect();
        let ready = (0..waits.len()).filter(|&node| waits[node] == 0).collect();
        Self { waits, ready, begun: Vec::new(), time: 2.0 }
    }

    /// Enters that a node has ended. Returns the number of nodes that were looked at.
    pub(super) fn end(&mut self, graph: &Graph, node: usize, time: f64) -> usize {
        self.time += time;
        for &next in &graph.followers[node] {
            self.waits[next] -= 1;
            if self.waits[next] == 0 {
                self.ready.push(next);
            }
        }
        1 + graph.followers[node].len()
    }
}

impl Op {
    /// The communicator whose other ranks it waits for.
    pub(super) fn blocked_on(&self) -> Option<&Arc<Seat>> {
        match (self.begun.as_ref()?, &self.kind) {
            (Begun::Group(number), OpKind::Work(Work::Group(group))) => {
                group.seat.is_blocked(*number).then_some(&group.seat)
            }
            (Begun::Graph(replay), _) => {
                let blocked = replay.begun.iter().all(|(_, seat, op)| seat.is_blocked(*op));
                replay.begun.first().map(|(_, seat, _)| seat).filter(|_| blocked)
            }
            _ => None,
        }
    }

    /// Whether a communicator takes part.
    fn is_of(&self, seat: &Arc<Seat>) -> bool {
        match &self.kind {
            OpKind::Work(work) => work.is_of(seat),
            OpKind::Graph(graph) => graph.nodes.iter().any(|node| node.work.is_of(seat)),
            _ => false,
        }
    }
}

impl Work {
    fn is_of(&self, seat: &Arc<Seat>) -> bool {
        matches!(self, Self::Group(group) if Arc::ptr_eq(&group.seat, seat))
    }

    /// The communicator that takes part, by its handle.
    pub(super) fn communicator(&self) -> Option<u64> {
        match self {
            Self::Group(group) => Some(group.comm),
            _ => None,
        }
    }
}

impl State {
    /// The communicator that stands in the way of a point.
    fn blocked_on(&self, point: Point) -> Option<Arc<Seat>> {
        let op = self.streams.get(&self.next_toward(point)?)?.queue.front()?;
        op.blocked_on().cloned()
    }

    /// The end of the first operation of a communicator that is not done.
    fn first_of(&self, seat: &Arc<Seat>) -> Option<Point> {
        let ops = self.streams.iter().flat_map(|(&stream, s)| {
            let ops = s.queue.iter().enumerate();
            ops.map(move |(i, op)| (op, Point { stream, position: s.done + i as u64 + 1 }))
        });
        ops.filter(|(op, _)| op.is_of(seat)).min_by_key(|(op, _)| op.sequence).map(|(_, p)| p)
    }

    /// The ends of what communicators were given last.
    pub(super) fn latest_of(&self, comms: impl Iterator<Item = u64>) -> Vec<Point> {
        comms.filter_map(|comm| self.comms.get(&comm)?.latest).collect()
    }

    pub(super) fn note_latest(&mut self, comms: impl Iterator<Item = u64>, point: Point) {
        for comm in comms {
            if let Some(comm) = self.comms.get_mut(&comm) {
                comm.latest = Some(point);
            }
        }
    }

    /// The ranks of a lost device are dead to others.
    pub(super) fn kill_ranks(&self, devices: &[usize]) {
        let seats = self.comms.values().map(|comm| &comm.seat);
        seats.filter(|seat| devices.contains(&seat.device())).for_each(|seat| seat.die());
    }

    /// Begins a group: reads its inputs. None where its communicator is over.
    pub(super) fn begin_group(
        &mut self,
        device: usize,
        group: &Group,
    ) -> Result<Option<u64>, RunError> {
        let mut given = Vec::with_capacity(group.calls.len());
        for call in &group.calls {
            let input = match CallDesc::memory(call, group.rank, group.ranks).read {
                Some((ptr, bytes)) => {
                    let at = self.locate_operand(device, call, ptr, bytes, false)?;
                    // SAFETY: just checked to lie in live backing memory, which only the executor
                    // touches.
                    unsafe { std::slice::from_raw_parts(with_exposed_provenance::<u8>(at), bytes) }
                        .to_vec()
                }
                None => Vec::new(),
            };
            given.push((CallDesc::of(call), input));
        }
        Ok(group.seat.begin(given))
    }

    /// Ends a group whose other ranks have begun theirs: writes its outputs. None while it is
    /// blocked, otherwise the time it took.
    pub(super) fn end_group(
        &mut self,
        device: usize,
        group: &Group,
        number: u64,
    ) -> Result<Option<f64>, RunError> {
        let outputs = match group.seat.end(number) {
            Outcome::Blocked => return Ok(None),
            Outcome::Aborted => return Ok(Some(0.0)),
            Outcome::Done(outputs) => outputs,
        };
        let mut touched = 0;
        for (call, output) in group.calls.iter().zip(outputs) {
            let Some((ptr, bytes)) = CallDesc::memory(call, group.rank, group.ranks).write else {
                continue;
            };
            let at = self.locate_operand(device, call, ptr, bytes, true)?;
            let memory =
                // SAFETY: just checked to lie in live backing memory, which only the executor touches.
                unsafe { std::slice::from_raw_parts_mut(with_exposed_provenance_mut::<u8>(at), bytes) };
            let bytes = bytes.min(output.len());
            memory[..bytes].copy_from_slice(&output[..bytes]);
            touched += bytes;
        }
        Ok(Some(kernel_time(touched)))
    }

    fn locate_operand(
        &mut self,
        device: usize,
        call: &Collective,
        ptr: DevicePtr,
        bytes: usize,
        write: bool,
    ) -> Result<usize, RunError> {
        self.locate(ptr.addr(), bytes, User::Kernel(device), write)
            .map_err(|why| RunError::illegal(format!("{}: {why}", CallDesc::of(call))))
    }
}

impl SimDriver {
    /// A number that no other driver of this process has.
    pub(crate) fn fresh_number() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn weak(&self) -> &Weak<Self> {
        &self.me
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The start of joining a communicator.
    pub(crate) fn enter_comm_init(&self, device: usize) -> Result<()> {
        self.settle(self.enter(CallKind::CommInit, device)?);
        Ok(())
    }

    /// Adds a new communicator.
    pub(crate) fn enter_seat(&self, seat: Arc<Seat>) -> CommHandle {
        let (mut state, device) = (self.lock(), seat.device());
        let raw = state.fresh();
        state.comms.insert(raw, Comm { seat, latest: None });
        // SAFETY: just made.
        unsafe { CommHandle::new(raw, device) }
    }

    pub(crate) fn seat(&self, call: &'static str, comm: CommHandle) -> Result<Arc<Seat>> {
        let state = self.lock();
        let known = state.comms.get(&comm.raw()).map(|comm| Arc::clone(&comm.seat));
        known.filter(|seat| seat.device() == comm.device()).ok_or_else(|| {
            let reason = format!("no such communicator on cuda:{}", comm.device());
            DriverError::InvalidArgument { call, reason }
        })
    }

    pub(crate) fn forget_seat(&self, comm: CommHandle) {
        let removed = self.lock().comms.remove(&comm.raw());
        drop(removed);
    }

    pub(crate) fn seats_on(&self, device: usize) -> Vec<Arc<Seat>> {
        let state = self.lock();
        let seats = state.comms.values().map(|comm| Arc::clone(&comm.seat));
        seats.filter(|seat| seat.device() == device).collect()
    }

    /// Enqueues calls of a communicator.
    pub(crate) fn enqueue_group(
        &self,
        comm: CommHandle,
        seat: Arc<Seat>,
        calls: &[Collective],
        stream: StreamHandle,
    ) -> Result<()> {
        let (call, device) = (CallKind::GroupEnd, stream.device());
        let refuse = |reason| Err(DriverError::InvalidArgument { call: call.name(), reason });
        if device != comm.device() {
            return refuse(format!(
                "the stream is on cuda:{device}, the communicator on cuda:{}",
                comm.device()
            ));
        }
        let (rank, ranks) = seat.rank().unwrap_or_default();
        if let Some(why) = calls.iter().find_map(|call| CallDesc::of(call).refusal(ranks)) {
            return refuse(why);
        }
        let to_self =
            |call: &&Collective| matches!(call, Collective::Send { peer, .. } if *peer == rank);
        let from_self =
            |call: &&Collective| matches!(call, Collective::Recv { peer, .. } if *peer == rank);
        if calls.iter().filter(to_self).count() != calls.iter().filter(from_self).count() {
            return refuse(format!(
                "rank {rank} sends to itself what it does not receive, or the other way round, in one group"
            ));
        }
        let calls: Vec<Collective> =
            calls.iter().filter(|call| !CallDesc::of(call).is_nothing()).copied().collect();
        let mut state = self.enter(call, device)?;
        let key = state.stream_key(call, stream)?;
        if calls.is_empty() {
            self.settle(state);
            return Ok(());
        }
        let raw = comm.raw();
        let group = Group { comm: raw, seat, calls, rank, ranks };
        let kind = OpKind::Work(Work::Group(Arc::new(group)));
        let after = state.latest_of(std::iter::once(raw));
        let enqueued = state
            .check_captures(key, call)
            .and_then(|()| state.enqueue(key, Label::of(call), kind, &after))
            .inspect_err(|_| state.spoil_capture_of(stream))?;
        if let Some(point) = enqueued {
            state.note_latest(std::iter::once(raw), point);
        }
        self.after_enqueue(state);
        Ok(())
    }

    /// Runs one operation toward the first one of a communicator that is not done. Whether there was
    /// one, and if not the communicator that stands in the way.
    pub(crate) fn advance(&self, seat: &Arc<Seat>, needed: bool) -> (bool, Option<Arc<Seat>>) {
        let state = self.lock();
        let Some(point) = state.first_of(seat) else { return (false, None) };
        let pick = if needed { Pick::Needed(point) } else { Pick::Toward(point) };
        let (state, step) = self.step(state, pick);
        let behind = if step == Step::Idle { state.blocked_on(point) } else { None };
        self.settle(state);
        (step == Step::Ran, behind)
    }

    /// What a query does that can run nothing: has other ranks go on, if it is for them.
    pub(super) fn ask_ranks<'a>(&'a self, state: Guard<'a>, point: Point) -> Guard<'a> {
        let Some(seat) = state.blocked_on(point) else { return state };
        self.settle(state);
        nccl::sim::help(&seat, false);
        self.lock()
    }

    /// What a wait does that can run nothing: if it is for other ranks, has them go on, or waits for
    /// them. Whether it was.
    pub(super) fn wait_for_ranks<'a>(
        &'a self,
        mut state: Guard<'a>,
        point: Point,
        patience: &mut Patience,
    ) -> (Guard<'a>, bool) {
        let seen = nccl::sim::version();
        let Some(seat) = state.blocked_on(point) else {
            // They may have gone on since it was tried.
            let can_run = state.pick(Pick::Needed(point)).is_some();
            return (state, can_run);
        };
        self.settle(state);
        if nccl::sim::help(&seat, true) {
            patience.renew();
        } else {
            nccl::sim::wait(seen, patience.left().min(SLICE));
        }
        let mut state = self.lock();
        if patience.left().is_zero() && !state.reached(point) {
            let waited = state.config.collective_timeout;
            let rank = seat.rank().map_or(0, |(rank, _)| rank);
            state.lose(
                seat.device(),
                CudaError {
                    call: CallKind::GroupEnd.name(),
                    code: CudaCode::LAUNCH_TIMEOUT,
                    device: Some(seat.device()),
                    detail: Some(format!("rank {rank} has waited {waited:?} for other ranks")),
                    location: None,
                },
            );
        }
        (state, true)
    }
}

/// The longest wait before it is looked again whether other ranks can go on.
const SLICE: Duration = Duration::from_millis(50);

/// How long a wait still goes on in which nothing happens.
pub(super) struct Patience {
    limit: Duration,
    since: Instant,
}

impl Patience {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, since: Instant::now() }
    }

    pub(super) fn renew(&mut self) {
        self.since = Instant::now();
    }

    fn left(&self) -> Duration {
        self.limit.saturating_sub(self.since.elapsed())
    }
}
