//! Tests that call each op many times: with random valid arguments, and with each kind of wrong argument.
//!
//! A valid call has arguments of random values, each with a layout of its own, on a random stream. The results on the
//! CPU and on a simulated GPU must agree.
//!
//! A wrong call has one argument replaced (see [`Wrong`]). It must not panic. It must have the same outcome on the CPU
//! and on the GPU, succeed with agreeing results or fail with the same kind of error. A failed call changes no argument.
//! After each call, the memory in use is that of the arguments.
//!
//! Environment variables: `WARPLINE_TEST_CALLS` is the number of valid calls of each entry (default: 4), and
//! `WARPLINE_TEST_CALL_COVERAGE` a file to which the numbers of calls are written.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use warpline::cuda::{self, Stream};
use warpline::{DType, Device, Error, Result, Tensor, simulated, with_runtime};
use warpline_cuda_sys_safe::sim::Schedule;

use super::devices::{difference, differences};
use super::entry::Entry;
use super::sample::{Arg, Layout, Maker, x};
use super::{registry, report};
use crate::boxes::SimBox;
use crate::common::random::Random;

/// A kind of wrong argument. Some ops accept some of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wrong {
    /// Another dtype.
    DType,
    /// Another size of one dimension, or one dimension more.
    Sizes,
    /// Indices out of range.
    Index,
    /// Another device: the second GPU, or the CPU.
    Device,
    /// Another runtime.
    Runtime,
}

const KINDS: [Wrong; 5] = [Wrong::DType, Wrong::Sizes, Wrong::Index, Wrong::Device, Wrong::Runtime];

/// Ops that check the values of their arguments only on the CPU, as their documentation says.
const UNCHECKED_ON_GPUS: [&str; 1] = ["Tensor::multinomial"];

/// Numbers of valid calls, and of wrong calls of each kind.
type Coverage = BTreeMap<String, [u64; 1 + KINDS.len()]>;

/// The arguments of a call, as seeds from which they are made on any device.
struct Draw<'a> {
    sample: &'a [Arg],
    dtype: DType,
    layouts: Vec<Layout>,
    first_value: usize,
}

impl<'a> Draw<'a> {
    fn new(entry: &'a Entry, random: &mut Random) -> Self {
        let dtypes: Vec<DType> = DType::ALL.into_iter().filter(|d| entry.takes(*d)).collect();
        let sample = &entry.samples[random.below(entry.samples.len())];
        Self {
            sample,
            dtype: dtypes[random.below(dtypes.len())],
            layouts: sample.iter().map(|_| Layout::ALL[random.below(4)]).collect(),
            first_value: random.below(50),
        }
    }

    fn args(&self, device: Device) -> Result<Vec<Tensor>> {
        let makers = self.layouts.iter().map(|&layout| Maker { dtype: self.dtype, device, layout });
        let args = self.sample.iter().zip(makers).enumerate();
        args.map(|(k, (arg, maker))| arg.make(self.first_value + k, maker)).collect()
    }
}

/// The outcome of a call: the results, or the kind of the error and its text.
type Outcome = std::result::Result<Vec<Tensor>, (String, String)>;

/// Returns the kind of an error and its text.
fn kind_and_text(error: &Error) -> (String, String) {
    let kind = format!("{:?}", error.kind());
    let kind = kind.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    (kind.to_owned(), error.to_string())
}

/// Calls an op. Fails if it panics, or if the call fails and changes an argument. A GPU reports an index out of range
/// only after it has changed other elements, so a failed check of indices may change arguments there.
fn call(entry: &Entry, args: &[Tensor]) -> std::result::Result<Outcome, String> {
    let text = |e: Error| e.to_string();
    let copies = args.iter().map(|arg| arg.copy()).collect::<Result<Vec<_>>>().map_err(text)?;
    let outcome = catch_unwind(AssertUnwindSafe(|| (entry.call)(args)));
    let outcome = outcome.map_err(|_| "panics".to_owned())?;
    let reported = cuda::synchronize(0);
    let error = match (outcome, reported) {
        (Ok(results), Ok(())) => return Ok(Ok(results)),
        (Ok(_), Err(error)) => return Ok(Err(kind_and_text(&error))),
        (Err(error), _) => error,
    };
    for (k, (arg, copy)) in args.iter().zip(&copies).enumerate() {
        if let Some(change) = difference(arg, copy, 0.0).map_err(text)? {
            return Err(format!("fails and changes argument {k}: {change}"));
        }
    }
    Ok(Err(kind_and_text(&error)))
}

/// Returns the first difference between outcomes.
fn compare(entry: &Entry, dtype: DType, cpu: &Outcome, gpu: &Outcome) -> Result<Option<String>> {
    match (cpu, gpu) {
        (Ok(cpu), Ok(gpu)) => differences(entry, dtype, cpu, gpu),
        // A call with two mistakes may report either. The CPU checks indices before other arguments.
        (Err(cpu), Err(gpu)) if cpu.0 == gpu.0 || cpu.0 == "IndexCheck" => Ok(None),
        (Err(_), Ok(_)) if UNCHECKED_ON_GPUS.contains(&&*entry.name) => Ok(None),
        (cpu, gpu) => {
            let [cpu, gpu] = [cpu, gpu].map(|outcome| match outcome {
                Ok(_) => "succeeds".to_owned(),
                Err((kind, text)) => format!("fails with {kind} ({text})"),
            });
            Ok(Some(format!("the CPU {cpu}, the GPU {gpu}")))
        }
    }
}

/// The runtimes of a thread.
struct Worlds {
    sim: SimBox,
    other: warpline::Runtime,
    streams: Vec<Stream>,
}

impl Worlds {
    /// Makes the wrong arguments on `device`. Returns `None` if the kind does not exist there.
    fn wrong(
        &self,
        kind: Wrong,
        device: Device,
        sample: &[Arg],
        mut args: Vec<Tensor>,
        mut random: Random,
    ) -> Result<Option<Vec<Tensor>>> {
        let choice = random.below(64);
        let fits = |k: &usize| kind != Wrong::Index || sample[*k].is_index();
        let places: Vec<usize> = (0..args.len()).filter(fits).collect();
        let Some(&at) = places.get(random.below(places.len().max(1))) else { return Ok(None) };
        let arg = &args[at];
        let replaced = match kind {
            Wrong::DType => arg.to(DType::ALL[choice % DType::ALL.len()])?,
            Wrong::Sizes => {
                let mut sizes = arg.size().to_vec();
                match choice % (sizes.len() + 1) {
                    d if d < sizes.len() => sizes[d] = [sizes[d] + 1, 0, 1, 7][choice / 8 % 4],
                    _ => sizes.insert(0, 2),
                }
                x(&sizes)
                    .make(at, Maker { dtype: arg.dtype(), device, layout: Layout::Contiguous })?
            }
            Wrong::Index => arg.add([100, -100, i64::MAX / 2, i64::MIN / 2][choice % 4])?,
            Wrong::Device if device.is_cuda() => {
                arg.to([Device::cuda(1), Device::Cpu][choice % 2])?
            }
            Wrong::Device => return Ok(None),
            Wrong::Runtime => {
                let host = arg.to(Device::Cpu)?;
                let (values, sizes) = (host.to((DType::F64, "cpu"))?.to_vec::<f64>()?, host.size());
                let to = (arg.dtype(), device);
                with_runtime(&self.other, || Tensor::from_vec(values, sizes, to))?
            }
        };
        args[at] = replaced;
        Ok(Some(args))
    }

    /// Makes one valid call of an entry, and one wrong call of each kind, on both devices.
    fn round(
        &self,
        entry: &Entry,
        seed: u64,
        counts: &mut [u64; 1 + KINDS.len()],
    ) -> std::result::Result<(), String> {
        let text = |e: Error| e.to_string();
        let mut random = Random::new(seed);
        let draw = Draw::new(entry, &mut random);
        let gpu = Device::cuda(0);
        let on_stream = |device: Device, args: Vec<Tensor>| {
            let stream = &self.streams[seed as usize % self.streams.len()];
            let _guard =
                device.is_cuda().then(|| cuda::stream(stream)).transpose().map_err(text)?;
            call(entry, &args)
        };
        let make = |device| draw.args(device).map_err(text);
        let valid = [on_stream(Device::Cpu, make(Device::Cpu)?)?, on_stream(gpu, make(gpu)?)?];
        let found = compare(entry, draw.dtype, &valid[0], &valid[1]).map_err(text)?;
        if let Some(found) = found.or(valid[0].as_ref().err().map(|(_, text)| text.clone())) {
            return Err(format!("{}, {:?}: {found}", draw.dtype, draw.layouts));
        }
        counts[0] += 1;
        for (k, &kind) in KINDS.iter().enumerate() {
            // The same numbers on both devices, so that the same argument is replaced.
            let random = Random::new(random.next());
            let mut outcomes = Vec::new();
            for device in [Device::Cpu, gpu] {
                let args = self
                    .wrong(kind, device, draw.sample, make(device)?, random.clone())
                    .map_err(text)?;
                let Some(args) = args else { continue };
                let what: Vec<_> =
                    args.iter().map(|t| (t.dtype(), t.size().to_vec(), t.device())).collect();
                let outcome = on_stream(device, args);
                outcomes.push(outcome.map_err(|e| format!("{kind:?} {what:?} on {device}: {e}"))?);
            }
            counts[1 + k] += u64::from(!outcomes.is_empty());
            let expected = match &outcomes[..] {
                [cpu, gpu] => Some((cpu, gpu)),
                // An op that accepts arguments of several devices gives the same results.
                [gpu @ Ok(_)] => Some((&valid[1], gpu)),
                _ => None,
            };
            if let Some((a, b)) = expected
                && let Some(found) = compare(entry, draw.dtype, a, b).map_err(text)?
            {
                return Err(format!("{kind:?}, {}, {:?}: {found}", draw.dtype, draw.layouts));
            }
        }
        Ok(())
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn random_valid_and_wrong_calls_of_each_op_agree_on_every_device() {
    let calls = number("WARPLINE_TEST_CALLS", 4);
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
    let (coverage, failures) = (Mutex::new(Coverage::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (coverage, failures) = (&coverage, &failures);
            scope.spawn(move || {
                for (index, entry) in registry().iter().enumerate().skip(thread).step_by(threads) {
                    let mut counts = [0; 1 + KINDS.len()];
                    let title = entry.title();
                    if let Err(failure) = calls_of(entry, index as u64, calls, &mut counts) {
                        failures.lock().unwrap().push(format!("{title}: {failure}"));
                    }
                    let mut coverage = coverage.lock().unwrap();
                    let all = coverage.entry(entry.name.clone()).or_default();
                    all.iter_mut().zip(counts).for_each(|(all, count)| *all += count);
                }
            });
        }
    });
    let coverage = coverage.into_inner().unwrap();
    if let Ok(path) = std::env::var("WARPLINE_TEST_CALL_COVERAGE") {
        let lines = coverage.iter().map(|(name, counts)| {
            format!("{name}\t{}\n", counts.map(|count| count.to_string()).join("\t"))
        });
        let text = format!(
            "op\tvalid\tdtype\tsizes\tindex\tdevice\truntime\n{}",
            lines.collect::<String>()
        );
        std::fs::write(&path, text).unwrap_or_else(|e| panic!("{path}: {e}"));
    }
    let calls = coverage.values().flatten().sum::<u64>();
    report("random calls", calls as usize, &failures.into_inner().unwrap());
}

/// Makes `calls` rounds of an entry. Fails with the first failure, and its seed.
fn calls_of(
    entry: &Entry,
    index: u64,
    calls: u64,
    counts: &mut [u64; 1 + KINDS.len()],
) -> std::result::Result<(), String> {
    let sim = SimBox::with(2, Schedule::Seeded(index), warpline::SyncPolicy::Auto);
    let other = simulated(1).map_err(|e| e.to_string())?;
    let runtime = sim.runtime.clone();
    with_runtime(&runtime, || {
        let streams = [(); 2].map(|()| Stream::new(0)).into_iter().collect::<Result<Vec<_>>>();
        let worlds = Worlds { sim, other, streams: streams.map_err(|e| e.to_string())? };
        for n in 0..calls {
            let seed = index << 32 | n;
            worlds.round(entry, seed, counts).map_err(|e| format!("seed {seed:#x}: {e}"))?;
            let bytes = cuda::memory_allocated(0).map_err(|e| e.to_string())?;
            if bytes > 0 {
                return Err(format!("seed {seed:#x}: {bytes} bytes remain in use"));
            }
        }
        let sim = worlds.sim.sim.clone();
        match (sim.overruns().first(), sim.violations().first()) {
            (None, None) => Ok(()),
            found => Err(format!("a kernel left its footprint: {found:?}")),
        }
    })
}

/// `WARPLINE_TEST_CALLS=1000 WARPLINE_TEST_CALL_COVERAGE=tests/coverage/ops.tsv` writes the table.
#[test]
fn the_table_of_calls_has_enough_calls_of_each_op() {
    let text = include_str!("../../coverage/ops.tsv");
    let rows = text.lines().skip(1).map(|line| {
        let mut cells = line.split('\t');
        let name = cells.next().unwrap_or_default();
        (name, cells.map(|cell| cell.parse().unwrap()).collect::<Vec<u64>>())
    });
    let rows: BTreeMap<&str, Vec<u64>> = rows.collect();
    let mut failures = Vec::new();
    for entry in registry() {
        let name = &*entry.name;
        let Some(counts) = rows.get(name) else {
            failures.push(format!("{name} is not in the table"));
            continue;
        };
        // An op without arguments, or without indices, has no such wrong calls.
        let is_short = |counts: &[u64]| counts.iter().any(|count| (1..200).contains(count));
        let has_arguments = entry.samples.iter().any(|sample| !sample.is_empty());
        if counts[0] < 1000 || is_short(&counts[1..]) || (has_arguments && counts[1] == 0) {
            failures.push(format!("{name} has too few calls: {counts:?}"));
        }
    }
    report("the table of calls", rows.len(), &failures);
}
