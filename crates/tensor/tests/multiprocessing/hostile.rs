//! Tests with hostile peers: they send false values, stall, or send one byte at a time. Also tests of
//! several threads that send over one channel, and of sharing tensors with gradients.

use std::fs::File;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use warpline::multiprocessing::Channel;
use warpline::{
    DType, ErrorKind, Result, ResultExt, Runtime, Tensor, cuda, full, ones, with_runtime,
};
use warpline_cuda_sys_safe::StreamHandle;
use warpline_cuda_sys_safe::sim::{Hold, Schedule, SimDriver};

use crate::cut::{HEAD, read_message};
use crate::threads::{pair, schedule_count, world};

/// Time after which a test treats a call as stuck.
const BOUND: Duration = Duration::from_secs(20);
/// Timeout of the channels whose calls are to end with a timeout.
const TIMEOUT: Duration = Duration::from_millis(200);

/// Position of the semaphore's value in an event message, in bytes from the end.
const NUMBER_IN_EVENT: usize = 4;
/// Position of the signal in a tensor message, in bytes from the start. The signal is a flag, the
/// semaphore and the semaphore's value.
const SIGNAL_IN_TENSOR: usize = HEAD + 36;

const SEMAPHORE: u8 = 3;

type Message = (Vec<u8>, Option<OwnedFd>);

/// Runs `f` on its own thread, and fails the test if `f` does not return in time.
fn bounded<T: Send + 'static>(what: &str, f: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = channel();
    std::thread::spawn(move || done.send(f()));
    result.recv_timeout(BOUND).unwrap_or_else(|e| panic!("{what}: {e}"))
}

/// A sender whose GPU holds back the work that would signal its semaphore, and the messages that it
/// sent.
struct StalledSender {
    messages: Vec<Message>,
    hold: Hold,
    sim: Arc<SimDriver>,
    _kept: (Channel, Tensor, Runtime, UnixStream),
}

/// Sends a tensor, and then `events` events of this tensor.
fn stalled_sender(events: usize) -> StalledSender {
    let (sim, runtime) = world(1, Schedule::Lazy);
    let (socket, tap) = UnixStream::pair().unwrap();
    let (channel, tensor, hold) = with_runtime(&runtime, || -> Result<_> {
        let channel = Channel::new(socket);
        let tensor = full([600], 1.0, (DType::F32, "cuda:0"))?.share_memory()?;
        cuda::synchronize(())?;
        let hold = sim.hold(StreamHandle::default_of(0)).unwrap();
        tensor.add_(1.0)?;
        channel.send(&tensor)?;
        (0..events).try_for_each(|_| channel.send_event(&tensor))?;
        Ok((channel, tensor, hold))
    })
    .unwrap();
    // The first message announces the semaphore.
    let messages = (0..2 + events).map(|_| read_message(&tap)).collect();
    StalledSender { messages, hold, sim, _kept: (channel, tensor, runtime, tap) }
}

impl StalledSender {
    /// Changes the semaphore's value in a message. Message 0 announces the semaphore, message 1 is
    /// the tensor, and later messages are events.
    fn set_number(&mut self, message: usize, number: u32) {
        let bytes = &mut self.messages[message].0;
        let at = match message {
            1 => SIGNAL_IN_TENSOR + 5,
            _ => bytes.len() - NUMBER_IN_EVENT,
        };
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }

    /// Sends all messages over a new socket. Returns the sender's end and the receiver's end.
    fn send_all(&self) -> (UnixStream, UnixStream) {
        let (peers, socket) = UnixStream::pair().unwrap();
        for (message, handle) in &self.messages {
            send_message(&peers, message, handle.as_ref());
        }
        (peers, socket)
    }

    /// Lets the sender's GPU continue.
    fn resume(&self) {
        self.hold.open();
        self.sim.run_all();
    }
}

fn send_message(socket: &UnixStream, message: &[u8], handle: Option<&OwnedFd>) {
    let handles: Vec<_> = handle.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !handles.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&handles)));
    }
    let part = [IoSlice::new(message)];
    let sent = sendmsg(socket, &part, &mut control, SendFlags::NOSIGNAL);
    assert_eq!(sent.unwrap(), message.len());
}

fn timed_out<T>(result: Result<T>) -> bool {
    match result {
        Err(error) => error.to_string().contains("timeout"),
        Ok(_) => false,
    }
}

fn is_gone<T>(result: Result<T>) -> bool {
    matches!(result.kind(), Some(ErrorKind::PeerGone { .. }))
}

fn schedules() -> impl Iterator<Item = Schedule> {
    (0..schedule_count())
        .map(|seed| if seed == 0 { Schedule::Lazy } else { Schedule::Seeded(seed) })
}

#[test]
fn a_semaphore_value_that_does_not_increase_is_refused() {
    for number in [0, 0x8000_0000, 0x8000_0001, u32::MAX] {
        let mut peer = stalled_sender(0);
        peer.set_number(1, number);
        let (end, socket) = peer.send_all();
        let result = bounded("reading a tensor of a far number", move || {
            let (_, runtime) = world(1, Schedule::Lazy);
            with_runtime(&runtime, || Channel::new(socket).recv().and_then(|t| t.to_vec::<f32>()))
        });
        drop(end);
        let error = result.expect_err("it was accepted").to_string();
        assert!(error.contains("number"), "{number}: {error}");
    }
}

#[test]
fn a_stalled_peer_delays_only_its_own_tensors() {
    for schedule in schedules() {
        let peer = stalled_sender(0);
        let (end, socket) = peer.send_all();
        let (tell, told) = channel();
        let (done, is_done) = channel();
        let receiver = std::thread::spawn(move || {
            let (_, runtime) = world(1, schedule);
            with_runtime(&runtime, || -> Result<()> {
                let own = ones([600], (DType::F32, "cuda:0"))?;
                let channel = Channel::new(socket);
                let tensor = channel.recv()?;
                own.add_(1.0)?;
                assert_eq!(own.to_vec::<f32>()?, [2.0; 600], "on the same stream");
                cuda::current_stream(())?.synchronize()?;
                // A tensor on another channel arrives meanwhile.
                let (here, there) = pair();
                let (_, other) = world(1, Schedule::Lazy);
                with_runtime(&other, || here.send(&ones([5], "cuda:0")?.share_memory()?))?;
                assert_eq!(there.recv()?.to_vec::<f32>()?, [1.0; 5]);
                tell.send(()).unwrap();
                assert_eq!(tensor.to_vec::<f32>()?, [2.0; 600], "nothing stale");
                done.send(()).unwrap();
                Ok(())
            })
        });
        told.recv_timeout(BOUND).expect("other tensors stand still");
        peer.resume();
        is_done.recv_timeout(BOUND).expect("the tensor is never there");
        receiver.join().unwrap().unwrap();
        drop(end);
    }
}

/// The use of the first tensor waits only for this tensor, although waits for later tensors are
/// enqueued meanwhile.
#[test]
fn a_received_tensor_is_usable_while_later_tensors_are_awaited() {
    const MORE: usize = 100;
    for schedule in schedules() {
        let (sim, sender) = world(1, Schedule::Lazy);
        let (here, there) = pair();
        let (streams, holds) = with_runtime(&sender, || -> Result<_> {
            let tensor = |value| full([60], value, (DType::F32, "cuda:0"))?.share_memory();
            let tensors = [tensor(1.0)?, tensor(2.0)?];
            let streams = [cuda::Stream::new(())?, cuda::Stream::new(())?];
            cuda::synchronize(())?;
            let holds = streams.each_ref().map(|s| sim.hold(s.raw().handle()).unwrap());
            for (tensor, stream) in tensors.iter().zip(&streams) {
                cuda::with_stream(stream, || tensor.add_(1.0).and_then(|t| here.send(t)))?;
            }
            for _ in 0..MORE {
                cuda::with_stream(&streams[1], || here.send(&tensors[1]))?;
            }
            Ok((streams, holds))
        })
        .unwrap();
        bounded("a tensor that has arrived", move || {
            let (_, receiver) = world(1, schedule);
            with_runtime(&receiver, || -> Result<()> {
                let [first, second] = [there.recv()?, there.recv()?];
                let _more = (0..MORE).map(|_| there.recv()).collect::<Result<Vec<_>>>()?;
                holds[0].open();
                streams[0].synchronize()?;
                assert_eq!(first.add(1.0)?.to_vec::<f32>()?, [3.0; 60], "{schedule:?}");
                assert!(!holds[1].is_open());
                holds[1].open();
                streams[1].synchronize()?;
                assert_eq!(second.to_vec::<f32>()?, [3.0; 60], "{schedule:?}");
                Ok(())
            })
        })
        .unwrap();
    }
}

#[test]
fn sending_on_one_stream_does_not_block_another() {
    for schedule in schedules() {
        let (sim, runtime) = world(1, schedule);
        with_runtime(&runtime, || -> Result<()> {
            let (here, _there) = pair();
            let [first, second] =
                [1.0, 2.0].map(|v| full([60], v, (DType::F32, "cuda:0"))?.share_memory());
            let (first, second) = (first?, second?);
            let other = cuda::Stream::new(())?;
            cuda::synchronize(())?;
            let hold = sim.hold(StreamHandle::default_of(0)).unwrap();
            first.add_(1.0)?;
            here.send(&first)?;
            cuda::with_stream(&other, || -> Result<()> {
                let own = ones([60], (DType::F32, "cuda:0"))?;
                here.send(&second)?;
                assert_eq!(own.add(1.0)?.to_vec::<f32>()?, [2.0; 60]);
                Ok(())
            })?;
            assert!(!hold.is_open(), "the other stream has waited for the first");
            hold.open();
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn a_read_of_a_stalled_peers_work_ends_with_the_timeout() {
    let peer = stalled_sender(0);
    let (end, socket) = peer.send_all();
    let (tell, told) = channel();
    let (tell_back, told_back) = channel();
    let receiver = std::thread::spawn(move || {
        let (_, runtime) = world(1, Schedule::Lazy);
        with_runtime(&runtime, || -> Result<()> {
            let channel = Channel::new(socket);
            channel.set_timeout(Some(TIMEOUT))?;
            let tensor = channel.recv()?;
            let sum = tensor.add(1.0)?;
            let reads = [&tensor, &sum].map(|t| timed_out(t.to_vec::<f32>()));
            tell.send(reads).unwrap();
            told_back.recv().unwrap();
            assert_eq!(sum.to_vec::<f32>()?, [3.0; 600], "it is there after all");
            Ok(())
        })
    });
    assert_eq!(told.recv_timeout(BOUND).expect("a read hangs"), [true; 2]);
    peer.resume();
    tell_back.send(()).unwrap();
    bounded("the last read", || receiver.join().unwrap()).unwrap();
    drop(end);
}

#[test]
fn dropping_the_channel_of_a_stalled_peer_ends_with_the_timeout_and_streams_continue() {
    let peer = stalled_sender(0);
    let (end, socket) = peer.send_all();
    bounded("dropping a channel", move || {
        let (_, runtime) = world(1, Schedule::Lazy);
        with_runtime(&runtime, || -> Result<()> {
            let channel = Channel::new(socket);
            channel.set_timeout(Some(TIMEOUT))?;
            let tensor = channel.recv()?;
            let sum = tensor.add(1.0)?;
            drop(channel);
            cuda::synchronize(())?;
            assert!(is_gone(tensor.to_vec::<f32>()) && is_gone(sum.to_vec::<f32>()));
            Ok(())
        })
    })
    .unwrap();
    drop(end);
}

#[test]
fn a_timeout_bounds_the_entire_call_on_a_peer_that_sends_byte_by_byte() {
    let peer = stalled_sender(0);
    let bytes = peer.messages[1].0.clone();
    let (mut to, from) = UnixStream::pair().unwrap();
    let dripping = std::thread::spawn(move || {
        for byte in bytes {
            if to.write_all(&[byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let (_, runtime) = world(1, Schedule::Lazy);
    let start = Instant::now();
    with_runtime(&runtime, || {
        let channel = Channel::new(from);
        channel.set_timeout(Some(TIMEOUT)).unwrap();
        assert!(timed_out(channel.recv()));
    });
    let elapsed = start.elapsed();
    dripping.join().unwrap();
    assert!((TIMEOUT..10 * TIMEOUT).contains(&elapsed), "{elapsed:?}");
}

#[test]
fn a_timeout_includes_the_wait_for_calls_of_other_threads() {
    let (here, _there) = Channel::pair().unwrap();
    here.set_timeout(Some(TIMEOUT)).unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let (_, runtime) = world(1, Schedule::Lazy);
                with_runtime(&runtime, || assert!(timed_out(here.recv())));
            });
        }
    });
    let elapsed = start.elapsed();
    assert!(elapsed < 8 * TIMEOUT, "ten threads in turns: {elapsed:?}");
}

#[test]
fn a_peer_cannot_open_hundreds_of_descriptors_by_announcing_semaphores() {
    const SENT: u32 = 200;
    let path = std::env::temp_dir().join(format!("warpline-announced-{}", std::process::id()));
    let peer = stalled_sender(0);
    let known = peer.messages[0].0.clone();
    assert_eq!(known[8], SEMAPHORE);
    let mut unknown = known.clone();
    unknown[HEAD..HEAD + 16].fill(0x5a); // no device has this UUID
    for announcement in [known, unknown] {
        let (to, from) = UnixStream::pair().unwrap();
        let file = OwnedFd::from(File::create(&path).unwrap());
        let sender = std::thread::spawn(move || {
            for index in 0..SENT {
                let mut message = announcement.clone();
                message[HEAD + 16..HEAD + 20].copy_from_slice(&index.to_le_bytes());
                send_message(&to, &message, Some(&file));
            }
            drop(file);
            to
        });
        let (_, runtime) = world(1, Schedule::Lazy);
        let channel = Channel::new(from);
        channel.set_timeout(Some(TIMEOUT)).unwrap();
        with_runtime(&runtime, || assert!(channel.recv().is_err()));
        drop(sender.join().unwrap());
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let open = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        let open = open.filter(|to| *to == path).count();
        std::fs::remove_file(&path).unwrap();
        assert!(open <= 16, "{open} descriptors are open");
    }
}

#[test]
fn several_threads_send_over_one_channel() {
    const EACH: usize = 50;
    let (here, there) = pair();
    let (_, maker) = world(1, Schedule::Seeded(3));
    let tensor = with_runtime(&maker, || -> Result<_> {
        let tensor = ones([60], (DType::F32, "cuda:0"))?.share_memory()?;
        here.send(&tensor)?;
        Ok(tensor)
    })
    .unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                with_runtime(&maker, || {
                    (0..EACH).try_for_each(|_| here.send_event(&tensor)).unwrap();
                });
            });
        }
        let (_, runtime) = world(1, Schedule::Seeded(4));
        with_runtime(&runtime, || -> Result<()> {
            let tensor = there.recv()?;
            (0..4 * EACH).try_for_each(|_| there.recv_event(&tensor))?;
            assert_eq!(tensor.to_vec::<f32>()?, [1.0; 60]);
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn sharing_a_leaf_keeps_requires_grad() {
    let (here, there) = pair();
    let (_, maker) = world(1, Schedule::Lazy);
    with_runtime(&maker, || -> Result<()> {
        let leaf = ones([3], (DType::F32, "cuda:0"))?.requires_grad_(true)?;
        let shared = leaf.share_memory()?;
        assert!(shared.is_shared() && shared.is_leaf() && shared.requires_grad());
        shared.mul(2.0)?.sum(())?.backward()?;
        assert_eq!(shared.grad().unwrap().to_vec::<f32>()?, [2.0; 3]);
        here.send(&shared)?;
        assert!(!ones([3], "cuda:0")?.share_memory()?.requires_grad());
        Ok(())
    })
    .unwrap();
    let (_, runtime) = world(1, Schedule::Lazy);
    with_runtime(&runtime, || -> Result<()> {
        let received = there.recv()?;
        assert!(received.is_leaf() && received.requires_grad(), "as with PyTorch");
        Ok(())
    })
    .unwrap();
}

#[test]
fn sharing_a_tensor_with_a_graph_fails_and_suggests_detach() {
    let (here, _there) = pair();
    let (_, runtime) = world(1, Schedule::Lazy);
    with_runtime(&runtime, || -> Result<()> {
        let leaf = ones([3], (DType::F32, "cuda:0"))?.requires_grad_(true)?;
        let computed = leaf.mul(2.0)?;
        let shared = leaf.share_memory()?;
        let view = shared.narrow(0, 0, 2)?;
        for refused in [computed.share_memory().map(drop), here.send(&view)] {
            let error = refused.expect_err("the gradient was lost");
            assert!(matches!(error.kind(), ErrorKind::Gradient { .. }), "{error}");
            assert!(error.to_string().contains("detach"), "{error}");
        }
        assert_eq!(computed.detach().share_memory()?.to_vec::<f32>()?, [2.0; 3]);
        here.send(&view.detach())
    })
    .unwrap();
}
