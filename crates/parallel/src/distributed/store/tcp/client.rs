//! The client and its connections.
//!
//! Each call uses its own connection, so a wait does not block other calls. Long waits are repeated in slices, so that
//! the client detects a host that has disappeared without closing the connection.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::super::deadline::{Deadline, TimedStream};
use super::super::secret::Secret;
use super::handshake::{self, ConnectError};
use super::wire::{self, StoreReply, StoreRequest};

/// Pause between two attempts to reach a server.
const RETRY: Duration = Duration::from_millis(50);
/// Time after which an idle connection is not used again. Less than the time after which a server closes idle
/// connections.
const MAX_IDLE_TIME: Duration = Duration::from_secs(60);
/// Largest number of idle connections to keep.
const MAX_IDLE_CONNECTIONS: usize = 8;

/// A client of one server.
#[derive(Debug)]
pub(super) struct Client {
    addresses: Vec<SocketAddr>,
    secret: Option<Secret>,
    /// Idle connections, and the time at which each became idle.
    idle: Mutex<Vec<(TcpStream, Instant)>>,
}

impl Client {
    /// Creates a client with a first connection.
    pub(super) fn connect(
        addresses: Vec<SocketAddr>,
        secret: Option<Secret>,
        deadline: Deadline,
    ) -> Result<Self, ConnectError> {
        let stream = connect(&addresses, secret.as_ref(), deadline)?;
        let idle = Mutex::new(vec![(stream, Instant::now())]);
        Ok(Self { addresses, secret, idle })
    }

    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Sends a request and receives its reply.
    pub(super) fn request(
        &self,
        request: &StoreRequest<'_>,
        deadline: Deadline,
    ) -> Result<StoreReply, ConnectError> {
        let stream = self.connection(deadline)?;
        let mut timed = TimedStream { stream: &stream, deadline };
        wire::send(&mut timed, &request.encode())?;
        let reply = StoreReply::decode(&wire::receive(&mut timed)?)?;
        // Do not keep a connection after a failure: a late reply would be taken for the reply to the next request.
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE_CONNECTIONS {
            idle.push((stream, Instant::now()));
        }
        Ok(reply)
    }

    /// Returns an idle connection, or a new one.
    fn connection(&self, deadline: Deadline) -> Result<TcpStream, ConnectError> {
        {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.retain(|(_, since)| since.elapsed() < MAX_IDLE_TIME);
            if let Some((stream, _)) = idle.pop() {
                return Ok(stream);
            }
        }
        loop {
            match connect(&self.addresses, self.secret.as_ref(), deadline) {
                // An overloaded server closes connections during the handshake. A retry is safe, because no request was
                // sent yet.
                Err(ConnectError::Io(error))
                    if is_closed_by_peer(&error) && deadline.left() > RETRY =>
                {
                    std::thread::sleep(RETRY);
                }
                connected => return connected,
            }
        }
    }
}

/// Returns `true` if the peer closed a connection that it had accepted.
fn is_closed_by_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// Looks up the addresses of a name, in a separate thread, because the system's look-up has no timeout.
pub(in crate::distributed) fn look_up<A>(
    name: &Arc<A>,
    deadline: Deadline,
) -> io::Result<Vec<SocketAddr>>
where
    A: ToSocketAddrs + Send + Sync + 'static,
{
    let (sender, receiver) = channel();
    let name = Arc::clone(name);
    let thread = std::thread::Builder::new().name("warpline-lookup".into());
    thread.spawn(move || sender.send(name.to_socket_addrs().map(Iterator::collect)))?;
    let timed_out = || io::Error::new(io::ErrorKind::TimedOut, "its name could not be looked up");
    receiver.recv_timeout(deadline.left()).unwrap_or_else(|_| Err(timed_out()))
}

/// Connects to the first address at which a server accepts the connection and completes the handshake.
pub(super) fn connect(
    addresses: &[SocketAddr],
    secret: Option<&Secret>,
    deadline: Deadline,
) -> Result<TcpStream, ConnectError> {
    let error = io::Error::new(io::ErrorKind::AddrNotAvailable, "its name has no address");
    let mut last = ConnectError::Io(error);
    for (at, address) in addresses.iter().enumerate() {
        // Each address gets a part of the time, so that an address that does not answer leaves time for the next.
        let part = deadline.left() / (addresses.len() - at) as u32;
        let deadline = deadline.at_most(part);
        let left = deadline.left().clamp(Duration::from_millis(1), Duration::from_secs(3600));
        let connected = TcpStream::connect_timeout(address, left).map_err(ConnectError::Io);
        match connected.and_then(|stream| greet(stream, secret, deadline)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

pub(super) fn greet(
    stream: TcpStream,
    secret: Option<&Secret>,
    deadline: Deadline,
) -> Result<TcpStream, ConnectError> {
    // Without a listener, the system may choose the destination port as the connection's own port, and the connection
    // reaches itself.
    if stream.local_addr()? == stream.peer_addr()? {
        let error = io::Error::new(io::ErrorKind::ConnectionRefused, "nothing listens there");
        return Err(ConnectError::Io(error));
    }
    stream.set_nodelay(true)?;
    handshake::greet(&mut TimedStream { stream: &stream, deadline }, secret)?;
    Ok(stream)
}

/// Tries to connect until the deadline, or until a server turns out to have another protocol or another secret. Looks
/// up the name again each time, because the host may not be known yet. `check` may refuse the addresses.
pub(super) fn retry<A, E>(
    name: A,
    secret: Option<&Secret>,
    deadline: Deadline,
    check: impl Fn(&[SocketAddr]) -> Result<(), E>,
) -> Result<Result<Client, (Vec<SocketAddr>, ConnectError)>, E>
where
    A: ToSocketAddrs + Send + Sync + 'static,
{
    let name = Arc::new(name);
    loop {
        let (addresses, failed) = match look_up(&name, deadline) {
            Err(error) => (Vec::new(), ConnectError::Io(error)),
            Ok(addresses) => {
                check(&addresses)?;
                match Client::connect(addresses.clone(), secret.cloned(), deadline) {
                    Ok(client) => return Ok(Ok(client)),
                    Err(failed) => (addresses, failed),
                }
            }
        };
        if !matches!(failed, ConnectError::Io(_)) || deadline.left() <= RETRY {
            return Ok(Err((addresses, failed)));
        }
        std::thread::sleep(RETRY);
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
        let failed = greet(stream, None, Deadline::after(Duration::from_secs(30))).unwrap_err();
        // Clients retry after this error.
        let ConnectError::Io(error) = failed else { panic!("{failed:?}") };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error}");
    }
}
