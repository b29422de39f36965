//! All-reduce of two or more ranks. Each rank is a process with its own GPU.
//!
//! On simulated GPUs: `cargo run -p warpline-parallel --example all_reduce -- --ranks 2 --driver sim`; on real GPUs,
//! use `--driver cuda` instead. Under a launcher, such as `torchrun --no-python`, the program runs as one rank and
//! starts no processes.

use std::process::ExitCode;

use clap::Parser;
use warpline::{cuda, full};
use warpline_parallel::distributed::launch::Launcher;
use warpline_parallel::distributed::{InitOptions, ReduceOp, ReduceOptions, init_process_group};

/// All-reduce of several processes.
#[derive(Parser)]
struct Args {
    /// Number of ranks to start.
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Driver of the ranks: `cuda` or `sim`.
    #[arg(long, default_value = "cuda")]
    driver: String,
    /// Number of elements of the tensor.
    #[arg(long, default_value_t = 1024)]
    size: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    // Launchers set one of these variables.
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
    let started = std::env::current_exe().map_err(warpline::Error::from).and_then(|program| {
        let launch = Launcher::new(program, args.ranks).driver(&args.driver);
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
    let group = init_process_group(InitOptions::from_env(())?)?;
    let (rank, ranks) = (group.rank(), group.world_size());
    cuda::set_device(group.device())?;

    // Runs on the current stream, like any op.
    let x = full([size], rank as f64 + 1.0, "cuda")?;
    group.all_reduce(&x, ())?;
    let sum = (x.sum(())? / size as f64)?.item::<f32>()?;

    // Runs on the group's own stream, concurrently with later work on the current stream, until `wait`.
    let y = full([size], rank as f64, "cuda")?;
    let work = group.all_reduce(&y, ReduceOptions::new().op(ReduceOp::Max).async_op(true))?;
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
