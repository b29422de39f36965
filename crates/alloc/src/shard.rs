//! What serves one stream.

use std::sync::{Arc, PoisonError};

use warpline_sync::atomic::Ordering;
use warpline_sync::{Mutex, MutexGuard};

use crate::books::{Books, Locked};
use crate::core::Core;
use crate::state::State;
use crate::sync::Lasting;
use crate::{Backend, events};

/// Takes a lock whose data is consistent between any two calls that could panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One stream's memory: who has it, has it served or given back.
pub(crate) struct Shard<B: Backend> {
    pub(crate) books: Lasting<Books<B>>,
    /// The private pool it belongs to; 0 if none.
    pub(crate) pool: u64,
    pub(crate) core: Arc<Core<B>>,
}

impl<B: Backend> Shard<B> {
    pub(crate) fn new(core: &Arc<Core<B>>, state: State<B>, pool: u64) -> Self {
        Self { books: Books::fill(core, state), pool, core: Arc::clone(core) }
    }

    pub(crate) fn lock(&self) -> Locked<'_, B> {
        self.books.lock()
    }

    /// As whoever it belongs to goes: lets its last block take it along.
    pub(crate) fn retire(self: &Arc<Self>) {
        self.books.retire(self);
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
        let awaits_streams = self.lock().awaits_streams();
        if awaits_streams {
            let mut left = lock(&core.left);
            // Asked with the lock, after whose next owner there is nobody to leave it to.
            if !core.closed.load(Ordering::SeqCst) {
                // No block is left, but streams still use freed ones. Nobody waits for them here.
                let (books, core) = (Lasting::clone(&self.books), Arc::clone(core));
                left.push(self.core.register(Self { books, pool: self.pool, core }));
                return;
            }
        }
        self.synchronize_events();
        let stream = {
            let state = self.lock();
            state.has_arenas().then(|| state.stream.clone())
        };
        if let Some(stream) = stream {
            // Unmapping does not wait.
            core.wait_for(&stream);
        }
        let released = self.lock().take_cached();
        core.gone(released);
        core.unregister(&self.books);
        Books::empty(&self.books);
    }
}
