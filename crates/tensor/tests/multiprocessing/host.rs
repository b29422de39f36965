//! Tests of host memory that processes share.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use warpline::multiprocessing::Channel;
use warpline::{
    DType, ErrorKind, Result, ResultExt, Tensor, TensorOptions, arange, cat, cuda, full, ones,
    with_runtime, zeros,
};
use warpline::{Runtime, RuntimeConfig};
use warpline_cuda_sys_safe::DriverError;
use warpline_cuda_sys_safe::sim::Schedule;

use crate::cut::{HEAD, read_next_message};
use crate::killed::{KillPoint, all, descriptors, files_left, or_gone};
use crate::processes::{Peer, specs};
use crate::threads::{both, pair, world};

#[test]
fn s33_host_memory_is_shared_and_devices_of_both_sides_copy_it_in_order() {
    both(
        |channel| {
            let tensor = arange(600, DType::F32)?.pin_memory()?.share_memory()?;
            assert!(tensor.is_shared() && tensor.is_pinned() && !tensor.is_cuda());
            let local = ones([600], "cuda:0")?;
            for _ in 0..3 {
                local.add_(&tensor.to_non_blocking("cuda:0")?)?;
                tensor.copy_(&local, true)?; // `send` waits for this copy
            }
            channel.send(&tensor)?;
            channel.recv_event(&tensor)?;
            let expected: Vec<f32> = (0..600).map(|i| (8 * i + 5 + 10) as f32).collect();
            assert_eq!(tensor.to_vec::<f32>()?, expected);
            tensor.copy_(&zeros([600], ())?, ())?;
            channel.send_event(&tensor)
        },
        |channel| {
            let tensor = channel.recv()?;
            assert!(tensor.is_shared() && tensor.is_pinned() && !tensor.is_cuda());
            let before = tensor.to_vec::<f32>()?;
            let local = tensor.to_non_blocking("cuda:1")?;
            assert_eq!(local.to_vec::<f32>()?, before);
            let offset = arange(600, (DType::F32, "cuda:1"))?.mul(8.0)?.add(15.0)?;
            tensor.copy_(&offset, true)?;
            channel.send_event(&tensor)?;
            channel.recv_event(&tensor)?;
            assert!(all(&tensor, 0.0)?);
            Ok(())
        },
    );
}

#[test]
fn host_code_gets_copies_of_shared_memory_and_no_op_runs_on_it() {
    let (sim, runtime) = world(1, Schedule::Lazy);
    with_runtime(&runtime, || -> Result<()> {
        let (here, there) = pair();
        let shared = arange(6, DType::F32)?.view([2, 3])?.share_memory()?;
        here.send(&shared.t()?)?;
        let received = there.recv()?;
        let refused = [
            shared.add(1.0).map(drop),
            shared.add_(1.0).map(drop),
            shared.fill_(1.0).map(drop),
            shared.sum(()).map(drop),
            ones([2, 3], ())?.add_(&shared).map(drop),
            shared.t()?.copy_(&ones([3, 2], ())?, ()).map(drop),
        ];
        for (at, refused) in refused.into_iter().enumerate() {
            assert!(
                matches!(refused.kind(), Some(ErrorKind::SharedHostMemory)),
                "{at}: {refused:?}"
            );
        }
        let message = shared.add(1.0).unwrap_err().to_string();
        assert!(message.contains("copy()"), "{message}");
        // The refused call wrote nothing, and the tensor can still be read.
        assert_eq!(received.to_vec::<f32>()?, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(received.copy()?.add(1.0)?.sum(())?.item::<f32>()?, 21.0);
        assert_eq!(shared.to(DType::I64)?.to_vec::<i64>()?, [0, 1, 2, 3, 4, 5]);
        assert_eq!(received.to("cuda")?.to_vec::<f32>()?, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        let twice = cat(&[&shared, &shared], 0)?;
        assert_eq!(twice.to_vec::<f32>()?, shared.to_vec::<f32>()?.repeat(2));
        assert_eq!(shared.to_string(), shared.copy()?.to_string());
        // Both tensors are views of the same memory. A row of `shared` is contiguous.
        shared.select(0, 1)?.copy_(&full([3], 9.0, DType::F64)?, ())?;
        assert_eq!(received.to_vec::<f32>()?, [0.0, 9.0, 1.0, 9.0, 2.0, 9.0]);
        let flipped = shared.copy()?.copy_(&shared, ())?.mul(-1.0)?;
        shared.copy_(&flipped, ())?;
        assert_eq!(received.select(1, 1)?.to_vec::<f32>()?, [-9.0; 3]);
        here.send(&shared)?;
        let (_, other) = world(1, Schedule::Lazy);
        with_runtime(&other, || {
            let received = there.recv()?;
            assert_eq!(received.to_vec::<f32>()?, shared.to_vec::<f32>()?);
            assert!(matches!(there.send(&received).kind(), Some(ErrorKind::CannotShare { .. })));
            Ok(())
        })
    })
    .unwrap();
    drop(runtime);
    assert!(sim.usage().all_released(), "it is not registered any more");
}

#[test]
fn s33_dropping_host_memory_waits_for_no_work_and_unmaps_nothing_that_work_uses() {
    let (sim, runtime) = world(1, Schedule::Lazy);
    with_runtime(&runtime, || -> Result<()> {
        let shared = arange(1000, DType::F32)?.share_memory()?;
        let local = shared.to_non_blocking("cuda")?;
        let waits = sim.usage().host_waits;
        drop(shared);
        assert_eq!(sim.usage().host_waits, waits, "the host waits for nothing");
        assert_eq!(local.sum(())?.item::<f32>()?, 499_500.0);
        cuda::synchronize(())?;
        assert_eq!(cuda::ipc_collect(), 0);
        Ok(())
    })
    .unwrap();
    drop(runtime);
    assert!(sim.usage().all_released());
}

#[test]
fn s33_replays_of_a_graph_copy_shared_host_memory() {
    let (_, runtime) = world(1, Schedule::Lazy);
    with_runtime(&runtime, || -> Result<()> {
        let (here, there) = pair();
        let shared = zeros([100], ())?.share_memory()?;
        let counter = zeros([100], "cuda")?;
        let (graph, ()) = cuda::graph(|| {
            counter.add_(&shared.to_non_blocking("cuda")?.add(1.0)?)?;
            shared.copy_(&counter, true).map(drop)
        })?;
        for _ in 0..3 {
            graph.replay()?;
        }
        here.send(&shared)?;
        assert!(all(&there.recv()?, 7.0)?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_process_without_gpus_shares_host_memory_too() {
    let reason = DriverError::InvalidArgument { call: "test", reason: "no GPUs".to_owned() };
    let runtime = Runtime::without_cuda(reason, &RuntimeConfig::default());
    with_runtime(&runtime, || -> Result<()> {
        let (here, there) = pair();
        let shared = arange(4, ())?.share_memory()?;
        assert!(!shared.is_pinned());
        here.send(&shared)?;
        assert_eq!(there.recv()?.to_vec::<i64>()?, [0, 1, 2, 3]);
        here.send_event(&shared)
    })
    .unwrap();
}

/// Sends a message with the file descriptor `handle`, which belongs to another message. Returns the
/// receiver's error.
fn swapped(message: &[u8], handle: &File) -> String {
    let (raw, end) = UnixStream::pair().unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let handles = [handle.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&handles));
    let part = [IoSlice::new(message)];
    assert_eq!(sendmsg(&raw, &part, &mut control, SendFlags::empty()).unwrap(), message.len());
    Channel::new(end).recv().unwrap_err().to_string()
}

#[test]
fn files_of_another_kind_of_memory_are_refused() {
    let (_, runtime) = world(1, Schedule::Lazy);
    with_runtime(&runtime, || -> Result<()> {
        let sent = |tensor: &Tensor| -> Result<_> {
            let (a, b) = UnixStream::pair().unwrap();
            Channel::new(a).send(tensor)?;
            let (message, handle) = read_next_message(&b, None);
            Ok((message, File::from(handle.expect("its memory"))))
        };
        let (host, host_file) = sent(&arange(4, ())?.share_memory()?)?;
        let (device, device_file) = sent(&arange(4, "cuda")?.share_memory()?)?;
        let exe = File::open("/proc/self/exe").unwrap();
        for file in [&exe, &device_file] {
            let error = swapped(&host, file);
            assert!(error.contains("host memory for several processes"), "{error}");
        }
        assert!(swapped(&device, &host_file).contains("memory of a simulated device"));
        // The size fits the file, but the message names the wrong kind of memory.
        let flipped = |message: &[u8]| {
            let mut message = message.to_vec();
            message[HEAD + 3] ^= 1; // flips the bit for host memory
            message
        };
        let error = swapped(&flipped(&device), &device_file);
        assert!(error.contains("shared memory of this size is never exported"), "{error}");
        let mut host = flipped(&host);
        host[HEAD + 4..HEAD + 20].copy_from_slice(&device[HEAD + 4..HEAD + 20]);
        let error = swapped(&host, &host_file);
        assert!(error.contains("not a positive multiple"), "{error}");
        Ok(())
    })
    .unwrap();
}

const POINTS: [&str; 5] = ["shared", "enqueued", "sent", "written", "told"];

/// Program of the other process: shares host memory, and is killed at the point.
pub(crate) fn killed(channel: &Channel, point: &str) -> Result<()> {
    let kill_point = KillPoint(point);
    let tensor = full([5000], 1.0, TensorOptions::new().pin_memory(true))?.share_memory()?;
    kill_point.reached("shared");
    tensor.copy_(&full([5000], 2.0, "cuda:0")?, true)?;
    kill_point.reached("enqueued");
    channel.send(&tensor)?;
    kill_point.reached("sent");
    tensor.copy_(&full([5000], 3.0, ())?, ())?;
    kill_point.reached("written");
    channel.send_event(&tensor)?;
    kill_point.reached("told");
    unreachable!("no point is {point}");
}

fn survive(spec: &str, point: &str) -> Result<usize> {
    let peer = Peer::start(&format!("host@{point}"), spec);
    let Some(tensor) = or_gone(peer.channel.recv())? else {
        assert!(!peer.ended());
        return Ok(0);
    };
    let told = or_gone(peer.channel.recv_event(&tensor))?.is_some();
    assert!(!peer.ended(), "it was to be killed");
    let value = if point == "sent" { 2.0 } else { 3.0 };
    assert!(all(&tensor, value)?, "{spec}, {point}: stale data");
    let local = tensor.to_non_blocking("cuda:0")?;
    tensor.copy_(&local.add(1.0)?, true)?;
    assert!(all(&tensor, value + 1.0)?);
    Ok(1 + usize::from(told))
}

/// Program of a process in which no other test runs.
pub(crate) fn survivor(spec: &str) -> Result<()> {
    survive(spec, "sent")?;
    let before = descriptors();
    for (point, arrives) in POINTS.into_iter().zip([0, 0, 1, 1, 2]) {
        assert_eq!(survive(spec, point)?, arrives, "{spec}, killed when {point}");
    }
    cuda::synchronize(())?;
    assert_eq!(cuda::ipc_collect(), 0);
    assert_eq!(files_left(), 0, "{spec}: memory of the dead is still here");
    if spec.starts_with("sim") {
        assert_eq!(descriptors(), before);
    }
    Ok(())
}

#[test]
fn s33_host_memory_outlives_a_maker_that_is_killed() {
    specs().iter().for_each(|spec| Peer::survives("host", spec));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_s33_host_memory_outlives_a_maker_that_is_killed() {
    Peer::survives("host", &crate::common::gpu_spec());
}
