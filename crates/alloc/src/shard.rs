//! What serves one stream: its books, behind a lock of their own.

use std::sync::{Arc, PoisonError};

use crate::core::Core;
use crate::state::State;
use crate::sync::atomic::Ordering;
use crate::sync::{Mutex, MutexGuard, ShardGuard, ShardLock, lock_shard};
use crate::{Backend, events};

/// Takes a lock whose data is consistent between any two calls that could panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One stream's memory. Threads that work on streams of their own share no cache line of it.
#[repr(align(128))]
pub(crate) struct Shard<B: Backend> {
    state: ShardLock<State<B>>,
    /// The private pool it belongs to; 0 if none.
    pub(crate) pool: u64,
    pub(crate) core: Arc<Core<B>>,
}

impl<B: Backend> Shard<B> {
    pub(crate) fn new(core: &Arc<Core<B>>, state: State<B>, pool: u64) -> Self {
        Self { state: ShardLock::new(state), pool, core: Arc::clone(core) }
    }

    pub(crate) fn lock(&self) -> ShardGuard<'_, State<B>> {
        let mut state = self.lock_parked();
        state.unpark();
        state
    }

    /// For a hit and a free, which may leave a block parked.
    #[inline]
    pub(crate) fn lock_parked(&self) -> ShardGuard<'_, State<B>> {
        lock_shard(&self.state)
    }

    /// Takes a block back from its caller.
    #[inline]
    pub(crate) fn free(&self, block: u32) {
        let mut state = self.lock_parked();
        if self.core.is_capturing() {
            state.free_in_capture(block);
        } else {
            state.free(&self.core.backend, block);
        }
        let keeps = state.config.caching && !state.retired;
        if state.counters.over || !keeps {
            state.unpark();
            let released = if keeps { Vec::new() } else { state.take_cached() };
            drop(state);
            self.core.gone(released);
            self.core.raise_peaks();
        }
    }

    /// Waits for all pending events without the lock, then frees what waited for them.
    pub(crate) fn synchronize_events(&self) {
        let mut done = Vec::new();
        let backend = &self.core.backend;
        let mut queues = {
            let mut state = self.lock();
            state.await_deferred(backend);
            state.pending.take(backend, &mut done)
        };
        events::wait(backend, &mut queues, &mut done);
        let mut state = self.lock();
        state.events_came(&mut done);
        state.pending.put_back(queues);
    }
}

impl<B: Backend> Drop for Shard<B> {
    fn drop(&mut self) {
        let core = &self.core;
        let mut state = self.lock();
        if state.awaits_streams() && !core.closed.load(Ordering::SeqCst) {
            // No block is left, but streams still use freed ones. Nobody waits for them here.
            let (clock, tracer) = (Arc::clone(&core.clock), Arc::clone(&core.tracer));
            let empty = State::new(state.stream.clone(), clock, tracer);
            let left = Shard::new(core, std::mem::replace(&mut *state, empty), self.pool);
            lock(&core.left).push(core.register(left));
            return;
        }
        let has_arenas = state.has_arenas();
        drop(state);
        self.synchronize_events();
        let mut state = self.lock();
        if has_arenas {
            // Unmapping does not wait.
            core.wait_for(&state.stream);
        }
        let released = state.take_cached();
        let counters = state.counters.clone();
        drop(state);
        core.gone(released);
        lock(&core.global).retired.add(&counters);
    }
}
