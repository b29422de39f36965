//! Measures the host time of a call while earlier work is not complete ("outstanding").
//!
//! `cargo bench -p warpline --bench outstanding` runs on a driver that completes nothing. With
//! `WARPLINE_DRIVER=cuda` it runs on the machine's first GPU, with `WARPLINE_DRIVER=sim:1,lazy` on a simulated
//! GPU.
//!
//! The first table shows the time of a graph's replay and of a bare `cuGraphLaunch` of the same graph, with up
//! to a thousand replays outstanding. `full` means that the driver's queue was full. A replay or launch then
//! waits for the GPU, so the time of the call is not host time, and no number is printed. The second table
//! shows the time per item, for each kind of work, of a thousand, ten thousand and a hundred thousand items
//! without a wait. An argument selects the rows whose names contain it. With `--json`, each line is a JSON
//! object: first the conditions, then each row; a full queue is `null`.

use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use warpline::cuda::{self, CudaGraph, Event, Stream};
use warpline::{DType, Error, Result, Runtime, RuntimeConfig, ones, with_runtime, zeros};
use warpline_cuda_sys_safe::null::NullDriver;

const ITEMS: [usize; 3] = [1_000, 10_000, 100_000];
/// Number of kernels in the measured graphs.
const KERNELS: [usize; 7] = [1, 10, 100, 300, 740, 1_000, 2_000];
/// Number of outstanding replays.
const OUTSTANDING: [usize; 6] = [0, 1, 10, 100, 300, 1_000];
/// Number of pairs of a replay and a bare launch in a round. Each pair adds two launches to the
/// outstanding ones.
const PAIRS: usize = 5;

fn main() -> Result<()> {
    let named = std::env::var("WARPLINE_DRIVER").ok();
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with("--")).unwrap_or_default();
    let output = Output { filter, json: std::env::args().any(|arg| arg == "--json") };
    let bench = || {
        if output.json {
            let driver = warpline::runtime().driver()?.name();
            println!("{}", json!({ "driver": driver, "device": cuda::get_device_name(0)? }));
        }
        if output.filter.is_empty() || "replays".contains(&output.filter) {
            // Run the replays first, while no other stream has work.
            replays(&output)?;
        }
        growth(&output)
    };
    if named.is_some() {
        return bench();
    }
    let driver = Arc::new(NullDriver::without_completion(1));
    with_runtime(&Runtime::new(driver, RuntimeConfig::default())?, bench)
}

/// Selection of the measured rows, and the format of the printed figures.
struct Output {
    /// Rows whose names do not contain this text are left out.
    filter: String,
    json: bool,
}

/// Measures `item` and prints the nanoseconds per call, for each number of calls in [`ITEMS`].
fn row(output: &Output, name: &str, mut item: impl FnMut() -> Result<()>) -> Result<()> {
    if !name.contains(&output.filter) {
        return Ok(());
    }
    (0..100).try_for_each(|_| item())?;
    let mut times = Vec::new();
    for items in ITEMS {
        cuda::synchronize(0)?;
        let start = Instant::now();
        (0..items).try_for_each(|_| item())?;
        times.push(start.elapsed().as_secs_f64() * 1e9 / items as f64);
    }
    if output.json {
        println!("{}", json!({ "row": name, "items": ITEMS, "ns": times }));
    } else {
        print!("{name:40}");
        for (items, each) in ITEMS.iter().zip(&times) {
            print!("  {items:>6}: {each:>7.0} ns ({:.1} x)", each / times[0]);
        }
        println!();
    }
    cuda::synchronize(0)
}

fn growth(output: &Output) -> Result<()> {
    let x = ones([16], 0)?;
    let (table, index) = (ones([4, 4], 0)?, zeros([1], (DType::I64, 0))?);
    let one = ones([1, 4], 0)?;
    let sum = zeros([1, 4], 0)?;
    row(output, "add", || x.add(&x).map(drop))?;
    row(output, "add_", || x.add_(1.0).map(drop))?;
    row(output, "index_select", || table.index_select(0, &index).map(drop))?;
    row(output, "index_select, add_", || sum.add_(&table.index_select(0, &index)?).map(drop))?;
    row(output, "index_copy_", || table.index_copy_(0, &index, &one).map(drop))?;
    let host = ones([16], ())?.pin_memory()?;
    row(output, "copy on the device", || x.copy().map(drop))?;
    row(output, "copy from pinned memory", || x.copy_(&host, true).map(drop))?;
    row(output, "copy to pinned memory", || host.copy_(&x, true).map(drop))?;
    let mut pending = Vec::new();
    row(output, "copy to the host, kept", || {
        pending.push(x.cpu_async()?);
        Ok(())
    })?;
    drop(pending);
    let stream = cuda::current_stream(0)?;
    let mut events = Vec::new();
    row(output, "event, kept", || {
        events.push(stream.record_event(None)?);
        Ok(())
    })?;
    drop(events);
    let streams: Vec<Stream> = (0..32).map(|_| Stream::new(0)).collect::<Result<_>>()?;
    row(output, "event, another stream waits", || {
        streams[0].wait_event(&stream.record_event(None)?)
    })?;
    for count in [2, 32] {
        let mut turn = 0;
        row(output, &format!("{count} streams in turns"), || {
            turn += 1;
            cuda::with_stream(&streams[turn % count], || x.add_(1.0).map(drop))
        })?;
        row(output, &format!("{count} streams in turns, new tensors"), || {
            turn += 1;
            let new = x.add(1.0)?;
            cuda::with_stream(&streams[turn % count], || new.add_(1.0).map(drop))
        })?;
    }
    row(output, "free that another stream waits for", || {
        let new = x.add(1.0)?;
        new.record_stream(&streams[1])
    })?;
    let graph = decoder(8)?;
    row(output, "replay of 8 kernels", || graph.replay())?;
    row(output, "replays of 8 kernels on two streams in turns", || {
        streams[..2].iter().try_for_each(|stream| cuda::with_stream(stream, || graph.replay()))
    })
}

/// Captures a graph of `kernels` kernels over as many tensors: a gather, and layers that write a
/// row into a cache, read it and add.
fn decoder(kernels: usize) -> Result<CudaGraph> {
    let index = zeros([1], (DType::I64, 0))?;
    let table = ones([8, 4], 0)?;
    let caches = (0..kernels).map(|_| zeros([8, 4], 0)).collect::<Result<Vec<_>>>()?;
    let sums = (0..kernels).map(|_| zeros([1, 4], 0)).collect::<Result<Vec<_>>>()?;
    let row = zeros([1, 4], 0)?;
    let mut graph = CudaGraph::new();
    graph.capture(|| {
        for kernel in 0..kernels {
            match kernel % 8 {
                0 => caches[kernel].index_copy_(0, &index, &row),
                1 => sums[kernel].add_(&caches[kernel - 1].narrow(0, 0, 1)?),
                2 => sums[kernel].copy_(&table.index_select(0, &index)?, true),
                _ => sums[kernel].add_(&sums[kernel - 1]),
            }?;
        }
        Ok(())
    })?;
    Ok(graph)
}

/// Keeps the GPU busy for longer than the host takes to enqueue the replays of a round. Returns an
/// event that completes before the replays begin. `None` if the driver is not a GPU's.
fn occupy(stream: &Stream, outstanding: usize) -> Result<Option<Event>> {
    if warpline::runtime().driver()?.name() != "cuda" {
        return Ok(None);
    }
    cuda::with_stream(stream, || {
        let large = ones([8192, 8192], 0)?;
        (0..1 + outstanding / 500).try_for_each(|_| large.matmul(&large).map(drop))
    })?;
    stream.record_event(None).map(Some)
}

/// Prints microseconds per replay and per `cuGraphLaunch` of the same executable graph, by the number of
/// outstanding replays. The first measurement is on the program's only stream, the second after another stream
/// was used, the third after another stream waited for an earlier operation. Such a wait makes the next 64
/// operations slower; they are enqueued before the third measurement begins.
fn replays(output: &Output) -> Result<()> {
    if !output.json {
        println!(
            "\nmicroseconds per replay, per cuGraphLaunch, and their ratio, by the number of replays outstanding"
        );
        print!("{:22}", "kernels");
        OUTSTANDING.iter().for_each(|outstanding| print!("{outstanding:>20}"));
        println!();
    }
    let stream = cuda::current_stream(0)?;
    for streams in ["one stream", "a second stream", "late waits"] {
        if streams != "one stream" {
            let used = zeros([1], 0)?;
            if streams == "late waits" {
                // The other stream waits for the first of two operations, so the next 64 operations
                // of this stream are followed by an event each.
                zeros([1], 0)?;
            }
            cuda::with_stream(&Stream::new(0)?, || used.add_(1.0).map(drop))?;
            if streams == "late waits" {
                (0..64).try_for_each(|_| zeros([1], 0).map(drop))?;
            }
        }
        for kernels in KERNELS {
            let graph = decoder(kernels)?;
            graph.replay()?;
            let times = timed(&graph, &stream, kernels)?;
            if output.json {
                let row = json!({
                    "row": "replays", "kernels": kernels, "streams": streams,
                    "outstanding": OUTSTANDING, "replay_and_launch_us": times,
                });
                println!("{row}");
                continue;
            }
            print!("{:22}", format!("{kernels}, {streams}"));
            for medians in times {
                let text = medians.map_or("full".to_owned(), |[own, bare]| {
                    format!("{own:.2} {bare:.2} {:.2}", own / bare)
                });
                print!("{text:>20}");
            }
            println!();
        }
    }
    Ok(())
}

/// Returns the median times, in microseconds, of a replay and of a bare launch of the same graph, for each
/// number of outstanding replays. An element is `None` if the driver's queue was full.
fn timed(graph: &CudaGraph, stream: &Stream, kernels: usize) -> Result<Vec<Option<[f64; 2]>>> {
    let (raw, exec) = (stream.raw(), graph.raw_cuda_graph_exec()?);
    let bare = || {
        // SAFETY: the graph stays alive, its tensors are used on this stream alone, and the stream
        // is synchronized below, before anything is dropped.
        let launched = unsafe { raw.driver().graph_launch(exec, raw.handle()) };
        launched.map_err(|error| Error::driver("outstanding", error))
    };
    // The times of small graphs vary more, in proportion.
    let rounds = if kernels > 10 { 5 } else { 21 };
    let medians = |outstanding| {
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..rounds {
            let occupied = occupy(stream, outstanding)?;
            (0..outstanding).try_for_each(|_| graph.replay())?;
            let mut of_round = [Vec::new(), Vec::new()];
            for pair in round..round + PAIRS {
                // The replay is first in one pair and the bare launch in the next, so that neither is always
                // the call that follows a wait of the driver.
                for call in [pair % 2, 1 - pair % 2] {
                    let start = Instant::now();
                    if call == 0 { graph.replay() } else { bare() }?;
                    of_round[call].push(start.elapsed().as_secs_f64() * 1e6);
                }
            }
            // If the GPU has begun the replays, a call has waited for it.
            let waited = occupied.map(|event| event.query()).transpose()?.unwrap_or(false);
            stream.synchronize()?;
            if waited {
                break;
            }
            times.iter_mut().zip(of_round).for_each(|(all, new)| all.extend(new));
        }
        if times[0].is_empty() {
            return Ok(None);
        }
        Ok(Some(times.map(|mut times| {
            times.sort_unstable_by(f64::total_cmp);
            times[times.len() / 2]
        })))
    };
    stream.synchronize()?;
    OUTSTANDING.into_iter().map(medians).collect()
}
