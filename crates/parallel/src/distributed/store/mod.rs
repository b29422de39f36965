//! Where the ranks of a group meet: keys and values that all of them see
//! (`torch.distributed.Store`).
//!
//! `values.rs` has the map and its size limit, `checked.rs` the limits on keys and values,
//! `deadline.rs` the single deadline of all steps of a call. `FileStore` is a log under a lock; a
//! call waits for the lock no longer than its timeout. Tests run random programs on each store and
//! compare it with a map.

mod checked;
mod deadline;
mod file;
mod hash;
mod prefix;
mod secret;
mod table;
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
pub use tcp::TcpStore;
pub(super) use tcp::look_up;

/// The result of a store's operation.
pub type StoreResult<T> = Result<T, StoreError>;

/// The most bytes that a key may have.
pub const MAX_KEY: usize = 4 << 10;
/// The most bytes that a value may have.
pub const MAX_VALUE: usize = 16 << 20;
/// The most keys that may be waited for at once.
pub const MAX_KEYS: usize = 1 << 16;
/// The most bytes that all keys and values of a store may have, 128 more for each key. Replaced and
/// deleted values count until they are sent to the clients that asked for them.
pub const MAX_STORED: usize = 256 << 20;

/// Keys and values that all ranks see (`torch.distributed.Store`).
///
/// Operations on one key are atomic, and a value that was set is seen by all later operations of
/// every rank. A store may be used by several threads at once; one that waits holds up no other.
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
    /// Sets a key, whether or not it was set before.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] if the key or the value is; [`StoreError::Full`] if the store has no
    /// room for it; [`StoreError::Lost`] or [`StoreError::File`] if the store cannot be used.
    fn set(&self, key: &str, value: &[u8]) -> StoreResult<()>;

    /// A key's value, waited for until it is set.
    ///
    /// # Errors
    /// [`StoreError::Timeout`] if the key is not set, or the store does not answer, within `timeout`,
    /// which bounds the entire call; otherwise as [`Store::set`].
    fn get(&self, key: &str, timeout: Duration) -> StoreResult<Vec<u8>>;

    /// Adds to a key's value, a decimal number, which starts at 0; returns the sum.
    ///
    /// # Errors
    /// [`StoreError::NotANumber`] where the key was set to something else, or the sum is beyond
    /// 64 bits; as [`Store::set`].
    fn add(&self, key: &str, amount: i64) -> StoreResult<i64>;

    /// Sets a key to `desired` if its value is `expected`, or if it is not set and `expected` is
    /// empty; returns what its value is then. `None` where it is not set: PyTorch's returns
    /// `expected` there.
    ///
    /// # Errors
    /// As [`Store::set`].
    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> StoreResult<Option<Vec<u8>>>;

    /// Deletes a key (`delete_key`); whether it was set.
    ///
    /// # Errors
    /// As [`Store::set`].
    fn delete(&self, key: &str) -> StoreResult<bool>;

    /// Waits until all of these keys are set.
    ///
    /// # Errors
    /// As [`Store::get`].
    fn wait(&self, keys: &[&str], timeout: Duration) -> StoreResult<()>;

    /// Whether all of these keys are set.
    ///
    /// # Errors
    /// As [`Store::set`].
    fn check(&self, keys: &[&str]) -> StoreResult<bool>;
}

/// Why a store could not do what was asked.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A key was not set in time, or the store did not say so in time.
    #[error("{op}: {} within {timeout:?}", missed(keys, *replied))]
    Timeout {
        /// The operation.
        op: &'static str,
        /// The keys that were waited for; the first few of many.
        keys: Vec<String>,
        /// How long.
        timeout: Duration,
        /// Whether the store replied that a key is not set. Without a reply, all may be set.
        replied: bool,
    },
    /// A key, a value or a list of keys beyond the limits.
    #[error("{op}: {what} has {size}, the most is {max}")]
    TooLarge {
        /// The operation.
        op: &'static str,
        /// What is too large.
        what: &'static str,
        /// Its size.
        size: usize,
        /// The limit.
        max: usize,
    },
    /// The store has no room for a value.
    #[error("{op}: the store may hold {max} bytes, and has no room for this value; delete keys")]
    Full {
        /// The operation.
        op: &'static str,
        /// The limit, in bytes.
        max: usize,
    },
    /// A value that cannot be added to.
    #[error("add: the key {key:?} holds {value:?}, to which {amount} cannot be added")]
    NotANumber {
        /// The key.
        key: String,
        /// Its value; the first few bytes of a long one.
        value: String,
        /// What was to be added.
        amount: i64,
    },
    /// Nobody answered at the store's address in time.
    #[error(
        "no store could be reached at {address} within {timeout:?}: {reason}. Rank 0 hosts it: is \
         it running, and is this address right as seen from here?"
    )]
    Unreachable {
        /// The address.
        address: String,
        /// How long was tried.
        timeout: Duration,
        /// What the last try failed with.
        reason: String,
    },
    /// An address that other machines can reach, and no secret.
    #[error(
        "the store's address {address} is not a loopback address, and there is no secret: set \
         WARPLINE_SECRET to the same random text on every rank (`openssl rand -hex 32` prints one), \
         or give `TcpStore` a `Secret`. For ranks of one machine MASTER_ADDR=127.0.0.1 needs none"
    )]
    NeedsSecret {
        /// The address.
        address: String,
    },
    /// The two ends of a connection do not have the same secret.
    #[error("the store at {address}: {reason}. WARPLINE_SECRET has to be the same on every rank")]
    WrongSecret {
        /// The address.
        address: String,
        /// Which end has refused the other.
        reason: String,
    },
    /// A secret that cannot be used.
    #[error("the secret cannot be used: {reason}. `openssl rand -hex 32` prints a good one")]
    InvalidSecret {
        /// Why not.
        reason: String,
    },
    /// What listens at the address is no store of this kind.
    #[error(
        "what listens at {address} is not a Warpline store: {reason}. PyTorch's own stores speak \
         another protocol; choose another port"
    )]
    NotAStore {
        /// The address.
        address: String,
        /// What it did.
        reason: String,
    },
    /// The store's server is gone.
    #[error("{op}: the connection to the store at {address} is lost: {reason}")]
    Lost {
        /// The operation.
        op: &'static str,
        /// The server's address.
        address: String,
        /// What the connection failed with.
        reason: String,
    },
    /// The port cannot be listened on.
    #[error(
        "the store cannot listen on {address}: {reason}. The address has to be one of this host's, \
         and the port free"
    )]
    Bind {
        /// The address.
        address: String,
        /// Why not.
        reason: String,
    },
    /// The store's file cannot be used.
    #[error("{op}: the store's file {path} cannot be used: {reason}")]
    File {
        /// The operation.
        op: &'static str,
        /// Its path.
        path: String,
        /// Why not.
        reason: String,
    },
}

/// Its message: what `main` prints of the error that it returns, and `unwrap` of the one that it meets.
impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What did not happen in time.
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
