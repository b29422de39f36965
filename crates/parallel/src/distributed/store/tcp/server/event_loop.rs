//! The event loop of the server's thread, which never blocks on a single client.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use super::super::super::secret::Secret;
use super::super::super::values::StoreValues;
use super::super::super::{StoreError, StoreResult};
use super::super::wire::{StoreReply, StoreRequest};
use super::connection::{ClientConnection, TurnOutcome};
use super::peers::{MAX_UNAUTHENTICATED, StorePeers};
use super::waits::{KeyWait, Waits};

/// Largest number of connections accepted in one iteration. Smaller than [`MAX_UNAUTHENTICATED`], so that the greeting
/// of a prompt client is read before newer connections evict the client.
const ACCEPTS: usize = MAX_UNAUTHENTICATED / 4;
/// Pause after the system failed to accept a connection, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Longest wait of one request. Clients repeat the request if they wait longer.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// Largest total size of unfinished requests and of the keys that clients wait for, in bytes.
const MAX_BUFFERED: usize = 512 << 20;

const LISTENER: Token = Token(usize::MAX);
pub(super) const WAKER: Token = Token(usize::MAX - 1);

/// A command of the server's own process to the thread.
#[derive(Debug)]
pub(super) enum ServerCommand {
    Ask { message: Vec<u8>, reply: Sender<StoreReply> },
    Stop,
}

/// The destination of replies.
#[derive(Debug)]
enum ReplySink {
    Socket(ClientConnection),
    Local(Sender<StoreReply>),
}

/// A connection, or a request of the server's own process.
#[derive(Debug)]
struct ClientState {
    sink: ReplySink,
    /// Time at which the connection is closed or its wait ends, and the identifier of the time limit ([`WAIT_LIMIT`] or
    /// that of [`ClientConnection::limit`]).
    deadline: Option<(u8, Instant)>,
    /// Whether the connection is in [`EventLoop::ready`].
    queued: bool,
    /// Size of the unfinished request and of the awaited keys, in bytes.
    buffered: usize,
}

/// Identifier of the time limit of a wait. [`ClientConnection::limit`] returns the other identifiers.
const WAIT_LIMIT: u8 = u8::MAX;

#[derive(Debug)]
pub(super) struct EventLoop {
    poll: Poll,
    listener: TcpListener,
    commands: Receiver<ServerCommand>,
    secret: Option<Secret>,
    values: StoreValues,
    waits: Waits,
    clients: HashMap<usize, ClientState>,
    next_id: usize,
    peers: StorePeers,
    deadlines: BTreeSet<(Instant, usize)>,
    ready: VecDeque<usize>,
    /// Total of [`ClientState::buffered`], in bytes.
    buffered: usize,
    /// Time at which to accept connections again after the system failed to accept one.
    paused: Option<Instant>,
    open: Arc<AtomicUsize>,
}

impl EventLoop {
    pub(super) fn new(
        poll: Poll,
        mut listener: TcpListener,
        commands: Receiver<ServerCommand>,
        secret: Option<Secret>,
        open: Arc<AtomicUsize>,
    ) -> io::Result<Self> {
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Self {
            poll,
            listener,
            commands,
            secret,
            values: StoreValues::default(),
            waits: Waits::default(),
            clients: HashMap::new(),
            next_id: 0,
            peers: StorePeers::default(),
            deadlines: BTreeSet::new(),
            ready: VecDeque::new(),
            buffered: 0,
            paused: None,
            open,
        })
    }

    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let mut accepting = false;
        loop {
            let busy = (accepting && self.paused.is_none()) || !self.ready.is_empty();
            let timeout = if busy { Some(Duration::ZERO) } else { self.until_deadline() };
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return,
                _ => {}
            }
            for event in &events {
                match event.token() {
                    LISTENER => accepting = true,
                    WAKER => {}
                    Token(id) => self.queue(id),
                }
            }
            if !self.run_commands() {
                return;
            }
            if self.paused.is_some_and(|until| until <= Instant::now()) {
                self.paused = None;
                accepting = true;
            }
            if accepting && self.paused.is_none() {
                accepting = self.accept();
            }
            for _ in 0..self.ready.len() {
                if let Some(id) = self.ready.pop_front() {
                    self.run_turn(id);
                }
            }
            self.expire();
        }
    }

    fn until_deadline(&self) -> Option<Duration> {
        let first = self.deadlines.first().map(|(at, _)| *at);
        let first = first.into_iter().chain(self.paused).min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    fn queue(&mut self, id: usize) {
        if let Some(client) = self.clients.get_mut(&id)
            && !std::mem::replace(&mut client.queued, true)
        {
            self.ready.push_back(id);
        }
    }

    /// Runs the commands of the server's own process. Returns `false` when the server must stop.
    fn run_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(ServerCommand::Ask { message, reply }) => {
                    let id = self.add(ReplySink::Local(reply));
                    self.handle(id, &message);
                }
                Err(TryRecvError::Empty) => return true,
                Ok(ServerCommand::Stop) | Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn add(&mut self, sink: ReplySink) -> usize {
        let id = self.next_id;
        // Ids stay below the tokens `LISTENER` and `WAKER`.
        self.next_id = (self.next_id + 1) % (usize::MAX - 2);
        self.clients.insert(id, ClientState { sink, deadline: None, queued: false, buffered: 0 });
        id
    }

    /// Accepts a few connections. Returns `true` if there may be more.
    fn accept(&mut self) -> bool {
        for _ in 0..ACCEPTS {
            match self.listener.accept() {
                Ok((stream, peer)) => self.admit(stream, peer.ip()),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return false,
                    io::ErrorKind::Interrupted
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::ConnectionReset => {}
                    _ => {
                        // Probably no file descriptor is free: evict a connection to free one.
                        self.evict_unauthenticated();
                        self.paused = Some(Instant::now() + ACCEPT_PAUSE);
                        return false;
                    }
                },
            }
        }
        true
    }

    fn admit(&mut self, mut stream: TcpStream, peer: IpAddr) {
        if self.peers.is_full() {
            self.evict_unauthenticated();
        }
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = self.poll.registry().register(&mut stream, Token(self.next_id), interest);
        if stream.set_nodelay(true).and(registered).is_err() {
            return;
        }
        let id = self.add(ReplySink::Socket(ClientConnection::new(stream)));
        self.open.fetch_add(1, Ordering::Relaxed);
        self.peers.add_unauthenticated(id, peer);
        self.set_limit(id);
        self.queue(id);
    }

    fn evict_unauthenticated(&mut self) {
        if let Some(id) = self.peers.unauthenticated_to_evict() {
            self.close(id);
        }
    }

    /// Runs a turn of a connection.
    fn run_turn(&mut self, id: usize) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.queued = false;
        let ReplySink::Socket(connection) = &mut client.sink else { return };
        match connection.run_turn(self.secret.as_ref()) {
            Err(_) => self.close(id),
            Ok(TurnOutcome::Blocked) => self.set_limit(id),
            Ok(TurnOutcome::More) => {
                self.set_limit(id);
                self.queue(id);
            }
            Ok(TurnOutcome::Authenticated) => {
                self.set_limit(id);
                self.queue(id);
                if !self.peers.authenticate(id) {
                    self.close(id);
                }
            }
            Ok(TurnOutcome::Request(message)) => {
                self.handle(id, &message);
                // The next turn detects whether the client has closed the connection.
                self.queue(id);
            }
        }
        self.update_buffered(id);
    }

    /// Updates the number of bytes that the server holds for a connection. If the total exceeds [`MAX_BUFFERED`],
    /// closes the connection with the most bytes.
    fn update_buffered(&mut self, id: usize) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let ReplySink::Socket(connection) = &client.sink else { return };
        let bytes = connection.buffered() + self.waits.bytes(id);
        self.buffered = self.buffered + bytes - std::mem::replace(&mut client.buffered, bytes);
        if self.buffered > MAX_BUFFERED {
            let most = self.clients.iter().max_by_key(|(_, client)| client.buffered);
            if let Some((&most, _)) = most {
                self.close(most);
            }
        }
    }

    /// Answers a request, or begins to wait for its keys.
    fn handle(&mut self, id: usize, message: &[u8]) {
        match self.answer(id, message) {
            Ok(Some(reply)) => self.reply(id, reply),
            Ok(None) => {}
            Err(_) => self.close(id),
        }
    }

    fn answer(&mut self, id: usize, message: &[u8]) -> io::Result<Option<StoreReply>> {
        let reply = match StoreRequest::decode(message)? {
            StoreRequest::Set { key, value } => {
                let set = self.values.set("set", key, value);
                self.answer_waits(key);
                change_reply(set.map(|()| StoreReply::Done))
            }
            StoreRequest::Get { key, wait } => {
                return Ok(self.wait(id, KeyWait::new(vec![key.into()], true), wait));
            }
            StoreRequest::Add { key, amount } => {
                let sum = self.values.add(key, amount);
                self.answer_waits(key);
                change_reply(sum.map(StoreReply::Number))
            }
            StoreRequest::CompareSet { key, expected, desired } => {
                let value = self.values.compare_set(key, expected, desired);
                self.answer_waits(key);
                change_reply(value.map(|value| value.map_or(StoreReply::NotYet, StoreReply::Value)))
            }
            StoreRequest::Delete { key } => StoreReply::Number(self.values.delete(key).into()),
            StoreRequest::Wait { keys, wait } => {
                let keys = keys.into_iter().map(String::from).collect();
                return Ok(self.wait(id, KeyWait::new(keys, false), wait));
            }
            StoreRequest::Check { keys } => {
                StoreReply::Number(self.values.contains_all(&keys).into())
            }
        };
        Ok(Some(reply))
    }

    fn wait(&mut self, id: usize, keys: KeyWait, time: Duration) -> Option<StoreReply> {
        let reply = self.waits.begin(id, keys, &self.values);
        if reply.is_none() {
            self.set_deadline(id, Some((WAIT_LIMIT, Instant::now() + time.min(MAX_WAIT))));
        }
        reply
    }

    /// Answers the clients that waited for a key, if the key is set.
    fn answer_waits(&mut self, key: &str) {
        if self.values.contains(key) {
            for (id, reply) in self.waits.set(key, &self.values) {
                self.reply(id, reply);
            }
        }
    }

    fn reply(&mut self, id: usize, reply: StoreReply) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        match &mut client.sink {
            ReplySink::Socket(connection) => {
                connection.reply(reply);
                self.set_limit(id);
                self.queue(id);
                self.update_buffered(id);
            }
            ReplySink::Local(sender) => {
                // The waiting thread may have given up.
                let _ = sender.send(reply);
                self.close(id);
            }
        }
    }

    /// Starts the time limit of a connection's phase, unless it is already running.
    fn set_limit(&mut self, id: usize) {
        let Some(client) = self.clients.get(&id) else { return };
        let ReplySink::Socket(connection) = &client.sink else { return };
        if self.waits.contains(id) {
            return;
        }
        let limit = connection.limit();
        if limit.map(|(kind, _)| kind) != client.deadline.map(|(kind, _)| kind) {
            self.set_deadline(id, limit.map(|(kind, time)| (kind, Instant::now() + time)));
        }
    }

    fn set_deadline(&mut self, id: usize, deadline: Option<(u8, Instant)>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if let Some((_, before)) = std::mem::replace(&mut client.deadline, deadline) {
            self.deadlines.remove(&(before, id));
        }
        self.deadlines.extend(deadline.map(|(_, at)| (at, id)));
    }

    /// Ends waits and closes connections whose time limit has passed.
    fn expire(&mut self) {
        let now = Instant::now();
        while let Some((_, id)) = self.deadlines.first().copied().filter(|(at, _)| *at <= now) {
            match self.waits.end(id) {
                true => {
                    self.set_deadline(id, None);
                    self.reply(id, StoreReply::NotYet);
                }
                false => self.close(id),
            }
        }
    }

    fn close(&mut self, id: usize) {
        self.set_deadline(id, None);
        self.waits.end(id);
        self.peers.remove(id);
        let Some(mut client) = self.clients.remove(&id) else { return };
        self.buffered -= client.buffered;
        if let ReplySink::Socket(connection) = &mut client.sink {
            let _ = self.poll.registry().deregister(&mut connection.stream);
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Converts the result of a change to a reply, even if the store has refused the change.
fn change_reply(result: StoreResult<StoreReply>) -> StoreReply {
    match result {
        Ok(reply) => reply,
        Err(StoreError::NotANumber { value, .. }) => StoreReply::NotANumber(value),
        Err(_) => StoreReply::Full,
    }
}
