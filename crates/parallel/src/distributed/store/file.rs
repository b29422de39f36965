//! A store in a file that all ranks can open.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{MAX_KEY, MAX_VALUE, StoreError, StoreResult, Unchecked, may_set, sum, timed_out};

/// What the file begins with.
const MAGIC: &[u8; 8] = b"WLFSTOR1";
/// Of a record: its kind, the key's length, the value's.
const HEADER: usize = 9;
const SET: u8 = 1;
const DELETE: u8 = 2;
/// How often the file is looked at while a key is waited for.
const POLL: Duration = Duration::from_millis(5);

/// A store in a file that all ranks can open (`torch.distributed.FileStore`).
///
/// The file is a log, to which every change is appended under an exclusive lock on it. A process
/// that is killed while it appends leaves a record without an end, which nobody sees and the next
/// one to append removes. The file is made where it does not exist and never deleted: a run has to
/// begin with one that no earlier run used. On a network's file system its locks have to be seen by
/// all hosts.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    log: Mutex<Log>,
}

/// A record's kind, key and value.
type Entry<'a> = (u8, &'a str, &'a [u8]);

/// The file, and what of it was read.
#[derive(Debug)]
struct Log {
    file: File,
    values: HashMap<String, Vec<u8>>,
    read: u64,
}

impl FileStore {
    /// The store in the file at `path`.
    ///
    /// # Errors
    /// [`StoreError::File`] where it cannot be opened, or holds something else.
    pub fn open(path: impl AsRef<Path>) -> StoreResult<Self> {
        let path = path.as_ref().to_path_buf();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&path).map_err(|error| failed("open", &path, &error))?;
        let log = Mutex::new(Log { file, values: HashMap::new(), read: 0 });
        let store = Self { path, log };
        store.locked("open", |_| Ok(()))?;
        Ok(store)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `f` on all that is in the file, which nobody else changes meanwhile.
    fn locked<R>(
        &self,
        op: &'static str,
        f: impl FnOnce(&mut Log) -> StoreResult<R>,
    ) -> StoreResult<R> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let fail = |error| failed(op, &self.path, &error);
        log.file.lock().map_err(fail)?;
        let result = log.catch_up().map_err(fail).and_then(|()| f(&mut log));
        log.file.unlock().map_err(fail)?;
        result
    }

    fn append(&self, op: &'static str, log: &mut Log, entry: Entry<'_>) -> StoreResult<()> {
        log.append(entry).map_err(|error| failed(op, &self.path, &error))
    }

    fn waited<R>(
        &self,
        (op, keys, timeout): (&'static str, &[&str], Duration),
        found: impl Fn(&Log) -> Option<R>,
    ) -> StoreResult<R> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(found) = self.locked(op, |log| Ok(found(log)))? {
                return Ok(found);
            }
            let left = deadline.map_or(POLL, |d| d.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(timed_out(op, keys, timeout));
            }
            std::thread::sleep(left.min(POLL));
        }
    }
}

fn failed(op: &'static str, path: &Path, error: &io::Error) -> StoreError {
    StoreError::File { op, path: path.display().to_string(), reason: error.to_string() }
}

impl Log {
    /// Reads what was appended since. The file is locked.
    fn catch_up(&mut self) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        if length < self.read {
            // Somebody emptied it.
            self.read = 0;
            self.values.clear();
        }
        if length == self.read {
            return Ok(());
        }
        self.file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        (&self.file).take(length - self.read).read_to_end(&mut bytes)?;
        let mut rest = bytes.as_slice();
        if self.read == 0 {
            let Some((magic, after)) = rest.split_at_checked(MAGIC.len()) else {
                // Killed while it wrote the first bytes, or another file.
                let ours = MAGIC.starts_with(rest);
                return if ours { Ok(()) } else { Err(not_a_store("its first bytes")) };
            };
            if magic != MAGIC {
                return Err(not_a_store("its first bytes"));
            }
            (rest, self.read) = (after, MAGIC.len() as u64);
        }
        while let Some(((kind, key, value), size)) = record(rest)? {
            match kind {
                SET => drop(self.values.insert(key.into(), value.into())),
                _ => drop(self.values.remove(key)),
            }
            rest = &rest[size..];
            self.read += size as u64;
        }
        Ok(())
    }

    /// Appends a record, in place of one that has no end.
    fn append(&mut self, (kind, key, value): Entry<'_>) -> io::Result<()> {
        self.file.set_len(self.read)?;
        self.file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::with_capacity(MAGIC.len() + HEADER + key.len() + value.len());
        if self.read == 0 {
            bytes.extend(MAGIC);
        }
        bytes.push(kind);
        bytes.extend((key.len() as u32).to_le_bytes());
        bytes.extend((value.len() as u32).to_le_bytes());
        bytes.extend(key.as_bytes());
        bytes.extend(value);
        self.file.write_all(&bytes)?;
        self.read += bytes.len() as u64;
        match kind {
            SET => drop(self.values.insert(key.into(), value.into())),
            _ => drop(self.values.remove(key)),
        }
        Ok(())
    }
}

/// The first record of some bytes, with its size; `None` where they do not hold all of it.
fn record(bytes: &[u8]) -> io::Result<Option<(Entry<'_>, usize)>> {
    let Some((header, rest)) = bytes.split_at_checked(HEADER) else { return Ok(None) };
    let length = |at: usize| {
        let bytes = [header[at], header[at + 1], header[at + 2], header[at + 3]];
        u32::from_le_bytes(bytes) as usize
    };
    let (kind, key, value) = (header[0], length(1), length(5));
    if !matches!(kind, SET | DELETE) || key > MAX_KEY || value > MAX_VALUE {
        return Err(not_a_store("a record"));
    }
    let Some((key, rest)) = rest.split_at_checked(key) else { return Ok(None) };
    let Some((value, _)) = rest.split_at_checked(value) else { return Ok(None) };
    let size = HEADER + key.len() + value.len();
    let key = std::str::from_utf8(key).map_err(|_| not_a_store("a key"))?;
    Ok(Some(((kind, key, value), size)))
}

fn not_a_store(what: &str) -> io::Error {
    let text = format!("{what} cannot be a store's; give a file that does not exist yet");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl Unchecked for FileStore {
    fn set(&self, key: &str, value: &[u8]) -> StoreResult<()> {
        self.locked("set", |log| self.append("set", log, (SET, key, value)))
    }

    fn get(&self, key: &str, timeout: Duration) -> StoreResult<Vec<u8>> {
        self.waited(("get", &[key], timeout), |log| log.values.get(key).cloned())
    }

    fn add(&self, key: &str, amount: i64) -> StoreResult<i64> {
        self.locked("add", |log| {
            let sum = sum(key, log.values.get(key).map(Vec::as_slice), amount)?;
            self.append("add", log, (SET, key, sum.to_string().as_bytes()))?;
            Ok(sum)
        })
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> StoreResult<Option<Vec<u8>>> {
        self.locked("compare_set", |log| {
            let value = log.values.get(key);
            if !may_set(value.map(Vec::as_slice), expected) {
                return Ok(value.cloned());
            }
            self.append("compare_set", log, (SET, key, desired))?;
            Ok(Some(desired.into()))
        })
    }

    fn delete(&self, key: &str) -> StoreResult<bool> {
        self.locked("delete", |log| {
            if !log.values.contains_key(key) {
                return Ok(false);
            }
            self.append("delete", log, (DELETE, key, b""))?;
            Ok(true)
        })
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> StoreResult<()> {
        self.waited(("wait", keys, timeout), |log| {
            keys.iter().all(|key| log.values.contains_key(*key)).then_some(())
        })
    }

    fn check(&self, keys: &[&str]) -> StoreResult<bool> {
        self.locked("check", |log| Ok(keys.iter().all(|key| log.values.contains_key(*key))))
    }
}
