//! A socket that carries tensors.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use warpline_runtime::{ExportedStorage, OwnSemaphore, SharedSemaphore, Storage, Target};

use super::message::{self, HEAD, Kind, Sent, Signal, nonsense};
use super::order::{Own, Peers};
use crate::{Error, Result, Tensor};

/// A connection to another process that carries tensors, over a Unix socket.
///
/// Both directions may be used at once, from several threads; messages of one direction arrive one
/// after another. After an error in the middle of a message the channel is of no further use.
///
/// Dropped, it waits for what this process has enqueued that the other one is to find done, and for
/// what the other one has told it that it has enqueued.
///
/// See [the module](super) for what is promised.
#[derive(Debug)]
pub struct Channel {
    /// Each direction, and whether part of a message was lost there.
    sending: Mutex<bool>,
    receiving: Mutex<bool>,
    /// What this process signals; dropped, and waited for, before the socket is closed.
    own: Mutex<Own>,
    /// What the other process signals.
    peers: Peers,
    socket: UnixStream,
}

impl Channel {
    /// A channel over a connected socket, whose timeouts hold.
    #[must_use]
    pub fn new(socket: UnixStream) -> Self {
        let [sending, receiving] = [Mutex::default(), Mutex::default()];
        Self { sending, receiving, own: Mutex::default(), peers: Peers::default(), socket }
    }

    /// Two ends of one channel. One goes to a child process, as a descriptor that it inherits.
    ///
    /// # Errors
    /// The system's.
    #[track_caller]
    pub fn pair() -> Result<(Self, Self)> {
        match UnixStream::pair() {
            Ok((a, b)) => Ok((Self::new(a), Self::new(b))),
            Err(error) => Err(failed("pair", error)),
        }
    }

    /// How long each call may wait for the other process; at first for ever.
    ///
    /// # Errors
    /// The system's: a timeout of zero.
    #[track_caller]
    pub fn set_timeout(&self, timeout: Option<Duration>) -> Result<()> {
        let set = self.socket.set_read_timeout(timeout);
        match set.and_then(|()| self.socket.set_write_timeout(timeout)) {
            Ok(()) => Ok(()),
            Err(error) => Err(failed("set_timeout", error)),
        }
    }

    /// Sends a tensor that [`Tensor::share_memory`] returned, or a view of one: the receiver gets the
    /// same memory. All work on it that this process has enqueued comes before all that the receiver
    /// does with it. Streams wait for that and not the host, where they can; see
    /// [the module](super).
    ///
    /// # Errors
    /// [`Error::CannotShare`]; [`Error::PeerGone`]; what work on the tensor failed with, if that is
    /// known.
    #[track_caller]
    pub fn send(&self, tensor: &Tensor) -> Result<()> {
        const OP: &str = "send";
        let location = Location::caller();
        tensor.exec()?.refuse_capture(OP)?;
        tensor.as_view().check_inside(OP)?;
        let exported = tensor.storage().export()?;
        Sent::new(tensor, &exported, None)?; // or nothing is enqueued
        let signal = self.signal(OP, tensor, location)?;
        let message = Sent::new(tensor, &exported, signal)?.encode();
        self.write(OP, &message, Some(exported.handle.as_fd()))
    }

    /// Receives a tensor. What the sender had enqueued on it by the time it sent it comes before all
    /// that is done with it here. Should the sender be gone before that was done, reading it, or what
    /// was computed from it, is [`Error::PeerGone`].
    ///
    /// It is on the same GPU, whatever its number is here, and cannot be sent on, but copied.
    ///
    /// # Errors
    /// [`Error::PeerGone`] if none comes any more; [`Error::CannotShare`] if its GPU is not visible here;
    /// [`Error::InvalidArgument`] if what arrives is no tensor, or a timeout has passed.
    #[track_caller]
    pub fn recv(&self) -> Result<Tensor> {
        const OP: &str = "recv";
        let location = Location::caller();
        let runtime = crate::runtime();
        let (body, handle) = self.read(OP, Kind::Tensor)?;
        let Some(handle) = handle else { return Err(nonsense("no memory came with it")) };
        let sent = Sent::decode(&body)?;
        let driver = sent.driver();
        let Sent { layout, dtype, bytes, mapped, id, device, host, signal, .. } = sent;
        let exported = ExportedStorage { handle, bytes, mapped, id, device, host, driver };
        let tensor = Tensor::from_parts(Storage::import(&runtime, exported)?, layout, dtype);
        tensor.as_view().check_inside(OP)?;
        self.await_peer(OP, &tensor, signal, location)?;
        Ok(tensor)
    }

    /// Tells the other process that all work on a tensor that both have, which this one has enqueued,
    /// is done, or will be: it is ordered as by [`Channel::send`].
    ///
    /// # Errors
    /// As [`Channel::send`].
    #[track_caller]
    pub fn send_event(&self, tensor: &Tensor) -> Result<()> {
        const OP: &str = "send_event";
        let location = Location::caller();
        tensor.exec()?.refuse_capture(OP)?;
        let id = tensor.storage().shared_id(OP)?;
        let signal = self.signal(OP, tensor, location)?;
        self.write(OP, &message::event(id, signal), None)
    }

    /// Waits until the other process has called [`Channel::send_event`] with this tensor: what it did
    /// there comes before all that is done here from now on, as with [`Channel::recv`].
    ///
    /// # Errors
    /// [`Error::PeerGone`] if it never will; [`Error::InvalidArgument`] if it sent something else, or a
    /// timeout has passed.
    #[track_caller]
    pub fn recv_event(&self, tensor: &Tensor) -> Result<()> {
        const OP: &str = "recv_event";
        let location = Location::caller();
        let id = tensor.storage().shared_id(OP)?;
        let (body, _) = self.read(OP, Kind::Event)?;
        let (sent, signal) = message::decode_event(&body)?;
        if sent == id {
            return self.await_peer(OP, tensor, signal, location);
        }
        Err(Error::invalid(OP, "the other process sent the event of another tensor".into()))
    }

    /// Has a stream signal that all work on a tensor is done, and tells the other process by what;
    /// or waits for that work.
    #[track_caller]
    fn signal(
        &self,
        op: &'static str,
        tensor: &Tensor,
        location: &'static Location<'static>,
    ) -> Result<Option<Signal>> {
        let (exec, storage) = (tensor.exec()?, tensor.storage());
        if let Target::Cuda(runtime, device, stream) = exec.target() {
            let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
            let announce = |index, semaphore: &OwnSemaphore| {
                let shared = semaphore.export()?;
                let message = message::semaphore(index, shared.device, shared.bytes);
                self.write(op, &message, Some(shared.handle.as_fd()))
            };
            if let Some((index, semaphore)) = own.of(runtime, device.index(), storage, announce)? {
                let peers = self.peers.all();
                let peers: Vec<_> = peers.iter().collect();
                let number = semaphore.signal(storage, stream, &peers, op, location)?;
                if let Some(number) = number {
                    return Ok(Some(Signal { semaphore: index, number }));
                }
            }
        }
        // Reads too: whoever gets it may write at once.
        storage.wait_until_unused()?;
        Ok(None)
    }

    /// Has all later work on a tensor come after what the other process has signalled.
    #[track_caller]
    fn await_peer(
        &self,
        op: &'static str,
        tensor: &Tensor,
        signal: Option<Signal>,
        location: &'static Location<'static>,
    ) -> Result<()> {
        let Some(Signal { semaphore, number }) = signal else { return Ok(()) };
        let (exec, storage) = (tensor.exec()?, tensor.storage());
        let Target::Cuda(runtime, device, stream) = exec.target() else {
            return Err(nonsense("it is in host memory, where no stream signals"));
        };
        let semaphore = self.peers.of(runtime, device, semaphore, &self.socket)?;
        let limit = self.socket.read_timeout().ok().flatten();
        semaphore.wait((storage, stream), number, limit, op, location)
    }

    #[track_caller]
    fn write(
        &self,
        op: &'static str,
        message: &[u8],
        handle: Option<BorrowedFd<'_>>,
    ) -> Result<()> {
        let mut broken = whole(&self.sending, op)?;
        let fds: Vec<BorrowedFd<'_>> = handle.into_iter().collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let mut written = 0;
        while written < message.len() {
            let part = [IoSlice::new(&message[written..])];
            match sendmsg(&self.socket, &part, &mut control, SendFlags::NOSIGNAL) {
                Ok(0) => return Err(gone(op, "it takes no more")),
                Ok(bytes) => written += bytes,
                Err(error) => match io::Error::from(error) {
                    error if error.kind() == ErrorKind::Interrupted => continue,
                    error => {
                        *broken = written > 0;
                        return Err(failed(op, error));
                    }
                },
            }
            control.clear(); // it went with the first byte
        }
        Ok(())
    }

    #[track_caller]
    fn read(&self, op: &'static str, expected: Kind) -> Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut broken = whole(&self.receiving, op)?;
        loop {
            let (kind, body, handle) = self.read_one(op, &mut broken)?;
            if kind == Kind::Semaphore {
                let (index, device, bytes) = message::decode_semaphore(&body)?;
                let Some(handle) = handle else {
                    return Err(nonsense("no semaphore came with it"));
                };
                self.peers.announced(index, SharedSemaphore { handle, bytes, device })?;
                continue;
            }
            if kind != expected {
                let reason = format!("the other process sent a message of another kind: {kind:?}");
                return Err(Error::invalid(op, reason));
            }
            return Ok((body, handle));
        }
    }

    #[track_caller]
    fn read_one(
        &self,
        op: &'static str,
        broken: &mut bool,
    ) -> Result<(Kind, Vec<u8>, Option<OwnedFd>)> {
        let mut head = [0; HEAD];
        let (first, handle) = self.read_first(op, &mut head, broken)?;
        // From here on an error loses part of a message; nothing follows what a peer that is gone sent.
        let read = self.read_message(op, &mut head, first);
        *broken = !matches!(read, Ok(_) | Err(Error::PeerGone { .. }));
        let (kind, body) = read?;
        Ok((kind, body, handle))
    }

    /// The first bytes of a message, with which its descriptor comes.
    #[track_caller]
    fn read_first(
        &self,
        op: &'static str,
        head: &mut [u8],
        broken: &mut bool,
    ) -> Result<(usize, Option<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        loop {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut parts = [IoSliceMut::new(head)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let received = match recvmsg(&self.socket, &mut parts, &mut control, flags) {
                Ok(received) => received,
                Err(error) => match io::Error::from(error) {
                    error if error.kind() == ErrorKind::Interrupted => continue,
                    error => return Err(failed(op, error)),
                },
            };
            let mut handles = Vec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    handles.extend(fds);
                }
            }
            if received.bytes == 0 {
                return Err(gone(op, "the channel was closed at its end"));
            }
            if received.flags.contains(ReturnFlags::CTRUNC) || handles.len() > 1 {
                *broken = true;
                return Err(nonsense("more than one descriptor came with it"));
            }
            return Ok((received.bytes, handles.pop()));
        }
    }

    /// What follows the first bytes.
    #[track_caller]
    fn read_message(
        &self,
        op: &'static str,
        head: &mut [u8; HEAD],
        first: usize,
    ) -> Result<(Kind, Vec<u8>)> {
        self.read_rest(op, &mut head[first..])?;
        let (kind, length) = message::decode_head(*head)?;
        let mut body = vec![0; length];
        self.read_rest(op, &mut body)?;
        Ok((kind, body))
    }

    #[track_caller]
    fn read_rest(&self, op: &'static str, rest: &mut [u8]) -> Result<()> {
        match (&self.socket).read_exact(rest) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                Err(gone(op, "the channel was closed in the middle of a message"))
            }
            Err(error) => Err(failed(op, error)),
        }
    }
}

impl From<UnixStream> for Channel {
    fn from(socket: UnixStream) -> Self {
        Self::new(socket)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Takes a direction of a channel, unless part of a message was lost there.
#[track_caller]
fn whole<'a>(direction: &'a Mutex<bool>, op: &'static str) -> Result<MutexGuard<'a, bool>> {
    let broken = direction.lock().unwrap_or_else(PoisonError::into_inner);
    if *broken {
        let reason = "part of a message was lost: make a new channel".to_owned();
        return Err(Error::invalid(op, reason));
    }
    Ok(broken)
}

#[cold]
#[track_caller]
fn gone(op: &'static str, how: &str) -> Error {
    Error::PeerGone { location: Location::caller(), op, reason: how.to_owned() }
}

#[cold]
#[track_caller]
fn failed(op: &'static str, error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::NotConnected => {
            gone(op, &error.to_string())
        }
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            Error::invalid(op, "the other process did nothing before the timeout".to_owned())
        }
        _ => Error::invalid(op, format!("the socket failed: {error}")),
    }
}
