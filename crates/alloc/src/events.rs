//! Events for freed memory that streams still use, in a queue per stream.

use std::collections::VecDeque;

use crate::StreamBackend;

/// Maximum number of events kept for reuse.
const MAX_SPARE: usize = 64;

/// Events that must complete before freed memory is reused. A token identifies the memory. Each use
/// by a stream has its own event.
pub(crate) struct PendingEvents<S: StreamBackend> {
    queues: Vec<EventQueue<S>>,
    /// Uses whose event could not be recorded so far.
    unrecorded: Vec<(S::Stream, u32)>,
    spare: Vec<S::Event>,
}

pub(crate) struct EventQueue<S: StreamBackend> {
    stream: u64,
    events: VecDeque<(S::Event, u32)>,
}

impl<S: StreamBackend> PendingEvents<S> {
    pub(crate) fn new() -> Self {
        Self { queues: Vec::new(), unrecorded: Vec::new(), spare: Vec::new() }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.unrecorded.is_empty()
    }

    /// Records an event after the work enqueued on the stream so far, which may use the memory.
    /// Returns `false` if no wait is needed, because the device is lost.
    pub(crate) fn record(&mut self, backend: &S, stream: &S::Stream, token: u32) -> bool {
        let event = match self.spare.pop() {
            Some(event) => backend.record_again(event, stream),
            None => backend.record(stream),
        };
        match event {
            Ok(event) => self.queue_of(S::stream_id(stream)).push_back((event, token)),
            Err(error) if backend.is_lost(&error) => return false,
            Err(_) => self.unrecorded.push((stream.clone(), token)),
        }
        true
    }

    fn queue_of(&mut self, stream: u64) -> &mut VecDeque<(S::Event, u32)> {
        let at = self.queues.iter().position(|queue| queue.stream == stream);
        let at = at.unwrap_or_else(|| {
            self.queues.push(EventQueue { stream, events: VecDeque::new() });
            self.queues.len() - 1
        });
        &mut self.queues[at].events
    }

    /// Retries the events that could not be recorded.
    fn record_late(&mut self, backend: &S, done: &mut Vec<u32>) {
        for (stream, token) in std::mem::take(&mut self.unrecorded) {
            if !self.record(backend, &stream, token) {
                done.push(token);
            }
        }
    }

    /// Adds the token of each completed event to `done`. The events of a stream complete in order,
    /// so the search of a queue ends at the first pending event. Events whose query fails are
    /// skipped.
    pub(crate) fn poll(&mut self, backend: &S, done: &mut Vec<u32>) {
        self.record_late(backend, done);
        for at in (0..self.queues.len()).rev() {
            let events = &mut self.queues[at].events;
            let mut next = 0;
            while let Some((event, _)) = events.get(next) {
                let usable = match backend.query(event) {
                    Ok(true) => true,
                    Ok(false) => break,
                    Err(error) if backend.is_lost(&error) => false,
                    Err(_) => {
                        next += 1;
                        continue;
                    }
                };
                if let Some((event, token)) = events.remove(next) {
                    done.push(token);
                    if usable && self.spare.len() < MAX_SPARE {
                        self.spare.push(event);
                    }
                }
            }
            if events.is_empty() {
                self.queues.swap_remove(at);
            }
        }
    }

    /// Takes out all pending events, to wait for them without a lock.
    pub(crate) fn take(&mut self, backend: &S, done: &mut Vec<u32>) -> Vec<EventQueue<S>> {
        self.record_late(backend, done);
        std::mem::take(&mut self.queues)
    }

    /// Puts back the events whose [`wait`] failed.
    pub(crate) fn put_back(&mut self, mut queues: Vec<EventQueue<S>>) {
        // Older events go first.
        queues.append(&mut self.queues);
        self.queues = queues;
    }
}

/// Waits for all events and adds their tokens to `done`. Events whose wait fails stay in `queues`.
pub(crate) fn wait<S: StreamBackend>(
    backend: &S,
    queues: &mut Vec<EventQueue<S>>,
    done: &mut Vec<u32>,
) {
    for queue in &mut *queues {
        queue.events.retain(|(event, token)| {
            let come = match backend.synchronize(event) {
                Ok(()) => true,
                Err(error) => backend.is_lost(&error),
            };
            if come {
                done.push(*token);
            }
            !come
        });
    }
    queues.retain(|queue| !queue.events.is_empty());
}
