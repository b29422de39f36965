//! The keys and values of a store, and their size limit.

use std::collections::HashMap;
use std::sync::Arc;

use super::{MAX_STORED, StoreError, StoreResult};

/// Overhead of an entry, in bytes.
const PER_KEY: usize = 128;

/// The keys and values of one store.
#[derive(Debug, Default)]
pub(super) struct StoreValues {
    map: HashMap<String, Arc<[u8]>>,
    /// Size of all entries, in bytes.
    bytes: usize,
    /// Values that were replaced or deleted while replies held them. They count towards the limit until the replies are
    /// sent.
    replaced: Vec<Arc<[u8]>>,
}

/// Returns the size of an entry, as counted towards [`MAX_STORED`].
fn stored_size(key: &str, value: &[u8]) -> usize {
    PER_KEY + key.len() + value.len()
}

impl StoreValues {
    pub(super) fn get(&self, key: &str) -> Option<&Arc<[u8]>> {
        self.map.get(key)
    }

    pub(super) fn contains(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    pub(super) fn contains_all<K: AsRef<str>>(&self, keys: &[K]) -> bool {
        keys.iter().all(|key| self.contains(key.as_ref()))
    }

    /// Returns the size that the store will have with the new value. Returns an error if that size exceeds
    /// [`MAX_STORED`].
    pub(super) fn check_capacity(
        &mut self,
        op: &'static str,
        key: &str,
        value: &[u8],
    ) -> StoreResult<usize> {
        let before = self.map.get(key).map_or(0, |value| stored_size(key, value));
        let bytes = self.bytes - before + stored_size(key, value);
        self.replaced.retain(|value| Arc::strong_count(value) > 1);
        let replaced: usize = self.replaced.iter().map(|value| stored_size("", value)).sum();
        match bytes + replaced > MAX_STORED {
            true => Err(StoreError::Full { op, max: MAX_STORED }),
            false => Ok(bytes),
        }
    }

    pub(super) fn set(&mut self, op: &'static str, key: &str, value: &[u8]) -> StoreResult<()> {
        self.bytes = self.check_capacity(op, key, value)?;
        let before = self.map.insert(key.into(), value.into());
        self.replaced.extend(before.filter(|value| Arc::strong_count(value) > 1));
        Ok(())
    }

    /// Returns the sum that `add` would store.
    pub(super) fn sum(&self, key: &str, amount: i64) -> StoreResult<i64> {
        let Some(value) = self.map.get(key) else { return Ok(amount) };
        let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
        number.and_then(|n| n.checked_add(amount)).ok_or_else(|| StoreError::NotANumber {
            key: key.into(),
            value: String::from_utf8_lossy(&value[..value.len().min(32)]).into_owned(),
            amount,
        })
    }

    pub(super) fn add(&mut self, key: &str, amount: i64) -> StoreResult<i64> {
        let sum = self.sum(key, amount)?;
        self.set("add", key, sum.to_string().as_bytes())?;
        Ok(sum)
    }

    /// Returns `true` if `compare_set` would set the key.
    pub(super) fn compare_set_applies(&self, key: &str, expected: &[u8]) -> bool {
        self.map.get(key).map_or(expected.is_empty(), |value| **value == *expected)
    }

    pub(super) fn compare_set(
        &mut self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> StoreResult<Option<Arc<[u8]>>> {
        if self.compare_set_applies(key, expected) {
            self.set("compare_set", key, desired)?;
        }
        Ok(self.map.get(key).cloned())
    }

    pub(super) fn delete(&mut self, key: &str) -> bool {
        let Some(value) = self.map.remove(key) else { return false };
        self.bytes -= stored_size(key, &value);
        self.replaced.extend(Some(value).filter(|value| Arc::strong_count(value) > 1));
        true
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
