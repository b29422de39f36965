//! What callers are told of, or asked for, when memory runs short or moves.

use std::sync::Arc;

use warpline_sync::Mutex;
use warpline_sync::atomic::{AtomicBool, Ordering};
use warpline_sync::thread::{self, ThreadId};

use crate::OutOfMemory;
use crate::shard::lock;

type Observer = Arc<dyn Fn(&OutOfMemory) + Send + Sync>;
type Callback = Arc<dyn Fn() -> bool + Send + Sync>;
type Follower = Arc<dyn Fn(u64, u64, usize) + Send + Sync>;

#[derive(Default)]
pub(crate) struct Hooks {
    observers: Mutex<Vec<Observer>>,
    callbacks: Mutex<Vec<Callback>>,
    followers: Mutex<Vec<Follower>>,
    /// Whether there are followers.
    followed: AtomicBool,
    /// The threads that run some of them, which are not told of what these do themselves.
    inside: Mutex<Vec<ThreadId>>,
}

/// A thread's entry, taken out even after a panic.
struct Inside<'a>(&'a Hooks, ThreadId);

impl Hooks {
    pub(crate) fn add_observer(&self, observer: Observer) {
        lock(&self.observers).push(observer);
    }

    pub(crate) fn add_callback(&self, callback: Callback) {
        lock(&self.callbacks).push(callback);
    }

    pub(crate) fn add_follower(&self, follower: Follower) {
        lock(&self.followers).push(follower);
        self.followed.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn are_followed(&self) -> bool {
        self.followed.load(Ordering::Relaxed)
    }

    /// Tells the followers that the free memory at an address is at another one now.
    pub(crate) fn moved(&self, from: u64, to: u64, bytes: usize) {
        if !self.are_followed() {
            return;
        }
        let followers = lock(&self.followers).clone();
        followers.iter().for_each(|follower| follower(from, to, bytes));
    }

    /// Tells the observers.
    pub(crate) fn tell(&self, facts: &OutOfMemory) {
        let observers = lock(&self.observers).clone();
        if let Some(_inside) = self.enter(observers.is_empty()) {
            observers.iter().for_each(|observer| observer(facts));
        }
    }

    /// Asks the callbacks; answers whether any says that it freed something.
    pub(crate) fn ask(&self) -> bool {
        let callbacks = lock(&self.callbacks).clone();
        let Some(_inside) = self.enter(callbacks.is_empty()) else { return false };
        // Each of them is called, whatever the others answer.
        callbacks.iter().filter(|callback| callback()).count() > 0
    }

    fn enter(&self, nobody: bool) -> Option<Inside<'_>> {
        let id = thread::current().id();
        let mut inside = lock(&self.inside);
        if nobody || inside.contains(&id) {
            return None;
        }
        inside.push(id);
        Some(Inside(self, id))
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        lock(&self.0.inside).retain(|id| *id != self.1);
    }
}
