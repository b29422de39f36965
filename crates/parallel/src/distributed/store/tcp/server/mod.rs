//! The server: one thread that holds the keys and polls all connections.
//!
//! `connection.rs` reads and writes a connection without blocking. `waits.rs` finds the clients that wait for a key.
//! `event_loop.rs` accepts connections, answers requests, and closes connections after their time limits. Calls of the
//! host's own process reach the thread through a channel.
//!
//! Invariant: an unauthenticated connection costs little. Until a client has proven that it knows the secret
//! (`handshake.rs`), its connection may use a buffer of 40 bytes, five seconds, and one of 128 slots. When all slots
//! are taken, a new connection evicts an old one.

mod connection;
mod event_loop;
mod peers;
mod waits;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use mio::{Poll, Waker};

use super::super::deadline::Deadline;
use super::super::secret::Secret;
use super::wire::{StoreReply, StoreRequest};
use event_loop::{EventLoop, ServerCommand, WAKER};

/// A server with its own thread. Dropping the server ends the thread.
#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    commands: Sender<ServerCommand>,
    waker: Waker,
    /// Number of open connections.
    open: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
    /// Identifier of the process in which the thread runs. A forked child does not have the thread.
    process: u32,
}

impl Server {
    /// Starts a server on the first address that it can listen on.
    pub(super) fn start(addresses: &[SocketAddr], secret: Option<Secret>) -> io::Result<Self> {
        let mut bound =
            Err(io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address"));
        for address in addresses {
            bound = mio::net::TcpListener::bind(*address);
            if bound.is_ok() {
                break;
            }
        }
        let listener = bound?;
        // A flood would overflow a short backlog, and a client would then need seconds to connect. The system may use a
        // smaller backlog.
        #[cfg(unix)]
        rustix::net::listen(&listener, 4096)?;
        let address = listener.local_addr()?;
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let (commands, received) = channel();
        let open = Arc::new(AtomicUsize::new(0));
        let event_loop = EventLoop::new(poll, listener, received, secret, Arc::clone(&open))?;
        let thread = std::thread::Builder::new().name("warpline-store".into());
        let thread = Some(thread.spawn(move || event_loop.run())?);
        Ok(Self { address, commands, waker, open, thread, process: std::process::id() })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn connections(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Answers a request of the server's own process, without a connection.
    pub(super) fn answer(
        &self,
        request: &StoreRequest<'_>,
        deadline: Deadline,
    ) -> io::Result<StoreReply> {
        let (reply, replied) = channel();
        let ended = || io::Error::new(io::ErrorKind::BrokenPipe, "its server has ended");
        let command = ServerCommand::Ask { message: request.encode(), reply };
        self.commands.send(command).map_err(|_| ended())?;
        self.waker.wake()?;
        replied.recv_timeout(deadline.left()).map_err(|error| match error {
            std::sync::mpsc::RecvTimeoutError::Timeout => io::ErrorKind::TimedOut.into(),
            std::sync::mpsc::RecvTimeoutError::Disconnected => ended(),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            return;
        }
        let stopping = self.commands.send(ServerCommand::Stop).is_ok() && self.waker.wake().is_ok();
        // Do not join a thread that could not be woken. It ends with the process.
        if let Some(thread) = self.thread.take().filter(|_| stopping) {
            let _ = thread.join();
        }
    }
}
