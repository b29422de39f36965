//! Runs ranks as processes, and tests in processes with their own environment.

use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use warpline_cuda_sys_safe::nccl::UniqueId;
use warpline_cuda_sys_safe::owned::Communicator;
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig};
use warpline_cuda_sys_safe::*;

use super::kit::*;

const RANK: &str = "WARPLINE_TEST_NCCL_RANK";

/// Time limit for a process.
const PROCESS_LIMIT: Duration = Duration::from_secs(180);

/// Returns a command that runs this test again.
fn again(test: &str, options: &[&str]) -> Command {
    let (_, test) = test.split_once("::").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).args(options);
    // A panic is reported on standard error.
    command.stdout(Stdio::null());
    command
}

/// A process that is killed when the test ends.
struct Process(Child);

impl Process {
    fn succeeds(&mut self) -> bool {
        let began = Instant::now();
        while began.elapsed() < PROCESS_LIMIT {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a body with NVLink multicast off, because multicast affects GPUs of other users, too. Uses
/// a child process, because NCCL reads the environment when it is loaded.
pub(crate) fn without_multicast(test: &str, body: fn()) {
    const VARIABLE: &str = "NCCL_NVLS_ENABLE";
    const WITHIN: &str = "WARPLINE_TEST_NCCL_WITHIN";
    if std::env::var_os(WITHIN).is_some() {
        assert_eq!(std::env::var(VARIABLE).as_deref(), Ok("0"));
        return body();
    }
    // One test at a time: kernels that wait for one another are slow when processes share a GPU.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = again(test, &["--ignored"]);
    let mut process = Process(command.env(VARIABLE, "0").env(WITHIN, "1").spawn().unwrap());
    assert!(process.succeeds(), "{test} failed in its own process, or took {PROCESS_LIMIT:?}");
}

/// Runs a program with each rank in its own process, with two ranks and with three, if `counts`
/// contains these numbers.
pub(crate) fn simulated(test: &str, counts: &[usize], program: Program, expected: &[&str]) {
    if let Ok(text) = std::env::var(RANK) {
        let words: Vec<&str> = text.split(' ').collect();
        let number = |i: usize| words[i].parse::<usize>().unwrap();
        let byte = |i: usize| u8::from_str_radix(&words[3][2 * i..2 * i + 2], 16).unwrap();
        let id = UniqueId::from_bytes(std::array::from_fn(byte));
        return run(&id, number(0), number(1), number(2), program, expected);
    }
    for &ranks in counts.iter().filter(|&&ranks| ranks == 2 || ranks == 3) {
        for seed in 0..2 {
            let id = SimConfig::new(1).build().nccl().unwrap().unique_id().unwrap();
            let text: String = id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
            let start = |rank: usize| {
                let mut command = again(test, &[]);
                Process(command.env(RANK, format!("{ranks} {rank} {seed} {text}")).spawn().unwrap())
            };
            let mut others: Vec<Process> = (1..ranks).map(start).collect();
            run(&id, ranks, 0, seed, program, expected);
            // This process owns the hub, so it must live until all other ranks have finished.
            assert!(others.iter_mut().all(Process::succeeds), "seed {seed}, {ranks} ranks");
        }
    }
}

fn run(id: &UniqueId, ranks: usize, rank: usize, seed: usize, program: Program, expected: &[&str]) {
    let schedule = if seed == 0 { Schedule::Lazy } else { Schedule::Seeded(seed as u64) };
    let sim = SimConfig { schedule, capacity: 1 << 24, ..SimConfig::new(1) }.build();
    let driver: Arc<dyn Driver> = sim;
    let comm = Communicator::new(&driver, 0, id, ranks, rank, LIMIT).unwrap();
    let rank = Rank::new(&driver, comm).unwrap();
    check(&rank, program, expected, &format!("a process of its own, {schedule:?}"));
    rank.stream.synchronize().unwrap();
    rank.comm.abort();
}
