//! A connection of the server: input, output, and its phase.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use mio::net::TcpStream;

use super::super::super::secret::Secret;
use super::super::handshake::{CLIENT_PROOF_LEN, Challenge, HELLO_LEN};
use super::super::wire::{self, StoreReply};

/// Time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a client to send a whole request, or to receive a whole reply.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time between two requests of a client.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Largest number of bytes read in one turn, so that no connection blocks the others.
const MAX_TURN_BYTES: usize = 256 << 10;

/// The step of the protocol that a connection is at.
#[derive(Debug)]
enum ConnectionPhase {
    /// Receives the client's greeting.
    Hello,
    /// Receives the client's proof.
    Proof(Challenge),
    /// Receives the length of a request.
    Length,
    /// Receives a request of this many bytes.
    Body(usize),
    /// Waits for the server's reply.
    AwaitReply,
    /// Sends a refusal, then closes.
    Refused,
}

/// The result of a turn of a connection.
#[derive(Debug)]
pub(super) enum TurnOutcome {
    /// No more bytes can be read or written now.
    Blocked,
    /// A reply was sent, or [`MAX_TURN_BYTES`] were read. Run another turn after the turns of the other connections.
    More,
    /// The client has proven that it knows the secret.
    Authenticated,
    /// The client has sent this request.
    Request(Vec<u8>),
}

#[derive(Debug)]
pub(super) struct ClientConnection {
    pub(super) stream: TcpStream,
    phase: ConnectionPhase,
    input: Vec<u8>,
    output: SendBuffer,
}

impl ClientConnection {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            phase: ConnectionPhase::Hello,
            input: Vec::new(),
            output: SendBuffer::default(),
        }
    }

    /// Returns the capacity of the buffer of an unfinished request, in bytes.
    pub(super) fn buffered(&self) -> usize {
        self.input.capacity()
    }

    /// Returns the current time limit and its identifier. `None` while the client waits for the reply to its request.
    pub(super) fn limit(&self) -> Option<(u8, Duration)> {
        match self.phase {
            ConnectionPhase::Hello | ConnectionPhase::Proof(_) | ConnectionPhase::Refused => {
                Some((0, HANDSHAKE_TIMEOUT))
            }
            _ if !self.output.is_empty() => Some((1, MESSAGE_TIMEOUT)),
            ConnectionPhase::Length if self.input.is_empty() => Some((2, IDLE_TIMEOUT)),
            ConnectionPhase::Length | ConnectionPhase::Body(_) => Some((3, MESSAGE_TIMEOUT)),
            ConnectionPhase::AwaitReply => None,
        }
    }

    /// Starts to send the reply to a request.
    pub(super) fn reply(&mut self, reply: StoreReply) {
        self.output = SendBuffer::reply(reply);
        self.phase = ConnectionPhase::Length;
    }

    /// Reads and writes without blocking until the server has to act. An error ends the connection.
    pub(super) fn run_turn(&mut self, secret: Option<&Secret>) -> io::Result<TurnOutcome> {
        let mut budget = MAX_TURN_BYTES;
        loop {
            if !self.output.is_empty() {
                if !self.output.send(&mut self.stream)? {
                    return Ok(TurnOutcome::Blocked);
                }
                if matches!(self.phase, ConnectionPhase::Length) {
                    return Ok(TurnOutcome::More);
                }
            }
            let wanted = match self.phase {
                ConnectionPhase::Hello => HELLO_LEN,
                ConnectionPhase::Proof(_) => CLIENT_PROOF_LEN,
                ConnectionPhase::Length => 4,
                ConnectionPhase::Body(length) => length,
                ConnectionPhase::AwaitReply => {
                    return self.check_open().map(|()| TurnOutcome::Blocked);
                }
                ConnectionPhase::Refused => return Err(io::ErrorKind::PermissionDenied.into()),
            };
            if !self.fill(wanted, &mut budget)? {
                return Ok(if budget == 0 { TurnOutcome::More } else { TurnOutcome::Blocked });
            }
            let input = std::mem::take(&mut self.input);
            match &self.phase {
                ConnectionPhase::Hello => {
                    let (challenge, answer) = Challenge::new(&input)?;
                    self.output = SendBuffer::bytes(answer);
                    self.phase = ConnectionPhase::Proof(challenge);
                }
                ConnectionPhase::Proof(challenge) => {
                    let (accepted, answer) = challenge.answer(secret, &input);
                    self.output = SendBuffer::bytes(answer);
                    self.phase =
                        if accepted { ConnectionPhase::Length } else { ConnectionPhase::Refused };
                    if accepted {
                        return Ok(TurnOutcome::Authenticated);
                    }
                }
                ConnectionPhase::Length => {
                    let length = input.as_slice().try_into().map_err(io::Error::other)?;
                    self.phase = ConnectionPhase::Body(wire::length(length)?);
                }
                _ => {
                    self.phase = ConnectionPhase::AwaitReply;
                    return Ok(TurnOutcome::Request(input));
                }
            }
        }
    }

    /// Reads until `wanted` bytes have arrived or `budget` is used up. Returns `false` if bytes are missing.
    fn fill(&mut self, wanted: usize, budget: &mut usize) -> io::Result<bool> {
        let mut scratch = [0; 16 << 10];
        while self.input.len() < wanted {
            let most = (wanted - self.input.len()).min(scratch.len()).min(*budget);
            if most == 0 {
                return Ok(false);
            }
            match self.stream.read(&mut scratch[..most]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    self.input.extend(&scratch[..read]);
                    *budget -= read;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Returns an error if the client, which waits for a reply, has closed the connection or sent more bytes.
    fn check_open(&self) -> io::Result<()> {
        match self.stream.peek(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {
                Err(wire::invalid("a request arrived before the reply to the previous request"))
            }
        }
    }
}

/// Bytes to send: a head, then a value. The value may be shared with the store.
#[derive(Debug, Default)]
struct SendBuffer {
    head: Vec<u8>,
    value: Option<Arc<[u8]>>,
    sent: usize,
}

impl SendBuffer {
    fn bytes(head: Vec<u8>) -> Self {
        Self { head, ..Self::default() }
    }

    fn reply(reply: StoreReply) -> Self {
        match reply {
            StoreReply::Value(value) => {
                let head = wire::value_head(value.len());
                Self { head, value: Some(value), sent: 0 }
            }
            other => {
                let body = other.encode();
                let length = (body.len() as u32).to_le_bytes();
                Self::bytes([&length[..], &body].concat())
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.head.is_empty()
    }

    /// Sends as much as the connection accepts. Returns `true` if everything was sent.
    fn send(&mut self, stream: &mut TcpStream) -> io::Result<bool> {
        loop {
            let value = self.value.as_deref().unwrap_or_default();
            let rest = match self.head.get(self.sent..).filter(|rest| !rest.is_empty()) {
                Some(head) => head,
                None => &value[self.sent - self.head.len()..],
            };
            if rest.is_empty() {
                *self = Self::default();
                return Ok(true);
            }
            match stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
