//! Ranks that leave during a split. No other rank may wait for them forever.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use warpline_cuda_sys_safe::nccl::{
    Collective, CommHandle, CommState, NcclType, ReduceOp, UniqueId,
};
use warpline_cuda_sys_safe::owned::Communicator;
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig, SimDriver};
use warpline_cuda_sys_safe::*;

const LIMIT: Duration = Duration::from_secs(60);

/// Three ranks, each on its own device, used by one thread.
struct Ranks {
    sim: Arc<SimDriver>,
    comms: Vec<CommHandle>,
    memory: Vec<DevicePtr>,
}

impl Ranks {
    fn new(schedule: Schedule) -> Self {
        let sim = SimConfig { schedule, capacity: 1 << 24, ..SimConfig::new(3) }.build();
        let nccl = sim.nccl().unwrap();
        let id = nccl.unique_id().unwrap();
        let comms = (0..3).map(|rank| nccl.comm_init(rank, &id, 3, rank).unwrap()).collect();
        let memory = (0..3).map(|device| sim.mem_alloc(device, 4).unwrap()).collect();
        Self { sim, comms, memory }
    }

    fn state(&self, comm: CommHandle) -> Result<CommState> {
        // SAFETY: the communicator is alive, and only this thread uses it.
        unsafe { self.sim.nccl().unwrap().comm_state(comm) }
    }

    fn split(&self, rank: usize) -> CommHandle {
        // SAFETY: the communicator is alive, and only this thread uses it.
        let split = unsafe { self.sim.nccl().unwrap().comm_split(self.comms[rank], Some(0), 0) };
        split.unwrap().unwrap()
    }

    fn abort(&self, comm: CommHandle) {
        // SAFETY: the communicator is alive, only this thread uses it, and it is not used
        // afterwards.
        unsafe { self.sim.nccl().unwrap().comm_abort(comm) }.unwrap();
    }

    /// Uses communicators that rank 0 has left. Returns the errors of the other ranks.
    fn errors(&self, others: [CommHandle; 2]) -> [String; 2] {
        for comm in others {
            let at = self.memory[comm.device()];
            let (dtype, op) = (NcclType::F32, ReduceOp::Sum);
            let call = Collective::AllReduce { send: at, recv: at, count: 1, dtype, op };
            let stream = StreamHandle::default_of(comm.device());
            // The result is ignored, because the second rank may already know of the failure.
            // SAFETY: the communicator is alive, and the memory outlives it.
            let _ = unsafe { self.sim.nccl().unwrap().enqueue(comm, &[call], stream) };
        }
        others.map(|comm| {
            let began = Instant::now();
            loop {
                match self.state(comm) {
                    Err(error) => return error.to_string(),
                    Ok(_) if began.elapsed() > LIMIT => panic!("no error was reported"),
                    Ok(_) => {}
                }
            }
        })
    }

    /// Aborts communicators, and waits for their operations to end.
    fn end(&self, comms: &[CommHandle]) {
        comms.iter().for_each(|&comm| self.abort(comm));
        (0..3).for_each(|device| self.sim.synchronize(device).unwrap());
    }
}

fn schedules() -> impl Iterator<Item = Schedule> {
    [Schedule::Lazy, Schedule::Eager].into_iter().chain((0..4).map(Schedule::Seeded))
}

#[test]
fn a_rank_that_drops_an_unfinished_part_is_named() {
    for schedule in schedules() {
        let ranks = Ranks::new(schedule);
        let gone = ranks.split(0);
        ranks.abort(gone);
        let others = [ranks.split(1), ranks.split(2)];
        for comm in ranks.comms.iter().chain(&others) {
            assert_eq!(ranks.state(*comm).unwrap(), CommState::Ready, "{schedule:?}");
        }
        for error in ranks.errors(others) {
            assert!(error.contains("rank 0 of 3 has aborted"), "{schedule:?}: {error}");
        }
        ranks.end(&others);
        for &comm in &ranks.comms {
            assert_eq!(ranks.state(comm).unwrap(), CommState::Ready, "{schedule:?}");
        }
    }
}

/// Rank 0 leaves an unfinished split after a finished one. Only the unfinished split fails.
#[test]
fn only_the_part_that_a_rank_has_left_fails() {
    for schedule in schedules() {
        let ranks = Ranks::new(schedule);
        let first = [ranks.split(0), ranks.split(1), ranks.split(2)];
        let second = ranks.split(0);
        ranks.abort(second);
        let others = [ranks.split(1), ranks.split(2)];
        for error in ranks.errors(others) {
            assert!(error.contains("rank 0 of 3 has aborted"), "{schedule:?}: {error}");
        }
        ranks.end(&others);
        for comm in first {
            assert_eq!(ranks.state(comm).unwrap(), CommState::Ready, "{schedule:?}");
        }
    }
}

#[test]
fn a_rank_that_dies_in_a_split_is_named_in_the_part() {
    for schedule in schedules() {
        let ranks = Ranks::new(schedule);
        ranks.split(0);
        ranks.sim.kill_ranks(0);
        let others = [ranks.split(1), ranks.split(2)];
        for error in ranks.errors(others) {
            assert!(error.contains("rank 0 of 3 has died"), "{schedule:?}: {error}");
        }
        ranks.end(&others);
    }
}

#[test]
fn a_part_fails_with_the_whole() {
    for schedule in schedules() {
        let ranks = Ranks::new(schedule);
        let [aborted, waiting] = [ranks.split(0), ranks.split(1)];
        ranks.abort(ranks.comms[0]);
        let error = ranks.state(aborted).unwrap_err().to_string();
        assert!(
            error.contains("the communicator to be split was aborted"),
            "{schedule:?}: {error}"
        );
        // Rank 2 leaves without a split, so the split of the other rank never completes.
        ranks.abort(ranks.comms[2]);
        for comm in [ranks.comms[1], waiting] {
            let error = ranks.state(comm).unwrap_err().to_string();
            assert!(error.contains("rank 2 of 3 has aborted"), "{schedule:?}: {error}");
        }
    }
}

const CHILD: &str = "WARPLINE_TEST_NCCL_SPLIT";

/// A rank in another process aborts, or its process ends, during a split.
#[test]
fn ranks_that_leave_in_other_processes_are_named() {
    let join = |id: &UniqueId, rank| {
        let sim = SimConfig { capacity: 1 << 24, ..SimConfig::new(1) }.build();
        let driver: Arc<dyn Driver> = sim.clone();
        (sim, Communicator::new(&driver, 0, id, 2, rank, LIMIT).unwrap())
    };
    if let Ok(text) = std::env::var(CHILD) {
        let (how, id) = text.rsplit_once(' ').unwrap();
        let byte = |i: usize| u8::from_str_radix(&id[2 * i..2 * i + 2], 16).unwrap();
        let id = UniqueId::from_bytes(std::array::from_fn(byte));
        if how == "gives up" {
            let (_, comm) = join(&id, 1);
            let error = comm.split(Some(0), 0, Duration::from_millis(20)).unwrap_err();
            assert!(error.to_string().contains("ncclInProgress"), "{error}");
        } else {
            let sim = SimConfig { capacity: 1 << 24, ..SimConfig::new(1) }.build();
            let nccl = sim.nccl().unwrap();
            let comm = nccl.comm_init(0, &id, 2, 1).unwrap();
            let began = Instant::now();
            // SAFETY: the communicator is alive, and only this thread uses it.
            while unsafe { nccl.comm_state(comm) }.unwrap() == CommState::InProgress {
                assert!(began.elapsed() < LIMIT);
            }
            // SAFETY: the communicator is alive, and only this thread uses it.
            unsafe { nccl.comm_split(comm, Some(0), 0) }.unwrap();
        }
        std::process::exit(0);
    }
    for (how, why) in [("gives up", "rank 1 of 2 has aborted"), ("ends", "rank 1 of 2 has died")] {
        let id = SimConfig::new(1).build().nccl().unwrap().unique_id().unwrap();
        let text: String = id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let name = crate::named(module_path!(), "ranks_that_leave_in_other_processes_are_named");
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([&name, "--exact", "--nocapture"])
            .env(CHILD, format!("{how} {text}"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (sim, comm) = join(&id, 0);
        let began = Instant::now();
        while process.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < LIMIT, "{how}");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(process.wait().unwrap().success(), "{how}");
        let part = comm.split(Some(0), 0, LIMIT).unwrap().unwrap();
        let at = sim.mem_alloc(0, 4).unwrap();
        let (dtype, op) = (NcclType::F32, ReduceOp::Sum);
        let call = Collective::AllReduce { send: at, recv: at, count: 1, dtype, op };
        // SAFETY: the memory stays alive until the communicator is aborted.
        let _ = unsafe { part.enqueue(&[call], StreamHandle::default_of(0)) };
        let error = loop {
            match part.state() {
                Err(error) => break error.to_string(),
                Ok(_) => assert!(began.elapsed() < 2 * LIMIT, "{how}: no error was reported"),
            }
        };
        assert!(error.contains(why), "{how}: {error}");
        part.abort();
        sim.synchronize(0).unwrap();
    }
}
