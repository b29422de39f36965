//! Starts a program as several ranks on this host.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use warpline_parallel::distributed::launch::Launch;

/// Starts a program as several ranks on this host, each with RANK, LOCAL_RANK, WORLD_SIZE,
/// MASTER_ADDR, MASTER_PORT and a new WARPLINE_SECRET in its environment. Each line of output comes after `[rank]: `. When a
/// rank fails the others are killed, and its exit code is this one's.
#[derive(Parser)]
#[command(name = "warpline-run", version)]
struct Args {
    /// How many ranks to start.
    #[arg(short, long = "nproc", visible_alias = "nproc-per-node")]
    nproc: usize,
    /// The driver that the ranks use: `cuda`, or `sim` and options.
    #[arg(long)]
    driver: Option<String>,
    /// The program.
    program: PathBuf,
    /// Its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let mut launch = Launch::new(args.program, args.nproc);
    for arg in args.args {
        launch = launch.arg(arg);
    }
    if let Some(driver) = args.driver {
        launch = launch.driver(&driver);
    }
    match launch.run() {
        Ok(outcome) => {
            if let Some(rank) = outcome.first_failed {
                eprintln!("warpline-run: rank {rank} failed: {}", outcome.statuses[rank]);
            }
            ExitCode::from(u8::try_from(outcome.code()).unwrap_or(1))
        }
        Err(error) => {
            eprintln!("warpline-run: {error}");
            ExitCode::FAILURE
        }
    }
}
