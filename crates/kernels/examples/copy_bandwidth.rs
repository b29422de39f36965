//! Measures the bandwidth of Warpline's copies and, in the same run, of the driver's: from and to
//! pageable and page-locked memory, and between two GPUs if there are two. Then measures
//! page-locked copies on one stream and matrix products on another, each alone and both together.
//!
//! `cargo run --release -p warpline-kernels --example copy_bandwidth -- [--json] [--max-mib N]`
//!
//! Each figure is the median of several rounds, in which Warpline and the driver take turns. A GB
//! is 10⁹ bytes. With `--json`, each line of the output is a JSON object. `--max-mib` limits the
//! size of a copy.

use std::error::Error;
use std::hint::black_box;
use std::panic::Location;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warpline_cuda_sys_safe::owned::{DeviceMemory, HostMemory};
use warpline_cuda_sys_safe::{Copy, CopyEnd, Driver};
use warpline_kernels::matmul;
use warpline_runtime::{DType, Layout, Runtime, RuntimeConfig, Storage, Target, View, launch};
use warpline_stream::{Event, EventFlags, Stream};

type Answer<T = ()> = Result<T, Box<dyn Error>>;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Number of rounds per measurement.
const ROUNDS: usize = 9;

/// Number of bytes that a round copies between host and device, unless its number of copies reaches a limit. A round
/// between two GPUs copies eight times as much.
const PER_ROUND: usize = 64 * MIB;

fn main() -> Answer {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let json = args.iter().any(|a| a == "--json");
    let spec = std::env::var("WARPLINE_DRIVER").ok();
    let driver = warpline_cuda_sys_safe::open(spec.as_deref(), None)?;
    let real = driver.name() == "cuda";
    let asked = args.iter().position(|a| a == "--max-mib").and_then(|i| args.get(i + 1));
    let most = asked.map_or(Ok(if real { 1024 } else { 8 }), |text| text.parse::<usize>())?;
    let runtime = Runtime::new(Arc::clone(&driver), RuntimeConfig::default())?;
    let bench = Bench { driver, runtime, json };
    bench.about();
    let sizes =
        || std::iter::successors(Some(4 * KIB), |n| Some(n * 4)).take_while(|&n| n < most * MIB);
    for bytes in sizes().chain([most * MIB]) {
        for pinned in [false, true] {
            for to_device in [true, false] {
                bench.host(bytes, pinned, to_device)?;
            }
        }
        if bench.runtime.device_count() > 1 {
            bench.peers(bytes)?;
        }
    }
    bench.overlap(most.min(256) * MIB)
}

struct Bench {
    driver: Arc<dyn Driver>,
    runtime: Runtime,
    json: bool,
}

impl Bench {
    fn about(&self) {
        let name =
            self.runtime.device(0).map_or_else(|e| e.to_string(), |d| d.properties().name.clone());
        let threads = self.runtime.staging().threads;
        let cores = std::thread::available_parallelism().map_or(0, |n| n.get());
        if self.json {
            println!(
                r#"{{"driver":"{}","device":"{name}","cores":{cores},"threads":{threads}}}"#,
                self.driver.name()
            );
        } else {
            println!(
                "{} ({}), {cores} cores, staging by {threads} threads",
                name,
                self.driver.name()
            );
        }
    }

    fn stream(&self, device: usize) -> Answer<Stream> {
        Ok(self.runtime.device(device)?.device().exclusive_stream(0)?)
    }

    fn host(&self, bytes: usize, pinned: bool, to_device: bool) -> Answer {
        let stream = self.stream(0)?;
        let near = if pinned {
            Storage::pinned(&self.runtime, bytes)?
        } else {
            Storage::pageable(&self.runtime, bytes)?
        };
        let far = Storage::device(&self.runtime, bytes, &stream)?;
        let raw_near = if pinned {
            HostMemory::pinned(&self.driver, 0, bytes)?
        } else {
            HostMemory::pageable(bytes)?
        };
        let raw_far = DeviceMemory::new(&self.driver, 0, bytes)?;
        let near_end = CopyEnd::Host(raw_near.as_ptr());
        let far_end = CopyEnd::Device { device: 0, ptr: raw_far.ptr() };
        let here = Location::caller();
        // Touch every page before the measurement.
        launch::copy_bytes(&stream, (&near, 0), (&far, 0), bytes, false, here)?;
        self.raw(&stream, near_end, far_end, bytes)?;
        stream.synchronize()?;
        let (dst, src) = if to_device { (&far, &near) } else { (&near, &far) };
        let (to, from) = if to_device { (far_end, near_end) } else { (near_end, far_end) };
        let ours = || Ok(launch::copy_bytes(&stream, (dst, 0), (src, 0), bytes, pinned, here)?);
        let raw = || {
            self.raw(&stream, to, from, bytes)?;
            // When the driver returns, it has read a pageable source, but the copy may not be
            // complete.
            if pinned { Ok(()) } else { Ok(stream.raw().synchronize()?) }
        };
        let copies = if pinned {
            (PER_ROUND / bytes).clamp(1, 1000)
        } else {
            (PER_ROUND / bytes).clamp(1, 50)
        };
        let [ours, raw] = compare(copies, &stream, &ours, &raw)?;
        let way = if to_device { "host to device" } else { "device to host" };
        let kind = if pinned { "page-locked" } else { "pageable" };
        self.row(&format!("{way}, {kind}"), bytes, ours.whole, raw.whole, None);
        Ok(())
    }

    fn peers(&self, bytes: usize) -> Answer {
        let stream = self.stream(0)?;
        let there = self.stream(1)?;
        let src = Storage::device(&self.runtime, bytes, &stream)?;
        let dst = Storage::device(&self.runtime, bytes, &there)?;
        let raw_src = DeviceMemory::new(&self.driver, 0, bytes)?;
        let raw_dst = DeviceMemory::new(&self.driver, 1, bytes)?;
        let here = Location::caller();
        let ours = || Ok(launch::copy_bytes(&stream, (&dst, 0), (&src, 0), bytes, true, here)?);
        // The first copy enables access between the GPUs if it is possible. The driver's copies use
        // the access too.
        ours()?;
        let to = CopyEnd::Device { device: 1, ptr: raw_dst.ptr() };
        let from = CopyEnd::Device { device: 0, ptr: raw_src.ptr() };
        let raw = || self.raw(&stream, to, from, bytes);
        raw()?;
        stream.synchronize()?;
        let copies = (8 * PER_ROUND / bytes).clamp(1, 500);
        let [ours, raw] = compare(copies, &stream, &ours, &raw)?;
        let calls = Some([ours.call, raw.call]);
        self.row("cuda:0 to cuda:1", bytes, ours.whole, raw.whole, calls);
        Ok(())
    }

    fn raw(&self, stream: &Stream, dst: CopyEnd, src: CopyEnd, bytes: usize) -> Answer {
        // SAFETY: both ends have `bytes` bytes, and callers keep both alive until they have
        // synchronized the stream.
        unsafe { self.driver.memcpy_async(&Copy { dst, src, bytes }, stream.raw().handle()) }?;
        Ok(())
    }

    fn row(
        &self,
        what: &str,
        bytes: usize,
        ours: Duration,
        raw: Duration,
        calls: Option<[Duration; 2]>,
    ) {
        let rate = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
        let (ours, raw) = (rate(ours), rate(raw));
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        if self.json {
            let calls = calls.map_or(String::new(), |[a, b]| {
                format!(r#","call_us":{:.3},"driver_call_us":{:.3}"#, micros(a), micros(b))
            });
            println!(
                r#"{{"what":"{what}","bytes":{bytes},"gb_s":{ours:.3},"driver_gb_s":{raw:.3}{calls}}}"#
            );
            return;
        }
        let calls = calls.map_or(String::new(), |[a, b]| {
            format!("; a call {:.2} µs, the driver's {:.2}", micros(a), micros(b))
        });
        println!(
            "{what:28} {:>9} KiB {ours:8.2} GB/s, the driver {raw:8.2} ({:.1} %){calls}",
            bytes / KIB,
            100.0 * ours / raw
        );
    }

    /// Measures page-locked copies and matrix products, each alone and then both together.
    fn overlap(&self, bytes: usize) -> Answer {
        let (copying, computing) = (self.stream(0)?, self.stream(0)?);
        let device = self.runtime.device(0)?;
        let near = Storage::pinned(&self.runtime, bytes)?;
        let far = Storage::device(&self.runtime, bytes, &copying)?;
        let side = if self.driver.name() == "cuda" { 4096 } else { 64 };
        let layout = Layout::contiguous(&[side, side])?;
        let matrix = || Storage::device(&self.runtime, 4 * side * side, &computing);
        let [a, b, c] = [matrix()?, matrix()?, matrix()?];
        let view = |storage| View { storage, layout: &layout, dtype: DType::F32 };
        let target = Target::Cuda(&self.runtime, device, &computing);
        for storage in [&a, &b] {
            warpline_kernels::fill::fill(target, view(storage), 1.0.into())?;
        }
        let here = Location::caller();
        let copy = |on| launch::copy_bytes(on, (&far, 0), (&near, 0), bytes, true, here);
        let product = || matmul::matmul(target, view(&a), view(&b), view(&c));
        let timed = |copies: usize, products: usize| -> Answer<f64> {
            let event = || Event::new(EventFlags::new().enable_timing(true));
            let (start, end) = (event(), event());
            copying.synchronize()?;
            computing.synchronize()?;
            start.record(&copying)?;
            computing.wait_event(&start)?;
            for _ in 0..copies {
                copy(&copying)?;
            }
            for _ in 0..products {
                product()?;
            }
            copying.wait_stream(&computing)?;
            end.record(&copying)?;
            end.synchronize()?;
            Ok(f64::from(start.elapsed_time(&end)?))
        };
        let median = |copies, products| -> Answer<f64> {
            let mut times =
                (0..ROUNDS).map(|_| timed(copies, products)).collect::<Answer<Vec<_>>>()?;
            times.sort_by(f64::total_cmp);
            Ok(times[times.len() / 2])
        };
        timed(1, 1)?;
        let copies = 4;
        let alone = median(copies, 0)?;
        // Choose a number of products that take about as long as the copies.
        let products = (alone / (median(0, 8)? / 8.0)).round().clamp(1.0, 10_000.0) as usize;
        let computed = median(0, products)?;
        let both = median(copies, products)?;
        black_box(&c);
        if self.json {
            println!(
                r#"{{"what":"overlap","bytes":{bytes},"copies":{copies},"products":{products},"copy_ms":{alone:.4},"compute_ms":{computed:.4},"together_ms":{both:.4}}}"#
            );
        } else {
            println!(
                "{copies} copies of {} KiB: {alone:.3} ms; {products} products of {side}²: {computed:.3} ms; together: {both:.3} ms",
                bytes / KIB
            );
        }
        Ok(())
    }
}

/// Times per copy: `whole` until completion, `call` until the call returns.
#[derive(Clone, Copy)]
struct Times {
    whole: Duration,
    call: Duration,
}

/// Runs both functions in alternating rounds, and returns the median times of each.
fn compare(
    copies: usize,
    stream: &Stream,
    ours: &dyn Fn() -> Answer,
    raw: &dyn Fn() -> Answer,
) -> Answer<[Times; 2]> {
    let mut rounds = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (times, copy) in rounds.iter_mut().zip([ours, raw]) {
            let start = Instant::now();
            for _ in 0..copies {
                copy()?;
            }
            let call = start.elapsed() / copies as u32;
            stream.raw().synchronize()?;
            times.push(Times { whole: start.elapsed() / copies as u32, call });
        }
    }
    let median = |times: &[Times], of: fn(&Times) -> Duration| {
        let mut all: Vec<Duration> = times.iter().map(of).collect();
        all.sort_unstable();
        all[all.len() / 2]
    };
    Ok(rounds.map(|times| Times {
        whole: median(&times, |t| t.whole),
        call: median(&times, |t| t.call),
    }))
}
