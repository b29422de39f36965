//! Uses of blocks by other streams, and the events that show their completion.

use crate::Backend;
use crate::events::{EventQueue, PendingEvents};

/// The other streams that use a block. After the free, also the number of pending events.
struct BlockUses<S> {
    streams: Vec<S>,
    pending: u32,
}

impl<S> Default for BlockUses<S> {
    fn default() -> Self {
        Self { streams: Vec::new(), pending: 0 }
    }
}

/// All uses of a shard's blocks by other streams.
pub(crate) struct StreamUses<B: Backend> {
    /// Uses of each block by record number, up to the highest number that has had a use.
    uses: Vec<BlockUses<B::Stream>>,
    events: PendingEvents<B>,
    /// Blocks freed during a capture, when no event may be recorded.
    deferred: Vec<u32>,
    done: Vec<u32>,
}

impl<B: Backend> StreamUses<B> {
    pub(crate) fn new() -> Self {
        let events = PendingEvents::new();
        Self { uses: Vec::new(), events, deferred: Vec::new(), done: Vec::new() }
    }

    /// Returns whether freed blocks have pending events.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns whether freed blocks have pending events or wait for the end of a capture.
    pub(crate) fn is_pending(&self) -> bool {
        self.has_events() || !self.deferred.is_empty()
    }

    /// Adds a stream to the users of a block.
    pub(crate) fn add(&mut self, block: u32, stream: &B::Stream) {
        if self.uses.len() <= block as usize {
            self.uses.resize_with(block as usize + 1, BlockUses::default);
        }
        let id = B::stream_id(stream);
        let streams = &mut self.uses[block as usize].streams;
        if !streams.iter().any(|used| B::stream_id(used) == id) {
            streams.push(stream.clone());
        }
    }

    /// Records an event on each stream that uses a freed block. Returns whether the block has no
    /// pending event.
    pub(crate) fn record(&mut self, backend: &B, block: u32) -> bool {
        let uses = &mut self.uses[block as usize];
        // `drain` keeps the list's capacity for the next block with this record number.
        let streams = uses.streams.drain(..);
        uses.pending = streams.filter(|s| self.events.record(backend, s, block)).count() as u32;
        uses.pending == 0
    }

    /// Defers [`record`](Self::record) to the end of a capture.
    pub(crate) fn defer(&mut self, block: u32) {
        self.deferred.push(block);
    }

    pub(crate) fn take_deferred(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.deferred)
    }

    /// Queries the events. Returns the blocks of completed events, one entry per event.
    pub(crate) fn poll(&mut self, backend: &B) -> Vec<u32> {
        let mut done = std::mem::take(&mut self.done);
        self.events.poll(backend, &mut done);
        done
    }

    /// Takes back a list returned by [`poll`](Self::poll), to reuse its capacity.
    pub(crate) fn recycle(&mut self, mut done: Vec<u32>) {
        done.clear();
        self.done = done;
    }

    /// Counts one of a block's events as completed. Returns whether none is left.
    pub(crate) fn complete_event(&mut self, block: u32) -> bool {
        let uses = &mut self.uses[block as usize];
        uses.pending -= 1;
        uses.pending == 0
    }

    /// Takes out all events, to wait for them without a lock. Adds blocks to `done` whose use needs
    /// no wait, because the device is lost.
    pub(crate) fn take_events(&mut self, backend: &B, done: &mut Vec<u32>) -> Vec<EventQueue<B>> {
        self.events.take(backend, done)
    }

    /// Puts back the events whose wait failed.
    pub(crate) fn put_back(&mut self, queues: Vec<EventQueue<B>>) {
        self.events.put_back(queues);
    }
}
