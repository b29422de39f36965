//! Tests in which one process is killed with `SIGKILL` inside a call of the channel, while it sends
//! or receives a message: before any byte of the message, after some of them, or after all. The file
//! descriptor is sent with the first byte.
//!
//! The socket transfers a message of this size as a whole, so a kill of the process could not hit
//! between two bytes. Instead, the process that will be killed uses a stand-in channel, and the
//! test passes bytes between the stand-in and the real socket only up to the point of the kill.

use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};
use rustix::process::{Signal, getpid, kill_process};
use warpline::multiprocessing::Channel;
use warpline::{DType, Error, ErrorKind, Result, ResultExt, Runtime, cuda, full, with_runtime};

use crate::common;
use crate::killed::{all, descriptors, elements, files_left, or_gone, reuse_freed_memory};
use crate::processes::{LONG, Peer, specs};

/// Size of a message's header: magic bytes, kind, length of the body.
pub(crate) const HEAD: usize = 16;

/// Points inside a message at which the process is killed: after a number of bytes, or a number of
/// bytes before the end of the message.
const CUTS: [(&str, Cut); 6] = [
    ("tensor, one byte", Cut::After(1)),
    ("tensor, nearly its head", Cut::After(HEAD - 1)),
    ("tensor, its head", Cut::After(HEAD)),
    ("tensor, one byte of its body", Cut::After(HEAD + 1)),
    ("tensor, all but one byte", Cut::Before(1)),
    ("event, one byte", Cut::After(1)),
];
const EVENT_CUTS: [(&str, Cut); 2] =
    [("event, its head", Cut::After(HEAD)), ("event, all but one byte", Cut::Before(1))];

/// Points outside a message at which the maker is killed. With the points inside messages, there
/// are ten.
const MAKER: [&str; 2] = ["exported, and the socket takes nothing", "tensor, nothing of it"];
/// Points outside a message at which the receiver is killed. With the points inside messages, there
/// are ten.
const RECEIVER: [&str; 2] = ["the memory came", "it is mapped"];

#[derive(Clone, Copy)]
enum Cut {
    After(usize),
    Before(usize),
}

impl Cut {
    /// Returns the cut of a point, if the point is inside a message.
    fn of(point: &str) -> Option<Self> {
        CUTS.into_iter().chain(EVENT_CUTS).find(|(name, _)| *name == point).map(|(_, cut)| cut)
    }

    fn len(self, message: usize) -> usize {
        match self {
            Self::After(bytes) => bytes,
            Self::Before(bytes) => message - bytes,
        }
    }
}

/// Returns all points of one side, beginning with the two in `own`.
fn points(own: [&'static str; 2]) -> impl Iterator<Item = &'static str> {
    own.into_iter().chain(CUTS.into_iter().chain(EVENT_CUTS).map(|(name, _)| name))
}

fn kill() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    unreachable!("it was killed");
}

/// Waits until `reached` returns `true` because of another thread's progress, then kills this
/// process.
fn kill_once(reached: impl Fn() -> bool) -> ! {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < LONG, "it is never so");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill()
}

/// Reads one message and its descriptor.
pub(crate) fn read_message(socket: &UnixStream) -> (Vec<u8>, Option<OwnedFd>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut message = vec![0; HEAD];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let mut parts = [IoSliceMut::new(&mut message)];
    assert_eq!(recvmsg(socket, &mut parts, &mut control, flags).unwrap().bytes, HEAD);
    let handle = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut handles) => handles.next(),
        _ => None,
    });
    let length = u32::from_le_bytes(message[HEAD - 4..].try_into().unwrap());
    message.resize(HEAD + length as usize, 0);
    let mut socket = socket;
    socket.read_exact(&mut message[HEAD..]).unwrap();
    (message, handle)
}

/// Reads the first message that does not announce a semaphore. Forwards announcements to `to`.
pub(crate) fn read_next_message(
    from: &UnixStream,
    to: Option<&UnixStream>,
) -> (Vec<u8>, Option<OwnedFd>) {
    const SEMAPHORE: u8 = 3;
    loop {
        let (message, handle) = read_message(from);
        if message[8] != SEMAPHORE {
            return (message, handle);
        }
        if let Some(to) = to {
            send_bytes(to, &message, handle.as_ref().map(AsFd::as_fd));
        }
    }
}

/// Sends bytes and a descriptor.
fn send_bytes(socket: &UnixStream, message: &[u8], handle: Option<BorrowedFd<'_>>) {
    let handles: Vec<_> = handle.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !handles.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&handles)));
    }
    let part = [IoSlice::new(message)];
    let sent = sendmsg(socket, &part, &mut control, SendFlags::NOSIGNAL);
    assert_eq!(sent.unwrap(), message.len());
}

fn forward_message(from: &UnixStream, to: &UnixStream) {
    let (message, handle) = read_next_message(from, Some(to));
    send_bytes(to, &message, handle.as_ref().map(AsFd::as_fd));
}

/// Returns the real socket of a channel, a stand-in for the channel, and the other end of the
/// stand-in's socket.
fn stand_in_channel(channel: &Channel) -> (UnixStream, Channel, UnixStream) {
    let real = UnixStream::from(channel.as_fd().try_clone_to_owned().unwrap());
    let (near, far) = UnixStream::pair().unwrap();
    let near = Channel::new(near);
    near.set_timeout(Some(LONG)).unwrap();
    (real, near, far)
}

/// Program of the other process: sends a tensor and its event, and is killed at the point.
pub(crate) fn maker(channel: &Channel, point: &str) -> Result<()> {
    let (real, near, far) = stand_in_channel(channel);
    let tensor = full([elements()], 5.0, (DType::F32, "cuda:0"))?.share_memory()?;
    tensor.add_(1.0)?;
    if point == MAKER[0] {
        while send(&near, &[0; 4096], SendFlags::DONTWAIT).is_ok() {}
        let before = descriptors();
        std::thread::spawn(move || kill_once(|| descriptors() > before));
        near.send(&tensor)?;
        unreachable!("the socket takes nothing");
    }
    near.send(&tensor)?;
    cuda::synchronize(())?; // so that the kill is inside the message, not in earlier work
    if point == MAKER[1] {
        kill();
    }
    if point.starts_with("event") {
        forward_message(&far, &real);
        near.send_event(&tensor)?;
        cuda::synchronize(())?;
    }
    let (message, handle) = read_next_message(&far, Some(&real));
    let sent = Cut::of(point).expect("a point").len(message.len());
    send_bytes(&real, &message[..sent], handle.as_ref().map(AsFd::as_fd));
    kill();
}

/// Program of the other process: receives a tensor and sends an event, and is killed at the point.
pub(crate) fn receiver(channel: &Channel, point: &str) -> Result<()> {
    let (real, near, far) = stand_in_channel(channel);
    let runtime = warpline::runtime();
    let (message, handle) = read_next_message(&real, Some(&far));
    let handle = handle.as_ref().map(AsFd::as_fd);
    if point.starts_with("event") {
        send_bytes(&far, &message, handle);
        let tensor = near.recv()?;
        tensor.fill_(7.0)?;
        near.send_event(&tensor)?;
        cuda::synchronize(())?;
        let (message, _) = read_next_message(&far, Some(&real));
        let sent = Cut::of(point).expect("a point").len(message.len());
        send_bytes(&real, &message[..sent], None);
        kill();
    }
    if point == RECEIVER[0] {
        kill(); // this process has the descriptor and has not used it
    }
    let (near, received) = (Arc::new(near), Arc::new(AtomicBool::new(false)));
    let (inside, done) = (near.clone(), received.clone());
    std::thread::spawn(move || {
        let kept = with_runtime(&runtime, || inside.recv());
        done.store(true, Relaxed);
        std::thread::park(); // keeps the tensor alive
        drop(kept);
    });
    if point == RECEIVER[1] {
        // The file `maps` does not list memory of a real GPU. With a real GPU, only `received`
        // shows the progress.
        let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap();
        send_bytes(&far, &message, handle);
        kill_once(|| received.load(Relaxed) || mapped().contains("warpline-shared"));
    }
    let sent = Cut::of(point).expect("a point").len(message.len());
    send_bytes(&far, &message[..sent], handle);
    kill_once(|| rustix::io::ioctl_fionread(&*near).unwrap() == 0);
}

fn survive_maker(spec: &str, world: &Runtime, point: &str) -> Result<()> {
    let peer = Peer::start(&format!("cut maker@{point}"), spec);
    with_runtime(world, || {
        let tensor = or_gone(peer.channel.recv())?;
        assert_eq!(tensor.is_some(), point.starts_with("event"), "the tensor is whole then");
        if let Some(tensor) = &tensor {
            assert!(or_gone(peer.channel.recv_event(tensor))?.is_none(), "the event is not whole");
        }
        assert!(matches!(peer.channel.recv().kind(), Some(ErrorKind::PeerGone { .. })));
        assert!(!peer.ended(), "it was to be killed");
        reuse_freed_memory()?;
        if let Some(tensor) = tensor {
            assert!(all(&tensor, 6.0)?, "stale data");
            tensor.add_(1.0)?;
            assert!(all(&tensor, 7.0)?);
        }
        Ok(())
    })
}

fn survive_receiver(spec: &str, world: &Runtime, point: &str) -> Result<()> {
    let peer = Peer::start(&format!("cut receiver@{point}"), spec);
    with_runtime(world, || {
        let tensor = full([elements()], 1.0, (DType::F32, "cuda:0"))?.share_memory()?;
        peer.channel.send(&tensor)?;
        assert!(or_gone(peer.channel.recv_event(&tensor))?.is_none(), "no event is whole");
        assert!(matches!(
            peer.channel.send_event(&tensor).kind(),
            Some(ErrorKind::PeerGone { .. })
        ));
        assert!(!peer.ended(), "it was to be killed");
        reuse_freed_memory()?;
        assert!(all(&tensor, if point.starts_with("event") { 7.0 } else { 1.0 })?, "wrong data");
        tensor.fill_(3.0)?;
        assert!(all(&tensor, 3.0)?);
        Ok(())
    })
}

/// Program of a process in which no other test runs: checks that no file descriptor remains open.
pub(crate) fn survivor(spec: &str) -> Result<()> {
    let world = warpline::runtime();
    // The first use opens file descriptors that stay open, so do not count them.
    survive_maker(spec, &world, MAKER[0])?;
    // The real driver keeps some file descriptors open.
    let most = descriptors() + if spec.starts_with("sim") { 0 } else { 8 };
    let left = |point: &str| {
        assert_eq!(files_left(), 0, "{spec}, {point}: memory of the dead is still here");
        assert!(descriptors() <= most, "{spec}, {point}: {most} descriptors before");
    };
    let failed = |point| move |e: Error| panic!("{spec}, {point}: {e}");
    for point in points(MAKER) {
        survive_maker(spec, &world, point).unwrap_or_else(failed(point));
        left(point);
    }
    for point in points(RECEIVER) {
        survive_receiver(spec, &world, point).unwrap_or_else(failed(point));
        left(point);
    }
    Ok(())
}

#[test]
fn s33_either_side_is_killed_inside_a_message() {
    assert_eq!([points(MAKER).count(), points(RECEIVER).count()], [10; 2]);
    specs().iter().for_each(|spec| Peer::survives("cuts", spec));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_s33_either_side_is_killed_inside_a_message() {
    Peer::survives("cuts", &common::gpu_spec());
}
