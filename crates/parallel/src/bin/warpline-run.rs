//! Starts a program as several ranks on this host.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use warpline_parallel::distributed::launch::Launcher;

/// Starts a program as several ranks on this host. Each rank has RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
/// and a new WARPLINE_SECRET in its environment. Each line of output is printed after `[rank]: `. If a rank fails, the
/// other ranks are killed. With --max-restarts, all ranks are then started again. The exit code is that of the failed
/// rank.
#[derive(Parser)]
#[command(name = "warpline-run", version)]
struct Args {
    /// Number of ranks to start.
    #[arg(short, long = "nproc", visible_alias = "nproc-per-node")]
    nproc: usize,
    /// Driver of the ranks: `cuda`, or `sim` with options.
    #[arg(long)]
    driver: Option<String>,
    /// Maximum number of times that all ranks are started again after a rank has failed. The program continues from its
    /// own checkpoint; TORCHELASTIC_RESTART_COUNT is the number of restarts so far.
    #[arg(long, default_value_t = 0)]
    max_restarts: usize,
    /// Program to run.
    program: PathBuf,
    /// Arguments of the program.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let mut launch = Launcher::new(args.program, args.nproc).max_restarts(args.max_restarts);
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
