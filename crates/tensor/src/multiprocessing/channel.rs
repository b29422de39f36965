//! A channel: a Unix socket that carries tensors.
//!
//! A message has the layout, dtype, sizes, the device's UUID and the number of the memory, with one
//! file descriptor (`SCM_RIGHTS`). It is checked on receipt before anything is made of it. The
//! receiver imports and maps the memory. The end of the socket's file is `PeerGone`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::Location;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use warpline_runtime::{ExportedStorage, OwnSemaphore, Runtime, SharedSemaphore, Storage, Target};

use super::message::{self, Kind, Sent, Signal, nonsense};
use super::order::{Own, Peers};
use super::socket::{Deadline, Direction, Turn, failed};
use crate::{Error, Result, Tensor};

/// A connection to another process that carries tensors, over a Unix socket.
///
/// Both directions may be used at once, from several threads; messages of one direction arrive one
/// after another. After an error in the middle of a message the channel is of no further use.
///
/// Dropping a channel waits, within the timeout, until both processes' GPUs have done the work that
/// was sent and received over it. After the timeout, the other process counts as gone: streams that
/// wait for its work go on, and reading its tensors is [`ErrorKind::PeerGone`].
///
/// See [the module](super) for what is promised.
#[derive(Debug)]
pub struct Channel {
    sending: Direction,
    receiving: Direction,
    /// Semaphores that this process signals. Changed by the thread whose turn it is to send.
    own: Mutex<Own>,
    /// Semaphores that the other process signals.
    peers: Peers,
    socket: UnixStream,
}

impl Channel {
    /// A channel over a connected socket, whose timeouts hold.
    #[must_use]
    pub fn new(socket: UnixStream) -> Self {
        let [sending, receiving] = [Direction::default(), Direction::default()];
        Self { sending, receiving, own: Mutex::default(), peers: Peers::default(), socket }
    }

    /// Two ends of one channel. One goes to a child process, as a descriptor that it inherits.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the system refuses to make a socket.
    #[track_caller]
    pub fn pair() -> Result<(Self, Self)> {
        match UnixStream::pair() {
            Ok((a, b)) => Ok((Self::new(a), Self::new(b))),
            Err(error) => Err(failed("pair", error)),
        }
    }

    /// Sets how long each call may wait for the other process, from its beginning to its end. Default:
    /// `None`, for ever.
    ///
    /// The timeout also bounds the channel's drop, and each host read of a tensor that is received
    /// afterwards, and of anything computed from it. See [`Channel::recv`] for the waits that it does
    /// not bound.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the timeout is zero.
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
    /// A leaf that requires a gradient arrives as one. Gradients themselves are not sent.
    ///
    /// # Errors
    /// [`ErrorKind::CannotShare`] if the tensor is not in shared memory, or came from another process;
    /// [`ErrorKind::Gradient`] if it requires a gradient and is no leaf; [`ErrorKind::PeerGone`];
    /// [`ErrorKind::TimedOut`]; the error of work on the tensor, if that is known to have failed.
    #[track_caller]
    pub fn send(&self, tensor: &Tensor) -> Result<()> {
        const OP: &str = "send";
        tensor.exec()?.refuse_capture(OP)?;
        tensor.as_view().check_inside(OP)?;
        tensor.refuse_unshared_graph(OP)?;
        let exported = tensor.storage().export()?;
        Sent::new(tensor, &exported, None)?; // or nothing is enqueued
        let handle = Some(exported.handle.as_fd());
        self.send_message(OP, tensor, handle, |signal| {
            Ok(Sent::new(tensor, &exported, signal)?.encode())
        })
    }

    /// Receives a tensor. What the sender had enqueued on it by the time it sent it comes before all
    /// that is done with it here. Should the sender be gone before that was done, reading it, or what
    /// was computed from it, is [`ErrorKind::PeerGone`].
    ///
    /// It is on the same GPU, whatever its number is here, and cannot be sent on, but copied. It
    /// requires a gradient if the sent tensor did, but not in
    /// [`inference_mode`](crate::autograd::inference_mode).
    ///
    /// # A sender that stalls
    /// A stream waits for the sender's work when it first uses the tensor, not before. While that work
    /// is not done:
    /// - Streams that do not use the tensor go on.
    /// - A stream that uses the tensor stands still, with all that it is given afterwards. No timeout
    ///   bounds this, nor the host's waits for this stream or for the whole device
    ///   ([`cuda::synchronize`](crate::cuda::synchronize), and calls for which the driver waits, such as
    ///   releasing page-locked memory).
    /// - A host read of the tensor, or of anything computed from it, is [`ErrorKind::TimedOut`] once the
    ///   channel's timeout has passed. It can be tried again.
    ///
    /// To give up, drop the channel: once the timeout has passed, all its streams go on.
    ///
    /// # Errors
    /// [`ErrorKind::PeerGone`] if none comes any more; [`ErrorKind::TimedOut`]; [`ErrorKind::CannotShare`] if its
    /// GPU is not visible here; [`ErrorKind::InvalidArgument`] if what arrives is no tensor.
    #[track_caller]
    pub fn recv(&self) -> Result<Tensor> {
        const OP: &str = "recv";
        let location = Location::caller();
        let runtime = crate::runtime();
        let (limit, deadline) = self.limits();
        let read = self.read((OP, deadline), Kind::Tensor, &runtime, |body| {
            let sent = Sent::decode(body)?;
            let signal = sent.signal;
            Ok((sent, signal))
        });
        let (sent, handle) = read?;
        let Some(handle) = handle else { return Err(nonsense("no memory came with it")) };
        let driver = sent.driver();
        let Sent { layout, dtype, bytes, mapped, id, device, host, signal, requires_grad, .. } =
            sent;
        let exported = ExportedStorage { handle, bytes, mapped, id, device, host, driver };
        let storage = Storage::import(&runtime, exported, deadline.instant())?;
        let tensor = Tensor::from_parts(storage, layout, dtype);
        tensor.as_view().check_inside(OP)?;
        self.await_peer(OP, &tensor, signal, (deadline, limit), location)?;
        if requires_grad && !tensor.is_inference() {
            return tensor.requires_grad_(true);
        }
        Ok(tensor)
    }

    /// Tells the other process that all work on a tensor that both have, which this one has enqueued,
    /// is done, or will be: it is ordered as by [`Channel::send`].
    ///
    /// # Errors
    /// [`ErrorKind::CannotShare`] if the tensor is not in shared memory; [`ErrorKind::PeerGone`];
    /// [`ErrorKind::TimedOut`]; the error of work on the tensor, if that is known to have failed.
    #[track_caller]
    pub fn send_event(&self, tensor: &Tensor) -> Result<()> {
        const OP: &str = "send_event";
        tensor.exec()?.refuse_capture(OP)?;
        let id = tensor.storage().shared_id(OP)?;
        self.send_message(OP, tensor, None, |signal| Ok(message::event(id, signal)))
    }

    /// Waits until the other process has called [`Channel::send_event`] with this tensor: what it did
    /// there comes before all that is done here from now on, as with [`Channel::recv`].
    ///
    /// # Errors
    /// [`ErrorKind::PeerGone`] if it never will; [`ErrorKind::TimedOut`]; [`ErrorKind::InvalidArgument`] if it sent
    /// something else.
    #[track_caller]
    pub fn recv_event(&self, tensor: &Tensor) -> Result<()> {
        const OP: &str = "recv_event";
        let location = Location::caller();
        let id = tensor.storage().shared_id(OP)?;
        let (limit, deadline) = self.limits();
        let runtime = tensor.storage().runtime();
        let read = self.read((OP, deadline), Kind::Event, runtime, |body| {
            let (sent, signal) = message::decode_event(body)?;
            Ok(((sent, signal), signal))
        });
        let ((sent, signal), _) = read?;
        if sent == id {
            return self.await_peer(OP, tensor, signal, (deadline, limit), location);
        }
        Err(Error::invalid(OP, "the other process sent the event of another tensor"))
    }

    /// The timeout, and the end of a receiving call that begins now.
    fn limits(&self) -> (Option<Duration>, Deadline) {
        let limit = self.socket.read_timeout().ok().flatten();
        (limit, Deadline::after(limit))
    }

    /// Sends a message that all work on a tensor comes before.
    #[track_caller]
    fn send_message(
        &self,
        op: &'static str,
        tensor: &Tensor,
        handle: Option<BorrowedFd<'_>>,
        encode: impl FnOnce(Option<Signal>) -> Result<Vec<u8>>,
    ) -> Result<()> {
        let deadline = || Deadline::after(self.socket.write_timeout().ok().flatten());
        let mut call = (op, deadline());
        // Numbers are signalled and sent in one turn, so that they arrive in order.
        let mut turn = self.sending.take(op, call.1)?;
        let signal = self.signal(call, tensor, &mut turn)?;
        if signal.is_none() {
            drop(turn);
            // Reads too: the receiver may write at once. The host waits for its own GPU here, which
            // is no part of the timeout.
            tensor.storage().wait_until_unused()?;
            call.1 = deadline();
            turn = self.sending.take(op, call.1)?;
        }
        turn.write(call, &self.socket, &encode(signal)?, handle)
    }

    /// Signals, in the order of streams, that all work on a tensor is done. `None` where only the host
    /// can wait for that.
    #[track_caller]
    fn signal(
        &self,
        call: (&'static str, Deadline),
        tensor: &Tensor,
        turn: &mut Turn<'_>,
    ) -> Result<Option<Signal>> {
        let (op, location) = (call.0, Location::caller());
        let (exec, storage) = (tensor.exec()?, tensor.storage());
        let Target::Cuda(runtime, device, stream) = exec.target() else { return Ok(None) };
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let announce = |index, semaphore: &OwnSemaphore| {
            let shared = semaphore.export()?;
            let message = message::semaphore(index, shared.device, shared.bytes);
            turn.write(call, &self.socket, &message, Some(shared.handle.as_fd()))
        };
        let own = own.of(runtime, device.index(), storage, announce)?;
        let Some((index, semaphore)) = own else { return Ok(None) };
        let peers = self.peers.all();
        let peers: Vec<_> = peers.iter().collect();
        let number = semaphore.signal(storage, stream, &peers, op, location)?;
        Ok(number.map(|number| Signal { semaphore: index, number }))
    }

    /// Orders all later work on a tensor after the work that the other process has signalled.
    #[track_caller]
    fn await_peer(
        &self,
        op: &'static str,
        tensor: &Tensor,
        signal: Option<Signal>,
        (deadline, limit): (Deadline, Option<Duration>),
        location: &'static Location<'static>,
    ) -> Result<()> {
        let Some(Signal { semaphore, number }) = signal else { return Ok(()) };
        let (exec, storage) = (tensor.exec()?, tensor.storage());
        let Target::Cuda(runtime, device, stream) = exec.target() else {
            return Err(nonsense("it is in host memory, where no stream signals"));
        };
        let semaphore = self.peers.of(runtime, device, semaphore, &self.socket)?;
        let limits = (deadline.instant(), limit);
        semaphore.wait((storage, stream), number, limits, op, location)
    }

    /// Receives a message of a kind, and the descriptor that comes along; and the semaphores that come
    /// before it. `decode` returns the content and the signal that is named there.
    #[track_caller]
    fn read<T>(
        &self,
        call: (&'static str, Deadline),
        expected: Kind,
        runtime: &Runtime,
        decode: impl FnOnce(&[u8]) -> Result<(T, Option<Signal>)>,
    ) -> Result<(T, Option<OwnedFd>)> {
        let mut turn = self.receiving.take(call.0, call.1)?;
        loop {
            let (kind, body, handle) = turn.read(call, &self.socket)?;
            if kind == Kind::Semaphore {
                let (index, device, bytes) = message::decode_semaphore(&body)?;
                let Some(handle) = handle else {
                    return Err(nonsense("no semaphore came with it"));
                };
                let shared = SharedSemaphore { handle, bytes, device };
                self.peers.announced(runtime, index, shared)?;
                continue;
            }
            if kind != expected {
                let reason = format!("the other process sent a message of another kind: {kind:?}");
                return Err(Error::invalid(call.0, reason));
            }
            let (content, signal) = decode(&body)?;
            // In the turn, as numbers arrive in order.
            signal.map_or(Ok(()), |signal| self.peers.named(signal))?;
            return Ok((content, handle));
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let deadline = self.limits().1;
        // Own signals may come after work that waits for the other process, so that comes first.
        self.peers.settle(deadline);
        self.own.get_mut().unwrap_or_else(PoisonError::into_inner).settle(deadline);
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
