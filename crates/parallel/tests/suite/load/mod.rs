//! A long mixed load: 64 threads use streams, tensors of several sizes, graphs, events, page-locked memory, gradients
//! and loaders, and one of them exchanges tensors with a second process.
//!
//! While the load runs, memory, driver objects, descriptors and threads are sampled. After a warm-up they must not
//! grow: [`series`] has the rule. The values of all results are checked. At the end, latencies of an op are printed.
//!
//! `WARPLINE_LOAD_SECONDS` is the duration (default: 8).

mod latency;
mod series;
mod work;

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use warpline::multiprocessing::Channel;
use warpline::{Error, Result, Runtime, RuntimeConfig, cuda, with_runtime};
use warpline_cuda_sys_safe::sim::{SimConfig, SimDriver};

use crate::group_support::{LONG, gpu_spec, number};
use series::Series;
use work::Load;

const THREADS: usize = 64;

/// Environment variable with the part of a process: `load` or `answer`.
const PART: &str = "WARPLINE_TEST_LOAD";

/// Program of both processes. The load has a process of its own, because other tests open descriptors.
#[test]
#[ignore = "is started by the other tests"]
fn program_of_the_load() {
    match std::env::var(PART).as_deref() {
        Ok("load") => run(&gpu_spec(), number("WARPLINE_LOAD_SECONDS", 8)).unwrap(),
        Ok(_) => {
            let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
            work::answer(&Channel::new(socket)).unwrap();
        }
        Err(_) => {}
    }
}

fn own_program(part: &str, driver: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = crate::full_test_name(module_path!(), "program_of_the_load");
    command.args([&*name, "--exact", "--ignored", "--nocapture"]);
    command.env(PART, part).env("WARPLINE_DRIVER", driver).stdout(Stdio::null());
    command
}

fn start_peer(driver: &str) -> (Child, Channel) {
    let (here, there) = UnixStream::pair().unwrap();
    let mut program = own_program("answer", driver);
    program.stdin(Stdio::from(OwnedFd::from(there)));
    let channel = Channel::new(here);
    channel.set_timeout(Some(LONG)).unwrap();
    (program.spawn().unwrap(), channel)
}

/// Runs the load and checks the samples.
fn run(driver: &str, seconds: usize) -> Result<()> {
    let sim = SimConfig::from_spec(driver).ok().map(SimConfig::build);
    let runtime = match &sim {
        Some(sim) => Runtime::new(Arc::clone(sim) as _, RuntimeConfig::default())?,
        None => warpline::open(driver, &RuntimeConfig::default())?,
    };
    let (mut peer, channel) = start_peer(driver);
    let load = with_runtime(&runtime, || Load::new(THREADS - 1))?;
    let threads = (0..THREADS).map(|index| {
        let (load, runtime) = (Arc::clone(&load), runtime.clone());
        let channel = (index == 0).then(|| channel.as_fd().try_clone_to_owned().unwrap());
        let work = move || match channel {
            Some(socket) => {
                let channel = Channel::new(UnixStream::from(socket));
                channel.set_timeout(Some(LONG)).unwrap();
                load.exchange(&channel)
            }
            None => load.compute(index),
        };
        std::thread::spawn(move || with_runtime(&runtime, work))
    });
    let threads: Vec<_> = threads.collect();
    let all: Vec<Series> = with_runtime(&runtime, || {
        let mut samples = Samples::default();
        let duration = Duration::from_secs(seconds as u64);
        let interval = (duration / 100).clamp(Duration::from_millis(20), Duration::from_secs(1));
        let start = Instant::now();
        while start.elapsed() < duration && !threads.iter().any(|thread| thread.is_finished()) {
            std::thread::sleep(interval);
            samples.take(start.elapsed(), peer.id(), sim.as_deref())?;
        }
        Ok::<_, Error>(samples.0)
    })?;
    load.stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().expect("a thread of the load")?;
    }
    drop(channel);
    assert!(peer.wait().unwrap().success(), "the second process");
    eprintln!("{seconds} s, {THREADS} threads, {driver}; {}", load.latencies);
    all.iter().for_each(|series| eprintln!("{series}"));
    let growing: Vec<&str> = all.iter().filter(|s| s.grows()).map(Series::name).collect();
    assert!(growing.is_empty(), "these numbers grow: {growing:?}");
    drop((load, runtime));
    if let Some(sim) = sim {
        assert!(sim.usage().all_released(), "driver objects remain: {:?}", sim.usage());
    }
    Ok(())
}

const MIB: f64 = (1 << 20) as f64;

/// The samples of all numbers.
#[derive(Default)]
struct Samples(Vec<Series>);

impl Samples {
    /// Adds a sample to a series. `noise` is the growth that counts as noise.
    fn push(&mut self, time: Duration, name: &str, noise: f64, value: f64) {
        if !self.0.iter().any(|series| series.name() == name) {
            self.0.push(Series::new(name, noise));
        }
        let series = self.0.iter_mut().find(|series| series.name() == name);
        series.expect("a series").push(time.as_secs_f64(), value);
    }

    fn take(&mut self, time: Duration, peer: u32, sim: Option<&SimDriver>) -> Result<()> {
        for (process, pid) in [("", std::process::id()), ("peer's ", peer)] {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let field = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                let value = line.and_then(|line| line.split_whitespace().next());
                value.and_then(|value| value.parse::<f64>().ok()).expect("a number")
            };
            let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as f64;
            self.push(time, &format!("{process}resident MiB"), 16.0, field("VmRSS:") / 1024.0);
            self.push(time, &format!("{process}threads"), 4.0, field("Threads:"));
            self.push(time, &format!("{process}descriptors"), 4.0, descriptors);
        }
        let host = cuda::host_memory_stats()?;
        let mib = |bytes: f64| bytes / MIB;
        // Four segments of small tensors, since the peak of the memory in use rises by chance.
        self.push(time, "reserved MiB", 8.0, mib(cuda::memory_reserved(0)? as f64));
        self.push(time, "allocated MiB", 4.0, mib(cuda::memory_allocated(0)? as f64));
        self.push(time, "page-locked MiB", 4.0, mib(host.allocated_bytes.current as f64));
        self.push(time, "page-locked allocations", 4.0, host.allocations.current as f64);
        let Some(usage) = sim.map(SimDriver::usage) else { return Ok(()) };
        let device = usage.devices[0];
        // The pool keeps up to 1,024 idle events after a peak, and peaks come by chance.
        self.push(time, "driver's events", 1024.0, device.events as f64);
        for (name, count) in [
            ("streams", device.streams),
            ("modules", device.modules),
            ("graphs", device.graphs),
            ("reservations", device.reservations),
            ("mappings", device.mappings),
            ("physical", device.physical),
            ("pending operations", device.pending),
            ("host registrations", usage.host_registrations),
        ] {
            self.push(time, &format!("driver's {name}"), 4.0, count as f64);
        }
        Ok(())
    }
}

/// Runs the load in another process.
fn loaded(driver: &str) {
    assert!(own_program("load", driver).status().unwrap().success(), "{driver}: see above");
}

#[test]
fn nothing_grows_under_a_long_load() {
    loaded("sim:1");
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_nothing_grows_under_a_long_load() {
    loaded(&gpu_spec());
}
