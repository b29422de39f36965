//! Transport of messages over a Unix socket. One deadline limits each call.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::Location;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, sendmsg,
};

use super::message::{self, HEADER_LEN, MessageKind, invalid_message};
use crate::{Error, ErrorKind, Result, ResultExt as _};

/// The deadline of a call. `None`: no limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    pub(super) fn after(timeout: Option<Duration>) -> Self {
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    pub(super) fn instant(self) -> Option<Instant> {
        self.0
    }

    pub(super) fn has_passed(self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }

    /// Returns the time until the deadline.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if the deadline has passed.
    #[track_caller]
    fn remaining(self, op: &'static str) -> Result<Option<Duration>> {
        let Some(at) = self.0 else { return Ok(None) };
        match at.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Ok(Some(left)),
            _ => {
                let reason = "the other process did nothing before the timeout".to_owned();
                Err(ErrorKind::TimedOut { reason }.of(op))
            }
        }
    }

    /// Waits until the socket is ready, or closed.
    #[track_caller]
    fn wait(self, op: &'static str, socket: &UnixStream, flags: PollFlags) -> Result<()> {
        loop {
            let left = self.remaining(op)?.map(|left| Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            });
            match poll(&mut [PollFd::new(socket, flags)], left.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(socket_error(op, error)),
            }
        }
    }
}

/// One direction of a channel. At most one call uses a direction at a time.
#[derive(Debug, Default)]
pub(super) struct Direction {
    state: Mutex<DirectionState>,
    free: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct DirectionState {
    busy: bool,
    /// Whether a message was sent or received only in part, so that later messages cannot be found.
    broken: bool,
}

/// Exclusive use of a direction, until dropped.
#[derive(Debug)]
pub(super) struct DirectionGuard<'a> {
    direction: &'a Direction,
    broken: bool,
}

impl Direction {
    fn lock(&self) -> MutexGuard<'_, DirectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other call uses the direction, and acquires it.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if the deadline passes. [`ErrorKind::InvalidArgument`] if part of a message was
    /// lost.
    #[track_caller]
    pub(super) fn acquire(
        &self,
        op: &'static str,
        deadline: Deadline,
    ) -> Result<DirectionGuard<'_>> {
        let mut state = self.lock();
        while state.busy {
            state = match deadline.remaining(op)? {
                None => self.free.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let waited = self.free.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        if state.broken {
            let reason = "part of a message was lost: make a new channel";
            return Err(Error::invalid(op, reason));
        }
        state.busy = true;
        Ok(DirectionGuard { direction: self, broken: false })
    }
}

impl Drop for DirectionGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.direction.lock();
        *state = DirectionState { busy: false, broken: self.broken };
        self.direction.free.notify_one();
    }
}

impl DirectionGuard<'_> {
    /// Sends a message.
    #[track_caller]
    pub(super) fn write(
        &mut self,
        (op, deadline): (&'static str, Deadline),
        socket: &UnixStream,
        message: &[u8],
        handle: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        let handles: Vec<BorrowedFd<'_>> = handle.into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !handles.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&handles));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut rest = message;
        while !rest.is_empty() {
            match sendmsg(socket, &[IoSlice::new(rest)], &mut control, flags) {
                Ok(0) => return Err(peer_gone(op, "it takes no more")),
                Ok(written) => {
                    rest = &rest[written..];
                    self.broken = !rest.is_empty();
                    control.clear(); // the descriptor went with the first byte
                }
                Err(Errno::AGAIN) => deadline.wait(op, socket, PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(socket_error(op, error)),
            }
        }
        Ok(())
    }

    /// Receives a message: its kind, its body, and its descriptor.
    #[track_caller]
    pub(super) fn read(
        &mut self,
        (op, deadline): (&'static str, Deadline),
        socket: &UnixStream,
    ) -> Result<(MessageKind, Vec<u8>, Option<OwnedFd>)> {
        let mut header = [0; HEADER_LEN];
        let (first, handle) = self.read_first((op, deadline), socket, &mut header)?;
        // An error from here on leaves the rest of the message unread. This does not matter if the peer is
        // gone.
        let mut read = || {
            read_exact((op, deadline), socket, &mut header[first..])?;
            let (kind, length) = message::decode_header(header)?;
            let mut body = vec![0; length];
            read_exact((op, deadline), socket, &mut body)?;
            Ok((kind, body))
        };
        // `#[track_caller]` does not work through the closure.
        let location = Location::caller();
        let read = read().map_err(|error: Error| error.at(location));
        self.broken = !matches!(read.kind(), None | Some(ErrorKind::PeerGone { .. }));
        read.map(|(kind, body)| (kind, body, handle))
    }

    /// Receives the first bytes of a message, with its descriptor.
    #[track_caller]
    fn read_first(
        &mut self,
        (op, deadline): (&'static str, Deadline),
        socket: &UnixStream,
        header: &mut [u8],
    ) -> Result<(usize, Option<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        loop {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received =
                match recvmsg(socket, &mut [IoSliceMut::new(header)], &mut control, flags) {
                    Ok(received) => received,
                    Err(Errno::AGAIN) => {
                        deadline.wait(op, socket, PollFlags::IN)?;
                        continue;
                    }
                    Err(Errno::INTR) => continue,
                    Err(error) => return Err(socket_error(op, error)),
                };
            let mut handles = Vec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    handles.extend(fds);
                }
            }
            if received.bytes == 0 {
                return Err(peer_gone(op, "the channel was closed at its end"));
            }
            if received.flags.contains(ReturnFlags::CTRUNC) || handles.len() > 1 {
                self.broken = true;
                return Err(invalid_message("more than one descriptor came with it"));
            }
            return Ok((received.bytes, handles.pop()));
        }
    }
}

#[track_caller]
fn read_exact(
    (op, deadline): (&'static str, Deadline),
    socket: &UnixStream,
    mut rest: &mut [u8],
) -> Result<()> {
    while !rest.is_empty() {
        match recv(socket, &mut *rest, RecvFlags::DONTWAIT) {
            Ok((0, _)) => {
                return Err(peer_gone(op, "the channel was closed in the middle of a message"));
            }
            Ok((read, _)) => rest = &mut rest[read..],
            Err(Errno::AGAIN) => deadline.wait(op, socket, PollFlags::IN)?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(socket_error(op, error)),
        }
    }
    Ok(())
}

#[cold]
#[track_caller]
fn peer_gone(op: &'static str, how: &str) -> Error {
    ErrorKind::PeerGone { reason: how.to_owned() }.of(op)
}

/// Converts a failure of the socket to an error.
#[cold]
#[track_caller]
pub(super) fn socket_error(op: &'static str, error: impl Into<io::Error>) -> Error {
    let error = error.into();
    match error.kind() {
        io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::NotConnected => peer_gone(op, &error.to_string()),
        _ => Error::invalid(op, format!("the socket failed: {error}")),
    }
}
