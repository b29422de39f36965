//! Replays recorded allocation traces through the allocator.
//!
//! ```text
//! cargo run --release -p warpline-alloc --example replay -- TRACE.csv.gz --policy default
//! ```

#![allow(dead_code, unreachable_pub)] // the tests also use the modules

mod bytes;
mod check;
mod completion;
mod device;
mod moe;
mod policy;
mod report;
mod run;
mod timeline;
mod trace;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use warpline_alloc::CudaBackend;
use warpline_cuda_sys_safe::sim::Schedule;

use crate::check::Check;
use crate::completion::{Completions, PATIENCE};
use crate::device::{Device, DriverKind};
use crate::policy::Policy;
use crate::report::Report;
use crate::run::{Outcome, Watch, replay};
use crate::timeline::Timeline;
use crate::trace::Trace;

/// Replays recorded allocation traces and reports their memory and time.
#[derive(Debug, Parser)]
struct Options {
    /// Traces, gzipped or not, with lines `a,ID,BYTES,STREAM`, `f,ID,,` and `c,ID,,`; or
    /// `moe:SHAPE:SEED:STEPS`, a generated trace of a mixture of experts.
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Policy of the allocator.
    #[arg(long, value_enum)]
    policy: Policy,
    /// Further options of the allocator, such as `headroom_percent:5`.
    #[arg(long, default_value = "")]
    options: String,
    /// Driver for the replay.
    #[arg(long, value_enum, default_value = "sim")]
    driver: DriverKind,
    /// Bytes of the device's memory that may be used; KiB, MiB or GiB may follow.
    #[arg(long, value_name = "BYTES", default_value = "141GiB", value_parser = size)]
    capacity: usize,
    /// Prints one JSON object per trace, each on its own line.
    #[arg(long)]
    json: bool,
    /// Lets a side stream use freed memory until the block's `c` line (completion) in the trace. The side
    /// stream waits for a host function that returns at this line. The times include the waits.
    #[arg(long)]
    honour_completion: bool,
    /// Also fills each block on its stream, and verifies the bytes before the block is freed. These
    /// replays are not timed.
    #[arg(long, conflicts_with = "honour_completion")]
    check: bool,
    /// Also writes the requested, allocated and reserved bytes after each event. Needs exactly one
    /// trace.
    #[arg(long, value_name = "FILE.csv")]
    timeline: Option<PathBuf>,
    /// Number of replays with a filled cache. The warm time is the median over these replays.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u8).range(5..))]
    warm: u8,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    if options.timeline.is_some() && options.traces.len() > 1 {
        return Err(String::from("--timeline writes one trace; more than one is given"));
    }
    for path in &options.traces {
        let report = measure(options, path)?;
        let line = if options.json {
            serde_json::to_string(&report).map_err(|error| error.to_string())?
        } else {
            report.to_string()
        };
        // The reader of the output may have closed it.
        if writeln!(std::io::stdout(), "{line}").is_err() {
            break;
        }
    }
    Ok(())
}

/// Runs all replays of a trace.
fn measure(options: &Options, path: &Path) -> Result<Report, String> {
    let trace = Trace::open(path).map_err(|error| error.to_string())?;
    let replays = 1 + usize::from(options.warm);
    let extra = 2 * usize::from(options.check) + usize::from(options.timeline.is_some());
    let bar = progress(&trace, replays + extra);
    let world = World { options, trace: &trace, bar };

    let schedule = if options.honour_completion { Schedule::Lazy } else { Schedule::Eager };
    let outcomes = if options.honour_completion {
        world.replays(schedule, replays, |device| {
            Completions::new(&device.driver, &trace, PATIENCE)
        })?
    } else {
        world.replays(schedule, replays, |_| Ok(()))?
    };
    if options.check {
        // A random schedule makes missing waits show as wrong bytes.
        world.replays(Schedule::Seeded(0), 2, |device| Check::new(device, &trace))?;
    }
    if let Some(file) = &options.timeline {
        let timeline = || {
            Timeline::create(file)
                .map_err(|error| format!("{}: cannot be created: {error}", file.display()))
        };
        if options.honour_completion {
            world.replays(schedule, 1, |device| {
                Ok((Completions::new(&device.driver, &trace, PATIENCE)?, timeline()?))
            })?;
        } else {
            world.replays(schedule, 1, |_| timeline())?;
        }
    }
    world.bar.finish_and_clear();
    Ok(Report::new(&trace, options.policy, &outcomes[0], &outcomes[1..]))
}

/// Values that all replays of a trace share.
struct World<'a> {
    options: &'a Options,
    trace: &'a Trace,
    bar: ProgressBar,
}

impl World<'_> {
    /// Replays the trace `times` times on a new device and allocator. Each replay has its own
    /// `watch`.
    fn replays<W: Watch<CudaBackend>>(
        &self,
        schedule: Schedule,
        times: usize,
        watch: impl Fn(&Device) -> Result<W, String>,
    ) -> Result<Vec<Outcome>, String> {
        let Options { policy, driver, capacity, .. } = *self.options;
        let named = |error: String| format!("{}: {error}", self.trace.name);
        let config =
            policy.config_with(&self.options.options).map_err(|error| error.to_string())?;
        let device = Device::open(driver, capacity, schedule, self.trace)
            .map_err(|error| named(error.to_string()))?;
        let allocator = device.allocator(config);
        let mut progress = |events: usize| self.bar.inc(events as u64);
        (0..times)
            .map(|_| {
                let mut watch = watch(&device)?;
                replay(&allocator, self.trace, &device.streams, &mut watch, &mut progress)
            })
            .collect()
    }
}

/// Creates a progress bar on standard error, if this is a terminal and the replays are long.
fn progress(trace: &Trace, replays: usize) -> ProgressBar {
    let events = trace.ops.len() * replays;
    if events < 1 << 20 {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent}% {eta}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(events as u64).with_style(style).with_message(trace.name.clone())
}

/// Parses a number of bytes, with an optional binary unit.
fn size(text: &str) -> Result<usize, String> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let (digits, unit) = units
        .iter()
        .find_map(|&(name, unit)| Some((text.strip_suffix(name)?, unit)))
        .unwrap_or((text, 1));
    let bytes = digits.trim().parse::<usize>().ok().and_then(|n| n.checked_mul(unit));
    bytes
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| String::from("expected a number of bytes over 0, such as 1000000 or 80GiB"))
}
