//! Streams as queues of operations, and what each operation must wait for.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use super::CallKind;
use super::capture::Graph;
use super::collectives::{Begun, Group};
use super::copies::{CopyWork, MemsetWork};
use super::hold::Hold;
use super::launch::OwnedLaunch;
use super::state::{HostFn, Label, State, error};
use super::values::Word;
use crate::*;

/// The key of a stream: its raw handle, or a small number for a default stream.
pub(super) type Key = u64;

/// The end of a stream's first `position` operations: what events and waits name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) stream: Key,
    pub(super) position: u64,
}

pub(super) struct Stream {
    pub(super) device: usize,
    pub(super) legacy: bool,
    pub(super) flags: StreamFlags,
    pub(super) queue: VecDeque<Op>,
    pub(super) enqueued: u64,
    pub(super) done: u64,
    /// Virtual time at which its latest operation ended, in microseconds.
    pub(super) clock: f64,
    /// When its last operations ended; the newest last.
    pub(super) times: VecDeque<f64>,
    pub(super) destroyed: bool,
    pub(super) capture: Option<u64>,
}

pub(super) struct Op {
    pub(super) sequence: u64,
    pub(super) after: SmallVec<[Point; 4]>,
    pub(super) issued: f64,
    pub(super) label: Label,
    pub(super) kind: OpKind,
    /// How far it has come, if it has begun and not ended.
    pub(super) begun: Option<Begun>,
}

pub(super) enum OpKind {
    Work(Work),
    Record(u64),
    Wait,
    WaitValue(Word, u32),
    WriteValue(Word, u32),
    Host(HostFn),
    Hold(Hold),
    Graph(Arc<Graph>),
    PoolAlloc(u64),
    PoolFree(u64),
}

/// Work that a graph can repeat.
#[derive(Clone)]
pub(super) enum Work {
    Copy(CopyWork),
    Memset(MemsetWork),
    Kernel(Arc<OwnedLaunch>),
    Group(Arc<Group>),
}

/// Least and greatest priority.
pub(super) const PRIORITIES: (i32, i32) = (0, -5);

impl Stream {
    pub(super) fn new(device: usize, flags: StreamFlags) -> Self {
        let priority = flags.priority.clamp(PRIORITIES.1, PRIORITIES.0);
        Self {
            device,
            legacy: false,
            flags: StreamFlags { priority, ..flags },
            queue: VecDeque::new(),
            enqueued: 0,
            done: 0,
            clock: 0.0,
            times: VecDeque::new(),
            destroyed: false,
            capture: None,
        }
    }

    pub(super) fn legacy(device: usize) -> Self {
        Self { legacy: true, ..Self::new(device, StreamFlags::default()) }
    }

    pub(super) fn legacy_key(device: usize) -> Key {
        device as u64
    }

    /// Whether the legacy default stream and this one wait for each other.
    pub(super) fn blocking(&self) -> bool {
        !self.legacy && !self.flags.non_blocking
    }
}

impl State {
    /// The stream behind a handle.
    pub(super) fn stream_key(&self, call: CallKind, handle: StreamHandle) -> Result<Key> {
        if handle.raw() == 0 {
            return Ok(Stream::legacy_key(handle.device()));
        }
        match self.streams.get(&handle.raw()) {
            Some(s) if !s.legacy && !s.destroyed && s.device == handle.device() => Ok(handle.raw()),
            _ => Err(error(call, CudaCode::INVALID_HANDLE, handle.device(), "no such stream")),
        }
    }

    pub(super) fn stream_create(&mut self, device: usize, flags: StreamFlags) -> StreamHandle {
        let key = self.fresh();
        self.streams.insert(key, Stream::new(device, flags));
        // SAFETY: just made.
        unsafe { StreamHandle::from_raw(device, key) }
    }

    pub(super) fn stream_destroy(&mut self, handle: StreamHandle) -> Result<()> {
        let call = CallKind::StreamDestroy;
        let key = self.stream_key(call, handle)?;
        let device = handle.device();
        if handle.raw() == 0 {
            let why = "the default stream cannot be destroyed";
            return Err(error(call, CudaCode::INVALID_HANDLE, device, why));
        }
        // The capture of another stream that this one was taken into goes on without it.
        self.forget_captures(|origin, _| origin == key);
        if let Some(stream) = self.streams.get_mut(&key) {
            // It may have work left, but is in no capture any more.
            (stream.destroyed, stream.capture) = (true, None);
        }
        self.bury(key);
        Ok(())
    }

    /// Forgets a destroyed stream once it has nothing left to do.
    pub(super) fn bury(&mut self, key: Key) {
        if self.streams.get(&key).is_some_and(|s| s.destroyed && s.done == s.enqueued) {
            self.streams.remove(&key);
        }
    }

    /// The end of all that a stream was given so far.
    pub(super) fn tail(&self, key: Key) -> Point {
        Point { stream: key, position: self.streams.get(&key).map_or(0, |s| s.enqueued) }
    }

    /// Whether everything up to a point is done. A stream that is gone has done it all.
    pub(super) fn reached(&self, point: Point) -> bool {
        self.streams.get(&point.stream).is_none_or(|s| s.done >= point.position)
    }

    /// The ends of everything that a device was given.
    pub(super) fn device_tails(&self, device: usize) -> Vec<Point> {
        let of_device = self.streams.iter().filter(|(_, s)| s.device == device);
        of_device.map(|(&key, s)| Point { stream: key, position: s.enqueued }).collect()
    }

    /// The ends of everything that was enqueued anywhere.
    pub(super) fn all_tails(&self) -> Vec<Point> {
        self.streams.iter().map(|(&key, s)| Point { stream: key, position: s.enqueued }).collect()
    }

    /// Puts an operation at the end of a stream, or into the capture of the stream; in that case
    /// there is no point to wait for.
    pub(super) fn enqueue(
        &mut self,
        key: Key,
        label: Label,
        kind: OpKind,
        after: &[Point],
    ) -> Result<Option<Point>> {
        if let Some(capture) = self.streams.get(&key).and_then(|s| s.capture) {
            self.capture_op(capture, key, label, kind)?;
            return Ok(None);
        }
        self.check_implicit(key, label.call)?;
        let mut waits: SmallVec<[Point; 4]> = after.iter().copied().collect();
        // A wait is for its event alone: work after it waits by the default stream's rule anyway, and
        // a wait for what is done already leaves no trace. A record waits for nothing of the default
        // stream that the work before it need not wait for.
        let takes_part = match &kind {
            OpKind::Wait => false,
            OpKind::Record(_) => self.streams.get(&key).is_some_and(|s| s.legacy),
            OpKind::Graph(graph) => !graph.nodes.is_empty(),
            _ => true,
        };
        if takes_part {
            self.implicit_waits(key, &mut waits);
        }
        waits.retain(|&mut point| !self.reached(point));
        self.sequence += 1;
        let (sequence, issued) = (self.sequence, self.host_clock);
        let Some(stream) = self.streams.get_mut(&key) else { return Ok(None) };
        stream.enqueued += 1;
        let position = stream.enqueued;
        stream.queue.push_back(Op { sequence, after: waits, issued, label, kind, begun: None });
        Ok(Some(Point { stream: key, position }))
    }

    /// The legacy default stream waits for the device's blocking streams, and they for it.
    fn implicit_waits(&self, key: Key, waits: &mut SmallVec<[Point; 4]>) {
        let Some(stream) = self.streams.get(&key) else { return };
        let device = stream.device;
        if stream.legacy {
            let blocking = self.streams.iter().filter(|(_, s)| s.device == device && s.blocking());
            waits.extend(blocking.map(|(&k, s)| Point { stream: k, position: s.enqueued }));
        } else if stream.blocking() {
            waits.push(self.tail(Stream::legacy_key(device)));
        }
    }

    /// What the operation just enqueued at a point comes after.
    pub(super) fn before(&self, point: Point) -> Vec<Point> {
        let op = self.streams.get(&point.stream).and_then(|s| s.queue.back());
        let mut before: Vec<Point> = op.map(|op| op.after.to_vec()).unwrap_or_default();
        before.push(Point { position: point.position - 1, ..point });
        before
    }

    /// Drops what a stream has not done yet: its device is lost.
    pub(super) fn abandon(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        stream.done = stream.enqueued;
        let queue = std::mem::take(&mut stream.queue);
        self.trash.extend(queue.into_iter().filter_map(|op| match op.kind {
            OpKind::Host(f) => Some(f),
            _ => None,
        }));
        self.bury(key);
    }
}
