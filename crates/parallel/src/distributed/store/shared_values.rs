//! Keys and values that several threads of this process share.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::StoreResult;
use super::values::StoreValues;

/// [`StoreValues`] behind a lock, with a condition variable that is notified of changes.
#[derive(Debug, Default)]
pub(super) struct SharedValues {
    values: Mutex<StoreValues>,
    changed: Condvar,
}

impl SharedValues {
    pub(super) fn lock(&self) -> MutexGuard<'_, StoreValues> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `change` on the values, then wakes the waiting threads.
    pub(super) fn change<R>(
        &self,
        change: impl FnOnce(&mut StoreValues) -> StoreResult<R>,
    ) -> StoreResult<R> {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// Waits until all keys are set. Returns `None` if the time runs out.
    pub(super) fn wait_for(
        &self,
        keys: &[&str],
        timeout: Duration,
    ) -> Option<MutexGuard<'_, StoreValues>> {
        // A timeout beyond the range of the clock means no timeout.
        let deadline = Instant::now().checked_add(timeout);
        let mut values = self.lock();
        loop {
            if values.contains_all(keys) {
                return Some(values);
            }
            let left =
                deadline.map_or(Duration::MAX, |d| d.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(values, left.min(Duration::from_secs(3600)));
            values = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
