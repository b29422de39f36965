//! A store that rank 0 hosts, and the others reach over TCP.

mod server;
mod wire;

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{StoreError, StoreResult, Unchecked, timed_out};
use server::Server;
use wire::{Reply, Request};

/// How long the server may take over what needs no waiting.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long one request lets the server wait for keys; it is repeated until the caller's time is up.
/// So a server notices soon when the one who waits is gone.
const WAIT_SLICE: Duration = Duration::from_millis(500);
/// Between two tries to reach a server that is not there yet.
const RETRY: Duration = Duration::from_millis(50);

/// A store that one process hosts and the others reach over TCP (`torch.distributed.TCPStore`).
///
/// The host has no protection but the network's: whoever reaches the port may read and write. What
/// speaks another protocol is turned away. Messages are bounded ([`MAX_VALUE`](super::MAX_VALUE)).
/// Each operation has a connection to itself, so that one that waits holds up no other.
///
/// ```
/// use std::time::Duration;
/// use warpline_parallel::distributed::{Store, TcpStore};
///
/// let timeout = Duration::from_secs(10);
/// let host = TcpStore::host("127.0.0.1:0")?;
/// let client = TcpStore::connect(("127.0.0.1", host.port()), timeout)?;
/// client.set("id", b"42")?;
/// assert_eq!(host.get("id", timeout)?, b"42");
/// # Ok::<(), warpline_parallel::distributed::StoreError>(())
/// ```
#[derive(Debug)]
pub struct TcpStore {
    /// As errors show it.
    address: String,
    ends: Ends,
}

#[derive(Debug)]
enum Ends {
    Host(Server),
    Client {
        addresses: Vec<SocketAddr>,
        /// Connections that no operation uses.
        idle: Mutex<Vec<TcpStream>>,
    },
}

impl TcpStore {
    /// A store that this process hosts, until it is dropped. Port 0 takes any that is free.
    ///
    /// # Errors
    /// [`StoreError::Bind`].
    pub fn host(address: impl ToSocketAddrs) -> StoreResult<Self> {
        let addresses: Vec<_> =
            address.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
        let server = Server::start(&addresses).map_err(|error| StoreError::Bind {
            address: shown(&addresses),
            reason: error.to_string(),
        })?;
        Ok(Self { address: server.address().to_string(), ends: Ends::Host(server) })
    }

    /// A store that another process hosts, or will within `timeout`.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`], [`StoreError::NotAStore`].
    pub fn connect(address: impl ToSocketAddrs, timeout: Duration) -> StoreResult<Self> {
        let deadline = Instant::now().checked_add(timeout);
        let unreachable = |address, error: &io::Error| StoreError::Unreachable {
            address,
            timeout,
            reason: error.to_string(),
        };
        loop {
            // Names are looked up again each time: the host may not be known yet.
            let (shown, error) = match address.to_socket_addrs() {
                Err(error) => ("its host's name".into(), error),
                Ok(found) => {
                    let addresses: Vec<_> = found.collect();
                    let shown = shown(&addresses);
                    let left = deadline.map_or(REPLY_TIMEOUT, |d| d - Instant::now().min(d));
                    match connect(&addresses, left) {
                        Ok(stream) => {
                            let idle = Mutex::new(vec![stream]);
                            return Ok(Self {
                                address: shown,
                                ends: Ends::Client { addresses, idle },
                            });
                        }
                        Err(error) if is_foreign(&error) => {
                            let reason = error.to_string();
                            return Err(StoreError::NotAStore { address: shown, reason });
                        }
                        Err(error) => (shown, error),
                    }
                }
            };
            if deadline.is_some_and(|d| Instant::now() + RETRY >= d) {
                return Err(unreachable(shown, &error));
            }
            std::thread::sleep(RETRY);
        }
    }

    /// The port that its host listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        match &self.ends {
            Ends::Host(server) => server.address().port(),
            Ends::Client { addresses, .. } => addresses.first().map_or(0, SocketAddr::port),
        }
    }

    /// Whether this process hosts it.
    #[must_use]
    pub fn is_host(&self) -> bool {
        matches!(self.ends, Ends::Host(_))
    }

    /// How many connections its host has; 0 where another process hosts it.
    #[must_use]
    pub fn connections(&self) -> usize {
        match &self.ends {
            Ends::Host(server) => server.connections(),
            Ends::Client { .. } => 0,
        }
    }

    fn request(&self, op: &'static str, request: &Request<'_>) -> StoreResult<Reply> {
        let (addresses, idle) = match &self.ends {
            Ends::Host(server) => return Ok(server.answer(request)),
            Ends::Client { addresses, idle } => (addresses, idle),
        };
        let lock = || idle.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = |error: io::Error| StoreError::Lost {
            op,
            address: self.address.clone(),
            reason: error.to_string(),
        };
        let kept = lock().pop();
        let mut stream = match kept {
            Some(stream) => stream,
            None => connect(addresses, REPLY_TIMEOUT).map_err(lost)?,
        };
        let reply = wire::send(&mut stream, &request.encode())
            .and_then(|()| wire::receive(&mut stream))
            .and_then(|bytes| Reply::decode(&bytes))
            .map_err(lost)?;
        // One that failed is closed instead: what comes next on it could belong to this request.
        lock().push(stream);
        Ok(reply)
    }

    fn unexpected(&self, reply: Reply, key: &str, amount: i64) -> StoreError {
        match reply {
            Reply::NotANumber(value) => StoreError::NotANumber { key: key.into(), value, amount },
            _ => StoreError::NotAStore {
                address: self.address.clone(),
                reason: "its reply is of another kind than the request".into(),
            },
        }
    }

    fn waited<'a>(
        &self,
        (op, keys, timeout): (&'static str, &[&str], Duration),
        request: impl Fn(Duration) -> Request<'a>,
    ) -> StoreResult<Reply> {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let left = deadline.map_or(WAIT_SLICE, |d| d.saturating_duration_since(Instant::now()));
            match self.request(op, &request(left.min(WAIT_SLICE)))? {
                Reply::NotYet if left <= WAIT_SLICE => return Err(timed_out(op, keys, timeout)),
                Reply::NotYet => {}
                reply => return Ok(reply),
            }
        }
    }
}

/// Connects and greets.
fn connect(addresses: &[SocketAddr], timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for address in addresses {
        // A timeout of zero is refused.
        let timeout = timeout.clamp(Duration::from_millis(10), REPLY_TIMEOUT);
        let connected = TcpStream::connect_timeout(address, timeout);
        match connected.and_then(|stream| greet(stream, timeout)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn greet(mut stream: TcpStream, timeout: Duration) -> io::Result<TcpStream> {
    // Where nobody listens, a connection may get the very port that it goes to as its own, and then
    // reaches itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens there"));
    }
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
    stream.set_read_timeout(Some(timeout.max(Duration::from_secs(1))))?;
    wire::greet(&mut stream)?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT + WAIT_SLICE))?;
    Ok(stream)
}

/// Whether somebody was there who speaks something else.
fn is_foreign(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

fn shown(addresses: &[SocketAddr]) -> String {
    match addresses {
        [] => "an address that cannot be looked up".into(),
        all => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or "),
    }
}

impl Unchecked for TcpStore {
    fn set(&self, key: &str, value: &[u8]) -> StoreResult<()> {
        match self.request("set", &Request::Set { key, value })? {
            Reply::Done => Ok(()),
            reply => Err(self.unexpected(reply, key, 0)),
        }
    }

    fn get(&self, key: &str, timeout: Duration) -> StoreResult<Vec<u8>> {
        let request = |wait| Request::Get { key, wait };
        match self.waited(("get", &[key], timeout), request)? {
            Reply::Value(value) => Ok(value),
            reply => Err(self.unexpected(reply, key, 0)),
        }
    }

    fn add(&self, key: &str, amount: i64) -> StoreResult<i64> {
        match self.request("add", &Request::Add { key, amount })? {
            Reply::Number(sum) => Ok(sum),
            reply => Err(self.unexpected(reply, key, amount)),
        }
    }

    fn compare_set(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> StoreResult<Option<Vec<u8>>> {
        match self.request("compare_set", &Request::CompareSet { key, expected, desired })? {
            Reply::Value(value) => Ok(Some(value)),
            Reply::NotYet => Ok(None),
            reply => Err(self.unexpected(reply, key, 0)),
        }
    }

    fn delete(&self, key: &str) -> StoreResult<bool> {
        match self.request("delete", &Request::Delete { key })? {
            Reply::Number(n) => Ok(n != 0),
            reply => Err(self.unexpected(reply, key, 0)),
        }
    }

    fn wait(&self, keys: &[&str], timeout: Duration) -> StoreResult<()> {
        let request = |wait| Request::Wait { keys: keys.to_vec(), wait };
        match self.waited(("wait", keys, timeout), request)? {
            Reply::Done => Ok(()),
            reply => Err(self.unexpected(reply, "", 0)),
        }
    }

    fn check(&self, keys: &[&str]) -> StoreResult<bool> {
        match self.request("check", &Request::Check { keys: keys.to_vec() })? {
            Reply::Number(n) => Ok(n != 0),
            reply => Err(self.unexpected(reply, "", 0)),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

    use super::*;

    #[test]
    fn a_connection_to_itself_is_no_store() {
        let own = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&own, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let stream = TcpStream::from(own);
        let address = stream.local_addr().unwrap();
        connect(&stream, &address).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        let error = greet(stream, REPLY_TIMEOUT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error}");
        // So that a client tries again.
        assert!(!is_foreign(&error));
    }
}
