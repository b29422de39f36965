//! A store for ranks that are threads of one process.

use std::sync::Arc;
use std::time::Duration;

use super::shared_values::SharedValues;
use super::{StoreResult, Unchecked, timed_out};

/// A store in the memory of this process, for ranks that are threads (`torch.distributed.HashStore`). Clones share the
/// keys and values.
#[derive(Clone, Debug, Default)]
pub struct HashStore(Arc<SharedValues>);

impl HashStore {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Unchecked for HashStore {
    fn set(&self, key: &str, value: &[u8]) -> StoreResult<()> {
        self.0.change(|values| values.set("set", key, value))
    }

    fn get(&self, key: &str, timeout: Duration) -> StoreResult<Vec<u8>> {
        let values = self.0.wait_for(&[key], timeout);
        let value = values.and_then(|values| values.get(key).map(|value| value.to_vec()));
        value.ok_or_else(|| timed_out("get", &[key], timeout, true))
    }

    fn add(&self, key: &str, amount: i64) -> StoreResult<i64> {
        self.0.change(|values| values.add(key, amount))
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> StoreResult<Option<Vec<u8>>> {
        let value = self.0.change(|values| values.compare_set(key, expected, desired))?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn delete(&self, key: &str) -> StoreResult<bool> {
        Ok(self.0.lock().delete(key))
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> StoreResult<()> {
        let all = self.0.wait_for(keys, timeout).is_some();
        if all { Ok(()) } else { Err(timed_out("wait", keys, timeout, true)) }
    }

    fn check(&self, keys: &[&str]) -> StoreResult<bool> {
        Ok(self.0.lock().contains_all(keys))
    }
}
