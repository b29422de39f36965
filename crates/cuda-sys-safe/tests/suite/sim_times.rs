//! Virtual times: collectives on the links between machines, branches of graphs, and waits.

use std::sync::Arc;

use warpline_cuda_sys_safe::nccl::{Collective, NcclType, ReduceOp};
use warpline_cuda_sys_safe::owned::{DeviceMemory, Event, Stream};
use warpline_cuda_sys_safe::sim::{Link, Schedule, SimConfig, SimDriver, Topology};
use warpline_cuda_sys_safe::*;

const SCHEDULES: [Schedule; 4] =
    [Schedule::Lazy, Schedule::Eager, Schedule::Seeded(1), Schedule::Seeded(2)];
/// Time of a memset, of a collective besides its links, and of recording an event, in microseconds.
const MEMSET: f64 = 3.0 + 4096.0 / 3e6;
const COLLECTIVE: f64 = 3.0;
const RECORD: f64 = 0.5;

struct Device {
    stream: Stream,
    memory: DeviceMemory,
}

impl Device {
    fn new(sim: &Arc<SimDriver>, device: usize, bytes: usize) -> Self {
        let driver: Arc<dyn Driver> = sim.clone();
        let flags = StreamFlags { non_blocking: true, priority: 0 };
        let memory = DeviceMemory::new(&driver, device, bytes).unwrap();
        Self { stream: Stream::new(&driver, device, flags).unwrap(), memory }
    }

    /// Runs memsets, each of which takes the device longer than the host.
    fn memsets(&self, count: usize) {
        let value = MemsetValue::U8(0);
        for _ in 0..count {
            // SAFETY: the memory outlives its work in every test here.
            unsafe {
                self.stream.driver().memset_async(self.memory.ptr(), value, 4, self.stream.handle())
            }
            .unwrap();
        }
    }

    fn record(&self) -> Event {
        let flags = EventFlags { timing: true, ..EventFlags::default() };
        let event = Event::new(self.stream.driver(), self.stream.device(), flags).unwrap();
        event.record(&self.stream).unwrap();
        event
    }
}

#[track_caller]
fn assert_close(found: f64, expected: f64) {
    assert!((found - expected).abs() < 0.01, "{found} µs instead of {expected} µs");
}

/// Returns the time of calls of 8 ranks on `machines` machines, from the begin of the last rank on. Checks that all
/// ranks end at the same time.
fn time(machines: usize, schedule: Schedule, call: impl Fn(DevicePtr) -> Collective) -> f64 {
    const RANKS: usize = 8;
    let topology = Topology {
        machines,
        within: Link { latency: 1.0, bandwidth: 100.0 },
        between: Link { latency: 10.0, bandwidth: 20.0 },
    };
    let sim = SimConfig { schedule, topology, ..SimConfig::new(RANKS) }.build();
    let nccl = sim.nccl().unwrap();
    let id = nccl.unique_id().unwrap();
    let comms: Vec<_> = (0..RANKS).map(|r| nccl.comm_init(r, &id, RANKS, r).unwrap()).collect();
    let devices: Vec<_> = (0..RANKS).map(|d| Device::new(&sim, d, 1 << 20)).collect();
    let events = devices.iter().zip(&comms).map(|(device, comm)| {
        device.memsets(20);
        let begin = device.record();
        // SAFETY: all handles and the memory outlive the work.
        unsafe { nccl.enqueue(*comm, &[call(device.memory.ptr())], device.stream.handle()) }
            .unwrap();
        (begin, device.record())
    });
    let events: Vec<_> = events.collect();
    devices.iter().for_each(|device| device.stream.synchronize().unwrap());
    let ends: Vec<f64> = (0..RANKS).map(|device| 1e3 * sim.virtual_time(device)).collect();
    ends.iter().for_each(|end| assert_close(*end, ends[0]));
    // One thread enqueues for all ranks, so the last rank begins last.
    let (begin, end) = events.last().unwrap();
    f64::from(begin.elapsed(end).unwrap()) * 1e3 - RECORD
}

#[test]
fn collectives_begin_with_their_last_rank_and_take_the_time_of_their_links() {
    let (dtype, count, op) = (NcclType::F32, 10_000, ReduceOp::Sum);
    let bytes = 4.0 * count as f64;
    for schedule in SCHEDULES {
        // Ranks on 1, 2 and 4 machines: 8, 4 and 2 adapters of 20 GB/s in each machine, and links of 100 GB/s.
        for (machines, bandwidth) in [(1, 100e3), (2, 80e3), (4, 40e3)] {
            let m = machines as f64;
            let all_reduce = |at| Collective::AllReduce { send: at, recv: at, count, dtype, op };
            let ring = 2.0 * (8.0 - m) + 2.0 * (m - 1.0) * 10.0 + 1.75 * bytes / bandwidth;
            let tree = 2.0 * (8.0 / m - 1.0) + 2.0 * m.log2() * 10.0 + 2.0 * bytes / bandwidth;
            let expected = COLLECTIVE + ring.min(tree);
            assert_close(time(machines, schedule, all_reduce), expected);

            let steps = (8.0 - m) + (m - 1.0) * 10.0;
            let all_gather =
                |at: DevicePtr| Collective::AllGather { send: at, recv: at, count, dtype };
            let expected = COLLECTIVE + steps + 7.0 * bytes / bandwidth;
            assert_close(time(machines, schedule, all_gather), expected);

            let broadcast =
                |at| Collective::Broadcast { send: at, recv: at, count, dtype, root: 3 };
            let expected = COLLECTIVE + steps + bytes / bandwidth;
            assert_close(time(machines, schedule, broadcast), expected);
        }
    }
}

#[test]
fn sends_take_the_link_between_their_ranks() {
    let topology = Topology {
        machines: 2,
        within: Link { latency: 1.0, bandwidth: 100.0 },
        between: Link { latency: 10.0, bandwidth: 20.0 },
    };
    for (peer, expected) in [(1, 1.0 + 0.4), (2, 10.0 + 2.0)] {
        let sim = SimConfig { topology, ..SimConfig::new(4) }.build();
        let nccl = sim.nccl().unwrap();
        let id = nccl.unique_id().unwrap();
        let comms: Vec<_> = (0..4).map(|r| nccl.comm_init(r, &id, 4, r).unwrap()).collect();
        let devices: Vec<_> = (0..4).map(|d| Device::new(&sim, d, 40_000)).collect();
        let (count, dtype) = (10_000, NcclType::F32);
        let send = Collective::Send { send: devices[0].memory.ptr(), count, dtype, peer };
        let recv = Collective::Recv { recv: devices[peer].memory.ptr(), count, dtype, peer: 0 };
        let mut events = Vec::new();
        for (rank, call) in [(0, send), (peer, recv)] {
            let device = &devices[rank];
            device.memsets(20);
            let begin = device.record();
            // SAFETY: all handles and the memory outlive the work.
            unsafe { nccl.enqueue(comms[rank], &[call], device.stream.handle()) }.unwrap();
            events.push((begin, device.record()));
        }
        devices[peer].stream.synchronize().unwrap();
        let (begin, end) = &events[1];
        let time = f64::from(begin.elapsed(end).unwrap()) * 1e3 - RECORD;
        assert_close(time, COLLECTIVE + expected);
    }
}

/// The branches of a graph overlap, and the replay ends with the longest one.
#[test]
fn a_replay_takes_the_time_of_its_longest_branch() {
    for schedule in SCHEDULES {
        let sim = SimConfig { schedule, ..SimConfig::new(1) }.build();
        let (main, side) = (Device::new(&sim, 0, 4), Device::new(&sim, 0, 4));
        let stream = main.stream.handle();
        let driver = main.stream.driver();
        let event = || Event::new(driver, 0, EventFlags::default()).unwrap();
        let (fork, join) = (event(), event());
        // SAFETY: streams, memory and graphs stay alive until the replay is done.
        let (graph, exec) = unsafe {
            driver.begin_capture(stream, CaptureMode::Relaxed).unwrap();
            driver.event_record(fork.handle(), stream).unwrap();
            driver.stream_wait_event(side.stream.handle(), fork.handle()).unwrap();
            main.memsets(10);
            side.memsets(30);
            driver.event_record(join.handle(), side.stream.handle()).unwrap();
            driver.stream_wait_event(stream, join.handle()).unwrap();
            main.memsets(5);
            let graph = driver.end_capture(stream).unwrap();
            (graph, driver.graph_instantiate(graph).unwrap())
        };
        main.memsets(20);
        let begin = main.record();
        // SAFETY: as above.
        unsafe { driver.graph_launch(exec, stream) }.unwrap();
        let end = main.record();
        end.synchronize().unwrap();
        let time = f64::from(begin.elapsed(&end).unwrap()) * 1e3 - RECORD;
        assert_close(time, 2.0 + 35.0 * MEMSET);
        // SAFETY: the replay is done.
        unsafe {
            driver.graph_exec_destroy(exec).unwrap();
            driver.graph_destroy(graph).unwrap();
        }
    }
}

/// An operation that waits for an event begins after the event in virtual time, even if the work before the event has
/// already run. The same holds after a query.
#[test]
fn waits_hold_in_virtual_time_whatever_has_run() {
    for schedule in SCHEDULES {
        for queries in [false, true] {
            let sim = SimConfig { schedule, ..SimConfig::new(1) }.build();
            let (a, b) = (Device::new(&sim, 0, 4), Device::new(&sim, 0, 4));
            a.memsets(20);
            let event = a.record();
            if queries {
                while !event.query().unwrap() {}
            } else {
                b.stream.wait_event(&event).unwrap();
            }
            b.memsets(1);
            let end = b.record();
            b.stream.synchronize().unwrap();
            let time = f64::from(event.elapsed(&end).unwrap()) * 1e3;
            assert!(time >= MEMSET, "{schedule:?}, {queries}: {time} µs");
        }
    }
}

/// Host threads have clocks of their own: calls of one thread do not delay the work of another.
#[test]
fn threads_do_not_share_a_clock() {
    let sim = SimConfig::new(2).build();
    std::thread::scope(|scope| {
        for device in 0..2 {
            let sim = &sim;
            scope.spawn(move || {
                let device = Device::new(sim, device, 4);
                device.memsets(100);
                device.stream.synchronize().unwrap();
            });
        }
    });
    for device in 0..2 {
        let time = 1e3 * sim.virtual_time(device);
        assert!(time < 100.0 * MEMSET + 20.0, "{time} µs");
    }
}
