//! Clients that wait for keys.

use std::collections::{BTreeSet, HashMap};

use super::super::super::values::StoreValues;
use super::super::wire::StoreReply;

/// The keys that a client waits for.
#[derive(Debug)]
pub(super) struct KeyWait {
    pub(super) keys: Vec<String>,
    /// Whether the reply is the value of the only key.
    pub(super) get: bool,
    /// Index of a key that is not set.
    at: usize,
    /// Size of the keys, in bytes.
    bytes: usize,
}

/// Overhead of an awaited key in the server's memory, in bytes.
const PER_KEY: usize = 64;

impl KeyWait {
    pub(super) fn new(keys: Vec<String>, get: bool) -> Self {
        let bytes = keys.iter().map(|key| PER_KEY + key.len()).sum();
        Self { keys, get, at: 0, bytes }
    }

    /// Returns the reply if all keys are set. Otherwise moves `at` to a missing key. The search begins at `at`, so that
    /// repeated calls do not check the earlier keys again.
    fn reply(&mut self, values: &StoreValues) -> Option<StoreReply> {
        let count = self.keys.len();
        let mut order = (0..count).map(|step| (self.at + step) % count);
        match order.find(|index| !values.contains(&self.keys[*index])) {
            Some(missing) => {
                self.at = missing;
                None
            }
            None if self.get => values.get(&self.keys[0]).cloned().map(StoreReply::Value),
            None => Some(StoreReply::Done),
        }
    }
}

/// All waits, each indexed by one of its missing keys.
#[derive(Debug, Default)]
pub(super) struct Waits {
    waits: HashMap<usize, KeyWait>,
    by_key: HashMap<String, BTreeSet<usize>>,
}

impl Waits {
    /// Begins the wait of client `id`. If all keys are set, returns the reply instead.
    pub(super) fn begin(
        &mut self,
        id: usize,
        mut wait: KeyWait,
        values: &StoreValues,
    ) -> Option<StoreReply> {
        let reply = wait.reply(values);
        if reply.is_none() {
            self.by_key.entry(wait.keys[wait.at].clone()).or_default().insert(id);
            self.waits.insert(id, wait);
        }
        reply
    }

    /// Ends the waits that are complete after `key` has been set. Returns their replies.
    pub(super) fn set(&mut self, key: &str, values: &StoreValues) -> Vec<(usize, StoreReply)> {
        let mut done = Vec::new();
        for id in self.by_key.remove(key).unwrap_or_default() {
            let Some(mut wait) = self.waits.remove(&id) else { continue };
            match wait.reply(values) {
                Some(reply) => done.push((id, reply)),
                None => {
                    self.by_key.entry(wait.keys[wait.at].clone()).or_default().insert(id);
                    self.waits.insert(id, wait);
                }
            }
        }
        done
    }

    /// Ends the wait of a client. Returns `false` if there is none.
    pub(super) fn end(&mut self, id: usize) -> bool {
        let Some(wait) = self.waits.remove(&id) else { return false };
        let key = &wait.keys[wait.at];
        if let Some(ids) = self.by_key.get_mut(key) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_key.remove(key);
            }
        }
        true
    }

    pub(super) fn contains(&self, id: usize) -> bool {
        self.waits.contains_key(&id)
    }

    /// Returns the size of the keys that a client waits for, in bytes.
    pub(super) fn bytes(&self, id: usize) -> usize {
        self.waits.get(&id).map_or(0, |wait| wait.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(keys: &[&str]) -> KeyWait {
        KeyWait::new(keys.iter().map(ToString::to_string).collect(), false)
    }

    #[test]
    fn a_wait_ends_when_all_its_keys_are_set_at_the_same_time() {
        let (mut waits, mut values) = (Waits::default(), StoreValues::default());
        let set = |waits: &mut Waits, values: &mut StoreValues, key: &str| {
            values.set("set", key, b"").unwrap();
            waits.set(key, values)
        };
        assert_eq!(waits.begin(1, wait(&[]), &values), Some(StoreReply::Done));
        assert_eq!(waits.begin(2, wait(&["a", "b"]), &values), None);
        assert_eq!(set(&mut waits, &mut values, "a"), []);
        values.delete("a");
        assert_eq!(set(&mut waits, &mut values, "b"), []);
        assert_eq!(set(&mut waits, &mut values, "a"), [(2, StoreReply::Done)]);
        assert!(!waits.end(2));
    }

    #[test]
    fn waits_that_end_leave_nothing_behind() {
        let (mut waits, values) = (Waits::default(), StoreValues::default());
        for id in 0..10 {
            assert_eq!(waits.begin(id, wait(&["never"]), &values), None);
            assert!(waits.contains(id) && waits.end(id));
        }
        assert!(waits.waits.is_empty() && waits.by_key.is_empty());
    }
}
