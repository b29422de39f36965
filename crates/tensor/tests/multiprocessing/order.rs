//! Tests that streams of two processes wait for each other while their hosts do not wait, and that
//! a process never reads stale data after its peer was killed with unfinished work.

use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use warpline::multiprocessing::Channel;
use warpline::{
    DType, Error, ErrorKind, Result, ResultExt as _, Runtime, Tensor, cuda, full, ones,
    with_runtime, zeros,
};
use warpline_cuda_sys_safe::StreamHandle;
use warpline_cuda_sys_safe::sim::{Hold, Schedule, SimDriver};

use crate::common;
use crate::killed::or_gone;
use crate::processes::{LONG, Peer, alone, runtime};
use crate::threads::{pair, schedule_count, world};

/// One of the two processes.
struct Side {
    channel: Channel,
    sim: Arc<SimDriver>,
    /// Signals the test code of the other side, without the channel under test.
    tell: Sender<()>,
    told: Receiver<()>,
}

impl Side {
    /// Makes the simulator hold back all later work of the default stream of device 0.
    fn hold(&self) -> Hold {
        self.sim.hold(StreamHandle::default_of(0)).unwrap()
    }

    /// Runs `f`, and checks that the host does not wait for a device meanwhile.
    fn unwaited<T>(&self, f: impl FnOnce(&Channel) -> Result<T>) -> Result<T> {
        let before = self.sim.usage().host_waits;
        let result = f(&self.channel);
        assert_eq!(self.sim.usage().host_waits, before, "the host waited");
        result
    }

    fn tell(&self) {
        self.tell.send(()).unwrap();
    }

    fn await_told(&self) {
        self.told.recv_timeout(LONG).unwrap();
    }
}

fn both(maker: impl Fn(&Side) -> Result<()> + Sync, peer: impl Fn(&Side) -> Result<()> + Sync) {
    for seed in 0..schedule_count() {
        let schedule = |salt: u64| match seed {
            0 => Schedule::Lazy,
            _ => Schedule::Seeded(seed * 2 + salt),
        };
        let ((a, b), [(to_a, at_a), (to_b, at_b)]) = (pair(), [channel(), channel()]);
        type Body<'a> = &'a (dyn Fn(&Side) -> Result<()> + Sync);
        let run = |salt: u64, channel, (tell, told), body: Body<'_>| {
            let (sim, runtime) = world(1, schedule(salt));
            let side = Side { channel, sim: sim.clone(), tell, told };
            let result = with_runtime(&runtime, || {
                let result = body(&side);
                drop(side);
                result
            });
            drop(runtime);
            result.unwrap_or_else(|e| panic!("seed {seed}, side {salt}: {e}"));
            assert!(sim.usage().all_released(), "seed {seed}, side {salt}");
        };
        std::thread::scope(|scope| {
            scope.spawn(|| run(1, b, (to_a, at_b), &peer));
            run(0, a, (to_b, at_a), &maker);
        });
    }
}

fn shared(value: f32) -> Result<Tensor> {
    let tensor = full([600], f64::from(value), (DType::F32, "cuda:0"))?.share_memory()?;
    cuda::synchronize(())?;
    Ok(tensor)
}

fn held(values: &Tensor, value: f32) -> Result<bool> {
    Ok(values.to_vec::<f32>()?.iter().all(|v| *v == value))
}

#[test]
fn s33_a_tensor_is_sent_and_received_while_work_on_it_is_under_way() {
    both(
        |side| {
            let tensor = shared(1.0)?;
            let hold = side.hold();
            tensor.add_(1.0)?;
            side.unwaited(|channel| channel.send(&tensor))?;
            assert!(!hold.is_open() && side.sim.pending() > 0, "its work is still to come");
            side.await_told();
            hold.open();
            side.await_told();
            Ok(())
        },
        |side| {
            let tensor = side.unwaited(Channel::recv)?;
            let sum = side.unwaited(|_| tensor.sum(()))?;
            side.tell();
            assert_eq!(sum.item::<f32>()?, 1200.0, "nothing stale");
            assert!(held(&tensor, 2.0)?);
            side.tell();
            Ok(())
        },
    );
}

#[test]
fn s33_an_event_is_sent_and_received_while_work_is_under_way() {
    both(
        |side| {
            let tensor = shared(1.0)?;
            side.channel.send(&tensor)?;
            side.unwaited(|channel| channel.recv_event(&tensor))?;
            let copy = side.unwaited(|_| tensor.add(1.0))?;
            // This write is ordered after the peer's read.
            side.unwaited(|_| tensor.fill_(-7.0).map(drop))?;
            side.unwaited(|channel| channel.send_event(&tensor))?;
            side.tell();
            assert!(held(&copy, 6.0)?, "nothing stale");
            side.await_told();
            Ok(())
        },
        |side| {
            let tensor = side.channel.recv()?;
            assert!(held(&tensor, 1.0)?);
            let hold = side.hold();
            let before = tensor.add(0.5)?;
            tensor.fill_(5.0)?;
            let after = tensor.add(0.5)?;
            side.unwaited(|channel| channel.send_event(&tensor))?;
            assert!(!hold.is_open(), "its work is still to come");
            side.await_told();
            hold.open();
            assert!(held(&before, 1.5)? && held(&after, 5.5)?, "nothing of what comes later");
            side.unwaited(|channel| channel.recv_event(&tensor))?;
            assert!(held(&tensor, -7.0)?);
            side.tell();
            Ok(())
        },
    );
}

/// Passes a tensor back and forth many times. Neither host waits for a turn.
#[test]
fn s33_turns_are_ordered_by_streams_alone() {
    const TURNS: usize = 10;
    both(
        |side| {
            let tensor = shared(0.0)?;
            side.channel.send(&tensor)?;
            for _ in 0..TURNS {
                side.unwaited(|channel| channel.recv_event(&tensor))?;
                tensor.add_(1.0)?;
                side.unwaited(|channel| channel.send_event(&tensor))?;
            }
            side.await_told();
            assert!(held(&tensor, (1 << (TURNS + 1)) as f32 - 2.0)?);
            Ok(())
        },
        |side| {
            let tensor = side.channel.recv()?;
            for _ in 0..TURNS {
                tensor.mul_(2.0)?;
                side.unwaited(|channel| channel.send_event(&tensor))?;
                side.unwaited(|channel| channel.recv_event(&tensor))?;
            }
            tensor.mul_(2.0)?;
            assert!(held(&tensor, (1 << (TURNS + 1)) as f32 - 2.0)?);
            side.tell();
            Ok(())
        },
    );
}

#[test]
fn s33_streams_signal_in_the_order_in_which_tensors_are_sent() {
    both(
        |side| {
            let (first, second) = (shared(0.0)?, shared(0.0)?);
            let hold = side.hold();
            first.add_(1.0)?;
            side.channel.send(&first)?;
            let other = cuda::Stream::new(())?;
            cuda::with_stream(&other, || -> Result<()> {
                second.add_(2.0)?;
                side.channel.send(&second)
            })?;
            side.await_told();
            hold.open();
            side.await_told();
            Ok(())
        },
        |side| {
            let (first, second) = (side.channel.recv()?, side.channel.recv()?);
            side.tell();
            assert!(held(&first, 1.0)? && held(&second, 2.0)?);
            side.tell();
            Ok(())
        },
    );
}

/// The result of an index check is known only after the check has run, so `send` waits for it on
/// the host.
#[test]
fn s33_a_tensor_with_a_failed_check_is_not_sent() {
    let (_, runtime) = world(1, Schedule::Lazy);
    with_runtime(&runtime, || -> Result<()> {
        let (here, _there) = pair();
        let tensor = shared(1.0)?;
        let bad = full([600], 9000, (DType::I64, "cuda:0"))?;
        tensor.copy_(&ones([600], (DType::F32, "cuda:0"))?.index_select(0, &bad)?, true)?;
        let refused = here.send(&tensor);
        assert!(matches!(refused.kind(), Some(ErrorKind::IndexCheck { .. })), "{refused:?}");
        Ok(())
    })
    .unwrap();
}

/// A tensor that depends on the work of a third process is sent after this work is complete. If the
/// third process is gone, the call fails.
#[test]
fn s33_unfinished_work_of_another_process_is_not_sent_on() {
    let worlds = [0, 1, 2].map(|_| world(1, Schedule::Lazy));
    let (third, (second, to_third)) = (pair(), pair());
    let (from_third, to_second) = third;
    let hold = with_runtime(&worlds[0].1, || -> Result<_> {
        let tensor = shared(1.0)?;
        let hold = worlds[0].0.hold(StreamHandle::default_of(0)).unwrap();
        tensor.add_(1.0)?;
        to_second.send(&tensor)?;
        Ok(hold)
    })
    .unwrap();
    with_runtime(&worlds[1].1, || -> Result<()> {
        let tensor = from_third.recv()?;
        let own = tensor.add(1.0)?.share_memory()?;
        // Closing the socket before the work is complete has the same effect as a kill.
        let socket = UnixStream::from(to_second.as_fd().try_clone_to_owned().unwrap());
        socket.shutdown(Shutdown::Both).unwrap();
        for _ in 0..2 {
            assert!(gone(second.send(&own)), "it was sent on");
            assert!(gone(from_third.send_event(&tensor)));
        }
        second.send(&shared(4.0)?)
    })
    .unwrap();
    with_runtime(&worlds[2].1, || {
        assert!(held(&to_third.recv()?, 4.0)?);
        Ok::<_, Error>(())
    })
    .unwrap();
    hold.open();
}

/// The GPU of a process that is gone may signal late, and so lower the semaphore's value again. No
/// stream of the peer may hang because of the lower value.
#[test]
fn s33_a_late_signal_of_a_process_that_is_gone_stops_no_stream() {
    for drops in [false, true] {
        let worlds = [0, 1].map(|_| world(1, Schedule::Lazy));
        let hold = |at: usize| worlds[at].0.hold(StreamHandle::default_of(0)).unwrap();
        let (here, there) = pair();
        let (tensor, holds) = with_runtime(&worlds[0].1, || -> Result<_> {
            let tensor = shared(1.0)?;
            let first = hold(0);
            tensor.add_(1.0)?;
            here.send(&tensor)?;
            let second = hold(0);
            tensor.add_(1.0)?;
            here.send_event(&tensor)?;
            Ok((tensor, [first, second]))
        })
        .unwrap();
        let own = with_runtime(&worlds[1].1, || -> Result<Hold> {
            let received = there.recv()?;
            let own = hold(1); // behind other work
            there.recv_event(&received)?;
            // Closing the socket has the same effect as a kill.
            let socket = UnixStream::from(here.as_fd().try_clone_to_owned().unwrap());
            socket.shutdown(Shutdown::Both).unwrap();
            let start = Instant::now();
            while received.add(1.0).is_ok() {
                assert!(start.elapsed() < LONG, "nobody sees that it is gone");
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(own)
        })
        .unwrap();
        holds[0].open();
        worlds[0].0.run_all();
        own.open();
        let (done, ended) = channel();
        let runtime = worlds[1].1.clone();
        std::thread::spawn(move || {
            let synchronized = with_runtime(&runtime, || {
                if drops {
                    drop(there);
                }
                cuda::synchronize(())
            });
            done.send(synchronized).unwrap();
        });
        let ended = ended.recv_timeout(LONG / 4);
        holds[1].open();
        ended.expect("the stream hangs").unwrap();
        drop(tensor);
    }
}

/// A replay that overwrites a received tensor does not make its contents known, because unfinished
/// work of the killed peer may write to the tensor later.
#[test]
fn s33_replays_pass_on_marks_of_a_peer_that_is_gone() {
    let worlds = [0, 1].map(|_| world(1, Schedule::Lazy));
    let (here, there) = pair();
    let tensor = with_runtime(&worlds[0].1, || shared(1.0)).unwrap();
    let mut hold = None;
    let send = |run: &dyn Fn() -> Result<()>| with_runtime(&worlds[0].1, run).unwrap();
    send(&|| here.send(&tensor));
    with_runtime(&worlds[1].1, || -> Result<()> {
        let received = there.recv()?;
        assert!(held(&received, 1.0)?);
        let (graph, out) = cuda::graph(|| {
            received.fill_(2.0)?;
            received.add(1.0)
        })?;
        hold = Some(worlds[0].0.hold(StreamHandle::default_of(0)).unwrap());
        send(&|| tensor.add_(1.0).and_then(|_| here.send_event(&tensor)));
        there.recv_event(&received)?;
        graph.replay()?;
        // Closing the socket has the same effect as a kill.
        let socket = UnixStream::from(here.as_fd().try_clone_to_owned().unwrap());
        socket.shutdown(Shutdown::Both).unwrap();
        assert!(gone(received.to_vec::<f32>()), "its work may still come");
        assert!(gone(received.add(1.0).and_then(|sum| sum.to_vec::<f32>())));
        // The peer may have written between the graph's two kernels.
        assert!(gone(out.to_vec::<f32>()));
        Ok(())
    })
    .unwrap();
    hold.inspect(Hold::open);
}

/// A graph cannot contain a wait for another process, so the host waits.
#[test]
fn s33_a_capture_waits_for_a_received_tensor() {
    both(
        |side| {
            let tensor = shared(1.0)?;
            side.channel.send(&tensor)?;
            tensor.add_(1.0)?;
            side.channel.send_event(&tensor)?;
            side.await_told();
            Ok(())
        },
        |side| {
            let tensor = side.channel.recv()?;
            let (graph, out) = cuda::graph(|| {
                side.channel.recv_event(&tensor)?;
                tensor.mul(10.0)
            })?;
            graph.replay()?;
            assert!(held(&out, 20.0)?);
            side.tell();
            Ok(())
        },
    );
}

/// Enqueues work that takes about a second on a real GPU. The simulator instead holds work back
/// until the returned `Hold` is opened.
fn long_work(sim: Option<&SimDriver>) -> Result<Option<Hold>> {
    if let Some(sim) = sim {
        return Ok(Some(sim.hold(StreamHandle::default_of(0)).unwrap()));
    }
    let matrix = zeros([8192, 8192], (DType::F32, "cuda:0"))?;
    for _ in 0..50 {
        matrix.matmul(&matrix)?;
    }
    Ok(None)
}

/// Program of the other process. It kills itself, or its peer kills it.
pub(crate) fn killed(channel: &Channel, side: &str) -> Result<()> {
    let is_sim = warpline::runtime().driver().is_ok_and(|driver| driver.name() == "sim");
    let (sim, own) = if is_sim {
        let (sim, runtime) = world(1, Schedule::Lazy);
        (Some(sim), runtime)
    } else {
        (None, warpline::runtime())
    };
    with_runtime(&own, || {
        let park = || -> ! {
            std::thread::sleep(LONG);
            unreachable!("nobody killed it")
        };
        if side == "receiver" {
            let tensor = channel.recv()?;
            cuda::synchronize(())?;
            let _hold = long_work(sim.as_deref())?;
            tensor.fill_(5.0)?;
            channel.send_event(&tensor)?;
            park();
        }
        let tensor = shared(1.0)?;
        let _hold = if side == "after" { None } else { long_work(sim.as_deref())? };
        let start = Instant::now();
        tensor.fill_(5.0)?;
        channel.send(&tensor)?;
        let done = cuda::current_stream(())?.query()?;
        assert!(side == "after" || !done, "all is done {:?} later", start.elapsed());
        match side {
            "before, by itself" => {
                let _ = kill_process(getpid(), Signal::KILL);
            }
            "after" => {
                cuda::synchronize(())?;
                channel.send_event(&tensor)?;
                cuda::synchronize(())?;
            }
            _ => {}
        }
        park();
    })
}

fn gone<T: std::fmt::Debug>(result: Result<T>) -> bool {
    match result {
        Err(error) if matches!(error.kind(), ErrorKind::PeerGone { .. }) => true,
        Err(other) => panic!("{other}"),
        Ok(_) => false,
    }
}

/// Checks that reads of a tensor and of results computed from it give the right values or an error,
/// whether the results were computed before or after the peer was killed.
fn assert_nothing_stale(tensor: &Tensor, results: &[Tensor], value: f32) -> Result<()> {
    let refused = gone(tensor.to_vec::<f32>());
    for result in results {
        match result.to_vec::<f32>() {
            Ok(values) => assert!(!refused && values.iter().all(|v| *v == value), "stale data"),
            Err(error) if matches!(error.kind(), ErrorKind::PeerGone { .. }) => assert!(refused),
            Err(other) => return Err(other),
        }
    }
    if refused {
        // Work of the killed process may still write to the tensor.
        tensor.fill_(3.0)?;
        assert!(gone(tensor.to_vec::<f32>()), "it is used again");
        assert!(gone(tensor.add(1.0).and_then(|sum| sum.to_vec::<f32>())));
    }
    assert!(held(&ones([8], (DType::F32, "cuda:0"))?, 1.0)?, "the device is well");
    Ok(())
}

/// Tests four kills of the peer. In three cases the peer sends a tensor, and is killed with running
/// work after the tensor was received, with running work before it was received, or with complete
/// work. In the fourth case the peer receives a tensor, and is killed with running work. A real GPU
/// may still complete running work of the killed peer; the simulator never does.
fn kills(spec: &str, world: &Runtime) -> Result<()> {
    let sim = spec.starts_with("sim");
    let killed = |peer: &mut Peer| {
        peer.process.kill().unwrap();
        let _ = peer.process.wait();
    };
    with_runtime(world, || {
        // The survivor already uses the tensor when its peer is killed.
        let mut peer = Peer::start("order@before", spec);
        let tensor = peer.channel.recv()?;
        let results = [tensor.add(1.0)?, tensor.add(0.5)?.add(0.5)?];
        killed(&mut peer);
        assert_nothing_stale(&tensor, &results, 6.0)?;
        assert!(!sim || gone(tensor.to_vec::<f32>()), "{spec}: nothing ran");
        drop((peer, tensor, results));

        // The peer is gone before the tensor is received.
        let mut peer = Peer::start("order@before, by itself", spec);
        let _ = peer.process.wait();
        match peer.channel.recv() {
            Ok(tensor) => {
                let results = or_gone(tensor.add(1.0))?;
                assert_nothing_stale(&tensor, results.as_slice(), 6.0)?;
            }
            other => assert!(gone(other)),
        }
        drop(peer);

        // The peer's work is complete before the kill.
        let mut peer = Peer::start("order@after", spec);
        let tensor = peer.channel.recv()?;
        peer.channel.recv_event(&tensor)?;
        assert!(held(&tensor, 5.0)?);
        killed(&mut peer);
        tensor.add_(1.0)?;
        assert!(held(&tensor, 6.0)?);
        drop((peer, tensor));

        // The killed process is the receiver.
        let mut peer = Peer::start("order@receiver", spec);
        let tensor = shared(1.0)?;
        peer.channel.send(&tensor)?;
        peer.channel.recv_event(&tensor)?;
        let results = [tensor.add(1.0)?];
        killed(&mut peer);
        assert_nothing_stale(&tensor, &results, 6.0)?;
        assert!(!sim || gone(tensor.to_vec::<f32>()), "{spec}: nothing ran");
        Ok(())
    })
}

#[test]
fn s33_unfinished_work_of_a_killed_process_is_never_read() {
    let _alone = alone();
    for spec in crate::processes::specs() {
        kills(&spec, &runtime(&spec)).unwrap_or_else(|e| panic!("{spec}: {e}"));
    }
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_s33_unfinished_work_of_a_killed_process_is_never_read() {
    let _alone = alone();
    let spec = common::gpu_spec();
    kills(&spec, &runtime(&spec)).unwrap();
}

/// Neither the sending nor the receiving process blocks, although about a second of GPU work is
/// running.
#[test]
#[ignore = "needs a GPU"]
fn gpu_s33_sending_and_receiving_wait_for_no_work() {
    let _alone = alone();
    let spec = common::gpu_spec();
    with_runtime(&runtime(&spec), || -> Result<()> {
        // Loading a kernel on its first use may wait for the device, so load all of them now.
        ones([600], (DType::F32, "cuda:0"))?.share_memory()?.sum(())?.item::<f32>()?;
        // The peer asserts that its work was still running after it had sent the tensor.
        let mut peer = Peer::start("order@before", &spec);
        let tensor = peer.channel.recv()?;
        let sum = tensor.sum(())?;
        let query = cuda::current_stream(())?.query()?;
        assert!(!query, "the receiver's stream waits, and its host does not");
        assert_eq!(sum.item::<f32>()?, 3000.0, "nothing stale");
        peer.process.kill().unwrap();
        let _ = peer.process.wait();
        Ok(())
    })
    .unwrap();
}
