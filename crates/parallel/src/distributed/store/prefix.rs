//! A view of a store that is limited to a prefix.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::{Store, StoreResult};

/// A store that puts a prefix before all keys of an underlying store (`torch.distributed.PrefixStore`).
#[derive(Clone, Debug)]
pub struct PrefixStore {
    prefix: String,
    below: Arc<dyn Store>,
}

impl PrefixStore {
    /// Creates a store whose keys are those keys of `below` that begin with `prefix` and a slash.
    #[must_use]
    pub fn new(prefix: impl Into<String>, below: Arc<dyn Store>) -> Self {
        let prefix = prefix.into();
        // Join the prefixes of nested stores, so that neither calls nor the drop recurse.
        match (&*below as &dyn Any).downcast_ref::<Self>() {
            Some(inner) => Self { prefix: inner.key(&prefix), below: Arc::clone(&inner.below) },
            None => Self { prefix, below },
        }
    }

    fn key(&self, key: &str) -> String {
        format!("{}/{key}", self.prefix)
    }

    fn with_keys<R>(&self, keys: &[&str], f: impl FnOnce(&[&str]) -> R) -> R {
        let keys: Vec<_> = keys.iter().map(|key| self.key(key)).collect();
        f(&keys.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

impl Store for PrefixStore {
    fn set(&self, key: &str, value: &[u8]) -> StoreResult<()> {
        self.below.set(&self.key(key), value)
    }

    fn get(&self, key: &str, timeout: Duration) -> StoreResult<Vec<u8>> {
        self.below.get(&self.key(key), timeout)
    }

    fn add(&self, key: &str, amount: i64) -> StoreResult<i64> {
        self.below.add(&self.key(key), amount)
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> StoreResult<Option<Vec<u8>>> {
        self.below.compare_set(&self.key(key), expected, desired)
    }

    fn delete(&self, key: &str) -> StoreResult<bool> {
        self.below.delete(&self.key(key))
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> StoreResult<()> {
        self.with_keys(keys, |keys| self.below.wait(keys, timeout))
    }

    fn check(&self, keys: &[&str]) -> StoreResult<bool> {
        self.with_keys(keys, |keys| self.below.check(keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distributed::HashStore;

    #[test]
    fn prefixes_nest_to_any_depth() {
        let bottom: Arc<dyn Store> = Arc::new(HashStore::new());
        let two = PrefixStore::new("b", Arc::new(PrefixStore::new("a", Arc::clone(&bottom))));
        two.set("k", b"v").unwrap();
        assert!(bottom.check(&["a/b/k"]).unwrap());
        let nested = (0..30_000).fold(bottom, |below, _| Arc::new(PrefixStore::new("", below)));
        assert!(nested.set("k", b"").is_err(), "the key is too long");
        drop(nested);
    }
}
