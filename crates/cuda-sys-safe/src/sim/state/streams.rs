//! Streams as queues of operations, and events as points of streams.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::graph::{Frontier, GraphNodes, OpProgress};
use super::hold::Hold;
use super::word::Word;
use super::work::{DeviceWork, HostFn, Label, Point, StreamKey};
use crate::nccl::sim::Participant;
use crate::*;

pub(crate) struct StreamState {
    pub(crate) device: usize,
    pub(crate) legacy: bool,
    pub(crate) flags: StreamFlags,
    pub(crate) queue: VecDeque<SimStreamOp>,
    pub(crate) enqueued: u64,
    pub(crate) done: u64,
    /// Virtual time at which the latest operation ended, in microseconds.
    pub(crate) clock: f64,
    /// Virtual time before which no later operation begins.
    pub(crate) not_before: f64,
    /// End times of the latest operations, the newest last.
    pub(crate) times: VecDeque<f64>,
    pub(crate) destroyed: bool,
    pub(crate) capture: Option<u64>,
}

pub(crate) struct SimStreamOp {
    pub(crate) sequence: u64,
    pub(crate) after: SmallVec<[Point; 4]>,
    pub(crate) issued: f64,
    pub(crate) label: Label,
    pub(crate) kind: StreamOpKind,
    /// Progress of the operation, if it has begun and not ended.
    pub(crate) begun: Option<OpProgress>,
}

pub(crate) enum StreamOpKind {
    Work(DeviceWork),
    Record(u64),
    Wait,
    WaitValue(Word, u32),
    WriteValue(Word, u32),
    Host(HostFn),
    Hold(Hold),
    Graph(Arc<GraphNodes>),
    PoolAlloc(u64),
    PoolFree(u64),
}

/// The least and the greatest priority.
pub(crate) const PRIORITIES: (i32, i32) = (0, -5);

pub(crate) struct EventState {
    pub(crate) device: usize,
    pub(crate) flags: EventFlags,
    /// Point of the latest record. A new record changes it; existing waits keep the old point.
    pub(crate) latest: Option<Point>,
    /// Virtual time at which that record ran, in microseconds.
    pub(crate) time: Option<f64>,
    /// The capture in which the event was last recorded, and the nodes before the record.
    pub(crate) captured: Option<(u64, Frontier)>,
}

impl StreamState {
    pub(crate) fn new(device: usize, flags: StreamFlags) -> Self {
        let priority = flags.priority.clamp(PRIORITIES.1, PRIORITIES.0);
        Self {
            device,
            legacy: false,
            flags: StreamFlags { priority, ..flags },
            queue: VecDeque::new(),
            enqueued: 0,
            done: 0,
            clock: 0.0,
            not_before: 0.0,
            times: VecDeque::new(),
            destroyed: false,
            capture: None,
        }
    }

    pub(crate) fn legacy(device: usize) -> Self {
        Self { legacy: true, ..Self::new(device, StreamFlags::default()) }
    }

    pub(crate) fn legacy_key(device: usize) -> StreamKey {
        device as u64
    }

    /// Returns `true` if the legacy default stream and this stream wait for each other.
    pub(crate) fn blocking(&self) -> bool {
        !self.legacy && !self.flags.non_blocking
    }
}

impl SimStreamOp {
    /// Returns `true` if the operation waits for another rank or process.
    pub(crate) fn is_blocked(&self) -> bool {
        self.waits_for_value() || self.blocked_on().is_some()
    }

    pub(crate) fn waits_for_value(&self) -> bool {
        match self.kind {
            StreamOpKind::WaitValue(word, value) => (word.get().wrapping_sub(value) as i32) < 0,
            _ => false,
        }
    }

    /// Returns this rank's end of the communicator that blocks the operation.
    pub(crate) fn blocked_on(&self) -> Option<&Arc<Participant>> {
        match (self.begun.as_ref()?, &self.kind) {
            (OpProgress::Group(number), StreamOpKind::Work(DeviceWork::Group(group))) => {
                group.participant.is_blocked(*number).then_some(&group.participant)
            }
            (OpProgress::Graph(replay), _) => {
                let blocked =
                    replay.begun.iter().all(|(_, participant, op)| participant.is_blocked(*op));
                replay.begun.first().map(|(_, participant, _)| participant).filter(|_| blocked)
            }
            _ => None,
        }
    }

    /// Returns `true` if the operation is a group of NCCL calls of `participant`, or a graph that
    /// contains such a group.
    pub(crate) fn is_of(&self, participant: &Arc<Participant>) -> bool {
        match &self.kind {
            StreamOpKind::Work(work) => work.is_of(participant),
            StreamOpKind::Graph(graph) => {
                graph.nodes.iter().any(|node| node.work.is_of(participant))
            }
            _ => false,
        }
    }
}
