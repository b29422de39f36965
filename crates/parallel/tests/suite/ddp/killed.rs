//! Ranks that are killed at any point of a step, and jobs that start again from their checkpoint. The ranks are
//! processes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use warpline::functional::mse_loss;
use warpline::{Device, Error, Result, cuda, tensor};
use warpline_nn::optim::{Optimizer, SGD, SGDOptions};
use warpline_nn::{Forward, Module, load_file, save_file};
use warpline_parallel::distributed::ddp::{BucketReduction, GradBucket};
use warpline_parallel::distributed::{
    Backend, DistributedDataParallel, GroupError, InitOptions, ProcessGroup, ReduceOp,
    init_process_group,
};

use super::model::{Mlp, batch, small_buckets};
use crate::group_support::{LONG, at_once, works};
use crate::processes::{launcher, run};

/// The points of a step at which a rank is killed. `grad` is before the accumulation of a gradient, `accumulated` after
/// it, `reduce` before the reduction of a bucket, and `reducing` after its launch.
const POINTS: [&str; 24] = [
    "zero_grad",
    "forward",
    "loss",
    "grad fc3.bias",
    "accumulated fc3.bias",
    "grad fc3.weight",
    "accumulated fc3.weight",
    "reduce 0",
    "reducing 0",
    "grad fc2.bias",
    "accumulated fc2.bias",
    "grad fc2.weight",
    "accumulated fc2.weight",
    "reduce 1",
    "reducing 1",
    "grad fc1.bias",
    "accumulated fc1.bias",
    "grad fc1.weight",
    "accumulated fc1.weight",
    "reduce 2",
    "reducing 2",
    "backward",
    "step",
    "end",
];
/// The step in which the rank is killed. The buckets are rebuilt before this step.
const STEP: usize = 3;
/// Time limit of the group in which a rank is killed.
const SHORT: Duration = Duration::from_secs(3);

/// Ends this process at once, without running destructors.
fn die_at(point: &str, target: &str) {
    if point == target {
        std::process::abort();
    }
}

/// The program of a rank of [`a_rank_killed_at_any_point_is_named_by_the_other_ranks`]. `target` is the point at which
/// the last rank is killed.
pub(crate) fn killed_program(backend: Backend, target: &str) {
    let mut options = InitOptions::from_env(backend).unwrap();
    // Wait until all ranks have started, before a short timeout begins.
    options.store.set(&format!("started/{}", options.rank), b"").unwrap();
    for rank in 0..options.world_size {
        options.store.wait(&[&format!("started/{rank}")], LONG).unwrap();
    }
    options.timeout = SHORT;
    let (rank, victim) = (options.rank, options.world_size - 1);
    let group = init_process_group(options).unwrap();
    let device = group.device();
    if device.is_cuda() {
        cuda::set_device(device).unwrap();
    }
    let target = if rank == victim { target } else { "" };
    let begun = Instant::now();
    let (error, buckets) = trains_until_killed(&group, target).unwrap();
    assert!(begun.elapsed() < LONG);
    let failure = GroupError::failure(&error).unwrap_or_else(|| panic!("{error}"));
    assert_eq!((failure.rank, &failure.missing[..]), (rank, &[victim][..]), "{error}");
    // The error names the bucket and a parameter in this bucket.
    let text = error.to_string();
    let number = text.split("bucket ").nth(1).and_then(|rest| rest.split(' ').next());
    let number: usize = number.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{text}"));
    assert!(text.contains(&buckets[number][0]), "{text}");
    drop(group);
    // The other ranks form a new group.
    let mut options = InitOptions::from_env(backend).unwrap();
    (options.timeout, options.world_size) = (LONG, victim);
    works(&init_process_group(options).unwrap()).unwrap();
    println!("rank {rank} has survived: {text}");
}

/// Trains, and dies at `target`. Returns the error that another rank's death causes, and the names of the buckets.
fn trains_until_killed(group: &ProcessGroup, target: &str) -> Result<(Error, Vec<Vec<String>>)> {
    let (device, part) = (group.device(), (group.rank(), group.world_size()));
    let mut net =
        DistributedDataParallel::new(Mlp::new(device, 0)?, group.clone(), small_buckets())?;
    let mut optimizer = SGD::new(net.parameters(), SGDOptions::new().lr(0.1))?;
    for step in 0.. {
        let target = if step == STEP { target.to_owned() } else { String::new() };
        if step == STEP {
            for (name, parameter) in net.module().named_parameters() {
                let (before, after) = (format!("grad {name}"), format!("accumulated {name}"));
                let (on_before, on_after) = (target.clone(), target.clone());
                parameter.register_hook(move |_| {
                    die_at(&before, &on_before);
                    Ok(None)
                })?;
                parameter.register_post_accumulate_grad_hook(move |_| {
                    die_at(&after, &on_after);
                    Ok(())
                })?;
            }
            let target = target.clone();
            net.register_comm_hook(move |bucket: &GradBucket| {
                die_at(&format!("reduce {}", bucket.index()), &target);
                let work = bucket.all_reduce(bucket.buffer(), ReduceOp::Sum)?;
                die_at(&format!("reducing {}", bucket.index()), &target);
                Ok(BucketReduction::after(work, bucket.buffer().clone()))
            });
        }
        let run = (|| {
            die_at("zero_grad", &target);
            optimizer.zero_grad()?;
            let (x, y) = batch(step, part, device)?;
            die_at("forward", &target);
            let out = net.forward(x)?;
            die_at("loss", &target);
            mse_loss(&out, &y, ())?.backward()?;
            die_at("backward", &target);
            optimizer.step()?;
            die_at("step", &target);
            net.module().fc1.weight.to_vec::<f64>().map(drop)
        })();
        die_at("end", &target);
        match run {
            // If a rank died after its last reduction, only the next step of the other ranks fails.
            Ok(()) if step <= STEP + 1 => {}
            Ok(()) => panic!("no rank was missed"),
            Err(error) => {
                assert!(step >= STEP, "{error}");
                return Ok((error, net.bucket_names()));
            }
        }
    }
    unreachable!("the loop ends by return")
}

fn killed_at_all_points(driver: &str, backend: &str, ranks: usize) {
    let at_most = if driver.starts_with("sim") { 6 } else { 2 };
    at_once(at_most, &POINTS, |point| {
        let part = format!("killed {backend} {point}");
        let (lines, outcome) = run(launcher(driver, ranks, &part).keep_going(true));
        for rank in 0..ranks - 1 {
            let survived = format!("rank {rank} has survived");
            let found = lines.iter().any(|line| line.contains(&survived));
            assert!(found && outcome.statuses[rank].success(), "{point}: {lines:#?}");
        }
        assert!(!outcome.statuses[ranks - 1].success(), "{point}");
    });
}

#[test]
fn a_rank_killed_at_any_point_is_named_by_the_other_ranks() {
    killed_at_all_points("sim:3,seed=1", "nccl", 3);
}

#[test]
fn a_cpu_rank_killed_at_any_point_is_named_by_the_other_ranks() {
    killed_at_all_points("sim:0", "cpu", 3);
}

#[test]
#[ignore = "needs two GPUs"]
fn gpu2_a_rank_killed_at_any_point_is_named_by_the_other_rank() {
    killed_at_all_points(&crate::group_support::gpu_spec(), "nccl", 2);
}

fn bias(net: &Mlp) -> Result<Vec<f64>> {
    net.fc3.bias.as_ref().expect("a bias").to_vec()
}

/// Number of steps of the job that starts again.
const STEPS: usize = 8;
/// Environment variable with the file of the checkpoint.
const CHECKPOINT: &str = "WARPLINE_TEST_CHECKPOINT";

/// The program of a rank of [`a_job_starts_again_from_its_last_checkpoint`]: a rank is killed in steps 2 and 5.
pub(crate) fn restarted_program() -> Result<()> {
    let path = PathBuf::from(std::env::var_os(CHECKPOINT).expect("a file"));
    let restarts: usize = std::env::var("TORCHELASTIC_RESTART_COUNT").unwrap().parse().unwrap();
    let mut options = InitOptions::from_env(Backend::Cpu)?;
    options.timeout = LONG;
    let group = init_process_group(options)?;
    let (rank, device) = (group.rank(), group.device());
    let mut net = Mlp::new(device, rank)?;
    let mut first = 0;
    if path.exists() {
        let state = load_file(&path, device)?;
        net.load_state_dict(&state.under_prefix("model"), true)?;
        first = state.get("step").expect("a number").item::<i64>()? as usize;
    }
    let net = DistributedDataParallel::new(net, group.clone(), ())?;
    let mut optimizer = SGD::new(net.parameters(), SGDOptions::new().lr(0.2))?;
    println!("rank {rank} begins with step {first}");
    for step in first..STEPS {
        if (restarts, step, rank) == (0, 2, 1) || (restarts, step, rank) == (1, 5, 0) {
            std::process::abort();
        }
        optimizer.zero_grad()?;
        let (x, y) = batch(step, (rank, group.world_size()), device)?;
        mse_loss(&net.forward(x)?, &y, ())?.backward()?;
        optimizer.step()?;
        if rank == 0 {
            let mut state = net.module().state_dict().with_prefix("model");
            state.insert("step", tensor([step as i64 + 1], ())?);
            save_file(&state, &path, ())?;
        }
        // No rank is ahead of the checkpoint.
        group.barrier()?;
    }
    println!("rank {rank}: {:?}", bias(net.module())?);
    group.barrier()
}

#[test]
fn a_job_starts_again_from_its_last_checkpoint() {
    let alone = || -> Result<Vec<f64>> {
        let net = Mlp::new(Device::Cpu, 0)?;
        let mut optimizer = SGD::new(net.parameters(), SGDOptions::new().lr(0.2))?;
        for step in 0..STEPS {
            optimizer.zero_grad()?;
            let (x, y) = batch(step, (0, 1), Device::Cpu)?;
            mse_loss(&net.forward(x)?, &y, ())?.backward()?;
            optimizer.step()?;
        }
        bias(&net)
    };
    let alone = alone().unwrap();
    let name = format!("warpline-restart-{}.safetensors", std::process::id());
    let path = std::env::temp_dir().join(name);
    let job = |restarts| {
        let launcher = launcher("sim:0", 2, "restarted").env(CHECKPOINT, &path);
        run(launcher.max_restarts(restarts))
    };
    let (lines, outcome) = job(1);
    assert!(outcome.first_failed.is_some(), "{lines:#?}");
    std::fs::remove_file(&path).unwrap();
    let (lines, outcome) = job(2);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(outcome.code(), 0, "{lines:#?}");
    for step in [0, 2, 5] {
        let begins = format!("rank 1 begins with step {step}");
        assert!(lines.iter().any(|line| line.contains(&begins)), "{step}: {lines:#?}");
    }
    for rank in 0..2 {
        let result = format!("rank {rank}: [");
        let line = lines.iter().find_map(|line| line.split(&result).nth(1)).expect("weights");
        let found = line.trim_end_matches(']').split(", ").map(|v| v.parse::<f64>().unwrap());
        for (found, expected) in found.zip(&alone) {
            assert!((found - expected).abs() < 1e-12, "{lines:#?} {alone:?}");
        }
    }
}
