//! A store that one process hosts and other processes reach over TCP.

mod client;
mod handshake;
mod server;
mod wire;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use warpline::IntoOptions;

use super::super::environment::DEFAULT_TIMEOUT;
use super::deadline::{CALL_TIMEOUT, Deadline};
use super::{Secret, StoreError, StoreResult, Unchecked, timed_out};
use client::Client;
pub(in crate::distributed) use client::look_up;
use handshake::ConnectError;
use server::Server;
use wire::{StoreReply, StoreRequest};

/// Longest wait of one request. The request is repeated until the caller's timeout, so that a client detects within
/// this time plus [`CALL_TIMEOUT`] that its server has disappeared without closing the connection.
const WAIT_SLICE: Duration = Duration::from_secs(5);
/// Additional time for the last reply after the caller's timeout.
const REPLY_GRACE: Duration = Duration::from_millis(500);

/// A store that one process hosts and other processes reach over TCP (`torch.distributed.TCPStore`).
///
/// Both ends of each connection prove by a keyed challenge that they know the job's [`Secret`], which is never sent.
/// Without a secret the store listens on, and clients connect to, loopback addresses only, and every user of the
/// machine has access. The messages after the proofs are neither encrypted nor signed: anyone who can modify packets on
/// the network can modify keys and values.
///
/// A timeout bounds the entire call, plus half a second for the last reply. Calls without a timeout end within 30
/// seconds. The server limits the size of keys, values and messages ([`MAX_KEY`](super::MAX_KEY),
/// [`MAX_VALUE`](super::MAX_VALUE)), their total size ([`MAX_STORED`](super::MAX_STORED)), and the number and idle time
/// of connections. Clients of one address get at most half of the connections.
///
/// ```
/// use std::time::Duration;
/// use warpline_parallel::distributed::{Store, TcpStore};
///
/// let timeout = Duration::from_secs(10);
/// let host = TcpStore::host("127.0.0.1:0", ())?;
/// let client = TcpStore::connect(("127.0.0.1", host.port()), timeout)?;
/// client.set("id", b"42")?;
/// assert_eq!(host.get("id", timeout)?, b"42");
/// # Ok::<(), warpline_parallel::distributed::StoreError>(())
/// ```
#[derive(Debug)]
pub struct TcpStore {
    /// Address in error messages.
    address: String,
    endpoint: StoreEndpoint,
}

warpline::__options! {
    /// Options of [`TcpStore`].
    #[derive(Clone, Debug)]
    TcpStoreOptions [] [] {
        /// Sets the secret of the job. Default: none.
        secret: Option<Secret> = None, &Secret => |secret: &Secret| Some(secret.clone());
        /// Sets the time limit of [`TcpStore::connect`]. Default: 10 minutes.
        timeout: Duration = DEFAULT_TIMEOUT, Duration;
    }
}

impl From<Duration> for TcpStoreOptions {
    fn from(timeout: Duration) -> Self {
        Self::new().timeout(timeout)
    }
}

impl From<&TcpStoreOptions> for TcpStoreOptions {
    fn from(options: &TcpStoreOptions) -> Self {
        options.clone()
    }
}

#[derive(Debug)]
enum StoreEndpoint {
    Host(Server),
    Client(Client),
}

impl TcpStore {
    /// Hosts a store (`TCPStore(is_master=True)`). The server listens on `address` only, and ends when the store is
    /// dropped. Port 0 selects a free port. Without a secret, `address` must be a loopback address.
    ///
    /// ```
    /// use warpline_parallel::distributed::{Secret, Store, StoreError, TcpStore, TcpStoreOptions};
    ///
    /// let options = TcpStoreOptions::new().secret(&Secret::random()?);
    /// let host = TcpStore::host("127.0.0.1:0", &options)?;
    /// let address = ("127.0.0.1", host.port());
    /// TcpStore::connect(address, &options)?.set("id", b"42")?;
    /// let other = TcpStoreOptions::new().secret(&Secret::random()?);
    /// assert!(matches!(TcpStore::connect(address, other), Err(StoreError::WrongSecret { .. })));
    /// # Ok::<(), StoreError>(())
    /// ```
    ///
    /// # Errors
    /// [`StoreError::NeedsSecret`] if there is no secret and the address is not a loopback address;
    /// [`StoreError::Bind`] if the server cannot listen on the address.
    pub fn host(
        address: impl ToSocketAddrs,
        options: impl IntoOptions<TcpStoreOptions>,
    ) -> StoreResult<Self> {
        let secret = &options.into_options().secret;
        let addresses: Vec<_> =
            address.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
        check_loopback(&addresses, secret.as_ref())?;
        let bound = Server::start(&addresses, secret.clone());
        let server = bound.map_err(|error| StoreError::Bind {
            address: display_addresses(&addresses),
            reason: error.to_string(),
        })?;
        Ok(Self { address: server.address().to_string(), endpoint: StoreEndpoint::Host(server) })
    }

    /// Connects to a store (`TCPStore(is_master=False)`). Retries until the timeout of the options, because the store
    /// may be hosted later. Without a secret, `address` must be a loopback address. A [`Duration`] converts into
    /// options with that `timeout`.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] if no connection is made within the timeout; [`StoreError::NotAStore`] if the server
    /// uses a different protocol; [`StoreError::NeedsSecret`] if there is no secret and the address is not a loopback
    /// address; [`StoreError::WrongSecret`] if the host has a different secret, or only one side has a secret.
    pub fn connect<A>(address: A, options: impl IntoOptions<TcpStoreOptions>) -> StoreResult<Self>
    where
        A: ToSocketAddrs + Send + Sync + 'static,
    {
        let TcpStoreOptions { secret, timeout } = options.into_options();
        let secret = secret.as_ref();
        let check = |addresses: &[SocketAddr]| check_loopback(addresses, secret);
        match client::retry(address, secret, Deadline::after(timeout), check)? {
            Ok(client) => Ok(Self {
                address: display_addresses(client.addresses()),
                endpoint: StoreEndpoint::Client(client),
            }),
            Err((addresses, failed)) => {
                let address = display_addresses(&addresses);
                Err(match failed {
                    ConnectError::Io(error) => {
                        StoreError::Unreachable { address, timeout, reason: reason(&error) }
                    }
                    ConnectError::WrongProtocol(reason) => {
                        StoreError::NotAStore { address, reason }
                    }
                    ConnectError::Secret(reason) => StoreError::WrongSecret { address, reason },
                })
            }
        }
    }

    /// Returns the port of the server.
    #[must_use]
    pub fn port(&self) -> u16 {
        match &self.endpoint {
            StoreEndpoint::Host(server) => server.address().port(),
            StoreEndpoint::Client(client) => client.addresses().first().map_or(0, SocketAddr::port),
        }
    }

    /// Returns `true` if this process hosts the store.
    #[must_use]
    pub fn is_host(&self) -> bool {
        matches!(self.endpoint, StoreEndpoint::Host(_))
    }

    /// Returns the number of open connections of the server. 0 if another process hosts the store.
    #[must_use]
    pub fn connections(&self) -> usize {
        match &self.endpoint {
            StoreEndpoint::Host(server) => server.connections(),
            StoreEndpoint::Client(_) => 0,
        }
    }

    /// Sends a request. Returns `None` if no reply arrives before the deadline.
    fn request_until(
        &self,
        op: &'static str,
        request: &StoreRequest<'_>,
        deadline: Deadline,
    ) -> StoreResult<Option<StoreReply>> {
        let reply = match &self.endpoint {
            StoreEndpoint::Host(server) => {
                server.answer(request, deadline).map_err(ConnectError::Io)
            }
            StoreEndpoint::Client(client) => client.request(request, deadline),
        };
        let address = || self.address.clone();
        match reply {
            Ok(reply) => Ok(Some(reply)),
            // After the deadline, an I/O error of any kind counts as a missing reply.
            Err(ConnectError::Io(_)) if deadline.has_passed() => Ok(None),
            Err(ConnectError::Io(error)) => {
                Err(StoreError::Lost { op, address: address(), reason: reason(&error) })
            }
            Err(ConnectError::WrongProtocol(reason)) => {
                Err(StoreError::NotAStore { address: address(), reason })
            }
            Err(ConnectError::Secret(reason)) => {
                Err(StoreError::WrongSecret { address: address(), reason })
            }
        }
    }

    /// Sends a request that does not wait for keys.
    fn request(&self, op: &'static str, request: &StoreRequest<'_>) -> StoreResult<StoreReply> {
        let reply = self.request_until(op, request, Deadline::of_call())?;
        reply.ok_or_else(|| self.no_reply_error(op))
    }

    fn no_reply_error(&self, op: &'static str) -> StoreError {
        let reason = "it did not reply in time".into();
        StoreError::Lost { op, address: self.address.clone(), reason }
    }

    fn reply_error(
        &self,
        op: &'static str,
        reply: StoreReply,
        key: &str,
        amount: i64,
    ) -> StoreError {
        match reply {
            StoreReply::NotANumber(value) => {
                StoreError::NotANumber { key: key.into(), value, amount }
            }
            StoreReply::Full => StoreError::Full { op, max: super::MAX_STORED },
            _ => StoreError::NotAStore {
                address: self.address.clone(),
                reason: "its reply does not fit the request".into(),
            },
        }
    }

    /// Repeats a request that waits for keys until the keys are set or the timeout has passed.
    fn wait_request<'a>(
        &self,
        (op, keys, timeout): (&'static str, &[&str], Duration),
        request: impl Fn(Duration) -> StoreRequest<'a>,
    ) -> StoreResult<StoreReply> {
        let deadline = Deadline::after(timeout);
        let end = Deadline::after(timeout.saturating_add(REPLY_GRACE));
        loop {
            let slice = deadline.left().min(WAIT_SLICE);
            let reply =
                self.request_until(op, &request(slice), end.at_most(slice + CALL_TIMEOUT))?;
            match reply {
                None if end.has_passed() => return Err(timed_out(op, keys, timeout, false)),
                None => return Err(self.no_reply_error(op)),
                Some(StoreReply::NotYet) if deadline.has_passed() => {
                    return Err(timed_out(op, keys, timeout, true));
                }
                Some(StoreReply::NotYet) => {}
                Some(reply) => return Ok(reply),
            }
        }
    }
}

/// Returns an error if there is no secret and an address is not a loopback address.
fn check_loopback(addresses: &[SocketAddr], secret: Option<&Secret>) -> StoreResult<()> {
    let outside = addresses.iter().find(|address| !address.ip().to_canonical().is_loopback());
    match outside {
        Some(address) if secret.is_none() => {
            Err(StoreError::NeedsSecret { address: address.to_string() })
        }
        _ => Ok(()),
    }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => "it does not answer".into(),
        io::ErrorKind::UnexpectedEof => "it closes the connection".into(),
        _ => error.to_string(),
    }
}

fn display_addresses(addresses: &[SocketAddr]) -> String {
    match addresses {
        [] => "an address that cannot be looked up".into(),
        all => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or "),
    }
}

impl Unchecked for TcpStore {
    fn set(&self, key: &str, value: &[u8]) -> StoreResult<()> {
        match self.request("set", &StoreRequest::Set { key, value })? {
            StoreReply::Done => Ok(()),
            reply => Err(self.reply_error("set", reply, key, 0)),
        }
    }

    fn get(&self, key: &str, timeout: Duration) -> StoreResult<Vec<u8>> {
        let request = |wait| StoreRequest::Get { key, wait };
        match self.wait_request(("get", &[key], timeout), request)? {
            StoreReply::Value(value) => Ok(value.to_vec()),
            reply => Err(self.reply_error("get", reply, key, 0)),
        }
    }

    fn add(&self, key: &str, amount: i64) -> StoreResult<i64> {
        match self.request("add", &StoreRequest::Add { key, amount })? {
            StoreReply::Number(sum) => Ok(sum),
            reply => Err(self.reply_error("add", reply, key, amount)),
        }
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> StoreResult<Option<Vec<u8>>> {
        match self.request("compare_set", &StoreRequest::CompareSet { key, expected, desired })? {
            StoreReply::Value(value) => Ok(Some(value.to_vec())),
            StoreReply::NotYet => Ok(None),
            reply => Err(self.reply_error("compare_set", reply, key, 0)),
        }
    }

    fn delete(&self, key: &str) -> StoreResult<bool> {
        match self.request("delete", &StoreRequest::Delete { key })? {
            StoreReply::Number(n) => Ok(n != 0),
            reply => Err(self.reply_error("delete", reply, key, 0)),
        }
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> StoreResult<()> {
        let request = |wait| StoreRequest::Wait { keys: keys.to_vec(), wait };
        match self.wait_request(("wait", keys, timeout), request)? {
            StoreReply::Done => Ok(()),
            reply => Err(self.reply_error("wait", reply, "", 0)),
        }
    }

    fn check(&self, keys: &[&str]) -> StoreResult<bool> {
        match self.request("check", &StoreRequest::Check { keys: keys.to_vec() })? {
            StoreReply::Number(n) => Ok(n != 0),
            reply => Err(self.reply_error("check", reply, "", 0)),
        }
    }
}
