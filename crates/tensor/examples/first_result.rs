//! Measures the time from the start of a process to its first result on a GPU, and for comparison the time of a
//! process that only initializes the driver and creates a context. Each run is a new process without the
//! driver's JIT cache. Run it with `cargo run --release --example first_result` on a machine with a GPU.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use warpline::Result;

const RUNS: usize = 9;

/// The first lines of a user's program: two tensors, an op, and the result on the host.
fn first_result() -> Result<()> {
    let x = warpline::ones([1024], "cuda")?;
    let y = (&x + &x)?;
    assert_eq!(y.to_vec::<f32>()?[7], 2.0);
    Ok(())
}

/// The minimum of any CUDA program: initialize the driver, make a context, and query it.
fn bare() -> Result<()> {
    let driver = warpline::runtime().driver()?.clone();
    driver.mem_info(0).map_err(|e| warpline::Error::driver("mem_info", e))?;
    Ok(())
}

fn time(mode: &str) -> std::io::Result<Duration> {
    let start = Instant::now();
    let status =
        Command::new(std::env::current_exe()?).arg(mode).env("CUDA_CACHE_DISABLE", "1").status()?;
    let taken = start.elapsed();
    if status.success() { Ok(taken) } else { Err(std::io::Error::other("the child failed")) }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1).as_deref() {
        Some("--first-result") => first_result(),
        Some("--bare") => bare(),
        _ => {
            let (mut bare, mut first) = (Vec::new(), Vec::new());
            // The runs of both kinds alternate, so that a drift of the machine's speed affects both.
            for _ in 0..RUNS {
                match (time("--bare"), time("--first-result")) {
                    (Ok(b), Ok(f)) => {
                        bare.push(b);
                        first.push(f);
                    }
                    (Err(e), _) | (_, Err(e)) => {
                        eprintln!("{e}");
                        return ExitCode::FAILURE;
                    }
                }
            }
            let (bare, first) = (median(bare), median(first));
            let ratio = first.as_secs_f64() / bare.as_secs_f64();
            println!(
                "bare context {:.1} ms, first result {:.1} ms, ratio {ratio:.3} (medians of {RUNS})",
                bare.as_secs_f64() * 1e3,
                first.as_secs_f64() * 1e3,
            );
            Ok(())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
