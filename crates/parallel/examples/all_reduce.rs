//! All-reduce of two or more ranks, each a process with a GPU of its own.
//!
//! On simulated GPUs: `cargo run -p warpline-parallel --example all_reduce -- --ranks 2 --driver sim`;
//! on real ones the same with `--driver cuda`. Under a launcher, such as `torchrun --no-python`, it
//! is one rank and starts none.

use std::process::ExitCode;

use clap::Parser;
use warpline::{cuda, full};
use warpline_parallel::distributed::launch::Launch;
use warpline_parallel::distributed::{InitOptions, ReduceOp, init_process_group};

/// All-reduce of several processes.
#[derive(Parser)]
struct Args {
    /// How many to start.
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// What they run on: `cuda`, or `sim`.
    #[arg(long, default_value = "cuda")]
    driver: String,
    /// Elements of the tensor.
    #[arg(long, default_value_t = 1024)]
    size: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // Set by whoever starts ranks.
    let names = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];
    if names.iter().any(|name| std::env::var_os(name).is_some()) {
        return match rank(args.size) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let started = std::env::current_exe().and_then(|program| {
        let launch = Launch::new(program, args.ranks).driver(&args.driver);
        launch.arg("--size").arg(args.size.to_string()).run()
    });
    match started {
        Ok(outcome) => ExitCode::from(u8::try_from(outcome.code()).unwrap_or(1)),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn rank(size: usize) -> Result<(), Box<dyn std::error::Error>> {
    let group = init_process_group(InitOptions::from_env()?)?;
    let (rank, ranks) = (group.rank(), group.world_size());
    cuda::set_device(group.device())?;

    // Like any op: on the current stream, before what comes after it.
    let x = full([size], rank as f64 + 1.0, "cuda")?;
    group.all_reduce(&x, ReduceOp::Sum, false)?;
    let sum = (x.sum(())? / size as f64)?.item::<f32>()?;

    // On the group's own stream, beside other work, until it is waited for.
    let y = full([size], rank as f64, "cuda")?;
    let work = group.all_reduce(&y, ReduceOp::Max, true)?;
    let squares = (&x * &x)?;
    work.wait()?;
    let most = (&y + &squares)?.max(0)?.0.item::<f32>()?;

    println!("rank {rank} of {ranks} on {}: sum {sum}, most {most}", group.device());
    let wanted = (ranks * (ranks + 1) / 2) as f32;
    if (sum, most) != (wanted, (ranks - 1) as f32 + wanted * wanted) {
        return Err("the sums are wrong".into());
    }
    group.barrier()?;
    Ok(())
}
