//! Checks of the simulated NCCL, and the effects of departed ranks on other ranks.

use std::ptr::NonNull;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use warpline_cuda_sys_safe::nccl::{Collective, CommState, NcclType, ReduceOp};
use warpline_cuda_sys_safe::owned::{Communicator, DeviceMemory, Stream};
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig, SimDriver};
use warpline_cuda_sys_safe::*;

const LIMIT: Duration = Duration::from_secs(60);

/// A rank, with a stream and memory for [`FLOATS`] floats.
struct Rank {
    sim: Arc<SimDriver>,
    comm: Communicator,
    stream: Stream,
    memory: DeviceMemory,
}

const FLOATS: usize = 64;

impl Rank {
    fn new(sim: &Arc<SimDriver>, device: usize, comm: Communicator) -> Self {
        let driver: Arc<dyn Driver> = sim.clone();
        let flags = StreamFlags { non_blocking: true, ..StreamFlags::default() };
        let stream = Stream::new(&driver, device, flags).unwrap();
        let memory = DeviceMemory::new(&driver, device, FLOATS * 4).unwrap();
        Self { sim: sim.clone(), comm, stream, memory }
    }

    fn set(&self, values: &[f32]) {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let src = CopyEnd::Host(NonNull::from(bytes).cast());
        self.copy(
            CopyEnd::Device { device: self.comm.device(), ptr: self.memory.ptr() },
            src,
            bytes.len(),
        );
    }

    fn get(&self, count: usize) -> Vec<f32> {
        let mut values = vec![0f32; count];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        let (dst, n) = (CopyEnd::Host(NonNull::from(&mut *bytes).cast()), bytes.len());
        self.copy(dst, CopyEnd::Device { device: self.comm.device(), ptr: self.memory.ptr() }, n);
        values
    }

    fn copy(&self, dst: CopyEnd, src: CopyEnd, bytes: usize) {
        let copy = Copy { dst, src, bytes };
        // SAFETY: the memory is alive. The call has finished with pageable memory when it returns.
        unsafe { self.sim.memcpy_async(&copy, self.stream.handle()) }.unwrap();
    }

    fn enqueue(&self, calls: &[Collective]) -> Result<()> {
        // SAFETY: the stream is alive, and the memory stays alive until the communicator is
        // aborted.
        unsafe { self.comm.enqueue(calls, self.stream.handle()) }
    }

    fn all_reduce(&self, count: usize, op: ReduceOp) -> Collective {
        let (send, recv) = (self.memory.ptr(), self.memory.ptr());
        Collective::AllReduce { send, recv, count, dtype: NcclType::F32, op }
    }

    fn broadcast(&self, count: usize, root: usize) -> Collective {
        let (send, recv) = (self.memory.ptr(), self.memory.ptr());
        Collective::Broadcast { send, recv, count, dtype: NcclType::F32, root }
    }

    /// Waits for the communicator's error and returns it.
    fn error(&self) -> DriverError {
        let began = std::time::Instant::now();
        while began.elapsed() < LIMIT {
            if let Err(error) = self.comm.state() {
                return error;
            }
            std::thread::yield_now();
        }
        panic!("no error was reported");
    }
}

/// Runs a body on a thread per rank, with the devices of one simulator, or with one simulator per
/// rank.
fn ranks<R: Send>(
    count: usize,
    schedule: Schedule,
    own_simulators: bool,
    body: impl Fn(&Rank) -> R + Sync,
) -> Vec<R> {
    let config = SimConfig { schedule, capacity: 1 << 30, ..SimConfig::new(count) };
    let shared = config.clone().build();
    let id = shared.nccl().unwrap().unique_id().unwrap();
    let joined = Barrier::new(count);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|rank| {
                let sim = if own_simulators { config.clone().build() } else { shared.clone() };
                let (id, body, joined) = (&id, &body, &joined);
                scope.spawn(move || {
                    let driver: Arc<dyn Driver> = sim.clone();
                    let device = if own_simulators { 0 } else { rank };
                    let comm = Communicator::new(&driver, device, id, count, rank, LIMIT).unwrap();
                    let rank = Rank::new(&sim, device, comm);
                    // Wait until all ranks have joined. If a rank failed earlier, other ranks might
                    // still be joining, and would fail to join.
                    joined.wait();
                    let result = body(&rank);
                    // End blocked operations before their memory is freed.
                    rank.comm.abort();
                    result
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn schedules() -> Vec<Schedule> {
    let seeds = std::env::var("WARPLINE_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(8);
    let seeded = (0..seeds).map(Schedule::Seeded);
    [Schedule::Lazy, Schedule::Eager].into_iter().chain(seeded).collect()
}

#[test]
fn sums_are_right_under_every_schedule() {
    for schedule in schedules() {
        for (count, own_simulators) in [(1, false), (2, false), (3, true), (4, false)] {
            let sums = ranks(count, schedule, own_simulators, |rank| {
                let me = rank.comm.rank() as f32;
                rank.set(&[me + 1.0, 10.0 * me]);
                rank.enqueue(&[rank.all_reduce(2, ReduceOp::Sum)]).unwrap();
                rank.enqueue(&[rank.all_reduce(1, ReduceOp::Max)]).unwrap();
                rank.get(2)
            });
            let n = count as f32;
            let expected = vec![n * (n + 1.0) / 2.0, 10.0 * n * (n - 1.0) / 2.0];
            assert_eq!(sums, vec![expected; count], "{schedule:?}, {count}, {own_simulators}");
        }
    }
}

#[test]
fn one_thread_drives_all_ranks() {
    for schedule in schedules() {
        let sim = SimConfig { schedule, capacity: 1 << 30, ..SimConfig::new(3) }.build();
        let nccl = sim.nccl().unwrap();
        let id = nccl.unique_id().unwrap();
        let handles: Vec<_> = (0..3).map(|r| nccl.comm_init(r, &id, 3, r).unwrap()).collect();
        let memory: Vec<_> = (0..3).map(|d| sim.mem_alloc(d, 4).unwrap()).collect();
        for device in 0..3 {
            let stream = StreamHandle::default_of(device);
            let (send, count, dtype) = (memory[device], 1, NcclType::I32);
            let sum = ReduceOp::Sum;
            let call = Collective::AllReduce { send, recv: send, count, dtype, op: sum };
            // SAFETY: all handles and the memory live as long as the simulator.
            unsafe {
                assert_eq!(nccl.comm_state(handles[device]).unwrap(), CommState::Ready);
                sim.memset_async(send, MemsetValue::U32(device as u32 + 1), 1, stream).unwrap();
                nccl.enqueue(handles[device], &[call], stream).unwrap();
            }
        }
        for device in [2, 0, 1] {
            let mut sum = [0u8; 4];
            let dst = CopyEnd::Host(NonNull::from(&mut sum).cast());
            let src = CopyEnd::Device { device, ptr: memory[device] };
            // SAFETY: both ends are alive, and the copy is synchronous.
            unsafe { sim.memcpy(device, &Copy { dst, src, bytes: 4 }) }.unwrap();
            assert_eq!(i32::from_ne_bytes(sum), 6, "{schedule:?}");
        }
    }
}

/// A rank still does its part of a collective while its thread blocks outside the driver.
#[test]
fn ranks_that_wait_on_the_host_do_not_stop_their_devices() {
    for schedule in schedules() {
        let done = Barrier::new(2);
        ranks(2, schedule, true, |rank| {
            rank.set(&[1.0]);
            rank.enqueue(&[rank.all_reduce(1, ReduceOp::Sum)]).unwrap();
            if rank.comm.rank() == 0 {
                assert_eq!(rank.get(1), [2.0], "{schedule:?}");
            }
            done.wait();
            assert_eq!(rank.get(1), [2.0], "{schedule:?}");
        });
    }
}

#[test]
fn ranks_that_disagree_get_an_error() {
    type Calls = fn(&Rank) -> Vec<Collective>;
    let cases: [(Calls, Calls, [&str; 2]); 6] = [
        (
            |r| vec![r.all_reduce(2, ReduceOp::Sum)],
            |r| vec![r.broadcast(2, 0)],
            ["AllReduce(2 of F32, Sum)", "Broadcast(2 of F32, root 0)"],
        ),
        (
            |r| vec![r.all_reduce(2, ReduceOp::Sum)],
            |r| vec![r.all_reduce(3, ReduceOp::Sum)],
            ["AllReduce(2 of F32, Sum)", "AllReduce(3 of F32, Sum)"],
        ),
        (
            |r| vec![r.all_reduce(2, ReduceOp::Sum)],
            |r| vec![r.all_reduce(2, ReduceOp::Max)],
            ["AllReduce(2 of F32, Sum)", "AllReduce(2 of F32, Max)"],
        ),
        (
            |r| vec![r.broadcast(2, 0)],
            |r| vec![r.broadcast(2, 1)],
            ["Broadcast(2 of F32, root 0)", "Broadcast(2 of F32, root 1)"],
        ),
        (
            |r| vec![r.all_reduce(2, ReduceOp::Sum), r.broadcast(2, 0)],
            |r| vec![r.broadcast(2, 0), r.all_reduce(2, ReduceOp::Sum)],
            ["AllReduce(2 of F32, Sum)", "Broadcast(2 of F32, root 0)"],
        ),
        (
            |r| {
                vec![Collective::Send {
                    send: r.memory.ptr(),
                    count: 2,
                    dtype: NcclType::F32,
                    peer: 1,
                }]
            },
            |r| {
                vec![Collective::Recv {
                    recv: r.memory.ptr(),
                    count: 2,
                    dtype: NcclType::F64,
                    peer: 0,
                }]
            },
            ["Send(2 of F32, to rank 1)", "Recv(2 of F64, from rank 0)"],
        ),
    ];
    for schedule in schedules() {
        for (first, second, called) in &cases {
            let errors = ranks(2, schedule, false, |rank| {
                let calls = if rank.comm.rank() == 0 { first(rank) } else { second(rank) };
                // Ignore the result: `error` must report the mismatch.
                let _ = rank.enqueue(&calls);
                rank.error()
            });
            for error in errors {
                let DriverError::CollectiveMismatch(found) = &error else { panic!("{error}") };
                let by_rank = |rank| found.ranks.iter().position(|&r| r == rank).unwrap();
                let calls = [0, 1].map(|rank| found.calls[by_rank(rank)].as_str());
                assert_eq!(&calls, called, "{schedule:?}: {error}");
            }
        }
    }
}

#[test]
fn a_wait_for_a_dead_rank_names_the_rank() {
    for schedule in schedules() {
        let texts = ranks(3, schedule, false, |rank| {
            if rank.comm.rank() == 1 {
                rank.sim.kill_ranks(rank.comm.device());
                return rank.error().to_string();
            }
            let enqueued = rank.enqueue(&[rank.all_reduce(1, ReduceOp::Sum)]);
            let error = rank.error();
            // The call was refused if the rank was already known to be dead. Otherwise the
            // operation is blocked.
            assert_eq!(rank.stream.query().unwrap(), enqueued.is_err(), "{schedule:?}");
            rank.comm.abort();
            rank.stream.synchronize().unwrap();
            error.to_string()
        });
        for text in [&texts[0], &texts[2]] {
            assert!(text.contains("ncclRemoteError"), "{schedule:?}: {text}");
            assert!(text.contains("rank 1 of 3 has died"), "{schedule:?}: {text}");
        }
        assert!(texts[1].contains("this rank has died"), "{schedule:?}: {}", texts[1]);
    }
}

#[test]
fn a_rank_may_leave_when_its_work_is_done() {
    for schedule in schedules() {
        let left = Barrier::new(2);
        ranks(2, schedule, true, |rank| {
            rank.set(&[1.0]);
            rank.enqueue(&[rank.all_reduce(1, ReduceOp::Sum)]).unwrap();
            if rank.comm.rank() == 0 {
                rank.stream.synchronize().unwrap();
                rank.comm.abort();
                left.wait();
            } else {
                left.wait();
                rank.comm.state().unwrap();
                assert_eq!(rank.get(1), [2.0], "{schedule:?}");
                rank.comm.state().unwrap();
            }
        });
    }
}

#[test]
fn a_wait_for_missing_ranks_times_out() {
    let limit = Duration::from_millis(200);
    let sim =
        SimConfig { collective_timeout: limit, capacity: 1 << 30, ..SimConfig::new(2) }.build();
    let id = sim.nccl().unwrap().unique_id().unwrap();
    let comms: Vec<_> = std::thread::scope(|scope| {
        let join = |rank| {
            let driver: Arc<dyn Driver> = sim.clone();
            let id = &id;
            scope.spawn(move || Communicator::new(&driver, rank, id, 2, rank, LIMIT).unwrap())
        };
        [0, 1].map(join).map(|thread| thread.join().unwrap()).into()
    });
    let rank = Rank::new(&sim, 0, comms[0].clone());
    rank.enqueue(&[rank.all_reduce(1, ReduceOp::Sum)]).unwrap();
    let error = rank.stream.synchronize().unwrap_err();
    assert_eq!(error.code(), Some(CudaCode::LAUNCH_TIMEOUT), "{error}");
    assert!(error.to_string().contains("rank 0 has waited 200ms for other ranks"), "{error}");
}

#[test]
fn ranks_that_cannot_join_are_refused() {
    let sim = SimConfig { capacity: 1 << 30, ..SimConfig::new(2) }.build();
    let driver: Arc<dyn Driver> = sim.clone();
    let id = || sim.nccl().unwrap().unique_id().unwrap();
    let join = |id: &nccl::UniqueId, device, ranks, rank, limit| {
        Communicator::new(&driver, device, id, ranks, rank, limit).unwrap_err().to_string()
    };
    let text = join(&id(), 0, 2, 5, LIMIT);
    assert!(text.contains("ncclCommInitRankConfig: there is no rank 5 among 2 ranks"), "{text}");
    let unknown = nccl::UniqueId::from_bytes([0; 128]);
    assert!(
        join(&unknown, 0, 2, 0, LIMIT)
            .contains("no simulated communicator waits for ranks with this id")
    );
    let text = join(&id(), 0, 2, 0, Duration::from_millis(20));
    assert!(text.contains("ncclInProgress: rank 0 of 2 (cuda:0) has waited"), "{text}");

    for (second, why) in [
        ((0, 2, 1), "duplicate GPU"),
        ((1, 3, 1), "rank 1 expects 3 ranks, but an earlier rank 2"),
        ((1, 2, 0), "rank 0 of 2 joins twice"),
    ] {
        let (id, (device, ranks, rank)) = (id(), second);
        // SAFETY: the handle is alive, and only this thread uses it.
        let state = unsafe {
            let first = sim.nccl().unwrap().comm_init(0, &id, 2, 0).unwrap();
            let text = join(&id, device, ranks, rank, LIMIT);
            assert!(text.contains(why), "{text}");
            let state = sim.nccl().unwrap().comm_state(first);
            sim.nccl().unwrap().comm_abort(first).unwrap();
            state
        };
        assert!(state.unwrap_err().to_string().contains(why));
    }
}

#[test]
fn an_interrupted_communicator_ends_pending_calls_and_must_still_be_freed() {
    let sim = SimConfig { capacity: 1 << 24, ..SimConfig::new(2) }.build();
    let driver: Arc<dyn Driver> = sim.clone();
    let nccl = driver.nccl().unwrap();
    let id = nccl.unique_id().unwrap();
    let comms = [0, 1].map(|rank| nccl.comm_init(rank, &id, 2, rank).unwrap());
    let memory = owned::DeviceMemory::new(&driver, 0, 4).unwrap();
    let stream = owned::Stream::new(&driver, 0, StreamFlags::default()).unwrap();
    let (at, dtype, op) = (memory.ptr(), nccl::NcclType::F32, nccl::ReduceOp::Sum);
    let sum = nccl::Collective::AllReduce { send: at, recv: at, count: 1, dtype, op };
    // SAFETY: handles and memory are alive, and only this thread uses them.
    unsafe {
        assert_eq!(nccl.comm_state(comms[0]).unwrap(), nccl::CommState::Ready);
        nccl.enqueue(comms[0], &[sum], stream.handle()).unwrap();
        nccl.comm_interrupt(comms[0]).unwrap();
        stream.synchronize().unwrap();
        for comm in comms {
            nccl.comm_abort(comm).unwrap();
            assert!(nccl.comm_abort(comm).is_err());
        }
    }
    drop((stream, memory));
    assert!(sim.usage().all_released() && sim.violations().is_empty());
}

const CHILD: &str = "WARPLINE_TEST_NCCL_RANK";

/// Starts this test as a rank in another process.
fn child(test: &str, rank: usize, seed: u64, id: &nccl::UniqueId) -> std::process::Child {
    let id: String = id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    std::process::Command::new(std::env::current_exe().unwrap())
        .args([&crate::named(module_path!(), test), "--exact", "--nocapture"])
        .env(CHILD, format!("{rank} {seed} {id}"))
        .spawn()
        .unwrap()
}

/// Returns the role of a child process.
fn started_as() -> Option<(usize, u64, nccl::UniqueId)> {
    let text = std::env::var(CHILD).ok()?;
    let words: Vec<&str> = text.split(' ').collect();
    let byte = |i: usize| u8::from_str_radix(&words[2][2 * i..2 * i + 2], 16).unwrap();
    let id = nccl::UniqueId::from_bytes(std::array::from_fn(byte));
    Some((words[0].parse().unwrap(), words[1].parse().unwrap(), id))
}

/// Creates a rank with its own simulator.
fn rank_of(id: &nccl::UniqueId, ranks: usize, rank: usize, seed: u64) -> Rank {
    let schedule = if seed == 0 { Schedule::Lazy } else { Schedule::Seeded(seed) };
    let sim = SimConfig { schedule, capacity: 1 << 30, ..SimConfig::new(1) }.build();
    let driver: Arc<dyn Driver> = sim.clone();
    let comm = Communicator::new(&driver, 0, id, ranks, rank, LIMIT).unwrap();
    Rank::new(&sim, 0, comm)
}

fn new_id() -> nccl::UniqueId {
    SimConfig::new(1).build().nccl().unwrap().unique_id().unwrap()
}

/// Runs sums, then sums of the even and of the odd ranks, then a ring.
fn program(rank: &Rank) {
    let (me, n) = (rank.comm.rank(), rank.comm.ranks());
    rank.set(&[me as f32 + 1.0]);
    rank.enqueue(&[rank.all_reduce(1, ReduceOp::Sum)]).unwrap();
    assert_eq!(rank.get(1), [(n * (n + 1) / 2) as f32]);

    let part = rank.comm.split(Some(me as u32 % 2), n - me, LIMIT).unwrap().unwrap();
    let size = (n - me % 2).div_ceil(2);
    assert_eq!((part.ranks(), part.rank()), (size, size - 1 - me / 2), "in the order of keys");
    rank.set(&[me as f32]);
    // SAFETY: the stream and the memory stay alive until the work is done.
    unsafe { part.enqueue(&[rank.all_reduce(1, ReduceOp::Sum)], rank.stream.handle()) }.unwrap();
    let sum: usize = (0..n).filter(|other| other % 2 == me % 2).sum();
    assert_eq!(rank.get(1), [sum as f32]);

    let (send, count, dtype) = (rank.memory.ptr(), 1, NcclType::F32);
    // SAFETY: the offset lies inside the memory.
    let recv = unsafe { send.offset(4) };
    rank.set(&[me as f32, -1.0]);
    rank.enqueue(&[
        Collective::Recv { recv, count, dtype, peer: (me + n - 1) % n },
        Collective::Send { send, count, dtype, peer: (me + 1) % n },
    ])
    .unwrap();
    assert_eq!(rank.get(2), [me as f32, ((me + n - 1) % n) as f32]);
}

#[test]
fn threads_and_processes_run_one_program() {
    const RANKS: usize = 3;
    if let Some((rank, seed, id)) = started_as() {
        return program(&rank_of(&id, RANKS, rank, seed));
    }
    for schedule in schedules() {
        ranks(RANKS, schedule, true, program);
        ranks(5, schedule, false, program);
    }
    for seed in 0..4 {
        let id = new_id();
        let test = "threads_and_processes_run_one_program";
        let children: Vec<_> = (1..RANKS).map(|rank| child(test, rank, seed, &id)).collect();
        let own = rank_of(&id, RANKS, 0, seed);
        program(&own);
        // This process owns the hub, so it must live until all other ranks have finished.
        for mut child in children {
            assert!(child.wait().unwrap().success(), "seed {seed}");
        }
    }
}

#[test]
fn a_process_that_dies_is_named() {
    if let Some((rank, seed, id)) = started_as() {
        let rank = rank_of(&id, 2, rank, seed);
        rank.enqueue(&[rank.all_reduce(1, ReduceOp::Sum)]).unwrap();
        rank.stream.synchronize().unwrap();
        std::process::abort();
    }
    for seed in 0..4 {
        let id = new_id();
        let mut child = child("a_process_that_dies_is_named", 1, seed, &id);
        let rank = rank_of(&id, 2, 0, seed);
        rank.set(&[1.0]);
        rank.enqueue(&[rank.all_reduce(1, ReduceOp::Sum)]).unwrap();
        rank.stream.synchronize().unwrap();
        assert!(!child.wait().unwrap().success());
        let _ = rank.enqueue(&[rank.all_reduce(1, ReduceOp::Sum)]);
        let error = rank.error().to_string();
        assert!(error.contains("rank 1 of 2 has died"), "seed {seed}: {error}");
        rank.comm.abort();
        rank.stream.synchronize().unwrap();
    }
}
