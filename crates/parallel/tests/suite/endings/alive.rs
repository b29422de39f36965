//! Makes the objects of a plan, and keeps them where the plan says.

use std::any::Any;
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use warpline::cuda::{self, Event, Stream};
use warpline::data::{DataLoader, TensorDataset};
use warpline::multiprocessing::Channel;
use warpline::{ErrorKind, Result, Runtime, Tensor, arange, full, ones, with_runtime, zeros};
use warpline_parallel::distributed::{
    Backend, HashStore, InitOptions, ReduceOp, ReduceOptions, Store, TcpStore, init_process_group,
};

use super::plan::{Owner, Part};
use super::{PEER, own_program};
use crate::group_support::LONG;

/// Set before the end begins. Threads may then get errors of a driver that shuts down.
pub(super) static ENDING: AtomicBool = AtomicBool::new(false);

/// An object that is alive at the end.
pub(super) type Object = Box<dyn Any + Send>;

thread_local! {
    static OWN: RefCell<Vec<Object>> = const { RefCell::new(Vec::new()) };
}

/// Makes an object on the current runtime and gives it to its owner. Returns the object if the owner is the caller.
pub(super) fn make(part: Part, owner: Owner) -> Result<Option<Object>> {
    static KEPT: OnceLock<Mutex<Vec<Object>>> = OnceLock::new();
    match owner {
        Owner::Local => return object(part).map(Some),
        Owner::Static => {
            let kept = KEPT.get_or_init(Mutex::default);
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(object(part)?);
        }
        Owner::ThreadLocal => keep(part)?,
        Owner::OtherThread => {
            let (made, is_made) = mpsc::channel();
            let runtime = warpline::runtime();
            std::thread::spawn(move || {
                let _ = made.send(with_runtime(&runtime, || keep(part)));
                loop {
                    std::thread::park();
                }
            });
            is_made.recv().expect("the thread")?;
        }
        Owner::EndedThread => {
            let runtime = warpline::runtime();
            let thread = std::thread::spawn(move || with_runtime(&runtime, || keep(part)));
            thread.join().expect("the thread")?;
        }
    }
    Ok(None)
}

fn keep(part: Part) -> Result<()> {
    let object = object(part)?;
    OWN.with_borrow_mut(|own| own.push(object));
    Ok(())
}

fn object(part: Part) -> Result<Object> {
    Ok(match part {
        Part::CpuTensors => {
            let a = ones([64, 64], ())?;
            Box::new([a.matmul(&a)?, a])
        }
        Part::Streams => Box::new(streams()?),
        Part::Pinned => {
            let pinned = full([500], 2.0, ())?.pin_memory()?;
            let copy = pinned.to_non_blocking("cuda")?;
            let back = zeros([500], ())?.pin_memory()?;
            back.copy_(&copy, true)?;
            Box::new([pinned, copy, back])
        }
        Part::Events => {
            let (start, end) = (Event::new(()), Event::new(()));
            let stream = Stream::new(0)?;
            start.record(&stream)?;
            let x = cuda::with_stream(&stream, || ones([100], "cuda")?.add(1))?;
            end.record(&stream)?;
            end.wait(&cuda::default_stream(0)?)?;
            Box::new((start, end, x))
        }
        Part::Graph => {
            let x = ones([300], "cuda")?;
            let (graph, y) = cuda::graph(|| x.add(1)?.mul(&x))?;
            for _ in 0..5 {
                graph.replay()?;
            }
            Box::new((graph, y))
        }
        Part::Loader => {
            let data = TensorDataset::new(arange(40, ())?, zeros([40, 3], ())?)?;
            let loader = DataLoader::new(data).batch_size(2)?.num_workers(2);
            let mut batches = loader.pin_memory(true).iter()?;
            let first = batches.next().transpose()?;
            Box::new((batches, first))
        }
        Part::BusyThreads => {
            for device in ["cpu", "cuda"] {
                let runtime = warpline::runtime();
                std::thread::spawn(move || with_runtime(&runtime, || compute_for_ever(device)));
            }
            Box::new(())
        }
        Part::Shared => {
            let device = full([200], 1.0, "cuda")?.share_memory()?;
            let host = full([200], 1.0, ())?.share_memory()?;
            device.add_(1.0)?;
            Box::new([device, host])
        }
        Part::Channel => Box::new(channel()?),
        Part::Peer => Box::new(peer()?),
        Part::Store => Box::new(store()),
        Part::Gradients => {
            let x = ones([50], "cuda")?.requires_grad_(true)?;
            let y = x.mul(&x)?.exp()?;
            let kept = y.copy()?;
            y.register_hook(move |grad| grad.mul(&kept).map(Some))?;
            let sum = y.sum(())?;
            Box::new((x, y, sum))
        }
        Part::Group => {
            let options = InitOptions::new(Arc::new(HashStore::new()), 0, 1)
                .device(Some(0))
                .timeout(LONG)
                .backend(Backend::Nccl);
            let group = init_process_group(options)?;
            let x = ones([10], "cuda")?;
            let options = ReduceOptions::new().op(ReduceOp::Sum).async_op(true);
            let work = group.all_reduce(&x, options)?;
            Box::new((group, x, work))
        }
    })
}

/// Returns tensors that several streams compute, with dependencies between the streams.
fn streams() -> Result<Vec<Tensor>> {
    let mut tensors = vec![ones([1000], "cuda")?];
    for index in 0..6 {
        let stream = Stream::new(index % cuda::device_count()?)?;
        let last = &tensors[tensors.len() - 1];
        let next = cuda::with_stream(&stream, || last.to("cuda")?.mul(2)?.add(1))?;
        tensors.push(next);
    }
    Ok(tensors)
}

fn compute_for_ever(device: &str) {
    let step = || ones([64, 64], device)?.matmul(&full([64, 64], 0.5, device)?)?.sum(());
    loop {
        match step() {
            Ok(_) => {}
            Err(_) if ENDING.load(Ordering::Relaxed) => return,
            Err(error) => panic!("a busy thread: {error}"),
        }
    }
}

/// Returns both ends of a channel and the tensors that went over it.
fn channel() -> Result<(Channel, Channel, Vec<Tensor>)> {
    let (here, there) = Channel::pair()?;
    for end in [&here, &there] {
        end.set_timeout(Some(Duration::from_secs(5)))?;
    }
    let sent = full([200], 1.0, "cuda")?.share_memory()?;
    sent.add_(1.0)?;
    here.send(&sent)?;
    let received = there.recv()?;
    there.send(&full([20], 1.0, ())?.share_memory()?)?; // nobody receives it
    Ok((here, there, vec![sent, received]))
}

/// Starts another process, and sends it a tensor with work in flight.
fn peer() -> Result<(Channel, Tensor)> {
    let (here, there) = UnixStream::pair().expect("a pair of sockets");
    let mut program = own_program();
    program.env(PEER, "").stdin(Stdio::from(OwnedFd::from(there)));
    // The process ends when the socket closes. Nobody waits for it.
    drop(program.spawn().expect("the peer"));
    let channel = Channel::new(here);
    channel.set_timeout(Some(LONG))?;
    let tensor = full([200], 1.0, "cuda")?.share_memory()?;
    tensor.add_(1.0)?;
    channel.send(&tensor)?;
    Ok((channel, tensor))
}

/// Program of the peer: changes the tensors that arrive, until the other process is gone.
pub(super) fn answer(channel: Channel) {
    let mut tensors = Vec::new();
    let gone = loop {
        let changed = channel.recv().and_then(|tensor| {
            tensor.add_(1.0)?;
            Ok(tensor)
        });
        match changed {
            Ok(tensor) => tensors.push(tensor),
            Err(error) => break error,
        }
    };
    // The other process may have ended in the middle of a message.
    let expected =
        matches!(gone.kind(), ErrorKind::PeerGone { .. } | ErrorKind::InvalidArgument { .. });
    assert!(expected, "the peer: {gone}");
    drop((tensors, channel));
}

/// Returns the host of a store and a client, with a thread that waits for a key.
fn store() -> (TcpStore, Arc<TcpStore>) {
    let host = TcpStore::host("127.0.0.1:0", ()).expect("a store");
    let client = TcpStore::connect(("127.0.0.1", host.port()), LONG).expect("a client");
    let client = Arc::new(client);
    client.set("key", b"value").expect("a key");
    let waiting = Arc::clone(&client);
    std::thread::spawn(move || drop(waiting.get("never", LONG)));
    (host, client)
}

/// Opens the runtime of a plan. `None`: the runtime of the process.
pub(super) fn runtime(own: bool, spec: &str) -> Option<Runtime> {
    let open = || warpline::open(spec, &warpline::RuntimeConfig::default()).expect("a runtime");
    own.then(open)
}
