//! Messages of the other process of a `multiprocessing::Channel`.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::LazyLock;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use warpline::multiprocessing::Channel;
use warpline::{Result, Runtime, Tensor, simulated, with_runtime, zeros};

/// Longest wait of a call of the receiver.
const TIMEOUT: Duration = Duration::from_millis(2);
/// Largest number of calls for one input.
const CALLS: usize = 6;

/// The receiver's runtime, and descriptors of the kinds that messages carry.
struct Receiver {
    runtime: Runtime,
    handles: Vec<OwnedFd>,
    _sent: Vec<(Tensor, Channel)>,
}

static RECEIVER: LazyLock<Receiver> = LazyLock::new(|| Receiver::new().expect("simulated memory"));

impl Receiver {
    /// Sends tensors of a device and of the host, and keeps the descriptors: a semaphore, device memory, host memory.
    fn new() -> Result<Self> {
        let sender = warpline::open("sim:1,lazy", &warpline::RuntimeConfig::default())?;
        let (mut handles, mut sent) = (Vec::new(), Vec::new());
        with_runtime(&sender, || {
            for device in ["cuda:0", "cpu"] {
                let (tap, socket) = UnixStream::pair().expect("a socket");
                let (tensor, channel) =
                    (zeros([600], device)?.share_memory()?, Channel::from(socket));
                if device == "cuda:0" {
                    tensor.add_(1.0)?;
                }
                channel.set_timeout(Some(TIMEOUT))?;
                channel.send(&tensor)?;
                handles.extend(received_handles(&tap));
                sent.push((tensor, channel));
            }
            Ok::<_, warpline::Error>(())
        })?;
        Ok(Self { runtime: simulated(1)?, handles, _sent: sent })
    }
}

/// Reads all bytes that a socket has received. Returns the descriptors that came with the bytes.
fn received_handles(tap: &UnixStream) -> Vec<OwnedFd> {
    let mut handles = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let read = recvmsg(tap, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                handles.extend(fds);
            }
        }
        if read.is_err() {
            return handles;
        }
    }
}

/// Receives tensors and an event. The input consists of parts: a byte for the descriptor that the part carries (0:
/// none), the number of bytes, and the bytes.
pub(crate) fn receive(mut input: &[u8]) {
    let Receiver { runtime, handles, .. } = &*RECEIVER;
    let (peer, socket) = UnixStream::pair().expect("a socket");
    while let [kind, length, rest @ ..] = input {
        let (part, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        input = rest;
        let handle = usize::from(*kind).checked_sub(1).and_then(|index| handles.get(index));
        let handle: Vec<_> = handle.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !handle.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&handle));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = sendmsg(&peer, &[IoSlice::new(part)], &mut control, flags);
    }
    drop(peer);
    with_runtime(runtime, || {
        let channel = Channel::from(socket);
        if channel.set_timeout(Some(TIMEOUT)).is_err() {
            return;
        }
        let mut tensors: Vec<Tensor> = Vec::new();
        for _ in 0..CALLS {
            match channel.recv() {
                Ok(tensor) => tensors.push(tensor),
                Err(error) => drop(error.to_string()),
            }
            if let Some(tensor) = tensors.last() {
                let _ = channel.recv_event(tensor);
            }
        }
        for tensor in tensors {
            let _ = tensor.copy().and_then(|copy| copy.to("cpu"));
        }
    });
}
