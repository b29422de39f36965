//! Stores: comparison with a map, waits, limits, many clients, and incomplete files.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use warpline_parallel::distributed::{
    FileStore, HashStore, MAX_KEY, MAX_STORED, MAX_VALUE, PrefixStore, Store, StoreError,
    StoreResult, TcpStore,
};

/// A timeout that a passing test never reaches.
const LONG: Duration = Duration::from_secs(60);
const NONE: Duration = Duration::ZERO;

/// A path without a file. The file is removed on drop.
pub(crate) struct TempFile(pub(crate) PathBuf);

impl TempFile {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "warpline-store-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A store to test: its name, two handles, and a value that keeps the store alive.
type StoreCase = (&'static str, [Arc<dyn Store>; 2], Box<dyn Send>);

/// Returns a store of each type. The store over TCP occurs with two clients, and with its host as one of the handles.
fn stores() -> Vec<StoreCase> {
    let file = TempFile::new();
    let open = || Arc::new(FileStore::open(&file.0).unwrap());
    let files: [Arc<dyn Store>; 2] = [open(), open()];
    let hash = HashStore::new();
    let host = || Arc::new(TcpStore::host("127.0.0.1:0", ()).unwrap());
    let client = |host: &TcpStore| -> Arc<dyn Store> {
        Arc::new(TcpStore::connect(("127.0.0.1", host.port()), LONG).unwrap())
    };
    let (first, second) = (host(), host());
    let prefixed = |prefix| Arc::new(PrefixStore::new(prefix, Arc::new(hash.clone())));
    vec![
        ("hash", [Arc::new(hash.clone()), Arc::new(hash.clone())], Box::new(())),
        ("prefix", [prefixed("a"), prefixed("a")], Box::new(())),
        ("file", files, Box::new(file)),
        ("tcp, two clients", [client(&first), client(&first)], Box::new(first)),
        ("tcp, the host too", [second.clone(), client(&second)], Box::new(second)),
    ]
}

#[derive(Clone, Debug)]
enum Op {
    Set(String, Vec<u8>),
    Get(String),
    Add(String, i64),
    CompareSet(String, Vec<u8>, Vec<u8>),
    Delete(String),
    Wait(Vec<String>),
    Check(Vec<String>),
}

fn op() -> impl Strategy<Value = Op> {
    let key = || prop::sample::select(vec!["", "a", "b/c", "ключ"]).prop_map(String::from);
    let value = || {
        prop_oneof![
            Just(b"7".to_vec()),
            Just(Vec::new()),
            Just(b"9223372036854775807".to_vec()),
            prop::collection::vec(any::<u8>(), 0..4),
        ]
    };
    let keys = || prop::collection::vec(key(), 0..3);
    prop_oneof![
        (key(), value()).prop_map(|(k, v)| Op::Set(k, v)),
        key().prop_map(Op::Get),
        (key(), -3..3i64).prop_map(|(k, n)| Op::Add(k, n)),
        (key(), value(), value()).prop_map(|(k, e, d)| Op::CompareSet(k, e, d)),
        key().prop_map(Op::Delete),
        keys().prop_map(Op::Wait),
        keys().prop_map(Op::Check),
    ]
}

/// Runs an operation. Returns its result as text; for an error, its variant.
fn run(store: &dyn Store, op: &Op) -> String {
    fn shown<T: std::fmt::Debug>(result: Result<T, StoreError>) -> String {
        match result {
            Ok(value) => format!("{value:?}"),
            Err(StoreError::Timeout { .. }) => "timeout".into(),
            Err(StoreError::NotANumber { .. }) => "no number".into(),
            Err(other) => format!("unexpected: {other}"),
        }
    }
    fn refs(keys: &[String]) -> Vec<&str> {
        keys.iter().map(String::as_str).collect()
    }
    match op {
        Op::Set(key, value) => shown(store.set(key, value)),
        Op::Get(key) => shown(store.get(key, NONE)),
        Op::Add(key, amount) => shown(store.add(key, *amount)),
        Op::CompareSet(key, expected, desired) => shown(store.compare_set(key, expected, desired)),
        Op::Delete(key) => shown(store.delete(key)),
        Op::Wait(keys) => shown(store.wait(&refs(keys), NONE)),
        Op::Check(keys) => shown(store.check(&refs(keys))),
    }
}

/// Runs an operation on a map, as the reference.
fn model(map: &mut HashMap<String, Vec<u8>>, op: &Op) -> String {
    let all = |map: &HashMap<String, Vec<u8>>, keys: &[String]| {
        keys.iter().all(|key| map.contains_key(key))
    };
    match op {
        Op::Set(key, value) => {
            map.insert(key.clone(), value.clone());
            "()".into()
        }
        Op::Get(key) => map.get(key).map_or("timeout".into(), |value| format!("{value:?}")),
        Op::Add(key, amount) => {
            let old = map.get(key).map(|v| String::from_utf8_lossy(v).parse::<i64>());
            let sum = old.unwrap_or(Ok(0)).ok().and_then(|old| old.checked_add(*amount));
            let Some(sum) = sum else { return "no number".into() };
            map.insert(key.clone(), sum.to_string().into());
            sum.to_string()
        }
        Op::CompareSet(key, expected, desired) => {
            let sets = map.get(key).map_or(expected.is_empty(), |value| value == expected);
            if sets {
                map.insert(key.clone(), desired.clone());
            }
            format!("{:?}", map.get(key))
        }
        Op::Delete(key) => map.remove(key).is_some().to_string(),
        Op::Wait(keys) => (if all(map, keys) { "()" } else { "timeout" }).into(),
        Op::Check(keys) => all(map, keys).to_string(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_store_behaves_like_a_map(program in prop::collection::vec((0..2usize, op()), 1..30)) {
        for (name, ends, _kept) in stores() {
            let mut map = HashMap::new();
            for (at, (end, op)) in program.iter().enumerate() {
                let (found, wanted) = (run(&*ends[*end], op), model(&mut map, op));
                prop_assert_eq!(found, wanted, "{}, operation {}: {:?}", name, at, op);
            }
        }
    }
}

#[test]
fn a_value_that_comes_later_is_waited_for() {
    for (name, [a, b], _kept) in stores() {
        let waiting = std::thread::spawn(move || {
            a.wait(&["one", "two"], LONG)?;
            a.get("three", LONG)
        });
        for key in ["one", "two", "three"] {
            std::thread::sleep(Duration::from_millis(5));
            b.set(key, key.as_bytes()).unwrap();
        }
        assert_eq!(waiting.join().unwrap().unwrap(), b"three", "{name}");
    }
}

#[test]
fn a_wait_ends_at_its_timeout_and_names_the_keys() {
    for (name, [store, _], _kept) in stores() {
        let begun = Instant::now();
        let timeout = Duration::from_millis(60);
        let error = store.get("missing", timeout).unwrap_err();
        assert!(begun.elapsed() >= timeout, "{name}");
        assert_eq!(
            error.to_string().contains("missing\""),
            matches!(error, StoreError::Timeout { op: "get", .. }),
            "{name}: {error}"
        );
        let error = store.wait(&["missing", "too"], timeout).unwrap_err();
        assert!(matches!(error, StoreError::Timeout { op: "wait", .. }), "{name}: {error}");
    }
}

#[test]
fn a_wait_does_not_block_other_calls() {
    for (name, [store, other], _kept) in stores() {
        let waiting = {
            let store = Arc::clone(&store);
            std::thread::spawn(move || store.get("late", LONG))
        };
        for _ in 0..20 {
            store.add("n", 1).unwrap();
        }
        store.set("late", b"x").unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), b"x", "{name}");
        assert_eq!(other.add("n", 0).unwrap(), 20, "{name}");
    }
}

#[test]
fn values_above_the_limit_are_refused_and_values_at_the_limit_are_not() {
    for (name, [store, other], _kept) in stores() {
        let (key, value) = ("k".repeat(MAX_KEY - 2), vec![7; MAX_VALUE]);
        store.set(&key, &value).unwrap();
        assert!(other.get(&key, NONE).unwrap() == value, "{name}");
        assert!(other.compare_set(&key, &value, &value).unwrap() == Some(value.clone()), "{name}");
        let (long, huge) = ("k".repeat(MAX_KEY + 1), vec![7; MAX_VALUE + 1]);
        for (at, error) in [
            store.set("k", &huge).err(),
            store.set(&long, b"").err(),
            store.get(&long, NONE).err(),
            store.add(&long, 1).err(),
            store.compare_set(&long, b"", b"").err(),
            store.compare_set("k", &huge, b"").err(),
            store.compare_set("k", b"", &huge).err(),
            store.delete(&long).err(),
            store.wait(&["a", &long], NONE).err(),
            store.wait(&vec!["a"; 1 << 17], NONE).err(),
            store.check(&["a", &long]).err(),
            store.check(&vec!["a"; 1 << 17]).err(),
        ]
        .into_iter()
        .enumerate()
        {
            let error = error.unwrap_or_else(|| panic!("{name}: {at} is not refused"));
            assert!(matches!(error, StoreError::TooLarge { .. }), "{name}: {error}");
        }
        assert!(!other.check(&["k"]).unwrap(), "{name}");
    }
}

#[test]
fn a_store_refuses_values_beyond_its_limit_and_has_room_again_after_a_delete() {
    for (name, [store, other], _kept) in stores() {
        // The other stores share the code of the limit, and take long to fill.
        if !["hash", "tcp, two clients"].contains(&name) {
            continue;
        }
        let value = vec![7; MAX_VALUE];
        let mut set = 0;
        let error = loop {
            match store.set(&set.to_string(), &value) {
                Ok(()) => set += 1,
                Err(error) => break error,
            }
            assert!(set * MAX_VALUE <= MAX_STORED, "{name}");
        };
        assert!(matches!(error, StoreError::Full { op: "set", .. }), "{name}: {error}");
        assert_eq!(set, MAX_STORED / MAX_VALUE - 1, "{name}");
        let error = store.compare_set("another", b"", &value).unwrap_err();
        assert!(matches!(error, StoreError::Full { op: "compare_set", .. }), "{name}: {error}");
        // A replaced value makes room for the new value.
        store.set("0", &value).unwrap();
        assert!(other.delete("0").unwrap(), "{name}");
        other.set("another", &value).unwrap();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_fifo_is_refused_as_a_stores_file() {
    let file = TempFile::new();
    let made = std::process::Command::new("mkfifo").arg(&file.0).status().unwrap();
    assert!(made.success());
    let error = FileStore::open(&file.0).unwrap_err();
    assert!(matches!(error, StoreError::File { op: "open", .. }), "{error}");
}

/// A user-defined store that returns its arguments.
#[derive(Debug)]
struct EchoStore;

impl Store for EchoStore {
    fn set(&self, key: &str, _: &[u8]) -> StoreResult<()> {
        Err(StoreError::TooLarge { op: "set", what: "this", size: key.len(), max: 0 })
    }

    fn get(&self, key: &str, _: Duration) -> StoreResult<Vec<u8>> {
        Ok(key.into())
    }

    fn add(&self, _: &str, amount: i64) -> StoreResult<i64> {
        Ok(amount)
    }

    fn compare_set(&self, _: &str, _: &[u8], _: &[u8]) -> StoreResult<Option<Vec<u8>>> {
        Ok(None)
    }

    fn delete(&self, _: &str) -> StoreResult<bool> {
        Ok(false)
    }

    fn wait(&self, _: &[&str], _: Duration) -> StoreResult<()> {
        Ok(())
    }

    fn check(&self, keys: &[&str]) -> StoreResult<bool> {
        Ok(keys.iter().all(|key| key.starts_with("a/")))
    }
}

#[test]
fn programs_can_define_their_own_stores() {
    let store = PrefixStore::new("a", Arc::new(EchoStore));
    assert_eq!(store.get("k", NONE).unwrap(), b"a/k");
    assert!(store.check(&["k", "l"]).unwrap());
    assert!(matches!(store.set("k", b""), Err(StoreError::TooLarge { size: 3, .. })));
}

#[test]
fn prefixes_separate_keys() {
    let below: Arc<dyn Store> = Arc::new(HashStore::new());
    let [a, b] = ["a", "b"].map(|prefix| PrefixStore::new(prefix, Arc::clone(&below)));
    a.set("k", b"1").unwrap();
    assert!(!b.check(&["k"]).unwrap());
    assert_eq!(below.get("a/k", NONE).unwrap(), b"1");
}

#[test]
fn many_clients_increment_one_counter() {
    const CLIENTS: i64 = 32;
    const EACH: i64 = 25;
    for (name, ends, _kept) in stores() {
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let store = &ends[client as usize % 2];
                scope.spawn(move || {
                    for _ in 0..EACH {
                        store.add("n", 1).unwrap();
                    }
                    if store.add("arrived", 1).unwrap() == CLIENTS {
                        store.set("all", b"").unwrap();
                    }
                    store.wait(&["all"], LONG).unwrap();
                    assert_eq!(store.add("n", 0).unwrap(), CLIENTS * EACH, "{name}");
                });
            }
        });
    }
}

#[test]
fn an_incomplete_record_of_a_killed_process_is_skipped() {
    let file = TempFile::new();
    FileStore::open(&file.0).unwrap().set("whole", b"1").unwrap();
    let whole = std::fs::read(&file.0).unwrap();
    let record = {
        let more = FileStore::open(&file.0).unwrap();
        more.set("half", b"22").unwrap();
        std::fs::read(&file.0).unwrap().split_off(whole.len())
    };
    for cut in 0..record.len() {
        std::fs::write(&file.0, [&whole, &record[..cut]].concat()).unwrap();
        let store = FileStore::open(&file.0).unwrap();
        assert!(store.check(&["whole"]).unwrap() && !store.check(&["half"]).unwrap(), "{cut}");
        store.set("next", b"3").unwrap();
        let again = FileStore::open(&file.0).unwrap();
        assert!(again.check(&["whole", "next"]).unwrap(), "{cut}");
    }
    // Also truncate the file within its first bytes.
    for cut in 0..8 {
        std::fs::write(&file.0, &whole[..cut]).unwrap();
        let store = FileStore::open(&file.0).unwrap();
        store.set("k", b"").unwrap();
        assert!(FileStore::open(&file.0).unwrap().check(&["k"]).unwrap(), "{cut}");
    }
}

#[test]
fn a_file_that_is_not_a_store_is_refused() {
    let file = TempFile::new();
    std::fs::write(&file.0, "some other file's text").unwrap();
    let error = FileStore::open(&file.0).unwrap_err();
    assert!(matches!(error, StoreError::File { op: "open", .. }), "{error}");
    assert_eq!(std::fs::read(&file.0).unwrap(), b"some other file's text");
    let error = FileStore::open("/nowhere/to/be/found").unwrap_err();
    assert!(error.to_string().contains("/nowhere/to/be/found"), "{error}");
}
