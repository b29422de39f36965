//! The side that has the keys: a thread that takes connections, and one for each of them.

use std::collections::HashMap;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::super::StoreError;
use super::super::table::Table;
use super::wire::{self, Reply, Request};
use super::{REPLY_TIMEOUT, WAIT_SLICE};

/// How long somebody who has connected may take to say who he is.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// The most connections at once.
const MAX_CONNECTIONS: usize = 8192;

#[derive(Debug)]
pub(super) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    table: Table,
    stopping: AtomicBool,
    /// Those that are open, by number, so that a server that stops can close them.
    open: Mutex<HashMap<u64, TcpStream>>,
}

impl Server {
    pub(super) fn start(addresses: &[SocketAddr]) -> io::Result<Self> {
        let listener = TcpListener::bind(addresses)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("warpline-store".into());
        let accepting = thread.spawn(move || for_thread.accept(&listener))?;
        Ok(Self { address, shared, accepting: Some(accepting) })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn connections(&self) -> usize {
        self.shared.open().len()
    }

    pub(super) fn answer(&self, request: &Request<'_>) -> Reply {
        self.shared.answer(request)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.shared.table.close();
        // A connection of our own wakes the thread that accepts.
        let ip = match self.address.ip() {
            ip if !ip.is_unspecified() => ip,
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let address = SocketAddr::new(ip, self.address.port());
        let woken = TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok();
        for stream in self.shared.open().values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // One that could not be woken ends with the process.
        if let Some(thread) = self.accepting.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for number in 0.. {
            let accepted = listener.accept();
            if self.stopping.load(Ordering::SeqCst) {
                return;
            }
            match accepted {
                Ok((stream, _)) => self.serve_in_thread(number, stream),
                // Out of file descriptors, or a client that was gone at once.
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn serve_in_thread(self: &Arc<Self>, number: u64, stream: TcpStream) {
        let mut open = self.open();
        let Some(copy) = stream.try_clone().ok().filter(|_| open.len() < MAX_CONNECTIONS) else {
            return;
        };
        open.insert(number, copy);
        drop(open);
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name("warpline-store".into());
        let spawned = thread.spawn(move || {
            // Whatever ends a connection ends it alone.
            let _ = shared.serve(stream);
            shared.close(number);
        });
        if spawned.is_err() {
            self.close(number);
        }
    }

    fn close(&self, number: u64) {
        if let Some(stream) = self.open().remove(&number) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_read_timeout(Some(GREETING_TIMEOUT))?;
        wire::greet(&mut stream)?;
        while !self.stopping.load(Ordering::SeqCst) {
            // A client may be silent for as long as it likes, but not in the middle of a message.
            stream.set_read_timeout(None)?;
            let mut first = [0; 1];
            stream.read_exact(&mut first)?;
            stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
            let message = wire::receive(&mut first.as_slice().chain(&mut stream))?;
            let reply = self.answer(&Request::decode(&message)?);
            wire::send(&mut stream, &reply.encode())?;
        }
        Ok(())
    }

    fn answer(&self, request: &Request<'_>) -> Reply {
        let table = &self.table;
        let value = |value: Option<Vec<u8>>| value.map_or(Reply::NotYet, Reply::Value);
        match request {
            Request::Set { key, value } => {
                table.set(key, value);
                Reply::Done
            }
            Request::Get { key, wait } => value(table.get(key, (*wait).min(WAIT_SLICE))),
            Request::Add { key, amount } => match table.add(key, *amount) {
                Ok(sum) => Reply::Number(sum),
                Err(StoreError::NotANumber { value, .. }) => Reply::NotANumber(value),
                Err(other) => Reply::NotANumber(other.to_string()),
            },
            Request::CompareSet { key, expected, desired } => {
                value(table.compare_set(key, expected, desired))
            }
            Request::Delete { key } => Reply::Number(table.delete(key).into()),
            Request::Wait { keys, wait } if table.wait(keys, (*wait).min(WAIT_SLICE)) => {
                Reply::Done
            }
            Request::Wait { .. } => Reply::NotYet,
            Request::Check { keys } => Reply::Number(table.check(keys).into()),
        }
    }
}
