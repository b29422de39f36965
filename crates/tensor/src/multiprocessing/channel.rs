//! A channel: a Unix socket that carries tensors.
//!
//! The message of a tensor has its layout and dtype, the size and identifier of its memory, the UUID of its device, and
//! the signal of the sender's work. The memory's file descriptor is attached (`SCM_RIGHTS`). The receiver checks the
//! message, then imports and maps the memory. End-of-file on the socket is reported as `PeerGone`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::Location;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use warpline_runtime::{ExportedStorage, OwnSemaphore, Runtime, SharedSemaphore, Storage, Target};

use super::message::{self, MessageKind, Signal, TensorMessage, invalid_message};
use super::semaphores::{OwnSemaphores, PeerSemaphores};
use super::socket::{Deadline, Direction, DirectionGuard, socket_error};
#[cfg(doc)]
use crate::ErrorKind;
use crate::{Error, Result, Tensor};

/// A connection to another process that carries tensors, over a Unix socket.
///
/// Several threads may use both directions at once. Messages of one direction arrive one after another. After
/// an error in the middle of a message, the channel cannot be used any more.
///
/// Dropping a channel waits, within the timeout, until the GPUs of both processes have completed the work that
/// was sent and received over the channel. After the timeout, the other process counts as gone: streams that
/// wait for its work continue, and reading its tensors fails with [`ErrorKind::PeerGone`].
///
/// See [the module](super) for guarantees.
#[derive(Debug)]
pub struct Channel {
    sending: Direction,
    receiving: Direction,
    /// Semaphores that this process signals. Locked only by the thread that holds the guard of `sending`.
    own: Mutex<OwnSemaphores>,
    /// Semaphores that the other process signals.
    peers: PeerSemaphores,
    socket: UnixStream,
}

impl Channel {
    /// Creates a channel over a connected socket. The timeouts of the socket apply.
    #[must_use]
    pub fn new(socket: UnixStream) -> Self {
        let [sending, receiving] = [Direction::default(), Direction::default()];
        Self { sending, receiving, own: Mutex::default(), peers: PeerSemaphores::default(), socket }
    }

    /// Creates two connected channels. Pass one to a child process, as an inherited descriptor.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the system refuses to make a socket.
    #[track_caller]
    pub fn pair() -> Result<(Self, Self)> {
        match UnixStream::pair() {
            Ok((a, b)) => Ok((Self::new(a), Self::new(b))),
            Err(error) => Err(socket_error("pair", error)),
        }
    }

    /// Sets the time for which each call may wait for the other process, from its beginning to its end.
    /// Default: `None`, no limit.
    ///
    /// The timeout also limits the drop of the channel, and each host read of a tensor received afterwards, or
    /// of a tensor computed from it. [`Channel::recv`] describes waits without a limit.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the timeout is zero.
    #[track_caller]
    pub fn set_timeout(&self, timeout: Option<Duration>) -> Result<()> {
        let set = self.socket.set_read_timeout(timeout);
        match set.and_then(|()| self.socket.set_write_timeout(timeout)) {
            Ok(()) => Ok(()),
            Err(error) => Err(socket_error("set_timeout", error)),
        }
    }

    /// Sends a tensor that [`Tensor::share_memory`] returned, or a view of one. The receiver gets the same
    /// memory. All work on the memory that this process has enqueued runs before all work of the receiver on
    /// it. If possible, streams wait for this work, and the host does not; see [the module](super).
    ///
    /// A leaf that requires a gradient arrives as a leaf that requires a gradient. Gradients are not sent.
    ///
    /// # Errors
    /// [`ErrorKind::CannotShare`] if the tensor is not in shared memory, came from another process, has more than 64
    /// dimensions, or has more elements than its storage has room for. [`ErrorKind::InvalidArgument`] if the socket
    /// fails, or if an earlier call sent only a part of a message. [`ErrorKind::Gradient`] if the tensor requires a
    /// gradient and is not a leaf. [`ErrorKind::PeerGone`] if the other process has ended or closed the channel.
    /// [`ErrorKind::TimedOut`] if the timeout passes. [`ErrorKind::Capture`] if the stream is captured.
    /// [`ErrorKind::Driver`] if the system cannot export the memory. The error of work on the tensor, if that work is
    /// known to have failed.
    #[track_caller]
    pub fn send(&self, tensor: &Tensor) -> Result<()> {
        const OP: &str = "send";
        tensor.exec()?.refuse_capture(OP)?;
        tensor.as_view().check_inside(OP)?;
        tensor.refuse_unshared_graph(OP)?;
        let exported = tensor.storage().export()?;
        // Checks the message before any work is enqueued.
        TensorMessage::new(tensor, &exported, None)?;
        let handle = Some(exported.handle.as_fd());
        self.send_message(OP, tensor, handle, |signal| {
            Ok(TensorMessage::new(tensor, &exported, signal)?.encode())
        })
    }

    /// Receives a tensor. All work on the tensor that the sender had enqueued before it sent the tensor runs
    /// before all work on it here. If the sender ends before that work is complete, reading the tensor, or a
    /// tensor computed from it, fails with [`ErrorKind::PeerGone`].
    ///
    /// The tensor is on the same GPU, which may have another index here. The tensor cannot be sent on; send a
    /// copy instead. The tensor requires a gradient if the sent tensor did, but not in
    /// [`inference_mode`](crate::autograd::inference_mode).
    ///
    /// # A sender that stalls
    /// A stream waits for the sender's work when it first uses the tensor, not before. Until that work is
    /// complete:
    /// - Streams that do not use the tensor continue.
    /// - A stream that uses the tensor stops, with all later work on it. No timeout limits this wait. No
    ///   timeout limits waits of the host for this stream or for the whole device either
    ///   ([`cuda::synchronize`](crate::cuda::synchronize), and calls for which the driver waits, such as
    ///   releasing page-locked memory).
    /// - A host read of the tensor, or of a tensor computed from it, fails with [`ErrorKind::TimedOut`] once
    ///   the channel's timeout has passed. The read can be repeated.
    ///
    /// To give up, drop the channel: once the timeout has passed, all streams that wait for the sender continue.
    ///
    /// # Errors
    /// [`ErrorKind::PeerGone`] if the other process has ended or closed the channel. [`ErrorKind::TimedOut`] if the
    /// timeout passes. [`ErrorKind::CannotShare`] if the tensor's GPU is not visible here, or the memory belongs to
    /// another driver than this runtime. [`ErrorKind::Driver`] if the memory cannot be mapped.
    /// [`ErrorKind::InvalidArgument`] if the socket fails or an earlier call received only a part of a message; if the
    /// message does not describe a tensor, comes from a different version, has a different length than its contents or
    /// comes without memory; if it has an unknown dtype, more than 64 dimensions or more elements than the memory, or
    /// requires a gradient for a dtype that is not floating point; if it has a signal for memory of the host; or if its
    /// semaphores are announced out of order or in excess, or its signal's number is not above the last number.
    /// [`ErrorKind::OutOfStorage`] if the tensor reaches outside the memory.
    #[track_caller]
    pub fn recv(&self) -> Result<Tensor> {
        const OP: &str = "recv";
        let location = Location::caller();
        let runtime = crate::runtime();
        let (limit, deadline) = self.limits();
        let read = self.read((OP, deadline), MessageKind::Tensor, &runtime, |body| {
            let sent = TensorMessage::decode(body)?;
            let signal = sent.signal;
            Ok((sent, signal))
        });
        let (sent, handle) = read?;
        let Some(handle) = handle else { return Err(invalid_message("no memory came with it")) };
        let driver = sent.driver();
        let TensorMessage {
            layout,
            dtype,
            bytes,
            mapped,
            id,
            device,
            host,
            signal,
            requires_grad,
            ..
        } = sent;
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

    /// Signals the other process that this process has enqueued its work on a tensor that both processes have.
    /// The work runs before all work of the other process on the tensor after [`Channel::recv_event`].
    ///
    /// # Errors
    /// [`ErrorKind::CannotShare`] if the tensor is not in shared memory. [`ErrorKind::PeerGone`] if the other process
    /// has ended or closed the channel. [`ErrorKind::TimedOut`] if the timeout passes. [`ErrorKind::Capture`] if the
    /// stream is captured. [`ErrorKind::InvalidArgument`] if the socket fails, or if an earlier call sent only a part
    /// of a message. The error of work on the tensor, if that work is known to have failed.
    #[track_caller]
    pub fn send_event(&self, tensor: &Tensor) -> Result<()> {
        const OP: &str = "send_event";
        tensor.exec()?.refuse_capture(OP)?;
        let id = tensor.storage().shared_id(OP)?;
        self.send_message(OP, tensor, None, |signal| Ok(message::event(id, signal)))
    }

    /// Receives the signal of [`Channel::send_event`] for this tensor. All work on the tensor that the other
    /// process had enqueued before the signal runs before all later work on it here, as with [`Channel::recv`].
    ///
    /// # Errors
    /// [`ErrorKind::PeerGone`] if the other process has ended or closed the channel. [`ErrorKind::TimedOut`] if
    /// the timeout passes. [`ErrorKind::CannotShare`] if the tensor is not in shared memory.
    /// [`ErrorKind::InvalidArgument`] if the other process sent another or an invalid message, or the signal of another
    /// tensor, if the socket fails, or if an earlier call received only a part of a message.
    #[track_caller]
    pub fn recv_event(&self, tensor: &Tensor) -> Result<()> {
        const OP: &str = "recv_event";
        let location = Location::caller();
        let id = tensor.storage().shared_id(OP)?;
        let (limit, deadline) = self.limits();
        let runtime = tensor.storage().runtime();
        let read = self.read((OP, deadline), MessageKind::Event, runtime, |body| {
            let (sent, signal) = message::decode_event(body)?;
            Ok(((sent, signal), signal))
        });
        let ((sent, signal), _) = read?;
        if sent == id {
            return self.await_peer(OP, tensor, signal, (deadline, limit), location);
        }
        Err(Error::invalid(OP, "the other process sent the event of another tensor"))
    }

    /// Returns the receive timeout, and the deadline of a call that begins now.
    fn limits(&self) -> (Option<Duration>, Deadline) {
        let limit = self.socket.read_timeout().ok().flatten();
        (limit, Deadline::after(limit))
    }

    /// Sends a message that orders all enqueued work on a tensor before the receiver's work on it. The enqueued work is
    /// signalled by a semaphore, or is complete before the message is sent.
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
        // One guard covers signalling and sending, so that numbers arrive in order.
        let mut guard = self.sending.acquire(op, call.1)?;
        let signal = self.signal(call, tensor, &mut guard)?;
        if signal.is_none() {
            drop(guard);
            // Also waits for reads, because the receiver may write at once. The timeout limits only waits for the other
            // process, so it starts again after this wait for this process's GPU.
            tensor.storage().wait_until_unused()?;
            call.1 = deadline();
            guard = self.sending.acquire(op, call.1)?;
        }
        guard.write(call, &self.socket, &encode(signal)?, handle)
    }

    /// Enqueues a signal after all work on a tensor. Returns `None` if only the host can wait for the work.
    #[track_caller]
    fn signal(
        &self,
        call: (&'static str, Deadline),
        tensor: &Tensor,
        guard: &mut DirectionGuard<'_>,
    ) -> Result<Option<Signal>> {
        let (op, location) = (call.0, Location::caller());
        let (exec, storage) = (tensor.exec()?, tensor.storage());
        let Target::Cuda(runtime, device, stream) = exec.target() else { return Ok(None) };
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let announce = |index, semaphore: &OwnSemaphore| {
            let shared = semaphore.export()?;
            let message = message::semaphore(index, shared.device, shared.bytes);
            guard.write(call, &self.socket, &message, Some(shared.handle.as_fd()))
        };
        let own = own.get_or_announce(runtime, device.index(), storage, announce)?;
        let Some((index, semaphore)) = own else { return Ok(None) };
        let peers = self.peers.all();
        let peers: Vec<_> = peers.iter().collect();
        let number = semaphore.signal(storage, stream, &peers, op, location)?;
        Ok(number.map(|number| Signal { semaphore: index, number }))
    }

    /// Orders all later work on a tensor after the work that `signal` of the other process covers.
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
            return Err(invalid_message("it is in host memory, where no stream signals"));
        };
        let semaphore = self.peers.import(runtime, device, semaphore, &self.socket)?;
        let limits = (deadline.instant(), limit);
        semaphore.wait((storage, stream), number, limits, op, location)
    }

    /// Receives a message of the `expected` kind, with its descriptor. Also processes announcements of
    /// semaphores that arrive before the message. `decode` returns the message's content and signal.
    #[track_caller]
    fn read<T>(
        &self,
        call: (&'static str, Deadline),
        expected: MessageKind,
        runtime: &Runtime,
        decode: impl FnOnce(&[u8]) -> Result<(T, Option<Signal>)>,
    ) -> Result<(T, Option<OwnedFd>)> {
        let mut guard = self.receiving.acquire(call.0, call.1)?;
        loop {
            let (kind, body, handle) = guard.read(call, &self.socket)?;
            if kind == MessageKind::Semaphore {
                let (index, device, bytes) = message::decode_semaphore(&body)?;
                let Some(handle) = handle else {
                    return Err(invalid_message("no semaphore came with it"));
                };
                let shared = SharedSemaphore { handle, bytes, device };
                self.peers.add_announced(runtime, index, shared)?;
                continue;
            }
            if kind != expected {
                let reason = format!("the other process sent a message of another kind: {kind:?}");
                return Err(Error::invalid(call.0, reason));
            }
            let (content, signal) = decode(&body)?;
            // Check the number while the guard of `receiving` is held, because numbers must be checked in the order of
            // arrival.
            signal.map_or(Ok(()), |signal| self.peers.check_number(signal))?;
            return Ok((content, handle));
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let deadline = self.limits().1;
        // Wait for the other process's signals first, because this process's signals may be enqueued behind work that
        // waits for the other process's signals.
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
