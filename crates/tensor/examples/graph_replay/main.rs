//! Measures a chain of small ops, first enqueued one by one and then replayed as a graph: the time of the host,
//! and the time until the device has finished. Prints a JSON line for each of the two, and one with their ratios;
//! `torch_graph.py` prints the same lines for PyTorch.

use std::time::Instant;

use clap::Parser;
use serde_json::json;
use warpline::{Result, RuntimeConfig, Tensor, cuda, ones, with_runtime};

/// Times a chain of small ops with and without a graph.
#[derive(Debug, Parser)]
struct Options {
    /// The driver: `cuda`, or `sim:1` for a simulated GPU, whose times are meaningless.
    #[arg(long, default_value = "cuda")]
    driver: String,
    /// Number of ops in the chain.
    #[arg(long, default_value_t = 20)]
    ops: usize,
    /// Number of elements of each tensor.
    #[arg(long, default_value_t = 1024)]
    numel: usize,
    /// Number of measurements. Their medians are printed.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Number of chains enqueued in a row, to measure the time per chain on a busy device.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    row: u32,
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    let runtime = warpline::open(&options.driver, &RuntimeConfig::default())?;
    with_runtime(&runtime, || run(&options))?;
    Ok(())
}

fn run(options: &Options) -> Result<()> {
    let stream = cuda::Stream::new(())?;
    let _on = cuda::stream(&stream)?;
    let x = ones([options.numel], "cuda")?;
    let chain = || -> Result<Tensor> {
        let mut y = (&x + 1.0)?;
        for _ in 1..options.ops {
            y = (&y + 1.0)?;
        }
        Ok(y)
    };
    let (graph, result) = cuda::graph(chain)?;
    let eager = measure(options, &stream, || chain().map(drop))?;
    let replay = measure(options, &stream, || graph.replay())?;
    let expected = options.ops as f32 + 1.0;
    assert!(result.to_vec::<f32>()?.iter().all(|v| *v == expected), "a wrong result");
    for (kind, times) in [("enqueue", &eager), ("replay", &replay)] {
        println!(
            "{}",
            json!({
                "bench": "graph_replay", "kind": kind, "side": "warpline",
                "device": cuda::get_device_name(())?, "ops": options.ops, "numel": options.numel,
                "host_us": times.host, "whole_us": times.whole, "in_a_row_us": times.in_a_row,
            })
        );
    }
    let speedup = json!({
        "bench": "graph_replay", "kind": "speedup", "side": "warpline",
        "host": eager.host / replay.host, "whole": eager.whole / replay.whole,
        "in_a_row": eager.in_a_row / replay.in_a_row,
    });
    println!("{speedup}");
    Ok(())
}

/// Times of one chain, in microseconds.
struct Times {
    /// Time until the call returns, on an idle device.
    host: f64,
    /// Time until the device has finished, on an idle device.
    whole: f64,
    /// Time per chain when many chains are enqueued in a row, until the device has finished all of them.
    in_a_row: f64,
}

fn measure(
    options: &Options,
    stream: &cuda::Stream,
    mut chain: impl FnMut() -> Result<()>,
) -> Result<Times> {
    for _ in 0..10 {
        chain()?;
    }
    let (mut host, mut whole, mut in_a_row) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        stream.synchronize()?;
        let start = Instant::now();
        chain()?;
        host.push(start.elapsed().as_secs_f64() * 1e6);
        stream.synchronize()?;
        whole.push(start.elapsed().as_secs_f64() * 1e6);
    }
    for _ in 0..options.rounds.div_ceil(10) {
        stream.synchronize()?;
        let start = Instant::now();
        for _ in 0..options.row {
            chain()?;
        }
        stream.synchronize()?;
        in_a_row.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(options.row));
    }
    Ok(Times { host: median(host), whole: median(whole), in_a_row: median(in_a_row) })
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    (times[(times.len() - 1) / 2] + times[times.len() / 2]) / 2.0
}
