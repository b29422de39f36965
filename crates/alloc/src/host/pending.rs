//! Events for freed blocks that streams still use, in a queue per stream.

use std::collections::VecDeque;

use crate::StreamBackend;

/// Maximum number of events kept for reuse.
const MAX_SPARE: usize = 64;

/// Events that must complete before a freed block is reused. A token identifies the block. Each use
/// by a stream has its own event.
pub(super) struct PendingHostEvents<S: StreamBackend> {
    queues: Vec<HostEventQueue<S>>,
    /// Uses whose event could not be recorded so far.
    unrecorded: Vec<(S::Stream, u32)>,
    spare: Vec<S::Event>,
    clock: u64,
    /// Number of captures in progress, during which events are neither recorded nor queried.
    pub(super) captures: usize,
}

/// The events of one stream, oldest first.
pub(super) struct HostEventQueue<S: StreamBackend> {
    pub(super) stream: u64,
    events: VecDeque<RecordedEvent<S>>,
}

struct RecordedEvent<S: StreamBackend> {
    event: S::Event,
    token: u32,
    recorded: u64,
}

impl<S: StreamBackend> PendingHostEvents<S> {
    pub(super) fn new() -> Self {
        Self {
            queues: Vec::new(),
            unrecorded: Vec::new(),
            spare: Vec::new(),
            clock: 0,
            captures: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.unrecorded.is_empty()
    }

    /// Records an event after the stream's work so far, which uses the block. Returns `false` if no
    /// wait is needed, because the device is lost.
    pub(super) fn record(&mut self, backend: &S, stream: &S::Stream, token: u32) -> bool {
        if self.captures > 0 {
            self.unrecorded.push((stream.clone(), token));
            return true;
        }
        let event = match self.spare.pop() {
            Some(event) => backend.record_again(event, stream),
            None => backend.record(stream),
        };
        match event {
            Ok(event) => {
                self.clock += 1;
                let recorded = RecordedEvent { event, token, recorded: self.clock };
                self.queue_of(S::stream_id(stream)).push_back(recorded);
            }
            Err(error) if backend.is_lost(&error) => return false,
            Err(_) => self.unrecorded.push((stream.clone(), token)),
        }
        true
    }

    fn queue_of(&mut self, stream: u64) -> &mut VecDeque<RecordedEvent<S>> {
        let at = self.queues.iter().position(|queue| queue.stream == stream);
        let at = at.unwrap_or_else(|| {
            self.queues.push(HostEventQueue { stream, events: VecDeque::new() });
            self.queues.len() - 1
        });
        &mut self.queues[at].events
    }

    /// Adds the token of each completed event to `done`. The events of a stream complete in order,
    /// so the search of a queue ends at the first pending event. Events whose query fails are
    /// skipped.
    pub(super) fn poll(&mut self, backend: &S, done: &mut Vec<u32>) {
        if self.captures > 0 {
            return;
        }
        for (stream, token) in std::mem::take(&mut self.unrecorded) {
            if !self.record(backend, &stream, token) {
                done.push(token);
            }
        }
        for at in (0..self.queues.len()).rev() {
            let events = &mut self.queues[at].events;
            let mut next = 0;
            while let Some(recorded) = events.get(next) {
                let usable = match backend.query(&recorded.event) {
                    Ok(true) => true,
                    Ok(false) => break,
                    Err(error) if backend.is_lost(&error) => false,
                    Err(_) => {
                        next += 1;
                        continue;
                    }
                };
                if let Some(recorded) = events.remove(next) {
                    done.push(recorded.token);
                    if usable && self.spare.len() < MAX_SPARE {
                        self.spare.push(recorded.event);
                    }
                }
            }
            if events.is_empty() {
                self.queues.swap_remove(at);
            }
        }
    }

    /// Takes out a queue, to wait for its events without a lock. Among the queues of streams that
    /// are not in `waited`, takes the queue whose oldest event was recorded last, because events
    /// that never complete are usually older than events of slow work.
    pub(super) fn take_youngest(&mut self, waited: &[u64]) -> Option<HostEventQueue<S>> {
        let queues = self.queues.iter().enumerate();
        let (at, _) = queues
            .filter(|(_, queue)| !waited.contains(&queue.stream))
            .max_by_key(|(_, queue)| queue.events.front().map(|recorded| recorded.recorded))?;
        Some(self.queues.swap_remove(at))
    }

    /// Puts back the events whose wait failed.
    pub(super) fn put_back(&mut self, queue: HostEventQueue<S>) {
        if queue.events.is_empty() {
            return;
        }
        let events = self.queue_of(queue.stream);
        for recorded in queue.events.into_iter().rev() {
            events.push_front(recorded);
        }
    }
}

impl<S: StreamBackend> HostEventQueue<S> {
    /// Waits for all events and returns their tokens. Events whose wait fails stay in the queue.
    pub(super) fn wait(&mut self, backend: &S) -> Vec<u32> {
        let mut done = Vec::new();
        self.events.retain(|recorded| {
            let come = match backend.synchronize(&recorded.event) {
                Ok(()) => true,
                Err(error) => backend.is_lost(&error),
            };
            if come {
                done.push(recorded.token);
            }
            !come
        });
        done
    }
}
