//! Training on simulated machines: order and overlap of the reductions, and the time of a backward pass by the number
//! of machines, in virtual time.

use std::sync::{Arc, Barrier, Mutex};

use warpline::autograd::no_grad;
use warpline::cuda::{self, Event, EventFlags, Stream};
use warpline::{Device, Result, Runtime, RuntimeConfig, Tensor, ones};
use warpline_cuda_sys_safe::sim::{Link, Schedule, SimConfig, Topology};
use warpline_nn::{Forward, Linear, Module};
use warpline_parallel::distributed::ddp::{BucketReduction, GradBucket};
use warpline_parallel::distributed::{DdpOptions, DistributedDataParallel, ReduceOp};

use crate::group_support::Ranks;

const LAYERS: usize = 6;
const WIDTH: usize = 32;
/// Number of GPUs of a machine.
const GPUS: usize = 8;
/// Size of a bucket: the weight and the bias of a layer.
const BUCKET_BYTES: usize = 4 * WIDTH * (WIDTH + 1);
/// Time of a collective besides its links, time of copying the means of a bucket to two gradients, and accuracy of the
/// times below, in microseconds.
const COLLECTIVE: f64 = 3.0;
const COPIES: f64 = 8.0;
const TOLERANCE: f64 = 8.0;

/// Layers that each have a bucket of their own.
#[derive(Debug, Module)]
struct Chain(Vec<Linear>);

impl Chain {
    fn new(device: Device) -> Result<Self> {
        let layers = (0..LAYERS).map(|_| Linear::new(WIDTH, WIDTH, ()));
        let mut chain = Self(layers.collect::<Result<_>>()?);
        chain.to(device)?;
        Ok(chain)
    }
}

impl Forward<Tensor> for Chain {
    type Output = Tensor;

    fn forward(&self, x: Tensor) -> Result<Tensor> {
        self.0.iter().try_fold(x, |x, layer| layer.forward(&x))
    }
}

/// Times of a backward pass, in microseconds since its begin.
#[derive(Clone, Debug)]
struct BackwardTimes {
    /// For each bucket, the time at which its gradients were complete.
    ready: Vec<f64>,
    /// For each bucket, the time at which its reduction was complete.
    reduced: Vec<f64>,
    end: f64,
}

fn timed() -> Event {
    Event::new(EventFlags::new().enable_timing(true))
}

/// Runs a few steps. Returns the times of the last backward pass of each rank.
fn backward_times(topology: Topology, schedule: Schedule) -> Vec<BackwardTimes> {
    let ranks = GPUS * topology.machines;
    let sim = SimConfig {
        topology,
        schedule,
        kernel_time: 20.0,
        capacity: 1 << 30,
        ..SimConfig::new(ranks)
    };
    let runtime = Runtime::new(sim.build(), RuntimeConfig::default()).unwrap();
    let enqueued = Barrier::new(ranks);
    Ranks::in_runtime(runtime, ranks).run(|group| {
        let device = group.device();
        cuda::set_device(device)?;
        let options = DdpOptions::new().bucket_cap_mb(BUCKET_BYTES as f64 / f64::from(1 << 20));
        let mut net = DistributedDataParallel::new(Chain::new(device)?, group.clone(), options)?;
        let marks = Arc::new(Mutex::new(Vec::new()));
        let (marked, side) = (Arc::clone(&marks), Stream::new(device)?);
        net.register_comm_hook(move |bucket: &GradBucket| {
            let (ready, reduced) = (timed(), timed());
            no_grad(|| bucket.buffer().div_(bucket.group().world_size() as f64).map(drop))?;
            ready.record(&cuda::current_stream(device)?)?;
            let work = bucket.all_reduce(bucket.buffer(), ReduceOp::Sum)?;
            cuda::with_stream(&side, || {
                work.wait()?;
                reduced.record(&side)
            })?;
            marked.lock().unwrap().push((ready, reduced));
            Ok(BucketReduction::after(work, bucket.buffer().clone()))
        });
        let (begin, end) = (timed(), timed());
        let stream = cuda::current_stream(device)?;
        // The second forward pass rebuilds the buckets.
        for _ in 0..2 {
            net.zero_grad()?;
            let loss = net.forward(ones([2, WIDTH], device)?)?.sum(())?;
            group.barrier()?;
            cuda::synchronize(device)?;
            marks.lock().unwrap().clear();
            begin.record(&stream)?;
            loss.backward()?;
            end.record(&stream)?;
            // A rank that waits runs the work of the others. A rank that then finds work complete whose end is later
            // than its own time would lose the time between.
            enqueued.wait();
            cuda::synchronize(device)?;
        }
        let since = |event: &Event| Ok(f64::from(begin.elapsed_time(event)?) * 1e3);
        let marks = marks.lock().unwrap();
        Ok(BackwardTimes {
            ready: marks.iter().map(|(ready, _)| since(ready)).collect::<Result<_>>()?,
            reduced: marks.iter().map(|(_, reduced)| since(reduced)).collect::<Result<_>>()?,
            end: since(&end)?,
        })
    })
}

/// A slow network, so that its latency decides from four machines on.
fn slow_network(machines: usize) -> Topology {
    Topology {
        machines,
        within: Link { latency: 1.0, bandwidth: 100.0 },
        between: Link { latency: 20.0, bandwidth: 0.05 },
    }
}

#[track_caller]
fn assert_close(found: f64, expected: f64, times: &[BackwardTimes]) {
    assert!((found - expected).abs() < TOLERANCE, "{found} instead of {expected}: {times:#?}");
}

fn reduction_time(topology: Topology) -> f64 {
    let (machines, ranks) = (topology.machines, GPUS * topology.machines);
    COLLECTIVE + topology.all_reduce_time(ranks, machines, BUCKET_BYTES)
}

/// Checks the times of a backward pass against the formula. A reduction begins when its bucket is ready on all ranks
/// and the reduction before it is complete. After the last gradient, the means of each bucket are copied when its reduction
/// is complete. Returns the end of the pass, and the part of it after the last gradient.
fn checked(topology: Topology, schedule: Schedule) -> (f64, f64) {
    let times = backward_times(topology, schedule);
    for rank in &times {
        assert_eq!((rank.ready.len(), rank.reduced.len()), (LAYERS, LAYERS));
    }
    let latest = |of: &dyn Fn(&BackwardTimes) -> f64| times.iter().map(of).fold(0.0, f64::max);
    let mut before = 0.0;
    for bucket in 0..LAYERS {
        let begin = latest(&|rank| rank.ready[bucket]).max(before);
        for rank in &times {
            assert_close(rank.reduced[bucket], begin + reduction_time(topology), &times);
        }
        before = latest(&|rank| rank.reduced[bucket]);
    }
    for rank in &times {
        let copied = |end: f64, reduced: &f64| end.max(*reduced) + COPIES;
        let end = rank.reduced.iter().fold(rank.ready[LAYERS - 1], copied);
        assert_close(rank.end, end, &times);
        // The backward pass goes on while the first bucket is reduced.
        assert!(rank.reduced[0] < rank.ready[LAYERS - 1], "{times:#?}");
    }
    let end = latest(&|rank| rank.end);
    (end, end - latest(&|rank| rank.ready[LAYERS - 1]))
}

#[test]
fn the_time_of_a_backward_pass_follows_the_links_between_machines() {
    let times = [1, 2, 4, 8].map(|machines| checked(slow_network(machines), Schedule::Lazy));
    assert!(times.is_sorted(), "{times:?}");
    // On one and two machines, only the last reduction and the copies are not hidden. On eight machines, the reductions
    // take longer than the gradients.
    for (machines, (_, not_hidden)) in [1, 2].into_iter().zip(times) {
        let most = reduction_time(slow_network(machines)) + LAYERS as f64 * COPIES + TOLERANCE;
        assert!(not_hidden < most, "{machines} machines: {times:?}");
    }
    assert!(times[3].1 > 2.0 * reduction_time(slow_network(8)), "{times:?}");
}

#[test]
fn virtual_times_hold_under_other_schedules() {
    for schedule in [Schedule::Eager, Schedule::Seeded(1), Schedule::Seeded(2)] {
        checked(slow_network(2), schedule);
    }
}
