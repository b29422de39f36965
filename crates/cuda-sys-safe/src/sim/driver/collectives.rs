//! Collectives: enqueuing them, and waiting for other ranks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::session::{Guard, SimDriver, StallTimer, StepResult};
use crate::nccl::sim::{Advance, CallDesc, Participant};
use crate::nccl::{Collective, CommHandle};
use crate::sim::CallKind;
use crate::sim::config::MAX_DEVICES;
use crate::sim::exec::PickRule;
use crate::sim::state::SimState;
use crate::sim::state::streams::StreamOpKind;
use crate::sim::state::work::{CallGroup, CommRecord, DeviceWork, Label, Point};
use crate::*;

impl SimState {
    /// Returns this rank's end of the communicator that blocks the way to a point.
    fn blocked_on(&self, point: Point) -> Option<Arc<Participant>> {
        let op = self.streams.get(&self.next_toward(point)?)?.queue.front()?;
        op.blocked_on().cloned()
    }

    /// Returns the end of the first unfinished operation of `participant`.
    fn first_of(&self, participant: &Arc<Participant>) -> Option<Point> {
        let ops = self.streams.iter().flat_map(|(&stream, s)| {
            let ops = s.queue.iter().enumerate();
            ops.map(move |(i, op)| (op, Point { stream, position: s.done + i as u64 + 1 }))
        });
        ops.filter(|(op, _)| op.is_of(participant))
            .min_by_key(|(op, _)| op.sequence)
            .map(|(_, p)| p)
    }
}

impl SimDriver {
    /// Returns an identifier for a new driver, unique in this process.
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

    /// Returns the machine of a device.
    pub(crate) fn machine_of(&self, device: usize) -> usize {
        let state = self.lock();
        let physical = state.devices.get(device).map_or(0, |device| device.physical);
        state.config.topology.machine_of(physical, state.config.devices.min(MAX_DEVICES))
    }

    /// Begins the call that joins a communicator.
    pub(crate) fn enter_comm_init(&self, device: usize) -> Result<()> {
        self.unlock(self.enter(CallKind::CommInit, device)?);
        Ok(())
    }

    /// Adds a new communicator.
    pub(crate) fn add_participant(&self, participant: Arc<Participant>) -> CommHandle {
        let (mut state, device) = (self.lock(), participant.device());
        let raw = state.fresh();
        state.comms.insert(raw, CommRecord { participant, latest: None });
        // SAFETY: this driver has just created the object.
        unsafe { CommHandle::new(raw, device) }
    }

    pub(crate) fn participant(
        &self,
        call: &'static str,
        comm: CommHandle,
    ) -> Result<Arc<Participant>> {
        let state = self.lock();
        let known = state.comms.get(&comm.raw()).map(|comm| Arc::clone(&comm.participant));
        known.filter(|participant| participant.device() == comm.device()).ok_or_else(|| {
            let reason = format!("no such communicator on cuda:{}", comm.device());
            DriverError::InvalidArgument { call, reason }
        })
    }

    pub(crate) fn remove_participant(&self, comm: CommHandle) {
        let removed = self.lock().comms.remove(&comm.raw());
        drop(removed);
    }

    pub(crate) fn participants_on(&self, device: usize) -> Vec<Arc<Participant>> {
        let state = self.lock();
        let participants = state.comms.values().map(|comm| Arc::clone(&comm.participant));
        participants.filter(|participant| participant.device() == device).collect()
    }

    /// Enqueues calls of a communicator.
    pub(crate) fn enqueue_group(
        &self,
        comm: CommHandle,
        participant: Arc<Participant>,
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
        let (rank, ranks) = participant.rank().unwrap_or_default();
        if let Some(why) = calls.iter().find_map(|call| CallDesc::of(call).refusal(ranks)) {
            return refuse(why);
        }
        let to_self =
            |call: &&Collective| matches!(call, Collective::Send { peer, .. } if *peer == rank);
        let from_self =
            |call: &&Collective| matches!(call, Collective::Recv { peer, .. } if *peer == rank);
        if calls.iter().filter(to_self).count() != calls.iter().filter(from_self).count() {
            return refuse(format!(
                "a group of rank {rank} sends to itself a different number of times than it receives from itself"
            ));
        }
        let calls: Vec<Collective> =
            calls.iter().filter(|call| !CallDesc::of(call).is_nothing()).copied().collect();
        let mut state = self.enter(call, device)?;
        let key = state.stream_key(call, stream)?;
        if calls.is_empty() {
            self.unlock(state);
            return Ok(());
        }
        let raw = comm.raw();
        let group = CallGroup { comm: raw, participant, calls, rank, ranks };
        let kind = StreamOpKind::Work(DeviceWork::Group(Arc::new(group)));
        let after = state.latest_of(std::iter::once(raw));
        let enqueued = state
            .check_captures(key, call)
            .and_then(|()| state.enqueue(key, Label::of(call), kind, &after))
            .inspect_err(|_| state.invalidate_stream_capture(stream))?;
        if let Some(point) = enqueued {
            state.note_latest(std::iter::once(raw), point);
        }
        self.after_enqueue(state);
        Ok(())
    }

    /// If a query can run no operation itself because other ranks block it, makes these ranks' drivers run work.
    pub(super) fn drive_ranks<'a>(&'a self, state: Guard<'a>, point: Point) -> Guard<'a> {
        let Some(participant) = state.blocked_on(point) else { return state };
        self.unlock(state);
        nccl::sim::drive(&participant, false);
        self.lock()
    }

    /// If `point` cannot be reached because other ranks have not made their calls, drives these ranks or waits
    /// for them. Returns `false` if no progress is possible.
    pub(super) fn wait_for_ranks<'a>(
        &'a self,
        mut state: Guard<'a>,
        point: Point,
        stall_timer: &mut StallTimer,
    ) -> (Guard<'a>, bool) {
        let seen = nccl::sim::change_count();
        let Some(participant) = state.blocked_on(point) else {
            // The other ranks may have continued since the last attempt.
            let can_run = state.pick(PickRule::Needed(point)).is_some();
            return (state, can_run);
        };
        self.unlock(state);
        if nccl::sim::drive(&participant, true) {
            stall_timer.restart();
        } else {
            nccl::sim::wait_for_change(seen, stall_timer.remaining().min(RECHECK_INTERVAL));
        }
        let mut state = self.lock();
        if stall_timer.remaining().is_zero() && !state.reached(point) {
            let waited = state.config.collective_timeout;
            let rank = participant.rank().map_or(0, |(rank, _)| rank);
            state.lose(
                participant.device(),
                CudaError {
                    call: CallKind::GroupEnd.name(),
                    code: CudaCode::LAUNCH_TIMEOUT,
                    device: Some(participant.device()),
                    detail: Some(format!("rank {rank} has waited {waited:?} for other ranks")),
                    location: None,
                },
            );
        }
        (state, true)
    }
}

impl Advance for SimDriver {
    fn advance(
        &self,
        participant: &Arc<Participant>,
        needed: bool,
    ) -> (bool, Option<Arc<Participant>>) {
        let state = self.lock();
        let Some(point) = state.first_of(participant) else { return (false, None) };
        let pick = if needed { PickRule::Needed(point) } else { PickRule::Toward(point) };
        let (state, step) = self.step(state, pick);
        let backing = if step == StepResult::Idle { state.blocked_on(point) } else { None };
        self.unlock(state);
        (step == StepResult::Ran, backing)
    }
}

/// Longest sleep before the state of other ranks is checked again.
const RECHECK_INTERVAL: Duration = Duration::from_millis(50);
