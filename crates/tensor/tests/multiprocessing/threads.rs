//! Tests in which two threads, each with its own runtime and driver, act as two processes.

use std::sync::Arc;
use std::time::Duration;

use warpline::multiprocessing::Channel;
use warpline::{DType, Result, Runtime, RuntimeConfig, Tensor, arange, cuda, with_runtime, zeros};
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig, SimDriver};

pub(crate) fn world(devices: usize, schedule: Schedule) -> (Arc<SimDriver>, Runtime) {
    let sim = SimConfig { schedule, ..SimConfig::new(devices) }.build();
    let runtime = Runtime::new(sim.clone(), RuntimeConfig::default()).unwrap();
    (sim, runtime)
}

pub(crate) fn pair() -> (Channel, Channel) {
    let (a, b) = Channel::pair().unwrap();
    for end in [&a, &b] {
        end.set_timeout(Some(Duration::from_secs(60))).unwrap();
    }
    (a, b)
}

/// Returns the number of schedules per test: `WARPLINE_SCHEDULES`, but at least 64, because a wrong
/// order is visible only under few schedules.
pub(crate) fn schedule_count() -> u64 {
    let count = std::env::var("WARPLINE_SCHEDULES").ok().and_then(|n| n.parse().ok());
    count.unwrap_or(64).max(64)
}

/// Runs both sides under pairs of schedules, and checks that both drivers have released everything
/// afterwards.
pub(crate) fn both(
    maker: impl Fn(Channel) -> Result<()> + Sync,
    peer: impl Fn(Channel) -> Result<()> + Sync,
) {
    for seed in 0..schedule_count() {
        let schedule = |salt| match seed {
            0 => Schedule::Lazy,
            _ => Schedule::Seeded(seed * 2 + salt),
        };
        let (a, b) = pair();
        let side = |salt: u64, channel, body: &(dyn Fn(Channel) -> Result<()> + Sync)| {
            let (sim, runtime) = world(2, schedule(salt));
            let result = with_runtime(&runtime, || body(channel));
            drop(runtime);
            result.unwrap_or_else(|e| panic!("seed {seed}, side {salt}: {e}"));
            let physical: Vec<_> = sim.usage().devices.iter().map(|d| d.used_bytes).collect();
            assert!(sim.usage().all_released(), "seed {seed}, side {salt}: {physical:?}");
        };
        std::thread::scope(|scope| {
            scope.spawn(|| side(1, b, &peer));
            side(0, a, &maker);
        });
    }
}

fn numbers(n: usize) -> Result<Tensor> {
    arange(n as i64, (DType::F32, "cuda:0"))
}

#[test]
fn s33_both_sides_have_the_same_memory_in_the_order_that_events_give() {
    both(
        |channel| {
            let tensor = numbers(600)?.share_memory()?;
            assert!(tensor.is_shared());
            tensor.add_(1.0)?;
            channel.send(&tensor)?;
            channel.recv_event(&tensor)?;
            tensor.mul_(2.0)?;
            channel.send_event(&tensor)?;
            channel.recv_event(&tensor)?;
            let expected: Vec<f32> = (0..600).map(|i| ((i + 1) * 20 + 5) as f32).collect();
            assert_eq!(tensor.to_vec::<f32>()?, expected);
            Ok(())
        },
        |channel| {
            let tensor = channel.recv()?;
            assert!(tensor.is_shared());
            let expected: Vec<f32> = (0..600).map(|i| (i + 1) as f32).collect();
            assert_eq!(tensor.to_vec::<f32>()?, expected);
            tensor.mul_(10.0)?;
            channel.send_event(&tensor)?;
            channel.recv_event(&tensor)?;
            tensor.add_(5.0)?;
            channel.send_event(&tensor)
        },
    );
}

#[test]
fn s33_work_of_other_streams_comes_before_the_sending() {
    both(
        |channel| {
            let tensor = zeros([1000], "cuda:0")?.share_memory()?;
            let side = cuda::Stream::new(())?;
            cuda::with_stream(&side, || -> Result<()> {
                for _ in 0..10 {
                    tensor.add_(1.0)?;
                }
                Ok(())
            })?;
            channel.send(&tensor)
        },
        |channel| {
            let side = cuda::Stream::new(())?;
            let tensor = channel.recv()?;
            let sum = cuda::with_stream(&side, || tensor.sum(()))?;
            assert_eq!(sum.item::<f32>()?, 10_000.0, "nothing stale");
            Ok(())
        },
    );
}

#[test]
fn s33_reads_come_before_the_sending_too() {
    both(
        |channel| {
            let tensor = numbers(100)?.share_memory()?;
            cuda::synchronize(())?;
            let side = cuda::Stream::new(())?;
            let copy = cuda::with_stream(&side, || tensor.add(1.0))?;
            channel.send(&tensor)?;
            channel.recv_event(&tensor)?;
            let expected: Vec<f32> = (1..=100).map(|i| i as f32).collect();
            assert_eq!(copy.to_vec::<f32>()?, expected, "nothing of what the receiver wrote");
            Ok(())
        },
        |channel| {
            let tensor = channel.recv()?;
            tensor.fill_(-7.0)?;
            channel.send_event(&tensor)
        },
    );
}

#[test]
fn s33_views_arrive_as_they_are() {
    both(
        |channel| {
            let tensor = numbers(24)?.view([4, 6])?.share_memory()?;
            channel.send(&tensor.t()?)?;
            channel.send(&tensor.narrow(1, 2, 3)?)?;
            channel.send(&tensor.select(0, -1)?)?;
            channel.recv_event(&tensor)?;
            assert_eq!(tensor.to_vec::<f32>()?[20..], [-1.0; 4], "seen through the whole tensor");
            Ok(())
        },
        |channel| {
            let [turned, narrow, row] = [channel.recv()?, channel.recv()?, channel.recv()?];
            assert_eq!((turned.size(), turned.stride()), (&[6, 4][..], &[1, 6][..]));
            assert_eq!(turned.to_vec::<f32>()?[..4], [0.0, 6.0, 12.0, 18.0]);
            assert_eq!(narrow.to_vec::<f32>()?[..4], [2.0, 3.0, 4.0, 8.0]);
            assert_eq!(row.to_vec::<f32>()?, [18.0, 19.0, 20.0, 21.0, 22.0, 23.0]);
            row.narrow(0, 2, 4)?.fill_(-1.0)?;
            channel.send_event(&row)
        },
    );
}

/// Memory that is received more than once is the same storage, so all work on it is ordered.
#[test]
fn s33_memory_received_again_is_ordered_with_its_earlier_uses() {
    both(
        |channel| {
            let tensor = zeros([100], "cuda:0")?.share_memory()?;
            for part in [tensor.clone(), tensor.narrow(0, 50, 50)?, tensor.clone()] {
                channel.send(&part)?;
            }
            channel.recv_event(&tensor)
        },
        |channel| {
            let side = cuda::Stream::new(())?;
            let (all, half) = (channel.recv()?, channel.recv()?);
            assert!(all.storage().same_as(half.storage()));
            cuda::with_stream(&side, || all.add_(1.0).map(drop))?;
            assert_eq!(half.to_vec::<f32>()?, [1.0; 50]);
            // Drop the tensors while work on them is still pending.
            cuda::with_stream(&side, || all.add_(1.0).map(drop))?;
            drop((all, half));
            let again = channel.recv()?;
            assert_eq!(again.to_vec::<f32>()?, [2.0; 100]);
            channel.send_event(&again)
        },
    );
}

#[test]
fn s33_a_tensor_that_comes_back_is_the_same_storage() {
    let (_, runtime) = world(1, Schedule::Lazy);
    with_runtime(&runtime, || -> Result<()> {
        let (here, there) = pair();
        let tensor = numbers(10)?.share_memory()?;
        here.send(&tensor)?;
        let back = there.recv()?;
        assert!(back.storage().same_as(tensor.storage()));
        // Drop the tensor while it is on its way back.
        here.send(&tensor)?;
        tensor.add_(1.0)?;
        drop((tensor, back));
        assert_eq!(there.recv()?.to_vec::<f32>()?[9], 10.0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn s33_memory_outlives_its_maker_and_then_is_gone() {
    let (a, b) = pair();
    let maker = std::thread::spawn(move || {
        let (sim, runtime) = world(1, Schedule::Lazy);
        with_runtime(&runtime, || a.send(&numbers(5)?.share_memory()?)).unwrap();
        drop(a);
        drop(runtime);
        assert!(sim.usage().all_released());
    });
    maker.join().unwrap();
    let (sim, runtime) = world(1, Schedule::Lazy);
    with_runtime(&runtime, || -> Result<()> {
        let tensor = b.recv()?; // was sent before its maker ended
        assert_eq!(tensor.to_vec::<f32>()?, [0.0, 1.0, 2.0, 3.0, 4.0]);
        tensor.add_(1.0)?;
        assert_eq!(tensor.sum(())?.item::<f32>()?, 15.0);
        Ok(())
    })
    .unwrap();
    drop((b, runtime));
    assert!(sim.usage().all_released());
}

#[test]
fn s33_dropping_waits_for_no_work_and_unmaps_nothing_that_work_uses() {
    let (sim, runtime) = world(1, Schedule::Lazy);
    with_runtime(&runtime, || -> Result<()> {
        let tensor = numbers(1000)?.share_memory()?;
        cuda::synchronize(())?;
        let side = cuda::Stream::new(())?;
        // Each query of a simulated stream runs one operation, and dropping the tensor queries twice.
        let sums = || (0..10).map(|_| tensor.sum(())).collect::<Result<Vec<_>>>();
        let sum = cuda::with_stream(&side, sums)?.remove(9);
        let (waits, mapped) = (sim.usage().host_waits, mappings(&sim));
        drop(tensor);
        assert_eq!(sim.usage().host_waits, waits, "the host waits for nothing");
        assert_eq!(mappings(&sim), mapped, "it is still mapped");
        assert_eq!(sum.item::<f32>()?, 499_500.0);
        cuda::synchronize(())?;
        assert_eq!(cuda::ipc_collect(), 0);
        assert_eq!(mappings(&sim), mapped - 1, "given back without a wait of its own");
        Ok(())
    })
    .unwrap();
    drop(runtime);
    assert!(sim.usage().all_released());
}

fn mappings(sim: &SimDriver) -> usize {
    sim.usage().devices[0].mappings
}

#[test]
fn s33_several_are_shared_and_read_where_they_are() {
    both(
        |channel| {
            let shared =
                [zeros([2, 3], "cuda:0")?.share_memory()?, zeros([2], "cuda:0")?.share_memory()?];
            for tensor in &shared {
                channel.send(tensor)?;
            }
            channel.recv_event(&shared[0])?;
            assert_eq!(shared[0].to_vec::<f32>()?, [3.0; 6]);
            Ok(())
        },
        |channel| {
            let [weight, bias] = [channel.recv()?, channel.recv()?];
            assert_eq!((weight.size(), bias.size()), (&[2, 3][..], &[2][..]));
            weight.fill_(3.0)?;
            channel.send_event(&weight)
        },
    );
}

#[test]
fn s33_replays_of_a_graph_use_a_shared_tensor_and_the_graph_keeps_it() {
    both(
        |channel| {
            let tensor = zeros([64], "cuda:0")?.share_memory()?;
            channel.send(&tensor)?;
            channel.recv_event(&tensor)?;
            assert_eq!(tensor.to_vec::<f32>()?, [3.0; 64]);
            Ok(())
        },
        |channel| {
            let tensor = channel.recv()?;
            let (graph, ()) = cuda::graph(|| tensor.add_(1.0).map(drop))?;
            for _ in 0..3 {
                graph.replay()?;
            }
            channel.send_event(&tensor)
        },
    );
}

#[test]
fn s33_other_devices_read_and_copy_a_shared_tensor() {
    both(
        |channel| {
            let tensor = numbers(100)?.share_memory()?;
            cuda::enable_peer_access(1, 0)?;
            let local = zeros([100], "cuda:1")?;
            local.add_(&tensor)?;
            assert_eq!(local.sum(())?.item::<f32>()?, 4950.0);
            channel.send(&tensor)
        },
        |channel| {
            let before = channel.recv()?;
            assert_eq!(before.to("cuda:1")?.sum(())?.item::<f32>()?, 4950.0);
            cuda::enable_peer_access(1, 0)?; // the peer maps memory that exists already
            let local = zeros([100], "cuda:1")?;
            local.add_(&before)?;
            assert_eq!(local.sum(())?.item::<f32>()?, 4950.0);
            Ok(())
        },
    );
}
