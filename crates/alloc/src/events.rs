//! Memory that streams still use: events recorded at the free, in a queue per stream.

use std::collections::VecDeque;

use crate::StreamBackend;

/// Events kept for use again.
const MAX_SPARE: usize = 64;

/// Events that stand between freed memory and its reuse. A token names the memory; it has as many
/// events here as streams use it.
pub(crate) struct PendingEvents<S: StreamBackend> {
    queues: Vec<Queue<S>>,
    /// Uses whose event could not be recorded yet.
    unrecorded: Vec<(S::Stream, u32)>,
    spare: Vec<S::Event>,
}

pub(crate) struct Queue<S: StreamBackend> {
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

    /// Marks what the stream has been given so far as using the memory. False if there is nothing
    /// to wait for, because the device is lost.
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
            self.queues.push(Queue { stream, events: VecDeque::new() });
            self.queues.len() - 1
        });
        &mut self.queues[at].events
    }

    /// Tries again to record what could not be recorded.
    fn record_late(&mut self, backend: &S, done: &mut Vec<u32>) {
        for (stream, token) in std::mem::take(&mut self.unrecorded) {
            if !self.record(backend, &stream, token) {
                done.push(token);
            }
        }
    }

    /// Adds to `done` the token of each event that has come. A stream's events come in order, so
    /// the first that has not come ends its queue; one that cannot be asked is passed over.
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

    /// Takes everything that is pending out, to be waited for without a lock.
    pub(crate) fn take(&mut self, backend: &S, done: &mut Vec<u32>) -> Vec<Queue<S>> {
        self.record_late(backend, done);
        std::mem::take(&mut self.queues)
    }

    /// Puts back what [`wait`] left over.
    pub(crate) fn put_back(&mut self, mut queues: Vec<Queue<S>>) {
        // Older events go first.
        queues.append(&mut self.queues);
        self.queues = queues;
    }
}

/// Waits for all events, adding their tokens to `done`; what cannot be waited for stays.
pub(crate) fn wait<S: StreamBackend>(backend: &S, queues: &mut Vec<Queue<S>>, done: &mut Vec<u32>) {
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
