//! The executor, which picks the next operation and runs it.

mod conditional;
mod copies;
mod footprint;
mod groups;
mod kernels;
mod share;

use std::sync::Arc;

use warpline_sync::CaughtPanic;

use super::state::SimState;
use super::state::graph::{GraphNode, GraphNodes, OpProgress, RunningReplay};
use super::state::memory::RegionKind;
use super::state::streams::{SimStreamOp, StreamOpKind};
use super::state::work::{CallGroup, CopyWork, DeviceWork, HostFn, Label, Point, StreamKey};
use super::topology::finite;
use crate::launch::take_set_condition;
use crate::*;

/// The rule that picks an operation among those that can run.
#[derive(Clone, Copy, Debug)]
pub(super) enum PickRule {
    /// The operation that was enqueued first.
    Oldest,
    /// The next operation of a random stream.
    Random,
    /// Only operations that a point needs.
    Toward(Point),
    /// Only operations that a point needs, for a call that waits for the point. Streams that are
    /// held back continue.
    Needed(Point),
}

/// The error of an operation that failed when it ran.
pub(super) struct RunError {
    pub(super) code: CudaCode,
    pub(super) why: String,
}

impl RunError {
    pub(super) fn illegal(why: String) -> Self {
        Self { code: CudaCode::ILLEGAL_ADDRESS, why }
    }
}

/// Largest number of end times that a stream stores.
const MAX_END_TIMES: usize = 1024;

impl SimState {
    /// Picks a stream. Its next operation will run.
    pub(super) fn pick(&mut self, pick: PickRule) -> Option<StreamKey> {
        match pick {
            PickRule::Toward(point) => self.pick_toward(point).filter(|&key| !self.is_held(key)),
            PickRule::Needed(point) => self.pick_toward(point),
            PickRule::Oldest => {
                self.runnable().min_by_key(|&(_, sequence)| sequence).map(|(k, _)| k)
            }
            PickRule::Random => {
                let count = self.runnable().count();
                if count == 0 {
                    return None;
                }
                let index = self.random(count);
                self.runnable().nth(index).map(|(key, _)| key)
            }
        }
    }

    fn runnable(&self) -> impl Iterator<Item = (StreamKey, u64)> {
        self.streams.iter().filter_map(|(&key, stream)| {
            let op = stream.queue.front()?;
            let ready =
                !self.is_held(key) && op.after.iter().all(|&p| self.reached(p)) && !op.is_blocked();
            ready.then_some((key, op.sequence))
        })
    }

    /// Returns `true` if a stream is held back.
    fn is_held(&self, key: StreamKey) -> bool {
        let next = self.streams.get(&key).and_then(|stream| stream.queue.front());
        matches!(next, Some(SimStreamOp { kind: StreamOpKind::Hold(hold), .. }) if !hold.is_open())
    }

    fn pick_toward(&self, point: Point) -> Option<StreamKey> {
        let key = self.next_toward(point)?;
        let blocked = self.streams.get(&key)?.queue.front()?.is_blocked();
        (!blocked).then_some(key)
    }

    /// Runs the next operation of a stream. Returns a host function instead of running it; the
    /// caller runs the function outside the lock, and then calls [`SimState::ended`].
    pub(super) fn run_next(&mut self, key: StreamKey) -> Option<HostFn> {
        let stream = self.streams.get_mut(&key)?;
        let device = stream.device;
        let mut op = stream.queue.pop_front()?;
        let mut begin = stream.clock.max(op.issued);
        for &point in &op.after {
            begin = begin.max(self.ended_at(point));
        }
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.clock = begin;
        }
        let label = op.label;
        let fault =
            if op.begun.is_none() { self.faults.hit(label.call, device, true) } else { None };
        if let Some(code) = fault {
            if let StreamOpKind::Host(f) = op.kind {
                self.cancelled_fns.push(f);
            }
            let fault = RunError { code, why: "injected fault".into() };
            self.ended(key, label, begin, Err(fault));
            return None;
        }
        let result = match op.kind {
            StreamOpKind::Host(f) => return Some(f),
            StreamOpKind::Work(DeviceWork::Group(ref group)) => {
                let begun = op.begun.take();
                let run = self
                    .lock_shared()
                    .and_then(|_locked| self.run_group(device, group, begin, begun));
                match run {
                    Ok(RunOutcome::Blocked(begun)) => {
                        return self.requeue(key, SimStreamOp { begun: Some(begun), ..op });
                    }
                    Ok(RunOutcome::Ended(time)) => Ok(time),
                    Err(error) => Err(error),
                }
            }
            StreamOpKind::Work(work) => {
                self.lock_shared().and_then(|_locked| self.run_work(device, &work))
            }
            StreamOpKind::Graph(ref graph) => {
                let mut replay = match op.begun.take() {
                    Some(OpProgress::Graph(replay)) => replay,
                    _ => RunningReplay::new(graph),
                };
                let run = self
                    .lock_shared()
                    .and_then(|_locked| self.run_graph(graph, begin, &mut replay));
                match run {
                    Ok(true) => Ok(replay.time),
                    Ok(false) => {
                        let begun = Some(OpProgress::Graph(replay));
                        return self.requeue(key, SimStreamOp { begun, ..op });
                    }
                    Err(error) => Err(error),
                }
            }
            StreamOpKind::Wait | StreamOpKind::WaitValue(..) => Ok(0.0),
            StreamOpKind::WriteValue(word, value) => {
                word.set(value);
                Ok(0.5)
            }
            StreamOpKind::Hold(hold) => {
                hold.need();
                Ok(0.0)
            }
            StreamOpKind::Record(event) => {
                self.mark_recorded(event, key, begin + 0.5);
                Ok(0.5)
            }
            StreamOpKind::PoolAlloc(base) => {
                if let Some(RegionKind::Pool { live, .. }) =
                    self.memory.regions.get_mut(&base).map(|r| &mut r.kind)
                {
                    *live = true;
                }
                Ok(0.5)
            }
            StreamOpKind::PoolFree(base) => self.run_pool_free(base).map(|()| 0.5),
        };
        self.ended(key, label, begin, result);
        None
    }

    /// Records the end of a stream's running operation, successful or not.
    pub(super) fn ended(
        &mut self,
        key: StreamKey,
        label: Label,
        begin: f64,
        result: Result<f64, RunError>,
    ) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        let device = stream.device;
        // If the device is lost, all operations are already marked as done.
        if stream.done < stream.enqueued {
            stream.done += 1;
        }
        stream.clock = begin + *result.as_ref().unwrap_or(&0.0);
        if stream.times.len() == MAX_END_TIMES {
            stream.times.pop_front();
        }
        stream.times.push_back(stream.clock);
        if let Err(RunError { code, why }) = result {
            let cause = CudaError {
                call: label.call.name(),
                code,
                device: Some(device),
                detail: Some(format!("`{}`: {why}", label.op)),
                location: label.location,
            };
            self.lose(device, cause);
        }
        self.remove_if_done(key);
    }

    /// Stores the time at which the record of an event ran, unless the event has been recorded
    /// again since.
    pub(super) fn mark_recorded(&mut self, event: u64, stream: StreamKey, time: f64) {
        let position = self.streams.get(&stream).map_or(0, |s| s.done + 1);
        if let Some(event) = self.events.get_mut(&event)
            && event.latest == Some(Point { stream, position })
        {
            event.time = Some(time);
        }
    }

    pub(super) fn run_pool_free(&mut self, base: u64) -> Result<(), RunError> {
        let Some(region) = self.remove_allocation(base) else { return Ok(()) };
        match self.note_overrun(&region, "found when it was freed") {
            None => Ok(()),
            Some(why) => Err(RunError::illegal(why)),
        }
    }

    fn run_work(&mut self, device: usize, work: &DeviceWork) -> Result<f64, RunError> {
        match work {
            DeviceWork::Copy(copy) => self.run_copy(copy),
            DeviceWork::Memset(memset) => self.run_memset(memset),
            // A group runs in several steps, in `run_group`.
            DeviceWork::Group(_) => Ok(0.0),
            // Only graphs have conditional nodes, which `run_graph` runs.
            DeviceWork::Conditional(_) => Ok(0.0),
            DeviceWork::Kernel(launch) => {
                let ran = CaughtPanic::catch(|| self.run_kernel(device, launch));
                ran.unwrap_or_else(|_| {
                    Err(RunError {
                        code: CudaCode::LAUNCH_FAILED,
                        why: "its CPU implementation panicked".into(),
                    })
                })
            }
        }
    }

    /// Runs the nodes of a graph that began at the virtual time `begin`, in an order that their
    /// dependencies allow, until other ranks block it. Returns whether all nodes have ended.
    fn run_graph(
        &mut self,
        graph: &GraphNodes,
        begin: f64,
        replay: &mut RunningReplay,
    ) -> Result<bool, RunError> {
        while !(replay.ready.is_empty() && replay.begun.is_empty()) {
            let unblocked = |&i: &usize| {
                let (_, participant, op) = &replay.begun[i];
                !participant.is_blocked(*op)
            };
            let unblocked: Vec<usize> = (0..replay.begun.len()).filter(unblocked).collect();
            let candidates = replay.ready.len() + unblocked.len();
            if candidates == 0 {
                return Ok(false);
            }
            let pick = self.random(candidates);
            let (node, begun) = match pick.checked_sub(replay.ready.len()) {
                None => (replay.ready.swap_remove(pick), None),
                Some(i) => {
                    let (node, _, op) = replay.begun.swap_remove(unblocked[i]);
                    (node, Some(OpProgress::Group(op)))
                }
            };
            let GraphNode { device, label, work, .. } = &graph.nodes[node];
            let fault =
                if begun.is_none() { self.faults.hit(label.call, *device, true) } else { None };
            if let Some(code) = fault {
                return Err(RunError { code, why: "injected fault in a graph".into() });
            }
            let ran = match work {
                DeviceWork::Group(group) => {
                    self.run_group(*device, group, begin + replay.starts[node], begun)
                }
                DeviceWork::Conditional(conditional) => {
                    let ran = self.run_conditional(conditional, &mut replay.conditions);
                    ran.map(RunOutcome::Ended)
                }
                work => {
                    let ran = self.run_work(*device, work);
                    replay.conditions.extend(take_set_condition());
                    ran.map(RunOutcome::Ended)
                }
            };
            let ran =
                ran.map_err(|e| RunError { why: format!("node `{}`: {}", label.op, e.why), ..e })?;
            match (ran, work) {
                (RunOutcome::Ended(spent), _) => self.graph_steps += replay.end(graph, node, spent),
                (RunOutcome::Blocked(OpProgress::Group(op)), DeviceWork::Group(group)) => {
                    replay.begun.push((node, Arc::clone(&group.participant), op));
                }
                (RunOutcome::Blocked(_), _) => {}
            }
        }
        Ok(true)
    }

    /// Begins a group at the virtual time `begin`, or ends one that has begun.
    fn run_group(
        &mut self,
        device: usize,
        group: &CallGroup,
        begin: f64,
        begun: Option<OpProgress>,
    ) -> Result<RunOutcome, RunError> {
        match begun {
            Some(OpProgress::Group(number)) => {
                Ok(match self.end_group(device, group, begin, number)? {
                    Some(time) => RunOutcome::Ended(time),
                    None => RunOutcome::Blocked(OpProgress::Group(number)),
                })
            }
            _ => Ok(match self.begin_group(device, group, begin)? {
                Some(number) => RunOutcome::Blocked(OpProgress::Group(number)),
                None => RunOutcome::Ended(0.0),
            }),
        }
    }

    /// Returns the time of a kernel or memset that accesses `bytes` bytes, in microseconds.
    fn kernel_time(&self, bytes: usize) -> f64 {
        finite(self.config.kernel_time) + bytes.max(4096) as f64 / 3_000_000.0
    }

    /// Puts an unfinished operation back.
    fn requeue(&mut self, key: StreamKey, op: SimStreamOp) -> Option<HostFn> {
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.queue.push_front(op);
        }
        None
    }
}

/// The progress of an operation.
enum RunOutcome {
    /// The operation ended and took this time, in microseconds.
    Ended(f64),
    /// The operation waits for other ranks.
    Blocked(OpProgress),
}

/// Runs a host function and catches its panic.
pub(super) fn run_host(f: HostFn) {
    let _ = CaughtPanic::catch(f);
}

/// Returns the time of a copy in microseconds: a fixed time, plus the time of its bytes at the
/// speed of the device's memory or of a link.
pub(super) fn copy_time(copy: &CopyWork) -> f64 {
    let per_microsecond = if copy.on_one_device() { 1_500_000.0 } else { 25_000.0 };
    4.0 + copy.bytes as f64 / per_microsecond
}

/// Time of a collective besides the time of its links, in microseconds.
const COLLECTIVE_TIME: f64 = 3.0;
