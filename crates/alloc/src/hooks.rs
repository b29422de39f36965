//! Observers and callbacks of the program: called when memory runs short, or when free memory moves
//! to another address. Requests made inside a cache-miss callback or an out-of-memory observer call
//! neither kind. An observer of moves must make no requests.

use std::sync::Arc;

use warpline_sync::Mutex;
use warpline_sync::atomic::{AtomicBool, Ordering};
use warpline_sync::thread::{self, ThreadId};

use crate::OutOfMemory;
use crate::sync::lock;

type Observer = Arc<dyn Fn(&OutOfMemory) + Send + Sync>;
type Callback = Arc<dyn Fn() -> bool + Send + Sync>;
type RemapObserver = Arc<dyn Fn(u64, u64, usize) + Send + Sync>;

#[derive(Default)]
pub(crate) struct AllocatorHooks {
    observers: Mutex<Vec<Observer>>,
    callbacks: Mutex<Vec<Callback>>,
    remap_observers: Mutex<Vec<RemapObserver>>,
    /// Whether there are observers of moves, readable without a lock.
    observes_moves: AtomicBool,
    /// Threads inside an observer or callback.
    inside: Mutex<Vec<ThreadId>>,
}

/// Registration of a thread in `inside`, removed on drop, also after a panic.
struct HookGuard<'a>(&'a AllocatorHooks, ThreadId);

impl AllocatorHooks {
    pub(crate) fn add_observer(&self, observer: Observer) {
        lock(&self.observers).push(observer);
    }

    pub(crate) fn add_callback(&self, callback: Callback) {
        lock(&self.callbacks).push(callback);
    }

    pub(crate) fn add_remap_observer(&self, observer: RemapObserver) {
        lock(&self.remap_observers).push(observer);
        self.observes_moves.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn observe_moves(&self) -> bool {
        self.observes_moves.load(Ordering::Relaxed)
    }

    /// Notifies the observers of moves: the free memory at `from` is now at `to`.
    pub(crate) fn notify_moved(&self, from: u64, to: u64, bytes: usize) {
        if !self.observe_moves() {
            return;
        }
        let observers = lock(&self.remap_observers).clone();
        observers.iter().for_each(|observer| observer(from, to, bytes));
    }

    /// Notifies the observers of failed requests.
    pub(crate) fn notify_observers(&self, facts: &OutOfMemory) {
        let observers = lock(&self.observers).clone();
        if let Some(_inside) = self.enter(observers.is_empty()) {
            observers.iter().for_each(|observer| observer(facts));
        }
    }

    /// Calls the callbacks. Returns whether one of them freed memory.
    pub(crate) fn run_callbacks(&self) -> bool {
        let callbacks = lock(&self.callbacks).clone();
        let Some(_inside) = self.enter(callbacks.is_empty()) else { return false };
        // `count` runs all callbacks, where `any` would stop at the first `true`.
        callbacks.iter().filter(|callback| callback()).count() > 0
    }

    fn enter(&self, no_hooks: bool) -> Option<HookGuard<'_>> {
        let id = thread::current().id();
        let mut inside = lock(&self.inside);
        if no_hooks || inside.contains(&id) {
            return None;
        }
        inside.push(id);
        Some(HookGuard(self, id))
    }
}

impl Drop for HookGuard<'_> {
    fn drop(&mut self) {
        lock(&self.0.inside).retain(|id| *id != self.1);
    }
}
