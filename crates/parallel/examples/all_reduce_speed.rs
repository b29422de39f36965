//! Measures an all-reduce of two or more GPUs through a process group and by NCCL directly, in the same process.
//! `benches/all_reduce.py` measures PyTorch with the same sizes.
//!
//! ```sh
//! cargo run --release -p warpline-parallel --example all_reduce_speed
//! WARPLINE_DRIVER=sim:2 cargo run -p warpline-parallel --example all_reduce_speed -- \
//!     --kib 4,64 --runs 5 --loops 2
//! ```
//!
//! For each size and method, prints three medians: the time from a call to the synchronisation of the stream, with all
//! ranks starting at the same time; the time per call in a loop that ends with one synchronisation; and the host's time
//! per call in that loop.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;
use libloading::Library;
use warpline::cuda::{self, Stream};
use warpline::{Runtime, RuntimeConfig, Tensor, full, runtime, with_runtime, zeros};
use warpline_cuda_sys_safe::nccl::{Collective, NcclType, UniqueId};
use warpline_cuda_sys_safe::null::NullDriver;
use warpline_cuda_sys_safe::owned::{Communicator, DeviceMemory};
use warpline_parallel::distributed::{
    HashStore, InitOptions, ProcessGroup, ReduceOp, ReduceOptions, init_process_group,
};

#[derive(Clone, Debug, Parser)]
struct Args {
    /// Number of ranks. Each rank is a thread with its own GPU.
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Sizes of the tensors, in KiB.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 1024, 32 * 1024, 256 * 1024])]
    kib: Vec<usize>,
    /// Number of single calls to time.
    #[arg(long, default_value_t = 100)]
    runs: usize,
    /// Number of loops to time.
    #[arg(long, default_value_t = 9)]
    loops: usize,
    /// Use a driver and an NCCL that do nothing, to measure the host's own work.
    #[arg(long)]
    null: bool,
    /// Number of calls in a loop.
    #[arg(long, default_value_t = 50)]
    calls: usize,
}

/// Time limit of every wait.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// A spinning barrier of all ranks.
struct SpinBarrier {
    ranks: usize,
    arrivals: AtomicUsize,
}

impl SpinBarrier {
    fn wait(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        let round = self.arrivals.fetch_add(1, Ordering::AcqRel) / self.ranks + 1;
        while self.arrivals.load(Ordering::Acquire) < round * self.ranks {
            ensure!(begun.elapsed() < WAIT_LIMIT, "another rank is gone");
            std::hint::spin_loop();
        }
        Ok(())
    }
}

/// A way to call an all-reduce: its name and the call.
type Method<'a> = (&'static str, Box<dyn Fn() -> anyhow::Result<()> + 'a>);

/// Times of each method: the time of a single call, the time per call in a loop, and the host's time per call in the
/// loop.
type Times = Vec<[Duration; 3]>;

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn time(
    args: &Args,
    start: &SpinBarrier,
    stream: &Stream,
    methods: &[Method<'_>],
) -> anyhow::Result<Times> {
    let mut all = vec![[const { Vec::new() }; 3]; methods.len()];
    for _ in 0..5 {
        for (_, call) in methods {
            call()?;
            stream.raw().synchronize()?;
        }
    }
    // Alternate between the methods, so that changes of the GPU's clock affect all of them.
    for _ in 0..args.runs {
        for ((_, call), times) in methods.iter().zip(&mut all) {
            start.wait()?;
            let begun = Instant::now();
            call()?;
            stream.raw().synchronize()?;
            times[0].push(begun.elapsed());
        }
    }
    let calls = args.calls.max(1) as u32;
    for _ in 0..args.loops {
        for ((_, call), times) in methods.iter().zip(&mut all) {
            start.wait()?;
            let begun = Instant::now();
            for _ in 0..calls {
                call()?;
            }
            times[2].push(begun.elapsed() / calls);
            stream.raw().synchronize()?;
            times[1].push(begun.elapsed() / calls);
        }
    }
    Ok(all.into_iter().map(|times| times.map(|mut t| median(&mut t))).collect())
}

/// NCCL called directly, with a blocking communicator.
struct RawNccl {
    library: Library,
    comm: *mut c_void,
}

/// `ncclUniqueId`.
#[repr(C)]
struct RawId([u8; UniqueId::BYTES]);

type Init = unsafe extern "C" fn(*mut *mut c_void, c_int, RawId, c_int) -> c_int;
type AllReduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_int,
    c_int,
    *mut c_void,
    *mut c_void,
) -> c_int;
type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;

impl RawNccl {
    /// Creates a communicator on the device that is current for the driver on this thread.
    fn new(id: &UniqueId, ranks: usize, rank: usize) -> anyhow::Result<Self> {
        // SAFETY: the driver has already loaded this library, so no initializer runs.
        let library = unsafe { Library::new("libnccl.so.2") }?;
        let mut comm = ptr::null_mut();
        // SAFETY: `Init` is the signature of `ncclCommInitRank` in nccl.h.
        let init = *unsafe { library.get::<Init>(b"ncclCommInitRank\0") }?;
        // SAFETY: `comm` is valid for writes, and every rank makes this call on its own thread.
        let status =
            unsafe { init(&mut comm, ranks as c_int, RawId(*id.as_bytes()), rank as c_int) };
        ensure!(status == 0, "ncclCommInitRank: status {status}");
        Ok(Self { library, comm })
    }

    /// Returns a function that sums floats in place.
    fn all_reduce(
        &self,
        memory: &DeviceMemory,
        count: usize,
        stream: &Stream,
    ) -> anyhow::Result<impl Fn() -> anyhow::Result<()>> {
        const F32: c_int = 7;
        const SUM: c_int = 0;
        // SAFETY: `AllReduce` is the signature of `ncclAllReduce` in nccl.h.
        let call = *unsafe { self.library.get::<AllReduce>(b"ncclAllReduce\0") }?;
        let pointer = |raw: u64| ptr::without_provenance_mut::<c_void>(raw as usize);
        let at = pointer(memory.ptr().addr());
        let (comm, stream) = (self.comm, pointer(stream.raw().handle().raw()));
        Ok(move || {
            // SAFETY: the caller keeps the communicator, the memory and the stream alive until the stream is
            // synchronised.
            let status = unsafe { call(at, at, count, F32, SUM, comm, stream) };
            ensure!(status == 0, "ncclAllReduce: status {status}");
            Ok(())
        })
    }
}

impl Drop for RawNccl {
    fn drop(&mut self) {
        // SAFETY: `Destroy` is the signature of `ncclCommDestroy` in nccl.h.
        if let Ok(destroy) = unsafe { self.library.get::<Destroy>(b"ncclCommDestroy\0") } {
            // SAFETY: `ncclCommInitRank` created the communicator, which is not used afterwards.
            unsafe { destroy(self.comm) };
        }
    }
}

/// The data that all ranks share.
struct RankInputs {
    args: Args,
    store: Arc<HashStore>,
    ids: [UniqueId; 2],
    start: SpinBarrier,
}

fn check(group: &ProcessGroup) -> anyhow::Result<()> {
    let x = full([1000], group.rank() as f64 + 1.0, group.device())?;
    group.all_reduce(&x, ())?;
    let sum = (group.world_size() * (group.world_size() + 1) / 2) as f32;
    ensure!(x.to_vec::<f32>()?.iter().all(|v| *v == sum), "the sums are wrong");
    Ok(())
}

fn rank(shared: &RankInputs, rank: usize) -> anyhow::Result<Vec<(Vec<&'static str>, Times)>> {
    let RankInputs { args, store, ids, start } = shared;
    cuda::set_device(rank)?;
    let options =
        InitOptions::new(store.clone(), rank, args.ranks).device(rank).timeout(WAIT_LIMIT);
    let group = init_process_group(options)?;
    if !args.null {
        check(&group)?;
    }
    let (runtime, stream) = (runtime(), cuda::current_stream(rank)?);
    let driver = runtime.driver()?;
    let comm = Communicator::new(driver, rank, &ids[0], args.ranks, rank, WAIT_LIMIT)?;
    // This driver call makes the device current on this thread, which NCCL requires.
    stream.raw().synchronize()?;
    let real = driver.name() == "cuda";
    let raw = real.then(|| RawNccl::new(&ids[1], args.ranks, rank)).transpose()?;
    let mut all = Vec::new();
    for kib in &args.kib {
        let count = kib * 1024 / size_of::<f32>();
        let memory = DeviceMemory::new(driver, rank, kib * 1024)?;
        let x: Tensor = zeros([count], rank)?;
        let (send, recv) = (memory.ptr(), memory.ptr());
        let (dtype, op) = (NcclType::F32, ReduceOp::Sum);
        let call = [Collective::AllReduce { send, recv, count, dtype, op }];
        let mut methods: Vec<Method<'_>> = Vec::new();
        if let Some(raw) = &raw {
            methods.push(("NCCL", Box::new(raw.all_reduce(&memory, count, &stream)?)));
        }
        methods.push((
            "Communicator",
            Box::new(|| {
                // SAFETY: the stream, and `count` elements of memory, stay alive until the stream is synchronised.
                Ok(unsafe { comm.enqueue(&call, stream.raw().handle()) }?)
            }),
        ));
        methods.push(("process group", Box::new(|| Ok(group.all_reduce(&x, op).map(drop)?))));
        methods.push((
            "process group, async_op",
            Box::new(|| {
                Ok(group.all_reduce(&x, ReduceOptions::new().op(op).async_op(true))?.wait()?)
            }),
        ));
        let times = time(args, start, &stream, &methods)?;
        all.push((methods.iter().map(|method| method.0).collect(), times));
    }
    if !args.null {
        check(&group)?;
    }
    start.wait()?;
    Ok(all)
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let runtime = match args.null {
        true => Runtime::new(Arc::new(NullDriver::new(args.ranks)), RuntimeConfig::default())?,
        false => runtime(),
    };
    let found = runtime.device_count();
    ensure!(found >= args.ranks, "{} GPUs are needed; there are {found}", args.ranks);
    let nccl = runtime.driver()?.nccl()?;
    let name = with_runtime(&runtime, || cuda::get_device_name(0))?;
    println!("{} x {}, NCCL {}", args.ranks, name, nccl.version()?);
    let ids = [nccl.unique_id()?, nccl.unique_id()?];
    let start = SpinBarrier { ranks: args.ranks, arrivals: AtomicUsize::new(0) };
    let shared = RankInputs { store: Arc::new(HashStore::new()), ids, start, args };
    let results = std::thread::scope(|scope| {
        let begin = |number| {
            let (shared, runtime) = (&shared, &runtime);
            scope.spawn(move || with_runtime(runtime, || rank(shared, number)))
        };
        let ranks: Vec<_> = (0..shared.args.ranks).map(begin).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        ranks.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
    })?;
    let first = results.first().context("there is no rank")?;
    println!(
        "{:>10}  {:24}{:>12}{:>12}{:>12}{:>9}",
        "", "", "one call", "in a loop", "host", "GB/s"
    );
    for (kib, (names, times)) in shared.args.kib.iter().zip(first) {
        for (name, time) in names.iter().zip(times) {
            let [one, each, host] = time.map(|t| t.as_secs_f64() * 1e6);
            let rate = (kib * 1024) as f64 / each / 1e3;
            println!("{kib:6} KiB  {name:24}{one:9.2} us{each:9.2} us{host:9.2} us{rate:9.2}");
        }
    }
    Ok(())
}
