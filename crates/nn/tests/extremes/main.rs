//! Calls all public functions of `warpline`, `warpline-kernels` and `warpline-nn` that take integers with
//! extreme integers, on the CPU and on a simulated GPU. Each call must return the same result or an error on both,
//! within a second of processor time and in little memory. An error must name the called function and the line of
//! the call. For each integer parameter and each integer option, the tables have a row that passes an extreme number.
//!
//! Like all tests, this program runs with overflow checks in `.ci/run`. `cargo xtask ci --full` also runs it
//! without overflow checks, and in a release build with them. Each of these runs needs a build of the whole
//! workspace, which takes too long for every change.

mod cases;
mod coverage;
mod devices;
mod kernels;
mod memory;
mod modules;
mod numbers;
#[allow(dead_code)] // other test programs read more of a function
#[path = "../common/sources.rs"]
mod parser;
mod sources;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use warpline::{DType, Error, ErrorKind, Result, Tensor, with_runtime};

/// An extreme number, converted to each integer type that parameters have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number {
    pub(crate) i: isize,
    pub(crate) u: usize,
    pub(crate) l: i64,
    pub(crate) w: u64,
    pub(crate) n: u32,
}

/// 0, ±1, ±2³¹, ±2³², 2⁶³ − 1 and −2⁶³. Unsigned numbers have the same bits, so −1 is `usize::MAX`.
const NUMBERS: [i64; 9] = [0, 1, -1, 1 << 31, -(1 << 31), 1 << 32, -(1 << 32), i64::MAX, i64::MIN];

/// Calls one function with a number in place of one of its integers.
pub(crate) type Case = (&'static str, fn(&str, Number) -> Result<ResultSummary>);

/// A comparable result: sizes, and elements if they are few and not random.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ResultSummary(String);

impl ResultSummary {
    pub(crate) fn sizes(t: &Tensor) -> Result<Self> {
        Ok(Self(format!("{:?}", t.size())))
    }
}

/// A return type of a tested function.
pub(crate) trait Summarize {
    fn summarize(&self) -> Result<ResultSummary>;
}

impl Summarize for Tensor {
    fn summarize(&self) -> Result<ResultSummary> {
        let sizes = ResultSummary::sizes(self)?;
        if self.numel() > 1 << 12 {
            return Ok(sizes);
        }
        let _ = self.data_ptr();
        let elements = self.to(DType::F64)?.to_vec::<f64>()?;
        Ok(ResultSummary(format!("{} {elements:?}", sizes.0)))
    }
}

impl Summarize for &Tensor {
    fn summarize(&self) -> Result<ResultSummary> {
        (*self).summarize()
    }
}

impl Summarize for (Tensor, Tensor) {
    fn summarize(&self) -> Result<ResultSummary> {
        Ok(ResultSummary(format!("{} {}", self.0.summarize()?.0, self.1.summarize()?.0)))
    }
}

impl Summarize for Vec<Tensor> {
    fn summarize(&self) -> Result<ResultSummary> {
        let few = self.iter().take(8).map(|t| Ok(t.summarize()?.0)).collect::<Result<Vec<_>>>()?;
        Ok(ResultSummary(format!("{} {few:?}", self.len())))
    }
}

impl Summarize for () {
    fn summarize(&self) -> Result<ResultSummary> {
        Ok(ResultSummary::default())
    }
}

fn all() -> Vec<Case> {
    [
        cases::TENSORS,
        cases::FUNCTIONS,
        devices::DEVICES,
        kernels::KERNELS,
        modules::MODULES,
        numbers::NUMBERS,
    ]
    .concat()
}

/// Largest amount of memory for one call, in bytes.
const MAX_MEMORY: usize = 64 << 20;
/// Environment variable of the child process that makes the calls. A call that hangs or runs out of memory ends only
/// the child.
const CHILD: &str = "WARPLINE_EXTREMES_CHILD";

#[test]
#[cfg(target_os = "linux")]
fn every_call_gives_an_error_or_the_result_in_a_second_and_in_little_memory() {
    if std::env::var_os(CHILD).is_some() {
        return make_calls();
    }
    let exe = std::env::current_exe().expect("this program");
    let name = "every_call_gives_an_error_or_the_result_in_a_second_and_in_little_memory";
    // Memory of tensors is mapped and does not come from the counting allocator. The limit on the process makes 2³¹
    // bytes unavailable.
    let limited = "ulimit -v 1500000 && exec \"$0\" \"$@\"";
    let mut child = Command::new("sh")
        .args(["-c", limited])
        .arg(exe)
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .env("RAYON_NUM_THREADS", "2")
        .env("MALLOC_ARENA_MAX", "2")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut stderr = child.stderr.take().expect("its errors");
    let reader =
        std::thread::spawn(move || std::io::read_to_string(&mut stderr).unwrap_or_default());
    let end = Instant::now() + Duration::from_secs(600);
    let status = loop {
        match child.try_wait().expect("its end") {
            Some(status) => break Some(status),
            None if Instant::now() > end => {
                child.kill().expect("its end");
                child.wait().expect("its end");
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let text = reader.join().expect("its errors");
    let (calls, others): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|l| l.starts_with("call "));
    let last = calls.last().unwrap_or(&"no call");
    assert!(
        status.is_some_and(|status| status.success()),
        "{status:?}; the last was {last}\n{}",
        others.join("\n")
    );
}

fn make_calls() {
    let runtime = warpline::open("sim:1,memory=64MiB", &warpline::RuntimeConfig::default());
    let runtime = runtime.expect("a simulated device");
    std::panic::set_hook(Box::new(|panic| {
        let _ = writeln!(std::io::stderr(), "{panic}");
    }));
    let mut failures = Vec::new();
    with_runtime(&runtime, || -> Result<()> {
        // Run an op first, so that one-time initialization does not count towards a case.
        let warm = |at: &str| {
            warpline::ones([2, 2], at)?.matmul(&warpline::ones([2, 2], at)?)?.summarize()
        };
        warm("cpu")?;
        warm("cuda")?;
        for (name, case) in all() {
            for n in NUMBERS {
                let number =
                    Number { i: n as isize, u: n as usize, l: n, w: n as u64, n: n as u32 };
                let seen = ["cpu", "cuda"].map(|at| call(name, case, at, number, &mut failures));
                let [cpu, cuda] = seen.map(|seen| seen.and_then(Result::ok));
                if cpu != cuda {
                    failures
                        .push(format!("{name} with {n}: {cpu:?} on the CPU, {cuda:?} on a GPU"));
                }
            }
        }
        Ok(())
    })
    .expect("a runtime");
    let _ = writeln!(std::io::stderr(), "{}", failures.join("\n"));
    assert!(failures.is_empty());
}

/// Returns the processor time of all threads of this process. Other processes do not slow it.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Calls a case and records its failures. Returns `None` after a panic.
fn call(
    name: &str,
    case: fn(&str, Number) -> Result<ResultSummary>,
    at: &str,
    number: Number,
    failures: &mut Vec<String>,
) -> Option<Result<ResultSummary>> {
    let what = format!("{name} with {} on {at}", number.l);
    let _ = writeln!(std::io::stderr(), "call {what}");
    let start = processor_time();
    let mut seen = None;
    let whole = || {
        let seen = case(at, number);
        // On a GPU, an index out of range is reported here.
        if at == "cuda" { warpline::cuda::synchronize(()).and(seen) } else { seen }
    };
    let bytes = memory::peak(|| seen = catch_unwind(AssertUnwindSafe(whole)).ok());
    let time = processor_time() - start;
    if seen.is_none() {
        failures.push(format!("{what} panicked"));
    }
    if time > Duration::from_secs(1) {
        failures.push(format!("{what} took {time:?}"));
    }
    if bytes > MAX_MEMORY {
        failures.push(format!("{what} took {bytes} bytes"));
    }
    if let Some(Err(error)) = &seen
        && !names_call(name, error)
    {
        failures.push(format!("{what} does not name the call: {error}"));
    }
    seen
}

/// Op name of errors in the preparation of a case.
const PREPARATION: &str = "preparation";

/// Functions whose errors have another name: that of PyTorch's function, of the op that the function takes as an
/// argument, or of the type that the function builds.
const OTHER_NAMES: [(&str, &str); 10] = [
    ("sort_in_parts", "sort"),
    ("arange_start", "arange"),
    ("arange_start_step", "arange"),
    ("batch_size", "DataLoader"),
    ("index_select_sizes", "index_select"),
    // The error comes from the step after the load.
    ("load_state_dict", "OneCycleLR"),
    ("randint", "random_"),
    ("reduce", "sum"),
    ("scan", "cumsum"),
    ("softmax_backward", "log_softmax_backward"),
];

/// Returns `true` if an error names the called function and a line of the table. A driver's error has no line.
fn names_call(name: &str, error: &Error) -> bool {
    let (text, kind) = (error.to_string(), name.split("::").next().unwrap_or(name));
    let others = OTHER_NAMES.iter().filter(|(function, _)| *function == name).map(|(_, op)| *op);
    let named = [name, kind, PREPARATION]
        .into_iter()
        .chain(others)
        .any(|op| text.starts_with(&format!("{op}: ")) || text.contains(&format!("(in {op})")));
    let is_driver = matches!(error.kind(), ErrorKind::Driver);
    named && (is_driver || error.location().is_some_and(|at| at.file().contains("extremes")))
}

#[test]
fn every_integer_parameter_is_replaced_in_the_table() {
    let coverage = coverage::Coverage::of_tables();
    let is_exempt = |owner: &str| sources::ELSEWHERE.iter().any(|(other, _)| *other == owner);
    let uncovered: Vec<_> =
        sources::parameters().into_iter().filter(|parameter| !coverage.covers(parameter)).collect();
    let missing: Vec<String> = uncovered
        .iter()
        .filter(|parameter| !is_exempt(&parameter.owner))
        .map(|p| format!("`{}` of {} in {}", p.name, p.owner, p.file))
        .collect();
    assert!(missing.is_empty(), "without a row in the table:\n{}", missing.join("\n"));
    for (owner, _) in sources::ELSEWHERE {
        let is_needed = uncovered.iter().any(|parameter| parameter.owner == *owner);
        assert!(is_needed, "{owner} needs no exemption");
    }
}
