//! Process groups whose ranks are processes. Some tests kill a rank. The test program starts itself as each rank.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use warpline::{Result, cuda, full};
use warpline_parallel::distributed::launch::{Launcher, Outcome};
use warpline_parallel::distributed::{
    Backend, GroupError, InitOptions, ProcessGroup, ReduceOp, ReduceOptions, init_process_group,
};

use crate::ddp::killed;
use crate::ddp::model::{small_buckets, train, train_alone};
use crate::group_support::{LONG, at_once, gpu_spec, number};

/// Environment variable with the name of the test program that a rank runs.
const PART: &str = "WARPLINE_TEST_PART";
/// Line that a rank prints before it is killed.
const READY: &str = "ready to be killed";

/// The program of a rank. The tests below and those in `ddp/killed.rs` start it.
#[test]
#[ignore = "is started by the other tests"]
fn program_of_a_rank() {
    let Ok(part) = std::env::var(PART) else { return };
    if part == "cpu" {
        return trains_on_cpus().unwrap();
    }
    if part == "restarted" {
        return killed::restarted_program().unwrap();
    }
    if let Some(point) = part.strip_prefix("killed cpu ") {
        return killed::killed_program(Backend::Cpu, point);
    }
    if let Some(point) = part.strip_prefix("killed nccl ") {
        return killed::killed_program(Backend::Nccl, point);
    }
    let mut options = InitOptions::from_env(LONG).unwrap();
    if part == "ddp" {
        return trains(&options).unwrap();
    }
    if part != "sums" {
        // Wait until all ranks have started, before a short timeout begins.
        options.store.set(&format!("started/{}", options.rank), b"").unwrap();
        for rank in 0..options.world_size {
            options.store.wait(&[&format!("started/{rank}")], LONG).unwrap();
        }
        options = options.timeout(Duration::from_secs(3));
    }
    let group = init_process_group(options).unwrap();
    cuda::set_device(group.device()).unwrap();
    match part.as_str() {
        "sums" => sums(&group).unwrap(),
        other => survives(group, other.parse().unwrap()),
    }
}

/// Trains on the CPU and on GPUs, like one process with the whole batch.
fn trains(options: &InitOptions) -> Result<()> {
    for backend in [Backend::Cpu, Backend::Nccl] {
        let options = options.clone().backend(backend);
        let group = init_process_group(options)?;
        if group.device().is_cuda() {
            cuda::set_device(group.device())?;
        }
        train(&group, small_buckets(), 4)?.assert_close(&train_alone(4), 1e-9);
    }
    Ok(())
}

/// Trains on the CPU, where there may be more ranks than devices.
fn trains_on_cpus() -> Result<()> {
    let options = InitOptions::from_env(Backend::Cpu)?.timeout(LONG);
    let group = init_process_group(options)?;
    train(&group, small_buckets(), 4)?.assert_close(&train_alone(4), 1e-12);
    Ok(())
}

fn sums(group: &ProcessGroup) -> Result<()> {
    let (rank, ranks) = (group.rank(), group.world_size());
    for async_op in [false, true] {
        let x = full([1000], rank as f64 + 1.0, "cuda")?;
        group.all_reduce(&x, ReduceOptions::new().async_op(async_op))?.wait()?;
        assert_eq!(x.to_vec::<f32>()?, vec![(ranks * (ranks + 1) / 2) as f32; 1000]);
        let all = full([ranks], -1.0, "cuda")?;
        group.all_gather_into_tensor(&all, &full([1], rank as f64, "cuda")?, async_op)?.wait()?;
        assert_eq!(all.to_vec::<f32>()?, (0..ranks).map(|r| r as f32).collect::<Vec<_>>());
    }
    let part = group.new_group(&[ranks - 1])?;
    assert_eq!(part.is_some(), rank == ranks - 1);
    group.barrier()
}

/// Runs collectives until a rank is killed, then forms a group of the remaining ranks.
fn survives(group: ProcessGroup, victim: usize) {
    let rank = group.rank();
    let x = full([4], 1.0, "cuda").unwrap();
    group.all_reduce(&x, ReduceOp::Max).unwrap().synchronize().unwrap();
    if rank == victim {
        println!("{READY}");
        std::thread::sleep(LONG);
        return;
    }
    let begun = Instant::now();
    let failed = group
        .all_reduce(&x, ReduceOptions::new().async_op(true))
        .and_then(|work| work.synchronize());
    let error = failed.unwrap_err();
    assert!(begun.elapsed() < LONG);
    let failure = GroupError::failure(&error).unwrap_or_else(|| panic!("{error}"));
    assert!(failure.missing.contains(&victim), "{error}");
    assert_eq!((failure.rank, failure.seq), (rank, 2), "{error}");
    assert!(failure.location.contains("processes.rs:"), "{error}");
    // The process forms a group with the remaining ranks.
    let ranks = group.world_size();
    drop(group);
    let mut options = InitOptions::from_env(LONG).unwrap();
    options.rank -= usize::from(rank > victim);
    options.world_size = ranks - 1;
    let group = init_process_group(options).unwrap();
    sums(&group).unwrap();
    println!("rank {rank} has survived");
}

/// Returns a launcher whose ranks are processes that run the program `part`.
pub(crate) fn launcher(driver: &str, ranks: usize, part: &str) -> Launcher {
    let mut launch = Launcher::new(std::env::current_exe().unwrap(), ranks);
    for arg in [
        &*crate::full_test_name(module_path!(), "program_of_a_rank"),
        "--exact",
        "--ignored",
        "--nocapture",
    ] {
        launch = launch.arg(arg);
    }
    launch.driver(driver).env(PART, part)
}

/// The lines of all ranks so far.
type Lines = Arc<Mutex<Vec<String>>>;

fn record_lines(launch: Launcher) -> (Launcher, Lines) {
    let lines = Lines::default();
    let seen = Arc::clone(&lines);
    let on_line = move |rank, _, line: &str| {
        seen.lock().unwrap().push(format!("[{rank}]: {line}"));
    };
    (launch.on_line(Arc::new(on_line)), lines)
}

/// Runs all ranks to their end. Returns their output and the outcome.
pub(crate) fn run(launch: Launcher) -> (Vec<String>, Outcome) {
    let (launch, lines) = record_lines(launch);
    let outcome = launch.run().unwrap();
    let lines = std::mem::take(&mut *lines.lock().unwrap());
    (lines, outcome)
}

/// Runs ranks, and kills the victim once it has printed [`READY`].
fn run_and_kill(launch: Launcher, victim: usize) -> (Vec<String>, Outcome) {
    let (launch, lines) = record_lines(launch.keep_going(true));
    let mut running = launch.spawn().unwrap();
    let begun = Instant::now();
    while !lines.lock().unwrap().iter().any(|line: &String| line.ends_with(READY)) {
        assert!(begun.elapsed() < LONG, "{:#?}", lines.lock().unwrap());
        std::thread::sleep(Duration::from_millis(5));
    }
    running.kill(victim).unwrap();
    let outcome = running.wait().unwrap();
    let lines = std::mem::take(&mut *lines.lock().unwrap());
    (lines, outcome)
}

fn all_go_well(driver: &str, ranks: usize, part: &str) {
    let (lines, outcome) = run(launcher(driver, ranks, part));
    assert_eq!(outcome.code(), 0, "{driver}: {lines:#?}");
    assert_eq!(
        lines.iter().filter(|line| line.contains("test result: ok. 1 passed")).count(),
        ranks
    );
}

fn one_is_killed(driver: &str, ranks: usize, victim: usize) {
    let (lines, outcome) = run_and_kill(launcher(driver, ranks, &victim.to_string()), victim);
    for rank in (0..ranks).filter(|rank| *rank != victim) {
        assert!(outcome.statuses[rank].success(), "{driver}: rank {rank}: {lines:#?}");
        let survived = format!("rank {rank} has survived");
        assert!(lines.iter().any(|line| line.contains(&survived)), "{driver}: {lines:#?}");
    }
    assert!(!outcome.statuses[victim].success());
}

#[test]
fn processes_form_a_group() {
    for seed in 0..number("WARPLINE_SCHEDULES", 8).min(8) {
        all_go_well(&format!("sim:3,seed={seed}"), 3, "sums");
    }
    all_go_well("sim:2,lazy", 2, "sums");
}

#[test]
fn processes_train_like_one_process_with_the_whole_batch() {
    for driver in ["sim:2,lazy", "sim:2,seed=1", "sim:2,seed=2"] {
        all_go_well(driver, 2, "ddp");
    }
}

#[test]
fn processes_on_the_cpu_need_no_device() {
    for driver in ["sim:0", "sim:2"] {
        all_go_well(driver, 3, "cpu");
    }
}

#[test]
fn a_killed_process_is_named_by_all_others_which_continue() {
    let seeds: Vec<usize> = (0..number("WARPLINE_SCHEDULES", 8).min(8)).collect();
    at_once(6, &seeds, |seed| one_is_killed(&format!("sim:3,seed={seed}"), 3, seed % 3));
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_processes_form_a_group() {
    all_go_well(&gpu_spec(), 2, "sums");
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_processes_train_with_ddp_like_one_process() {
    all_go_well(&gpu_spec(), 2, "ddp");
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_a_killed_process_is_named_by_the_other_rank() {
    for victim in [0, 1] {
        one_is_killed(&gpu_spec(), 2, victim);
    }
}
