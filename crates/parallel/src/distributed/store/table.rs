//! The keys and values of a store that lie in this process's memory.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{StoreResult, may_set, sum};

#[derive(Debug, Default)]
pub(super) struct Table {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    values: HashMap<String, Vec<u8>>,
    /// Nobody waits any more.
    closed: bool,
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, state: &mut State, key: &str, value: Vec<u8>) {
        state.values.insert(key.into(), value);
        self.changed.notify_all();
    }

    pub(super) fn set(&self, key: &str, value: &[u8]) {
        self.put(&mut self.lock(), key, value.into());
    }

    pub(super) fn add(&self, key: &str, amount: i64) -> StoreResult<i64> {
        let mut state = self.lock();
        let sum = sum(key, state.values.get(key).map(Vec::as_slice), amount)?;
        self.put(&mut state, key, sum.to_string().into());
        Ok(sum)
    }

    pub(super) fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Option<Vec<u8>> {
        let mut state = self.lock();
        let value = state.values.get(key);
        if !may_set(value.map(Vec::as_slice), expected) {
            return value.cloned();
        }
        self.put(&mut state, key, desired.into());
        Some(desired.into())
    }

    pub(super) fn delete(&self, key: &str) -> bool {
        self.lock().values.remove(key).is_some()
    }

    pub(super) fn check(&self, keys: &[&str]) -> bool {
        let state = self.lock();
        keys.iter().all(|key| state.values.contains_key(*key))
    }

    /// The value, waited for; `None` where it does not come in time.
    pub(super) fn get(&self, key: &str, timeout: Duration) -> Option<Vec<u8>> {
        self.waited(&[key], timeout).and_then(|state| state.values.get(key).cloned())
    }

    /// Whether all keys were set in time.
    pub(super) fn wait(&self, keys: &[&str], timeout: Duration) -> bool {
        self.waited(keys, timeout).is_some()
    }

    fn waited(&self, keys: &[&str], timeout: Duration) -> Option<MutexGuard<'_, State>> {
        // A timeout that the clock cannot hold is none.
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.lock();
        loop {
            if keys.iter().all(|key| state.values.contains_key(*key)) {
                return Some(state);
            }
            let left =
                deadline.map_or(Duration::MAX, |d| d.saturating_duration_since(Instant::now()));
            if left.is_zero() || state.closed {
                return None;
            }
            let waited = self.changed.wait_timeout(state, left.min(Duration::from_secs(3600)));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends all waits.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}
