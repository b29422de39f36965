//! Groups whose store fails: the group's error contains the store's error and the ranks of unknown state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use warpline::{Error, RuntimeConfig, open, with_runtime};
use warpline_parallel::distributed::{
    GroupError, HashStore, InitOptions, ReduceOptions, Store, StoreError, StoreResult,
    init_process_group,
};

use crate::group_support::{at, works};

const SHORT: Duration = Duration::from_millis(1500);

/// A store that, once broken, fails for keys that contain a text.
#[derive(Debug, Default)]
struct BreakableStore {
    below: HashStore,
    text: &'static str,
    broken: AtomicBool,
}

impl BreakableStore {
    fn of(&self, key: &str) -> StoreResult<&HashStore> {
        if self.broken.load(Ordering::Relaxed) && key.contains(self.text) {
            let (path, reason) = ("shared".into(), "the disk is gone".into());
            return Err(StoreError::File { op: "call", path, reason });
        }
        Ok(&self.below)
    }
}

impl Store for BreakableStore {
    fn set(&self, key: &str, value: &[u8]) -> StoreResult<()> {
        self.of(key)?.set(key, value)
    }

    fn get(&self, key: &str, timeout: Duration) -> StoreResult<Vec<u8>> {
        self.of(key)?.get(key, timeout)
    }

    fn add(&self, key: &str, amount: i64) -> StoreResult<i64> {
        self.of(key)?.add(key, amount)
    }

    fn compare_set(&self, key: &str, old: &[u8], new: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        self.of(key)?.compare_set(key, old, new)
    }

    fn delete(&self, key: &str) -> StoreResult<bool> {
        self.of(key)?.delete(key)
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> StoreResult<()> {
        self.of(keys[0])?.wait(keys, timeout)
    }

    fn check(&self, keys: &[&str]) -> StoreResult<bool> {
        self.of(keys[0])?.check(keys)
    }
}

/// Returns the error of a collective that only rank 0 of 3 calls, after the store has broken.
fn error_of_a_timeout(text: &'static str) -> Error {
    let runtime = open("sim:3", &RuntimeConfig::default()).unwrap();
    let store = Arc::new(BreakableStore { text, ..BreakableStore::default() });
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let (runtime, store, over) = (&runtime, Arc::clone(&store), &over);
            scope.spawn(move || {
                with_runtime(runtime, || {
                    let options = InitOptions::new(Arc::<BreakableStore>::clone(&store), rank, 3)
                        .device(rank)
                        .timeout(SHORT);
                    let group = init_process_group(options)?;
                    works(&group)?;
                    if rank > 0 {
                        while !over.load(Ordering::Relaxed) {
                            std::thread::sleep(Duration::from_millis(5));
                        }
                        return Ok(None);
                    }
                    store.broken.store(true, Ordering::Relaxed);
                    let work =
                        group.all_reduce(&at(&group, 1)?, ReduceOptions::new().async_op(true));
                    let failed = work.and_then(|work| work.synchronize());
                    over.store(true, Ordering::Relaxed);
                    Ok::<_, Error>(failed.err())
                })
            })
        };
        let [first, second, third] = [0, 1, 2].map(rank);
        for other in [second, third] {
            other.join().unwrap().unwrap();
        }
        first.join().unwrap().unwrap().unwrap()
    })
}

#[test]
fn a_timeout_without_the_store_does_not_claim_that_all_ranks_responded() {
    for (text, unknown) in [("", "rank 1, rank 2"), ("record/2", "rank 2")] {
        let error = error_of_a_timeout(text);
        assert!(matches!(error.find(), Some(GroupError::PeerFailed(_))), "{text}: {error}");
        for told in ["it was not done within", "the disk is gone"] {
            assert!(error.to_string().contains(told), "{text}: {error}");
        }
        let told = format!("; the store could not be asked about {unknown}");
        assert!(error.to_string().contains(&told), "{text}: {error}");
    }
}

#[test]
fn ranks_of_unknown_state_are_named() {
    let runtime = open("sim:3", &RuntimeConfig::default()).unwrap();
    for (text, absent, unknown) in [("came/2", vec![0], "rank 2"), ("came/0", vec![], "rank 0, ")] {
        let store = BreakableStore { text, broken: true.into(), ..BreakableStore::default() };
        let options =
            InitOptions::new(Arc::new(store), 1, 3).device(1).timeout(Duration::from_millis(100));
        let error = with_runtime(&runtime, || init_process_group(options)).unwrap_err();
        assert!(error.to_string().contains("the disk is gone"), "{text}: {error}");
        let told = format!("; the store could not be asked about {unknown}");
        assert!(error.to_string().contains(&told), "{text}: {error}");
        let Some(GroupError::Init { missing, .. }) = error.find() else {
            panic!("{text}: {error}")
        };
        assert_eq!(*missing, absent, "{text}");
    }
}
