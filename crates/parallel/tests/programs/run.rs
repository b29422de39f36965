//! Runs programs in several worlds (the CPU and simulated GPUs), and compares the results.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::thread::scope;
use std::time::{Duration, Instant};

use warpline::cuda::{self, Stream};
use warpline::{Device, Result, Runtime, RuntimeConfig, Tensor, with_runtime};
use warpline_cuda_sys_safe::DriverError;
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig, SimDriver};

use crate::apply::Expect;
use crate::faults;
use crate::generate::Step;
use crate::model::{ANY, Blur, Track, Value};
use crate::ops;
use crate::plan::{Plan, Planned, plan};
use crate::prelude;
use crate::row::Effect;

type At = (usize, usize);

/// The elements of a tensor.
#[derive(Clone, Debug)]
struct Snapshot {
    dtype: warpline::DType,
    sizes: Vec<usize>,
    values: Vec<f64>,
}

impl Snapshot {
    fn of(t: &Tensor) -> Result<Self> {
        Ok(Self { dtype: t.dtype(), sizes: t.size().to_vec(), values: prelude::read(t)? })
    }

    /// Returns a description of a difference that `blur` does not allow.
    fn difference(&self, other: &Self, blur: Blur) -> Option<String> {
        if (self.dtype, &self.sizes) != (other.dtype, &other.sizes) {
            return Some(format!(
                "{} {:?} and {} {:?}",
                self.dtype, self.sizes, other.dtype, other.sizes
            ));
        }
        let tolerance = match blur {
            Blur::Exact => 0.0,
            Blur::Free => return None,
            Blur::Close if self.dtype.size() == 2 => 0.05,
            Blur::Close => 1e-3,
        };
        let same = |a: f64, b: f64| {
            a == b
                || a.is_nan() && b.is_nan()
                || tolerance > 0.0 && !(a.is_finite() && b.is_finite())
                || (a - b).abs() <= tolerance * (1.0 + a.abs().max(b.abs()))
        };
        let at = self.values.iter().zip(&other.values).position(|(a, b)| !same(*a, *b))?;
        Some(format!("element {at} is {:?} and {:?}", self.values[at], other.values[at]))
    }
}

/// The results of a program in a world.
#[derive(Debug, Default)]
struct Trace {
    /// For each step, the kind of its error, if it failed, and the tensor that it read, if any.
    steps: Vec<(Option<String>, Option<Snapshot>)>,
    live: Vec<Snapshot>,
    gradients: Vec<Option<Snapshot>>,
}

/// A runtime in which programs run.
pub(crate) struct World {
    name: String,
    pub(crate) runtime: Runtime,
    pub(crate) sim: Option<std::sync::Arc<SimDriver>>,
    has_gpus: bool,
}

impl World {
    fn cpu() -> Self {
        let reason = DriverError::NoDevice { reason: "hidden by a test".into() };
        let runtime = Runtime::without_cuda(reason, &RuntimeConfig::default());
        Self { name: "cpu".into(), runtime, sim: None, has_gpus: false }
    }

    pub(crate) fn simulated(schedule: Schedule) -> Self {
        let sim = SimConfig { schedule, ..SimConfig::new(2) }.build();
        // Without workspaces, the model knows all allocations.
        let config = RuntimeConfig { cublas_workspace: Some(0), ..RuntimeConfig::default() };
        let runtime = Runtime::new(sim.clone(), config).expect("a runtime");
        Self { name: format!("{schedule:?}"), runtime, sim: Some(sim), has_gpus: true }
    }

    /// Returns the world of the first two GPUs of this machine.
    fn real() -> Result<Self> {
        let runtime = warpline::open("cuda", &RuntimeConfig::default())?;
        Ok(Self { name: "GPUs".into(), runtime, sim: None, has_gpus: true })
    }
}

/// The number of times that each row was predicted to succeed, and to fail with one of some kinds of
/// error.
pub(crate) type Coverage = BTreeMap<(usize, String), u64>;

/// Runs a program on the CPU, and on simulated GPUs or, if `on_gpus`, on the first two GPUs of this machine. Fails with a
/// description of the first violation.
pub(crate) fn check(
    program: &[Step],
    seed: u64,
    coverage: &mut Coverage,
    on_gpus: bool,
) -> Result<(), String> {
    let plan = plan(program);
    for planned in &plan.steps {
        let kind = match &planned.expect {
            Expect::Ok(_) | Expect::Either(_) => "Ok".to_owned(),
            Expect::Err(kinds) => kinds.join("|"),
        };
        *coverage.entry((planned.step.row, kind)).or_default() += 1;
    }
    let run = |world: World| {
        let name = world.name.clone();
        run(&plan, world).map_err(|reason| format!("{name}: {reason}"))
    };
    let cpu = run(World::cpu())?;
    if on_gpus {
        let gpus = run(World::real().map_err(|e| e.to_string())?)?;
        return compare(&plan, &cpu, &gpus, true).map_err(|e| format!("CPU and GPUs: {e}"));
    }
    let lazy = run(World::simulated(Schedule::Lazy))?;
    let seeded = run(World::simulated(Schedule::Seeded(seed)))?;
    faults::run(&plan, seed)?;
    compare(&plan, &cpu, &lazy, true).map_err(|e| format!("CPU and lazy GPU: {e}"))?;
    compare(&plan, &lazy, &seeded, false).map_err(|e| format!("lazy and seeded GPU: {e}"))
}

fn compare(plan: &Plan, a: &Trace, b: &Trace, devices: bool) -> Result<(), String> {
    for (planned, (a, b)) in plan.steps.iter().zip(a.steps.iter().zip(&b.steps)) {
        let step = describe(planned);
        let skipped = devices && only_on_gpus(planned);
        if a.0 != b.0 && !skipped && matches!(planned.expect, Expect::Either(_)) {
            return Err(format!("{step}: {:?} and {:?}", a.0, b.0));
        }
        // The model does not record how exact a tensor is in the middle of a program. So compare
        // such reads only between the two simulated runs, which must agree exactly.
        if let (Some(a), Some(b), false) = (&a.1, &b.1, devices)
            && let Some(difference) = a.difference(b, Blur::Exact)
        {
            return Err(format!("{step} reads: {difference}"));
        }
    }
    for ((at, blur), (a, b)) in plan.live.iter().zip(a.live.iter().zip(&b.live)) {
        let blur = if devices { *blur } else { Blur::Exact };
        if let Some(difference) = a.difference(b, blur) {
            return Err(format!("at the end, v{}_{}: {difference}", at.0, at.1));
        }
    }
    for (at, (a, b)) in plan.leaves.iter().zip(a.gradients.iter().zip(&b.gradients)) {
        let blur = match (devices, plan.close_gradients) {
            (false, _) => Blur::Exact,
            (true, true) => Blur::Close,
            (true, false) => Blur::Free,
        };
        let difference = match (a, b) {
            (None, None) => None,
            (Some(a), Some(b)) => a.difference(b, blur),
            _ => Some("only one exists".into()),
        };
        if let Some(difference) = difference {
            return Err(format!("at the end, the gradient of v{}_{}: {difference}", at.0, at.1));
        }
    }
    Ok(())
}

/// Returns whether a wrong call is wrong only if there are GPUs.
fn only_on_gpus(planned: &Planned) -> bool {
    matches!(planned.expect, Expect::Err(kinds) if kinds.contains(&"DeviceMismatch"))
}

pub(crate) fn describe(planned: &Planned) -> String {
    let step = &planned.step;
    format!("step {} ({})", step.id, ops::table()[step.row].name)
}

/// Returns the message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
}

/// Returns the name of an error's kind.
fn kind(error: &warpline::Error) -> String {
    let text = format!("{:?}", error.kind());
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

/// The state of a program in a world.
pub(crate) struct Machine<'a> {
    world: &'a World,
    pub(crate) slots: BTreeMap<At, Tensor>,
    streams: [Vec<Stream>; 2],
    trace: Trace,
}

fn run(plan: &Plan, world: World) -> Result<Trace, String> {
    let runtime = world.runtime.clone();
    let trace = with_runtime(&runtime, || {
        warpline::manual_seed(1);
        let mut machine = Machine::new(&world);
        if world.has_gpus {
            for (device, streams) in machine.streams.iter_mut().enumerate() {
                for _ in 0..2 {
                    streams.push(Stream::new(device).map_err(|e| e.to_string())?);
                }
            }
        }
        for group in &plan.groups {
            machine.group(&plan.steps[group.clone()])?;
        }
        machine.end(plan)
    })?;
    let sim = world.sim;
    drop((world.runtime, runtime));
    if let Some(sim) = sim {
        if let Some(overrun) = sim.overruns().first() {
            return Err(format!("a kernel wrote beyond its memory: {overrun:?}"));
        }
        if let Some(violation) = sim.violations().first() {
            return Err(format!("a kernel left its footprint: {violation:?}"));
        }
        eventually(|| sim.usage().all_released());
        let usage = sim.usage();
        if !usage.all_released() {
            return Err(format!("driver objects remain: {usage:?}"));
        }
    }
    Ok(trace)
}

/// Waits up to a second for a fact. The watchdog of a dropped process group ends a few milliseconds after its work, and
/// holds the group's memory and driver objects until then.
pub(crate) fn eventually(fact: impl Fn() -> bool) {
    let begun = Instant::now();
    while !fact() && begun.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

type Answer = Result<Result<Vec<Tensor>>, String>;

impl<'a> Machine<'a> {
    /// Creates the state of a program that has not begun. As long as `streams` is empty, all steps run
    /// on the current streams.
    pub(crate) fn new(world: &'a World) -> Self {
        let streams = [Vec::new(), Vec::new()];
        Self { world, slots: BTreeMap::new(), streams, trace: Trace::default() }
    }
}

impl Machine<'_> {
    /// Runs steps at the same time.
    fn group(&mut self, steps: &[Planned]) -> Result<(), String> {
        let skip = |p: &Planned| !self.world.has_gpus && only_on_gpus(p);
        let wrong = steps.len() == 1 && matches!(steps[0].expect, Expect::Err(_));
        let before = (wrong && !self.world.has_gpus).then(|| self.snapshots()).transpose()?;
        let answers: Vec<Option<Answer>> = if let [planned] = steps {
            vec![(!skip(planned)).then(|| self.call(planned))]
        } else {
            let start = Barrier::new(steps.len());
            scope(|s| {
                let threads: Vec<_> = steps
                    .iter()
                    .map(|planned| {
                        let (machine, start) = (&*self, &start);
                        s.spawn(move || {
                            start.wait();
                            (!skip(planned)).then(|| machine.call(planned))
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().expect("caught")).collect()
            })
        };
        for (planned, answer) in steps.iter().zip(answers) {
            self.settle(planned, answer).map_err(|e| format!("{}: {e}", describe(planned)))?;
        }
        if let Some(before) = before {
            for (before, after) in before.iter().zip(self.snapshots()?) {
                if let Some(difference) = before.1.difference(&after.1, Blur::Exact) {
                    let (step, at) = (describe(&steps[0]), before.0);
                    return Err(format!(
                        "{step} failed, but changed v{}_{}: {difference}",
                        at.0, at.1
                    ));
                }
            }
        }
        self.check_memory(&steps[steps.len() - 1])
    }

    fn snapshots(&self) -> Result<Vec<(At, Snapshot)>, String> {
        let all = self.slots.iter().map(|(at, t)| Ok((*at, Snapshot::of(t)?)));
        all.collect::<Result<_>>().map_err(|e| e.to_string())
    }

    pub(crate) fn call(&self, planned: &Planned) -> Answer {
        let step = &planned.step;
        let args: Vec<Tensor> = step.tensors.iter().map(|at| self.slots[at].clone()).collect();
        let call = || -> Result<Vec<Tensor>> {
            let streams = self.streams.iter().filter_map(|of| of.get(step.stream.checked_sub(1)?));
            let _guards = streams.map(cuda::stream).collect::<Result<Vec<_>>>()?;
            let results = (ops::table()[step.row].call)(&args, &step.numbers)?;
            if planned.dense { prelude::dense(results) } else { Ok(results) }
        };
        let caught = || {
            catch_unwind(AssertUnwindSafe(|| with_runtime(&self.world.runtime, call)))
                .map_err(|panic| format!("panicked: {}", message(&*panic)))
        };
        if step.thread { scope(|s| s.spawn(caught).join().expect("caught")) } else { caught() }
    }

    /// Compares the answer of a step with its prediction, and stores the results.
    fn settle(&mut self, planned: &Planned, answer: Option<Answer>) -> Result<(), String> {
        let step = &planned.step;
        let Some(answer) = answer else {
            self.trace.steps.push((None, None));
            return Ok(());
        };
        let effect = ops::table()[step.row].effect;
        match (answer?, &planned.expect) {
            (Ok(results), Expect::Ok(values)) => {
                if results.len() != values.len() {
                    return Err(format!("{} results, not {}", results.len(), values.len()));
                }
                for (k, (result, value)) in results.into_iter().zip(values).enumerate() {
                    self.check_result(planned, &result, value)?;
                    self.slots.insert((step.id, k), result);
                }
                let read =
                    (effect == Effect::Read).then(|| Snapshot::of(&self.slots[&step.tensors[0]]));
                let read = read.transpose().map_err(|e| e.to_string())?;
                if effect == Effect::Drop {
                    self.slots.remove(&step.tensors[0]);
                }
                self.trace.steps.push((None, read));
            }
            (Ok(_), Expect::Err(kinds)) => {
                return Err(format!("succeeded, but must fail with {}", kinds.join(" or ")));
            }
            (Ok(_), Expect::Either(_)) => self.trace.steps.push((None, None)),
            (Err(error), Expect::Err(kinds) | Expect::Either(kinds))
                if kinds.contains(&kind(&error).as_str()) || *kinds == ANY =>
            {
                self.trace.steps.push((Some(kind(&error)), None));
            }
            (Err(error), expect) => {
                let name = kind(&error);
                let expect = match expect {
                    Expect::Ok(_) => "must succeed".to_owned(),
                    Expect::Err(kinds) | Expect::Either(kinds) => {
                        format!("may fail with {}", kinds.join(" or "))
                    }
                };
                return Err(format!("failed with {name}, but {expect}: {error}"));
            }
        }
        Ok(())
    }

    fn check_result(&self, planned: &Planned, t: &Tensor, v: &Value) -> Result<(), String> {
        let facts = |dtype, sizes: &[usize]| format!("{dtype} {sizes:?}");
        if (t.dtype(), t.size()) != (v.dtype, &v.sizes[..]) {
            let (is, must) = (facts(t.dtype(), t.size()), facts(v.dtype, &v.sizes));
            return Err(format!("the result is {is}, but must be {must}"));
        }
        let steps = v.sizes.iter().zip(t.stride().iter().zip(&v.strides));
        let other = steps.filter(|(n, _)| **n > 1).any(|(_, (a, b))| a != b);
        if v.numel() > 0 && (other || t.storage_offset() != v.offset) {
            return Err(format!(
                "the strides and offset are {:?} and {}, but must be {:?} and {}",
                t.stride(),
                t.storage_offset(),
                v.strides,
                v.offset
            ));
        }
        let device =
            if v.place == 2 || !self.world.has_gpus { Device::Cpu } else { Device::cuda(v.place) };
        if t.device() != device {
            return Err(format!("the result is on {}, but must be on {device}", t.device()));
        }
        let requires = match v.track {
            Track::No => Some(false),
            Track::Maybe => None,
            Track::Leaf | Track::Node => Some(true),
        };
        if requires.is_some_and(|requires| t.requires_grad() != requires) {
            return Err(format!("requires_grad() is {}", t.requires_grad()));
        }
        for (arg, at) in planned.args.iter().zip(&planned.step.tensors) {
            let Some(own) = self.slots.get(at) else { continue };
            let shares = arg.storage == v.storage;
            if v.numel() > 0 && own.storage().same_as(t.storage()) != shares {
                return Err(format!("shares memory with v{}_{}: {}", at.0, at.1, !shares));
            }
        }
        Ok(())
    }

    fn check_memory(&self, planned: &Planned) -> Result<(), String> {
        if let Some(expected) = planned.allocated.filter(|_| self.world.has_gpus) {
            for (device, expected) in expected.into_iter().enumerate() {
                let allocated = || cuda::memory_allocated(device).map_err(|e| e.to_string());
                eventually(|| allocated().is_ok_and(|bytes| bytes == expected));
                let allocated = allocated()?;
                if allocated != expected {
                    return Err(format!(
                        "after {}, cuda:{device} has {allocated} bytes in use, not {expected}",
                        describe(planned)
                    ));
                }
            }
        }
        Ok(())
    }

    /// Reads all live tensors and gradients into the trace, and drops them.
    fn end(mut self, plan: &Plan) -> Result<Trace, String> {
        let read = |t: &Tensor| Snapshot::of(t).map_err(|e| e.to_string());
        for (at, _) in &plan.live {
            let read = read(&self.slots[at])
                .map_err(|e| format!("at the end, v{}_{}: {e}", at.0, at.1))?;
            self.trace.live.push(read);
        }
        for at in &plan.leaves {
            let grad = self.slots[at].grad();
            self.trace.gradients.push(grad.as_ref().map(read).transpose()?);
        }
        self.slots.clear();
        if self.world.has_gpus {
            for device in 0..2 {
                cuda::synchronize(device).map_err(|e| format!("at the end: {e}"))?;
                eventually(|| cuda::memory_allocated(device).is_ok_and(|bytes| bytes == 0));
                let bytes = cuda::memory_allocated(device).map_err(|e| e.to_string())?;
                if bytes > 0 {
                    return Err(format!(
                        "at the end, {bytes} bytes of cuda:{device} remain in use"
                    ));
                }
            }
        }
        Ok(self.trace)
    }
}
