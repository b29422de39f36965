//! Limits on keys and values, the same for every store.

use std::fmt;
use std::time::Duration;

use super::{MAX_KEY, MAX_KEYS, MAX_VALUE, Store, StoreError, StoreResult};

/// The operations of a store that are called after the sizes of keys and values have been checked.
pub trait Unchecked: Send + Sync + fmt::Debug {
    fn set(&self, key: &str, value: &[u8]) -> StoreResult<()>;
    fn get(&self, key: &str, timeout: Duration) -> StoreResult<Vec<u8>>;
    fn add(&self, key: &str, amount: i64) -> StoreResult<i64>;
    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> StoreResult<Option<Vec<u8>>>;
    fn delete(&self, key: &str) -> StoreResult<bool>;
    fn wait(&self, keys: &[&str], timeout: Duration) -> StoreResult<()>;
    fn check(&self, keys: &[&str]) -> StoreResult<bool>;
}

impl<S: Unchecked + 'static> Store for S {
    fn set(&self, key: &str, value: &[u8]) -> StoreResult<()> {
        check("set", key, &[value])?;
        Unchecked::set(self, key, value)
    }

    fn get(&self, key: &str, timeout: Duration) -> StoreResult<Vec<u8>> {
        check("get", key, &[])?;
        Unchecked::get(self, key, timeout)
    }

    fn add(&self, key: &str, amount: i64) -> StoreResult<i64> {
        check("add", key, &[])?;
        Unchecked::add(self, key, amount)
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> StoreResult<Option<Vec<u8>>> {
        check("compare_set", key, &[expected, desired])?;
        Unchecked::compare_set(self, key, expected, desired)
    }

    fn delete(&self, key: &str) -> StoreResult<bool> {
        check("delete", key, &[])?;
        Unchecked::delete(self, key)
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> StoreResult<()> {
        check_keys("wait", keys)?;
        Unchecked::wait(self, keys, timeout)
    }

    fn check(&self, keys: &[&str]) -> StoreResult<bool> {
        check_keys("check", keys)?;
        Unchecked::check(self, keys)
    }
}

fn check_size(op: &'static str, what: &'static str, size: usize, max: usize) -> StoreResult<()> {
    if size <= max { Ok(()) } else { Err(StoreError::TooLarge { op, what, size, max }) }
}

fn check(op: &'static str, key: &str, values: &[&[u8]]) -> StoreResult<()> {
    check_size(op, "the key", key.len(), MAX_KEY)?;
    values.iter().try_for_each(|value| check_size(op, "the value", value.len(), MAX_VALUE))
}

fn check_keys(op: &'static str, keys: &[&str]) -> StoreResult<()> {
    check_size(op, "the list of keys", keys.len(), MAX_KEYS)?;
    // A list of keys is sent in one message, so its total size has the same limit as a value.
    let bytes = keys.iter().map(|key| key.len() + 4).sum();
    check_size(op, "the text of the keys", bytes, MAX_VALUE)?;
    keys.iter().try_for_each(|key| check(op, key, &[]))
}
