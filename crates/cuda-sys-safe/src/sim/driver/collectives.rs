//! Collectives: enqueuing them, and waiting for other ranks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::session::{Guard, Patience, SimDriver, Step};
use crate::nccl::sim::{Advance, CallDesc, Seat};
use crate::nccl::{Collective, CommHandle};
use crate::sim::CallKind;
use crate::sim::exec::Pick;
use crate::sim::state::State;
use crate::sim::state::streams::OpKind;
use crate::sim::state::work::{Comm, Group, Label, Point, Work};
use crate::*;

impl State {
    /// Returns the communicator that blocks the way to a point.
    fn blocked_on(&self, point: Point) -> Option<Arc<Seat>> {
        let op = self.streams.get(&self.next_toward(point)?)?.queue.front()?;
        op.blocked_on().cloned()
    }

    /// Returns the end of the first unfinished operation of a communicator.
    fn first_of(&self, seat: &Arc<Seat>) -> Option<Point> {
        let ops = self.streams.iter().flat_map(|(&stream, s)| {
            let ops = s.queue.iter().enumerate();
            ops.map(move |(i, op)| (op, Point { stream, position: s.done + i as u64 + 1 }))
        });
        ops.filter(|(op, _)| op.is_of(seat)).min_by_key(|(op, _)| op.sequence).map(|(_, p)| p)
    }
}

impl SimDriver {
    /// Returns a number that identifies a driver of this process.
    pub(crate) fn fresh_number() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn weak(&self) -> Weak<Self> {
        self.me.clone()
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Begins the call that joins a communicator.
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

    /// Drives other ranks, if a query that can run no operation is blocked by them.
    pub(super) fn ask_ranks<'a>(&'a self, state: Guard<'a>, point: Point) -> Guard<'a> {
        let Some(seat) = state.blocked_on(point) else { return state };
        self.settle(state);
        nccl::sim::help(&seat, false);
        self.lock()
    }

    /// Drives other ranks, or waits for them, if a wait that can run no operation is blocked by
    /// them. Returns `false` if the wait can make no progress.
    pub(super) fn wait_for_ranks<'a>(
        &'a self,
        mut state: Guard<'a>,
        point: Point,
        patience: &mut Patience,
    ) -> (Guard<'a>, bool) {
        let seen = nccl::sim::version();
        let Some(seat) = state.blocked_on(point) else {
            // The other ranks may have continued since the last attempt.
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

impl Advance for SimDriver {
    fn advance(&self, seat: &Arc<Seat>, needed: bool) -> (bool, Option<Arc<Seat>>) {
        let state = self.lock();
        let Some(point) = state.first_of(seat) else { return (false, None) };
        let pick = if needed { Pick::Needed(point) } else { Pick::Toward(point) };
        let (state, step) = self.step(state, pick);
        let behind = if step == Step::Idle { state.blocked_on(point) } else { None };
        self.settle(state);
        (step == Step::Ran, behind)
    }
}

/// Longest sleep before the state of other ranks is checked again.
const SLICE: Duration = Duration::from_millis(50);
