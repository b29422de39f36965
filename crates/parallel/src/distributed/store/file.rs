//! A store in a file that all ranks can open.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::deadline::Deadline;
use super::values::StoreValues;
use super::{MAX_KEY, MAX_VALUE, StoreError, StoreResult, Unchecked, timed_out};

/// The first bytes of the file.
const MAGIC: &[u8; 8] = b"WLFSTOR1";
/// Bytes of a record before its key: kind, length of the key, length of the value.
const HEADER_LEN: usize = 9;
/// Kind of a record that sets a key.
const SET: u8 = 1;
/// Kind of a record that deletes a key.
const DELETE: u8 = 2;
/// Pause between two reads of the file while waiting for a key.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Pause between two attempts to lock the file.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A store in a file that all ranks can open (`torch.distributed.FileStore`).
///
/// The file is a log. Every change is appended under an exclusive lock on the file, so the file grows with every
/// change. A process that is killed while it appends leaves an incomplete record, which readers ignore and the next
/// change overwrites. The file is created if it does not exist, and is never deleted. A run must begin with a file that
/// no earlier run has used. On a network file system, file locks must work across hosts.
///
/// A timeout includes the wait for the lock. Calls without a timeout wait up to 30 seconds for the lock.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    /// `None` while a thread uses the log.
    log: Mutex<Option<StoreLog>>,
    /// Notified when the log is put back.
    free: Condvar,
}

/// A record's kind, key and value.
type LogRecord<'a> = (u8, &'a str, &'a [u8]);

/// The file, and the values of the records in its first `read` bytes.
#[derive(Debug)]
struct StoreLog {
    file: File,
    values: StoreValues,
    read: u64,
}

impl FileStore {
    /// Opens or creates the store in the file at `path`.
    ///
    /// # Errors
    /// [`StoreError::File`] if the file cannot be opened or locked within 30 seconds, or is not a store's file.
    pub fn open(path: impl AsRef<Path>) -> StoreResult<Self> {
        let path = path.as_ref().to_path_buf();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&path).map_err(|error| file_error("open", &path, &error))?;
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        if !is_file {
            return Err(file_error("open", &path, &not_a_store("it is a directory or device")));
        }
        let log = Some(StoreLog { file, values: StoreValues::default(), read: 0 });
        let store = Self { path, log: Mutex::new(log), free: Condvar::new() };
        store.locked("open", |_| Ok(()))?;
        Ok(store)
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the log for this thread. Returns `None` if other threads still use the log at the deadline.
    fn take_log(&self, deadline: Deadline) -> Option<StoreLog> {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = deadline.left().min(Duration::from_secs(3600));
            if log.is_some() || left.is_zero() {
                return log.take();
            }
            log = self.free.wait_timeout(log, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Runs `f` on the up-to-date log under the file's lock. Returns `None` if the lock does not become free before the
    /// deadline.
    fn locked_until<R>(
        &self,
        op: &'static str,
        deadline: Deadline,
        f: impl FnOnce(&mut StoreLog) -> StoreResult<R>,
    ) -> StoreResult<Option<R>> {
        let Some(mut log) = self.take_log(deadline) else { return Ok(None) };
        let fail = |error| file_error(op, &self.path, &error);
        let result = match log.try_lock(deadline).map_err(fail) {
            Ok(true) => {
                let result = log.catch_up().map_err(fail).and_then(|()| f(&mut log).map(Some));
                log.file.unlock().map_err(fail).and(result)
            }
            other => other.map(|_| None),
        };
        *self.log.lock().unwrap_or_else(PoisonError::into_inner) = Some(log);
        self.free.notify_one();
        result
    }

    /// Runs a call that takes no timeout.
    fn locked<R>(
        &self,
        op: &'static str,
        f: impl FnOnce(&mut StoreLog) -> StoreResult<R>,
    ) -> StoreResult<R> {
        let done = self.locked_until(op, Deadline::of_call(), f)?;
        let reason = "another thread or process did not release its lock in time";
        let busy = || file_error(op, &self.path, &io::Error::new(io::ErrorKind::TimedOut, reason));
        done.ok_or_else(busy)
    }

    fn append(
        &self,
        op: &'static str,
        log: &mut StoreLog,
        record: LogRecord<'_>,
    ) -> StoreResult<()> {
        let (kind, key, value) = record;
        if kind == SET {
            log.values.check_capacity(op, key, value)?;
        }
        log.append(record).map_err(|error| file_error(op, &self.path, &error))
    }

    fn wait_until<R>(
        &self,
        (op, keys, timeout): (&'static str, &[&str], Duration),
        found: impl Fn(&StoreLog) -> Option<R>,
    ) -> StoreResult<R> {
        let deadline = Deadline::after(timeout);
        loop {
            // Even with a timeout of zero, wait briefly for the lock.
            let lock = Deadline::after(deadline.left().max(POLL_INTERVAL));
            let replied = match self.locked_until(op, lock, |log| Ok(found(log)))? {
                Some(Some(found)) => return Ok(found),
                read => read.is_some(),
            };
            if deadline.has_passed() {
                return Err(timed_out(op, keys, timeout, replied));
            }
            std::thread::sleep(deadline.left().min(POLL_INTERVAL));
        }
    }
}

fn file_error(op: &'static str, path: &Path, error: &io::Error) -> StoreError {
    StoreError::File { op, path: path.display().to_string(), reason: error.to_string() }
}

impl StoreLog {
    /// Locks the file. Returns `false` if another process still holds the lock at the deadline.
    fn try_lock(&self, deadline: Deadline) -> io::Result<bool> {
        loop {
            match self.file.try_lock() {
                Ok(()) => return Ok(true),
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if deadline.has_passed() => return Ok(false),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_POLL_INTERVAL),
            }
        }
    }

    /// Reads the records that were appended since the last call. The file must be locked.
    fn catch_up(&mut self) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        if length < self.read {
            // Another process has truncated the file.
            self.read = 0;
            self.values.clear();
        }
        if length == self.read {
            return Ok(());
        }
        self.file.seek(SeekFrom::Start(self.read))?;
        // Read the records one by one, so that the memory use does not depend on the size of the file.
        let mut rest = BufReader::new((&self.file).take(length - self.read));
        if self.read == 0 {
            let mut magic = Vec::new();
            rest.by_ref().take(MAGIC.len() as u64).read_to_end(&mut magic)?;
            if !MAGIC.starts_with(&magic) {
                return Err(not_a_store("its first bytes are not those of a store"));
            }
            if magic.len() < MAGIC.len() {
                // A process was killed while it wrote the first bytes.
                return Ok(());
            }
            self.read = MAGIC.len() as u64;
        }
        let mut bytes = Vec::new();
        while let Some((kind, key, value)) = read_record(&mut rest, &mut bytes)? {
            match kind {
                SET => self.values.set("open", key, value).map_err(io::Error::other)?,
                _ => drop(self.values.delete(key)),
            }
            self.read += bytes.len() as u64;
        }
        Ok(())
    }

    /// Appends a record. Overwrites an incomplete record at the end.
    fn append(&mut self, (kind, key, value): LogRecord<'_>) -> io::Result<()> {
        self.file.set_len(self.read)?;
        self.file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::with_capacity(MAGIC.len() + HEADER_LEN + key.len() + value.len());
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
            SET => self.values.set("open", key, value).map_err(io::Error::other),
            _ => {
                self.values.delete(key);
                Ok(())
            }
        }
    }
}

/// Reads the next record into `bytes`. Returns `None` at the end of the file and for an incomplete record.
fn read_record<'a>(
    from: &mut impl Read,
    bytes: &'a mut Vec<u8>,
) -> io::Result<Option<LogRecord<'a>>> {
    bytes.clear();
    from.by_ref().take(HEADER_LEN as u64).read_to_end(bytes)?;
    let &[kind, k0, k1, k2, k3, v0, v1, v2, v3] = bytes.as_slice() else { return Ok(None) };
    let key = u32::from_le_bytes([k0, k1, k2, k3]) as usize;
    let value = u32::from_le_bytes([v0, v1, v2, v3]) as usize;
    if !matches!(kind, SET | DELETE) || key > MAX_KEY || value > MAX_VALUE {
        return Err(not_a_store("it has an invalid record"));
    }
    from.take((key + value) as u64).read_to_end(bytes)?;
    let Some((key, value)) =
        bytes[HEADER_LEN..].split_at_checked(key).filter(|(_, v)| v.len() == value)
    else {
        return Ok(None);
    };
    let key = std::str::from_utf8(key).map_err(|_| not_a_store("it has a key that is not text"))?;
    Ok(Some((kind, key, value)))
}

fn not_a_store(why: &str) -> io::Error {
    let text = format!(
        "this is not the file of a store, because {why}; give a file that does not exist yet"
    );
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl Unchecked for FileStore {
    fn set(&self, key: &str, value: &[u8]) -> StoreResult<()> {
        self.locked("set", |log| self.append("set", log, (SET, key, value)))
    }

    fn get(&self, key: &str, timeout: Duration) -> StoreResult<Vec<u8>> {
        self.wait_until(("get", &[key], timeout), |log| log.values.get(key).map(|v| v.to_vec()))
    }

    fn add(&self, key: &str, amount: i64) -> StoreResult<i64> {
        self.locked("add", |log| {
            let sum = log.values.sum(key, amount)?;
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
            if !log.values.compare_set_applies(key, expected) {
                return Ok(log.values.get(key).map(|value| value.to_vec()));
            }
            self.append("compare_set", log, (SET, key, desired))?;
            Ok(Some(desired.into()))
        })
    }

    fn delete(&self, key: &str) -> StoreResult<bool> {
        self.locked("delete", |log| {
            if !log.values.contains(key) {
                return Ok(false);
            }
            self.append("delete", log, (DELETE, key, b""))?;
            Ok(true)
        })
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> StoreResult<()> {
        self.wait_until(("wait", keys, timeout), |log| log.values.contains_all(keys).then_some(()))
    }

    fn check(&self, keys: &[&str]) -> StoreResult<bool> {
        self.locked("check", |log| Ok(log.values.contains_all(keys)))
    }
}
