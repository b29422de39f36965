//! A socket that carries tensors.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use warpline_runtime::{ExportedStorage, Storage};

use super::message::{self, HEAD, Kind, Sent, nonsense};
use crate::{Error, Result, Tensor};

/// A connection to another process that carries tensors, over a Unix socket.
///
/// Both directions may be used at once, from several threads; messages of one direction arrive one
/// after another. After an error in the middle of a message the channel is of no further use.
///
/// See [the module](super) for what is promised.
#[derive(Debug)]
pub struct Channel {
    socket: UnixStream,
    /// Each direction, and whether part of a message was lost there.
    sending: Mutex<bool>,
    receiving: Mutex<bool>,
}

impl Channel {
    /// A channel over a connected socket, whose timeouts hold.
    #[must_use]
    pub fn new(socket: UnixStream) -> Self {
        let [sending, receiving] = [Mutex::default(), Mutex::default()];
        Self { socket, sending, receiving }
    }

    /// Two ends of one channel. One goes to a child process, as a descriptor that it inherits.
    ///
    /// # Errors
    /// The system's.
    pub fn pair() -> Result<(Self, Self)> {
        let (a, b) = UnixStream::pair().map_err(|e| failed("pair", e))?;
        Ok((Self::new(a), Self::new(b)))
    }

    /// How long each call may wait for the other process; at first for ever.
    ///
    /// # Errors
    /// The system's: a timeout of zero.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> Result<()> {
        let set = self.socket.set_read_timeout(timeout);
        set.and_then(|()| self.socket.set_write_timeout(timeout))
            .map_err(|e| failed("set_timeout", e))
    }

    /// Sends a tensor that [`Tensor::share_memory`] returned, or a view of one: the receiver gets the
    /// same memory. All work on it that this process has enqueued comes before; the host waits for it.
    ///
    /// # Errors
    /// [`Error::CannotShare`]; [`Error::PeerGone`]; what work on the tensor failed with.
    #[track_caller]
    pub fn send(&self, tensor: &Tensor) -> Result<()> {
        const OP: &str = "send";
        tensor.exec()?.refuse_capture(OP)?;
        tensor.as_view().check_inside(OP)?;
        let exported = tensor.storage().export()?;
        let message = Sent::new(tensor, &exported)?.encode();
        self.write(OP, &message, Some(exported.handle.as_fd()))
    }

    /// Receives a tensor. What the sender had enqueued on it by the time it sent it is done.
    ///
    /// It is on the same GPU, whatever its number is here, and cannot be sent on, but copied.
    ///
    /// # Errors
    /// [`Error::PeerGone`] if none comes any more; [`Error::CannotShare`] if its GPU is not visible here;
    /// [`Error::InvalidArgument`] if what arrives is no tensor, or a timeout has passed.
    #[track_caller]
    pub fn recv(&self) -> Result<Tensor> {
        const OP: &str = "recv";
        let runtime = crate::runtime();
        let (body, handle) = self.read(OP, Kind::Tensor)?;
        let handle = handle.ok_or_else(|| nonsense("no memory came with it"))?;
        let sent = Sent::decode(&body)?;
        let driver = sent.driver();
        let Sent { layout, dtype, bytes, mapped, id, device, host, .. } = sent;
        let exported = ExportedStorage { handle, bytes, mapped, id, device, host, driver };
        let tensor = Tensor::from_parts(Storage::import(&runtime, exported)?, layout, dtype);
        tensor.as_view().check_inside(OP)?;
        Ok(tensor)
    }

    /// Tells the other process that all work on a tensor that both have, which this one has enqueued,
    /// is done. The host waits for it.
    ///
    /// # Errors
    /// As [`Channel::send`].
    #[track_caller]
    pub fn send_event(&self, tensor: &Tensor) -> Result<()> {
        const OP: &str = "send_event";
        tensor.exec()?.refuse_capture(OP)?;
        let id = tensor.storage().shared_id(OP)?;
        tensor.storage().wait_until_unused()?;
        self.write(OP, &message::event(id), None)
    }

    /// Waits until the other process has called [`Channel::send_event`] with this tensor: what it did
    /// there comes before all that is done here from now on.
    ///
    /// # Errors
    /// [`Error::PeerGone`] if it never will; [`Error::InvalidArgument`] if it sent something else, or a
    /// timeout has passed.
    #[track_caller]
    pub fn recv_event(&self, tensor: &Tensor) -> Result<()> {
        const OP: &str = "recv_event";
        let id = tensor.storage().shared_id(OP)?;
        let (body, _) = self.read(OP, Kind::Event)?;
        if message::decode_event(&body)? == id {
            return Ok(());
        }
        Err(Error::invalid(OP, "the other process sent the event of another tensor".into()))
    }

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

    fn read(&self, op: &'static str, expected: Kind) -> Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut broken = whole(&self.receiving, op)?;
        let mut head = [0; HEAD];
        let (first, handle) = self.read_first(op, &mut head, &mut broken)?;
        // From here on an error loses part of a message; nothing follows what a peer that is gone sent.
        let read = self.read_message(op, &mut head, first);
        *broken = !matches!(read, Ok(_) | Err(Error::PeerGone { .. }));
        let (kind, body) = read?;
        if kind != expected {
            let reason = format!("the other process sent a message of another kind: {kind:?}");
            return Err(Error::invalid(op, reason));
        }
        Ok((body, handle))
    }

    /// The first bytes of a message, with which its descriptor comes.
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

    fn read_rest(&self, op: &'static str, rest: &mut [u8]) -> Result<()> {
        (&self.socket).read_exact(rest).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                gone(op, "the channel was closed in the middle of a message")
            }
            _ => failed(op, error),
        })
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
fn whole<'a>(direction: &'a Mutex<bool>, op: &'static str) -> Result<MutexGuard<'a, bool>> {
    let broken = direction.lock().unwrap_or_else(PoisonError::into_inner);
    if *broken {
        let reason = "part of a message was lost: make a new channel".to_owned();
        return Err(Error::invalid(op, reason));
    }
    Ok(broken)
}

#[cold]
fn gone(op: &'static str, how: &str) -> Error {
    Error::PeerGone { op, reason: how.to_owned() }
}

#[cold]
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
