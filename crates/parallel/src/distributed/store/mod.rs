//! Stores: keys and values that all ranks of a group see (`torch.distributed.Store`).
//!
//! `values.rs` has the map and its size limit, `checked.rs` the limits on keys and values, `deadline.rs` the deadline
//! of a call, which bounds all steps of the call together. `FileStore` is a log in a locked file; a call waits for the
//! lock no longer than its timeout. Tests run random programs on each store and on a map, and compare the results.

mod checked;
mod deadline;
mod file;
mod hash;
mod prefix;
mod secret;
mod shared_values;
mod tcp;
mod values;

use std::any::Any;
use std::fmt;
use std::time::Duration;

use checked::Unchecked;
pub(super) use deadline::Deadline;
pub use file::FileStore;
pub use hash::HashStore;
pub use prefix::PrefixStore;
pub use secret::Secret;
pub(super) use tcp::look_up;
pub use tcp::{TcpStore, TcpStoreOptions};

/// The result of an operation on a store.
///
/// A store fails with a [`StoreError`] instead of a [`warpline::Error`], because a store can be used without a runtime,
/// and programs implement [`Store`] themselves. A `StoreError` converts with `?` to an
/// [`ErrorKind::ProcessGroup`](warpline::ErrorKind::ProcessGroup) with the `StoreError` as its source.
pub type StoreResult<T> = Result<T, StoreError>;

/// Largest size of a key, in bytes.
pub const MAX_KEY: usize = 4 << 10;
/// Largest size of a value, in bytes.
pub const MAX_VALUE: usize = 16 << 20;
/// Largest number of keys in one call of [`Store::wait`] or [`Store::check`].
pub const MAX_KEYS: usize = 1 << 16;
/// Largest total size of the keys and values of a store, in bytes. Each key counts 128 bytes more than its length.
/// Replaced and deleted values count until they have been sent to the clients that requested them.
pub const MAX_STORED: usize = 256 << 20;

/// A key-value store that all ranks share (`torch.distributed.Store`).
///
/// Operations on a key are atomic, and all later operations of every rank see the new value. Several threads may use a
/// store at the same time; a waiting thread does not block the other threads.
///
/// ```
/// use std::time::Duration;
/// use warpline_parallel::distributed::{HashStore, Store};
///
/// let store = HashStore::new();
/// store.set("id", b"42")?;
/// assert_eq!(store.get("id", Duration::from_secs(1))?, b"42");
/// assert_eq!(store.add("joined", 1)?, 1);
/// # Ok::<(), warpline_parallel::distributed::StoreError>(())
/// ```
pub trait Store: Any + Send + Sync + fmt::Debug {
    /// Sets a key. Replaces an existing value.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] if the key has more than [`MAX_KEY`] bytes or the value more than [`MAX_VALUE`];
    /// [`StoreError::Full`] if the store has no room for the value; [`StoreError::Lost`], [`StoreError::NotAStore`] or
    /// [`StoreError::WrongSecret`] if the server of a [`TcpStore`] cannot be used; [`StoreError::File`] if the file of
    /// a [`FileStore`] cannot be used.
    fn set(&self, key: &str, value: &[u8]) -> StoreResult<()>;

    /// Returns the value of a key. Waits until the key is set.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if the key is not set, or the store does not answer, within `timeout`, which bounds the
    /// entire call; the other errors are those of [`Store::set`].
    fn get(&self, key: &str, timeout: Duration) -> StoreResult<Vec<u8>>;

    /// Adds `amount` to the value of a key. The value must be a decimal number. A key that is not set counts as 0.
    /// Returns the sum.
    ///
    /// # Errors
    /// [`StoreError::NotANumber`] if the value of the key is not a number or the sum overflows 64 bits; the other
    /// errors are those of [`Store::set`].
    fn add(&self, key: &str, amount: i64) -> StoreResult<i64>;

    /// Sets a key to `desired` if its value is `expected`, or if the key is not set and `expected` is empty. Returns
    /// the value of the key after the call. `None` if the key is not set; PyTorch returns `expected` in that case.
    ///
    /// # Errors
    /// The same as [`Store::set`].
    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> StoreResult<Option<Vec<u8>>>;

    /// Deletes a key (`delete_key`). Returns `true` if the key was set.
    ///
    /// # Errors
    /// The same as [`Store::set`].
    fn delete(&self, key: &str) -> StoreResult<bool>;

    /// Waits until all keys are set.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] if there are more than [`MAX_KEYS`] keys, or if their total size exceeds [`MAX_VALUE`];
    /// the other errors are those of [`Store::get`].
    fn wait(&self, keys: &[&str], timeout: Duration) -> StoreResult<()>;

    /// Returns `true` if all keys are set.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] under the conditions of [`Store::wait`]; the other errors are those of [`Store::set`].
    fn check(&self, keys: &[&str]) -> StoreResult<bool>;
}

/// The reason why an operation on a store failed.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A key was not set in time, or the store did not reply in time.
    #[error("{op}: {} within {timeout:?}", missed(keys, *replied))]
    Timeout {
        /// Name of the operation, such as `get`.
        op: &'static str,
        /// The awaited keys, at most the first eight.
        keys: Vec<String>,
        /// Timeout of the call.
        timeout: Duration,
        /// Whether the store replied that a key is not set. Without a reply, all keys may be set.
        replied: bool,
    },
    /// A key, a value or a list of keys is larger than its limit.
    #[error("{op}: {what} has size {size}, above the limit of {max}")]
    TooLarge {
        /// Name of the operation, such as `get`.
        op: &'static str,
        /// The part that is too large, such as `the key`.
        what: &'static str,
        /// Size of the part, in bytes, or number of keys.
        size: usize,
        /// The limit, in the unit of `size`.
        max: usize,
    },
    /// The store has no room for a value.
    #[error(
        "{op}: the store has no room for this value, because it may hold at most {max} bytes; delete keys"
    )]
    Full {
        /// Name of the operation, such as `set`.
        op: &'static str,
        /// The limit, in bytes.
        max: usize,
    },
    /// A value is not a number, or the sum overflows 64 bits.
    #[error("add: the key {key:?} holds {value:?}, to which {amount} cannot be added")]
    NotANumber {
        /// The key to whose value `amount` could not be added.
        key: String,
        /// Value of the key, at most its first 32 bytes.
        value: String,
        /// The number that was to be added.
        amount: i64,
    },
    /// No server answered at the store's address in time.
    #[error(
        "no store could be reached at {address} within {timeout:?}: {reason}. Rank 0 hosts the store: check that rank 0 is running and can be reached at this address"
    )]
    Unreachable {
        /// Address of the store.
        address: String,
        /// Timeout of the call.
        timeout: Duration,
        /// Error of the last attempt.
        reason: String,
    },
    /// The address is not a loopback address, and there is no secret.
    #[error(
        "the store's address {address} is not a loopback address, so the store needs a secret: set \
         WARPLINE_SECRET to the same random text on every rank (`openssl rand -hex 32` prints one), \
         or give `TcpStore` a `Secret`. Ranks of one machine need no secret with MASTER_ADDR=127.0.0.1"
    )]
    NeedsSecret {
        /// Address of the store.
        address: String,
    },
    /// The two ends of a connection do not have the same secret.
    #[error("the store at {address}: {reason}. WARPLINE_SECRET must be the same on every rank")]
    WrongSecret {
        /// Address of the store.
        address: String,
        /// Description of the cause.
        reason: String,
    },
    /// A secret is invalid, or no random bytes could be had for a secret.
    #[error("the secret cannot be used: {reason}. `openssl rand -hex 32` prints a good one")]
    InvalidSecret {
        /// Description of the cause.
        reason: String,
    },
    /// The server at the address is not a Warpline store.
    #[error(
        "the server at {address} is not a Warpline store: {reason}. PyTorch's own stores use \
         a different protocol; choose another port"
    )]
    NotAStore {
        /// Address of the store.
        address: String,
        /// The unexpected behaviour of the server.
        reason: String,
    },
    /// The connection to the store's server is lost.
    #[error("{op}: the connection to the store at {address} is lost: {reason}")]
    Lost {
        /// Name of the operation, such as `get`.
        op: &'static str,
        /// Address of the server.
        address: String,
        /// Error of the connection.
        reason: String,
    },
    /// The store cannot listen on its address.
    #[error(
        "the store cannot listen on {address}: {reason}. The address must be one of this host's, \
         and the port must be free"
    )]
    Bind {
        /// Address of the store.
        address: String,
        /// Description of the cause.
        reason: String,
    },
    /// The store's file cannot be used.
    #[error("{op}: the store's file {path} cannot be used: {reason}")]
    File {
        /// Name of the operation, such as `get`.
        op: &'static str,
        /// Path of the file.
        path: String,
        /// Description of the cause.
        reason: String,
    },
}

/// Writes the same message as `Display`, because `unwrap`, and a `main` that returns an error, print the `Debug` form.
impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Describes a timeout.
fn missed(keys: &[String], replied: bool) -> String {
    match replied {
        true => format!("not all of the keys {keys:?} were set"),
        false => format!("the store's reply about the keys {keys:?} did not arrive"),
    }
}

fn timed_out(op: &'static str, keys: &[&str], timeout: Duration, replied: bool) -> StoreError {
    let keys = keys.iter().take(8).map(ToString::to_string).collect();
    StoreError::Timeout { op, keys, timeout, replied }
}
