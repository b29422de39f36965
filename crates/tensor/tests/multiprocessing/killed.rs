//! Tests in which one process is killed with `SIGKILL` at each of ten points. The other process has
//! tensors with the right data, or an error tells it that its peer is gone. Nothing leaks.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use warpline::multiprocessing::Channel;
use warpline::{
    DType, Error, ErrorKind, Result, ResultExt, Runtime, Tensor, cuda, full, with_runtime, zeros,
};

use crate::common;
use crate::processes::{Peer, alone, runtime, specs};

/// Number of elements of a tensor on a real GPU. The tensor has 64 MiB, so that a leak is visible
/// in the free memory.
const GPU: usize = 16 << 20;
/// Number of elements of a tensor on a simulated GPU.
const SIM: usize = 4 << 10;

const MAKER: [&str; 10] = [
    "start",
    "made",
    "shared",
    "enqueued",
    "sent",
    "enqueued more",
    "dropped",
    "half sent",
    "sent both",
    "told",
];
const RECEIVER: [&str; 10] = [
    "start",
    "half sent",
    "received",
    "read",
    "enqueued",
    "done",
    "told",
    "received both",
    "dropped",
    "closed",
];

/// The point at which this process kills itself with `SIGKILL`.
pub(crate) struct KillPoint<'a>(pub(crate) &'a str);

impl KillPoint<'_> {
    pub(crate) fn reached(&self, point: &str) {
        if self.0 == point {
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
}

pub(crate) fn elements() -> usize {
    if warpline::runtime().driver().is_ok_and(|d| d.name() == "sim") { SIM } else { GPU }
}

/// Sends an incomplete message.
fn send_half_message(channel: &Channel) {
    let mut socket = UnixStream::from(channel.as_fd().try_clone_to_owned().unwrap());
    socket.write_all(b"wrplne").unwrap();
}

/// Program of the other process: makes two tensors and sends them.
pub(crate) fn maker(channel: &Channel, point: &str) -> Result<()> {
    let kill_point = KillPoint(point);
    kill_point.reached("start");
    let tensor = full([elements()], 1.0, (DType::F32, "cuda:0"))?;
    kill_point.reached("made");
    let tensor = tensor.share_memory()?;
    kill_point.reached("shared");
    for _ in 0..20 {
        tensor.add_(1.0)?;
    }
    kill_point.reached("enqueued");
    channel.send(&tensor)?;
    kill_point.reached("sent");
    let second = tensor.add(1.0)?.share_memory()?;
    kill_point.reached("enqueued more");
    drop(tensor);
    kill_point.reached("dropped");
    if point == "half sent" {
        send_half_message(channel);
    }
    kill_point.reached("half sent");
    channel.send(&second)?;
    kill_point.reached("sent both");
    channel.send_event(&second)?;
    kill_point.reached("told");
    unreachable!("no point is {point}");
}

/// Program of the other process: receives two tensors and changes the first.
pub(crate) fn receiver(channel: &Channel, point: &str) -> Result<()> {
    let kill_point = KillPoint(point);
    kill_point.reached("start");
    if point == "half sent" {
        send_half_message(channel);
    }
    kill_point.reached("half sent");
    let tensor = channel.recv()?;
    kill_point.reached("received");
    assert!(all(&tensor, 1.0)?);
    kill_point.reached("read");
    tensor.fill_(7.0)?;
    kill_point.reached("enqueued");
    cuda::synchronize(())?;
    kill_point.reached("done");
    channel.send_event(&tensor)?;
    kill_point.reached("told");
    let second = channel.recv()?;
    kill_point.reached("received both");
    drop((tensor, second));
    kill_point.reached("dropped");
    let socket = UnixStream::from(channel.as_fd().try_clone_to_owned().unwrap());
    let _ = socket.shutdown(std::net::Shutdown::Both);
    kill_point.reached("closed");
    unreachable!("no point is {point}");
}

/// Returns the value, or `None` if the peer is gone.
pub(crate) fn or_gone<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), ErrorKind::PeerGone { .. }) => Ok(None),
        Err(other) => Err(other),
    }
}

pub(crate) fn all(tensor: &Tensor, value: f32) -> Result<bool> {
    let wrong = tensor.to_vec::<f32>()?.into_iter().find(|&v| v != value);
    Ok(wrong.is_none())
}

/// Allocates and writes memory, to reuse freed memory. Shared memory must not be reused.
pub(crate) fn reuse_freed_memory() -> Result<()> {
    for i in 0..4 {
        full([elements()], 100.0 + f64::from(i), (DType::F32, "cuda:0"))?;
    }
    cuda::synchronize(())
}

fn survive_maker(spec: &str, world: &Runtime, point: &str) -> Result<usize> {
    let peer = Peer::start(&format!("maker@{point}"), spec);
    with_runtime(world, || {
        let first = or_gone(peer.channel.recv())?;
        let second = or_gone(peer.channel.recv())?;
        let told = match &second {
            Some(second) => or_gone(peer.channel.recv_event(second))?,
            None => None,
        };
        let after = peer.channel.recv();
        assert!(matches!(
            after.kind(),
            Some(ErrorKind::PeerGone { .. } | ErrorKind::InvalidArgument { .. })
        ));
        assert!(!peer.ended(), "{spec}: it was to be killed when it was {point}");
        reuse_freed_memory()?;
        for (tensor, value) in [(&first, 21.0), (&second, 22.0)] {
            let Some(tensor) = tensor else { continue };
            let Some(right) = or_gone(all(tensor, value))? else {
                // The peer's work on the tensor was not complete when the peer was killed, and this
                // process cannot know when the work ends.
                tensor.fill_(1.0)?;
                assert!(or_gone(all(tensor, 1.0))?.is_none(), "{spec}, {point}: it is used again");
                continue;
            };
            assert!(right, "{spec}: killed when {point}: wrong data");
            tensor.add_(1.0)?; // the tensor stays usable
            assert!(all(tensor, value + 1.0)?);
        }
        Ok(usize::from(first.is_some())
            + usize::from(second.is_some())
            + usize::from(told.is_some()))
    })
}

fn survive_receiver(spec: &str, world: &Runtime, point: &str) -> Result<bool> {
    let peer = Peer::start(&format!("receiver@{point}"), spec);
    with_runtime(world, || {
        let tensor = full([elements()], 1.0, (DType::F32, "cuda:0"))?.share_memory()?;
        let second = zeros([elements()], "cuda:0")?.share_memory()?;
        or_gone(peer.channel.send(&tensor))?;
        let told = or_gone(peer.channel.recv_event(&tensor))?.is_some();
        or_gone(peer.channel.send(&second))?;
        let after = peer.channel.recv();
        assert!(matches!(
            after.kind(),
            Some(ErrorKind::PeerGone { .. } | ErrorKind::InvalidArgument { .. })
        ));
        assert!(!peer.ended(), "{spec}: it was to be killed when it was {point}");
        reuse_freed_memory()?;
        // If the peer's event arrived, its work is complete. Otherwise the value before or after
        // the work is right.
        let values = or_gone(tensor.to_vec::<f32>())?;
        let right = |v: &f32| *v == 7.0 || !told && *v == 1.0;
        assert!(values.iter().flatten().all(right), "{spec}: {point}");
        assert!(all(&second, 0.0)?);
        tensor.fill_(3.0)?;
        let again = or_gone(all(&tensor, 3.0))?;
        assert_eq!(again, values.map(|_| true), "{spec}: {point}");
        Ok(told)
    })
}

/// Returns the number of shared-memory files that this process has open or mapped.
pub(crate) fn files_left() -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let fds = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    let open = fds.filter(|to| to.to_string_lossy().contains("warpline-shared")).count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    open + maps.matches("warpline-shared").count()
}

pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Runs both programs once for each of their points, and kills the process at the point.
fn kill_everywhere(spec: &str, world: &Runtime) {
    let failed = |point| move |e: Error| -> usize { panic!("{spec}, killed when {point}: {e}") };
    // For each point, the maximum number of messages that arrive if the maker is killed there.
    let arrives = [0, 0, 0, 0, 1, 1, 1, 1, 2, 3];
    for (point, arrives) in MAKER.into_iter().zip(arrives) {
        let arrived = survive_maker(spec, world, point).unwrap_or_else(failed(point));
        assert!(arrived <= arrives, "{spec}, killed when {point}: {arrived}");
    }
    for (index, point) in RECEIVER.into_iter().enumerate() {
        let told = survive_receiver(spec, world, point).map(usize::from);
        let told = told.unwrap_or_else(failed(point));
        assert!(told == 0 || index >= 6, "{spec}, killed when {point}");
    }
}

/// Program of a process in which no other test runs: checks that no file descriptor remains open.
pub(crate) fn survivor(spec: &str) -> Result<()> {
    // Keep `world` alive until descriptors are counted: a thread of the simulator may hold the
    // driver, and with it the file of the driver's memory, a moment longer than all other users.
    let world = runtime(spec);
    // The first use opens file descriptors that stay open, so do not count them.
    survive_maker(spec, &world, "start")?;
    let before = descriptors();
    kill_everywhere(spec, &world);
    // When the last tensor was dropped, a stream may still have been waiting for the killed
    // process.
    let start = Instant::now();
    while files_left() > 0 && start.elapsed() < Duration::from_secs(10) {
        with_runtime(&world, cuda::ipc_collect);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(files_left(), 0, "{spec}: memory of the dead is still here");
    assert_eq!(descriptors(), before, "{spec}: descriptors of the dead are still here");
    Ok(())
}

#[test]
fn s33_the_survivor_of_a_kill_has_right_data_and_nothing_leaks() {
    specs().iter().for_each(|spec| Peer::survives("points", spec));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_s33_the_survivor_of_a_kill_has_right_data_and_nothing_leaks() {
    let _alone = alone();
    let spec = common::gpu_spec();
    let world = runtime(&spec);
    let free = || with_runtime(&world, || cuda::mem_get_info(0).map(|info| info.free)).unwrap();
    // The first use allocates memory that stays allocated.
    survive_maker(&spec, &world, "start").unwrap();
    with_runtime(&world, cuda::empty_cache);
    let (before, fds) = (free(), descriptors());
    kill_everywhere(&spec, &world);
    // The driver frees the killed process's memory after a short delay.
    let start = Instant::now();
    while free() + (256 << 20) < before && start.elapsed() < Duration::from_secs(30) {
        with_runtime(&world, cuda::empty_cache);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(free() + (256 << 20) >= before, "{} of {before} bytes are free again", free());
    assert!(descriptors() <= fds + 8, "{} descriptors, {fds} before", descriptors());
}
