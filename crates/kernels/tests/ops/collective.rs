//! Collectives on simulated devices.

use std::panic::Location;
use std::sync::Barrier;
use std::time::Duration;

use warpline_cuda_sys_safe::CudaCode;
use warpline_cuda_sys_safe::nccl::ReduceOp;
use warpline_cuda_sys_safe::owned::Communicator;
use warpline_cuda_sys_safe::sim::{CallKind, Fault, Schedule, SimConfig};
use warpline_kernels::collective::*;
use warpline_kernels::fill;
use warpline_runtime::graph::{Capturing, GraphPool};
use warpline_runtime::testing::{Tensor, small_sim};
use warpline_runtime::{
    CudaDevice, DType, ErrorKind, Result, ResultExt as _, Runtime, RuntimeConfig, SyncPolicy,
    Target,
};
use warpline_stream::Stream;

const LIMIT: Duration = Duration::from_secs(60);

/// A rank, in its own thread.
struct Rank<'a> {
    runtime: &'a Runtime,
    device: &'a CudaDevice,
    stream: Stream,
    comm: Communicator,
}

impl Rank<'_> {
    fn target(&self) -> Target<'_> {
        Target::Cuda(self.runtime, self.device, &self.stream)
    }

    fn run(&self, stream: &Stream, ops: &[CollectiveOp<'_>]) -> Result<()> {
        let target = Target::Cuda(self.runtime, self.device, stream);
        run(target, &self.comm, "collective", ops, Location::caller())
    }

    fn tensor(&self, dtype: DType, sizes: &[usize], values: &[f64]) -> Tensor {
        Tensor::new(self.target(), dtype, sizes, values)
    }
}

fn ranks(count: usize, schedule: Schedule, policy: SyncPolicy, body: impl Fn(&Rank<'_>) + Sync) {
    let driver = SimConfig { schedule, ..small_sim(count) }.build();
    let config = RuntimeConfig { sync_policy: policy, ..RuntimeConfig::default() };
    let runtime = Runtime::new(driver, config).unwrap();
    let id = runtime.driver().unwrap().nccl().unwrap().unique_id().unwrap();
    let joined = Barrier::new(count);
    std::thread::scope(|scope| {
        for rank in 0..count {
            let (runtime, id, body, joined) = (&runtime, &id, &body, &joined);
            scope.spawn(move || {
                let driver = runtime.driver().unwrap();
                let comm = Communicator::new(driver, rank, id, count, rank, LIMIT).unwrap();
                let device = runtime.device(rank).unwrap();
                let stream = device.device().stream_from_pool(0).unwrap();
                joined.wait();
                body(&Rank { runtime, device, stream, comm });
            });
        }
    });
}

fn schedules() -> impl Iterator<Item = Schedule> {
    let seeds = std::env::var("WARPLINE_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    [Schedule::Lazy, Schedule::Eager].into_iter().chain((0..seeds).map(Schedule::Seeded))
}

fn sum<'a>(input: &'a Tensor, output: &'a Tensor) -> CollectiveOp<'a> {
    CollectiveOp::AllReduce { input: input.view(), output: output.view(), op: ReduceOp::Sum }
}

#[test]
fn each_collective_gives_its_documented_result() {
    for schedule in schedules() {
        ranks(3, schedule, SyncPolicy::Auto, |rank| {
            let (target, me) = (rank.target(), rank.comm.rank() as f64);
            let one = |values: &[f64]| rank.tensor(DType::F32, &[values.len()], values);
            let blank = |n: usize| Tensor::garbage(target, DType::F32, &[n]);
            let on = &rank.stream;
            let mine = one(&[me, 10.0]);
            let check = |tensor: &Tensor, expected: &[f64]| {
                assert_eq!(tensor.floats(target), expected, "{schedule:?}, rank {me}");
            };
            let out = blank(2);
            rank.run(on, &[sum(&mine, &out)]).unwrap();
            check(&out, &[3.0, 30.0]);
            rank.run(
                on,
                &[CollectiveOp::Broadcast { input: mine.view(), output: out.view(), root: 2 }],
            )
            .unwrap();
            check(&out, &[2.0, 10.0]);
            let out = blank(2);
            let (input, output, op) = (mine.view(), out.view(), ReduceOp::Avg);
            rank.run(on, &[CollectiveOp::Reduce { input, output, op, root: 1 }]).unwrap();
            check(&out, if me == 1.0 { &[1.0, 10.0] } else { &[77.0, 77.0] });
            let all = blank(6);
            rank.run(on, &[CollectiveOp::AllGather { input: mine.view(), output: all.view() }])
                .unwrap();
            check(&all, &[0.0, 10.0, 1.0, 10.0, 2.0, 10.0]);
            let (input, output, op) = (all.view(), out.view(), ReduceOp::Sum);
            rank.run(on, &[CollectiveOp::ReduceScatter { input, output, op }]).unwrap();
            check(&out, &[3.0 * me, 30.0]);

            // All-to-all: rank r sends 10 r + p to rank p.
            let parts: Vec<Tensor> =
                (0..3).map(|peer| one(&[10.0 * me + f64::from(peer)])).collect();
            let got: Vec<Tensor> = (0..3).map(|_| blank(1)).collect();
            let mut ops = Vec::new();
            for peer in 0..3 {
                ops.push(CollectiveOp::Send { input: parts[peer].view(), peer });
                ops.push(CollectiveOp::Recv { output: got[peer].view(), peer });
            }
            rank.run(on, &ops).unwrap();
            for (peer, got) in got.iter().enumerate() {
                check(got, &[10.0 * peer as f64 + me]);
            }
        });
    }
}

#[test]
fn bools_are_sent_as_bytes_whose_sum_is_the_largest() {
    ranks(2, Schedule::Lazy, SyncPolicy::Auto, |rank| {
        let me = rank.comm.rank();
        let values = if me == 0 { [1.0, 1.0, 0.0] } else { [1.0, 0.0, 0.0] };
        let bools = rank.tensor(DType::Bool, &[3], &values);
        rank.run(&rank.stream, &[sum(&bools, &bools)]).unwrap();
        assert_eq!(bools.floats(rank.target()), [1.0, 1.0, 0.0]);
        let view = bools.view();
        let mean = CollectiveOp::AllReduce { input: view, output: view, op: ReduceOp::Avg };
        let refused = rank.run(&rank.stream, &[mean]);
        assert!(matches!(
            refused.kind(),
            Some(ErrorKind::UnsupportedDType { dtype: DType::Bool, .. })
        ));
        let short = rank.tensor(DType::I16, &[3], &values);
        let refused = rank.run(&rank.stream, &[sum(&short, &short)]);
        assert!(matches!(
            refused.kind(),
            Some(ErrorKind::UnsupportedDType { dtype: DType::I16, .. })
        ));
    });
}

#[test]
fn other_streams_uses_are_waited_for() {
    for schedule in schedules() {
        ranks(2, schedule, SyncPolicy::Auto, |rank| {
            let side = rank.device.device().stream_from_pool(0).unwrap();
            let x = rank.tensor(DType::F32, &[2], &[0.0; 2]);
            fill::fill(rank.target(), x.view(), 1.5.into()).unwrap();
            rank.run(&side, &[sum(&x, &x)]).unwrap();
            let y = Tensor::garbage(rank.target(), DType::F32, &[2]);
            warpline_kernels::copy::copy(rank.target(), x.view(), y.view()).unwrap();
            fill::fill(rank.target(), x.view(), 0.0.into()).unwrap();
            assert_eq!(y.floats(rank.target()), [3.0; 2], "{schedule:?}");
        });
    }
}

#[test]
fn a_race_with_another_stream_is_reported() {
    ranks(1, Schedule::Lazy, SyncPolicy::Manual, |rank| {
        let side = rank.device.device().stream_from_pool(0).unwrap();
        let x = rank.tensor(DType::F32, &[2], &[0.0; 2]);
        fill::fill(rank.target(), x.view(), 1.5.into()).unwrap();
        rank.run(&side, &[sum(&x, &x)]).unwrap();
        side.synchronize().unwrap();
        let races = rank.runtime.take_races();
        assert!(!races.is_empty());
        for race in &races {
            let text = race.to_string();
            assert!(text.contains("collective") && text.contains("fill_"), "{text}");
        }
    });
}

#[test]
fn a_graph_takes_part_at_each_replay() {
    for schedule in schedules() {
        ranks(2, schedule, SyncPolicy::Auto, |rank| {
            let x = rank.tensor(DType::F32, &[2], &[0.0; 2]);
            let out = rank.tensor(DType::F32, &[2], &[0.0; 2]);
            let pool = GraphPool::new(rank.device);
            let capturing = Capturing::begin(rank.runtime, &rank.stream, &pool).unwrap();
            rank.run(&rank.stream, &[sum(&x, &out)]).unwrap();
            rank.run(&rank.stream, &[sum(&out, &out)]).unwrap();
            let graph = capturing.end().unwrap();
            for round in 1..4 {
                let value = f64::from(round) + rank.comm.rank() as f64;
                fill::fill(rank.target(), x.view(), value.into()).unwrap();
                graph.replay(&rank.stream).unwrap();
                // Direct launches work between replays.
                rank.run(&rank.stream, &[sum(&out, &out)]).unwrap();
                let expected = 4.0 * (2.0 * f64::from(round) + 1.0);
                assert_eq!(out.floats(rank.target()), [expected; 2], "{schedule:?}");
            }
            rank.comm.abort();
            let refused = graph.replay(&rank.stream).unwrap_err().to_string();
            assert!(refused.contains("the communicator was aborted"), "{refused}");
        });
    }
}

#[test]
fn a_graph_keeps_its_communicator() {
    ranks(1, Schedule::Lazy, SyncPolicy::Auto, |rank| {
        let id = rank.runtime.driver().unwrap().nccl().unwrap().unique_id().unwrap();
        let driver = rank.runtime.driver().unwrap();
        let comm = Communicator::new(driver, 0, &id, 1, 0, LIMIT).unwrap();
        let x = rank.tensor(DType::F32, &[1], &[2.0]);
        let y = Tensor::garbage(rank.target(), DType::F32, &[1]);
        let pool = GraphPool::new(rank.device);
        let capturing = Capturing::begin(rank.runtime, &rank.stream, &pool).unwrap();
        run(rank.target(), &comm, "all_reduce", &[sum(&x, &y)], Location::caller()).unwrap();
        let graph = capturing.end().unwrap();
        drop(comm);
        graph.replay(&rank.stream).unwrap();
        assert_eq!(y.floats(rank.target()), [2.0]);
    });
}

#[test]
fn a_failure_names_the_collectives_that_may_have_caused_it() {
    let sim = SimConfig { schedule: Schedule::Lazy, ..small_sim(1) }.build();
    let runtime = Runtime::new(sim.clone(), RuntimeConfig::default()).unwrap();
    let driver = runtime.driver().unwrap();
    let id = driver.nccl().unwrap().unique_id().unwrap();
    let comm = Communicator::new(driver, 0, &id, 1, 0, LIMIT).unwrap();
    let device = runtime.device(0).unwrap();
    let stream = device.device().stream_from_pool(0).unwrap();
    let target = Target::Cuda(&runtime, device, &stream);
    let x = Tensor::new(target, DType::F32, &[2, 3], &[0.0; 6]);
    sim.inject(Fault::new(CallKind::GroupEnd, CudaCode::ILLEGAL_ADDRESS).at_run());
    run(target, &comm, "all_reduce", &[sum(&x, &x)], Location::caller()).unwrap();
    let text = stream.synchronize().unwrap_err().to_string();
    assert!(text.contains("all_reduce(float32[2, 3]") && text.contains(file!()), "{text}");
}

#[test]
fn collectives_that_nccl_cannot_run_are_refused_beforehand() {
    ranks(1, Schedule::Lazy, SyncPolicy::Auto, |rank| {
        let x = rank.tensor(DType::F32, &[2, 2], &[0.0; 4]);
        let small = rank.tensor(DType::F32, &[3], &[0.0; 3]);
        let whole = rank.tensor(DType::I32, &[4], &[0.0; 4]);
        let turned = x.with(|layout| layout.transpose(0, 1));
        let part = x.with(|layout| layout.narrow(0, 0, 1));
        let text = |ops: &[CollectiveOp<'_>]| rank.run(&rank.stream, ops).unwrap_err().to_string();
        assert!(text(&[sum(&x, &small)]).contains("both must have the same number of elements"));
        assert!(text(&[sum(&x, &whole)]).contains("torch.float32"));
        assert!(text(&[sum(&turned, &turned)]).contains("is not contiguous"));
        let gather = CollectiveOp::AllGather { input: x.view(), output: small.view() };
        assert!(text(&[gather]).contains("as many elements as the inputs of all ranks"));
        let far = CollectiveOp::Broadcast { input: x.view(), output: x.view(), root: 1 };
        assert!(text(&[far]).contains("there is no rank 1 among 1 ranks"));
        assert!(
            text(&[CollectiveOp::Send { input: x.view(), peer: 0 }])
                .contains("sends 1 tensors to itself")
        );
        assert!(text(&[sum(&x, &x), sum(&part, &part)]).contains("share some"));

        let host = Runtime::without_cuda(
            warpline_cuda_sys_safe::DriverError::NoDevice { reason: "a test".into() },
            &RuntimeConfig::default(),
        );
        let near = Tensor::new(Target::Cpu(&host), DType::F32, &[4], &[0.0; 4]);
        let refused = run(
            Target::Cpu(&host),
            &rank.comm,
            "all_reduce",
            &[sum(&near, &near)],
            Location::caller(),
        );
        assert!(matches!(refused.kind(), Some(ErrorKind::DeviceMismatch { .. })), "{refused:?}");
        let refused = rank.run(&rank.stream, &[sum(&near, &near)]);
        assert!(matches!(refused.kind(), Some(ErrorKind::DeviceMismatch { .. })), "{refused:?}");
        // An empty group is not an error.
        rank.run(&rank.stream, &[]).unwrap();
    });
}
