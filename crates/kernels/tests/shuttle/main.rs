//! Tests of state that threads share. Each test runs under many schedules, of its threads and of
//! the work of simulated devices. A deadlock fails the test, and a missing wait gives wrong data.
//!
//! Run them with `RUSTFLAGS="--cfg shuttle" cargo test -p warpline-kernels --test shuttle
//! --target-dir target/shuttle`. The environment variable `WARPLINE_SHUTTLE` sets the number of
//! random schedules per test. Default: 1000.
#![cfg(shuttle)]

mod captures;
mod host_locks;
mod mailboxes;
mod program;
mod replays;
mod staging;
mod uses;

use std::panic::Location;
use std::sync::Arc;

use shuttle::Runner;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use warpline_cuda_sys_safe::HostLaunch;
use warpline_cuda_sys_safe::sim::{Schedule, SimConfig, SimDriver};
use warpline_runtime::launch::{self, Grid, Kernel};
use warpline_runtime::module::{Program, Source};
use warpline_runtime::{
    CudaDevice, DType, ErrorKind, Layout, Operand, Result, Runtime, RuntimeConfig, Staging,
    Storage, Target, View, cuda_struct, hosts,
};
use warpline_stream::Stream;

/// Number of elements of a storage, each an `i64`.
const COUNT: usize = 32;
/// Size of a storage, in bytes. A staged copy of this size needs several pieces.
const BYTES: usize = 8 * COUNT;

/// Runs `test` under random schedules, and under half as many schedules with few preemptions.
fn check(test: impl Fn() + Send + Sync + Clone + 'static) {
    let schedules =
        std::env::var("WARPLINE_SHUTTLE").ok().and_then(|s| s.parse().ok()).unwrap_or(1000);
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 19;
    Runner::new(RandomScheduler::new(schedules), config.clone()).run(test.clone());
    Runner::new(PctScheduler::new(3, schedules / 2), config).run(test);
}

/// Returns whether the work was rejected because a capture began or ended meanwhile.
fn is_capture(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Capture { .. }
            | ErrorKind::Capturing
            | ErrorKind::NotCapturing
            | ErrorKind::OutsideCapture
            | ErrorKind::CapturedEvent
    )
}

/// Returns a random number that is less than `end`.
fn random(end: usize) -> usize {
    thread_rng().gen_range(0..end)
}

/// Creates a simulated device that runs its work as late as possible or at random times.
fn simulated_device() -> (Arc<SimDriver>, Runtime) {
    let seeded = Schedule::Seeded(thread_rng().r#gen());
    let schedule = if random(2) == 0 { Schedule::Lazy } else { seeded };
    let sim = SimConfig { schedule, redzones: false, ..SimConfig::new(1) }.build();
    let staging = Staging { from: 100, chunk: 64, threads: 2 };
    let config = RuntimeConfig { staging, ..RuntimeConfig::default() };
    (Arc::clone(&sim), Runtime::new(sim, config).unwrap())
}

fn gpu(runtime: &Runtime) -> &CudaDevice {
    runtime.device(0).unwrap()
}

fn stream(runtime: &Runtime) -> Stream {
    gpu(runtime).device().exclusive_stream(0).unwrap()
}

/// Runs each task on its own thread, and returns their results.
fn together<T: Send + 'static>(
    tasks: impl IntoIterator<Item = impl FnOnce() -> T + Send + 'static>,
) -> Vec<T> {
    let threads: Vec<_> = tasks.into_iter().map(shuttle::thread::spawn).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Returns the value of the elements of host memory, which are all equal.
#[track_caller]
fn value(storage: &Storage) -> i64 {
    let mut bytes = [0; BYTES];
    launch::read_bytes((storage, 0), &mut bytes).unwrap();
    let values: &[i64] = &bytes.chunks(8).map(read).collect::<Vec<_>>();
    assert!(
        values.iter().all(|v| *v == values[0]),
        "the elements come from different writes: {values:?}"
    );
    values[0]
}

fn read(bytes: &[u8]) -> i64 {
    i64::from_ne_bytes(bytes.try_into().unwrap())
}

fn bytes_of(value: i64) -> [u8; BYTES] {
    value.to_ne_bytes().repeat(COUNT).try_into().unwrap()
}

/// Copies all bytes of `from` to `to`.
fn copy(stream: &Stream, to: &Storage, from: &Storage, non_blocking: bool) -> Result<()> {
    launch::copy_bytes(stream, (to, 0), (from, 0), BYTES, non_blocking, Location::caller())
}

/// Creates device memory in which each element is `value`.
fn device_memory(stream: &Stream, runtime: &Runtime, value: i64) -> Storage {
    let host = host_memory(Storage::pinned(runtime, BYTES).unwrap(), value);
    let storage = Storage::device(runtime, BYTES, stream).unwrap();
    copy(stream, &storage, &host, true).unwrap();
    storage
}

fn host_memory(storage: Storage, value: i64) -> Storage {
    launch::write_bytes((&storage, 0), &bytes_of(value)).unwrap();
    storage
}

/// Returns the value of the elements of device memory, after all work on it.
fn value_of(stream: &Stream, storage: &Storage) -> i64 {
    let host = Storage::pageable(storage.runtime(), BYTES).unwrap();
    copy(stream, &host, storage, false).unwrap();
    value(&host)
}

cuda_struct! {
    struct Factors {
        factor: i64,
        add: i64,
    }
}

/// The program has no source, because no GPU runs it.
static MIX: Program = Program::new("mix", &["i64"], &[""], |_, _| Source::new());

// SAFETY: only `mix` launches the kernel, with two storages of [`COUNT`] elements.
static KERNEL: Kernel<Factors, 2> = unsafe { Kernel::new(&MIX, "", hosts!(I64, T => mix_on_host)) };

/// # Safety
/// The operands are two tensors of [`COUNT`] elements.
unsafe fn mix_on_host(launch: &HostLaunch<'_>, &Factors { factor, add }: &Factors) {
    let [to, from] = [0, 1].map(|i| launch.pointers[i].cast::<i64>());
    for i in 0..COUNT {
        // SAFETY: the caller guarantees that both operands have an element `i`.
        unsafe { *to.add(i) = mixed(*to.add(i), *from.add(i), factor, add) };
    }
}

fn mixed(to: i64, from: i64, factor: i64, add: i64) -> i64 {
    to.wrapping_mul(factor).wrapping_add(from).wrapping_add(add)
}

/// Launches a kernel that sets each element of `to` to `to * factor + from + add`.
#[track_caller]
fn mix(target: Target<'_>, to: &Storage, from: &Storage, factor: i64, add: i64) -> Result<()> {
    let layout = Layout::contiguous(&[COUNT]).unwrap();
    let view = |storage| View { storage, layout: &layout, dtype: DType::I64 };
    let operands: [Operand<'_>; 2] = [view(to).read_write(), view(from).read()];
    KERNEL.launch(target, "mix", &operands, &Factors { factor, add }, Grid::linear(1, 32))
}

fn mix_on(stream: &Stream, to: &Storage, from: &Storage, factor: i64, add: i64) -> Result<()> {
    let runtime = to.runtime();
    mix(Target::Cuda(runtime, gpu(runtime), stream), to, from, factor, add)
}
