//! A store for ranks that are threads of one process.

use std::sync::Arc;
use std::time::Duration;

use super::table::Table;
use super::{StoreResult, Unchecked, timed_out};

/// A store in this process's memory, for ranks that are threads of it
/// (`torch.distributed.HashStore`). Clones share it.
#[derive(Clone, Debug, Default)]
pub struct HashStore(Arc<Table>);

impl HashStore {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Unchecked for HashStore {
    fn set(&self, key: &str, value: &[u8]) -> StoreResult<()> {
        self.0.set(key, value);
        Ok(())
    }

    fn get(&self, key: &str, timeout: Duration) -> StoreResult<Vec<u8>> {
        self.0.get(key, timeout).ok_or_else(|| timed_out("get", &[key], timeout))
    }

    fn add(&self, key: &str, amount: i64) -> StoreResult<i64> {
        self.0.add(key, amount)
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> StoreResult<Option<Vec<u8>>> {
        Ok(self.0.compare_set(key, expected, desired))
    }

    fn delete(&self, key: &str) -> StoreResult<bool> {
        Ok(self.0.delete(key))
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> StoreResult<()> {
        if self.0.wait(keys, timeout) { Ok(()) } else { Err(timed_out("wait", keys, timeout)) }
    }

    fn check(&self, keys: &[&str]) -> StoreResult<bool> {
        Ok(self.0.check(keys))
    }
}
