//! How fast reductions read memory on a GPU, over shapes, dtypes and alignments.
//!
//! `cargo run --release -p warpline-kernels --example reduce_bandwidth -- [FILE]`, which has cases as
//! `benches/reductions.txt`, of which `benches/reductions.py` measures PyTorch's. Each figure is the median of rounds; GB are 10⁹ bytes.

use std::error::Error;
use std::sync::Arc;

use warpline_kernels::reduce::{ReduceOp, reduce};
use warpline_runtime::{DType, Layout, Runtime, RuntimeConfig, Storage, Target, View};
use warpline_stream::EventFlags;

type Answer<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Answer {
    let spec = std::env::var("WARPLINE_DRIVER").ok();
    let driver = warpline_cuda_sys_safe::open(spec.as_deref(), None)?;
    let runtime = Runtime::new(Arc::clone(&driver), RuntimeConfig::default())?;
    let cases = match std::env::args().nth(1) {
        Some(path) => std::fs::read_to_string(path)?,
        None => include_str!("../benches/reductions.txt").to_owned(),
    };
    for line in cases.lines().filter(|line| !line.starts_with('#')) {
        case(&runtime, line)?;
    }
    Ok(())
}

/// `op dtype sizes strides offset dims repetitions`, lists with commas.
fn case(runtime: &Runtime, line: &str) -> Answer {
    let parts: Vec<&str> = line.split_whitespace().collect();
    let list = |text: &str| -> Result<Vec<usize>, std::num::ParseIntError> {
        text.split(',').filter(|part| *part != "-").map(str::parse).collect()
    };
    let [op, dtype, sizes, strides, offset, dims, reps] = parts[..] else {
        return Err(format!("not a case: {line}").into());
    };
    let op = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Mean, ReduceOp::Max, ReduceOp::Min]
        .into_iter()
        .chain([ReduceOp::ArgMax, ReduceOp::ArgMin, ReduceOp::Any, ReduceOp::All])
        .find(|o| o.name() == op)
        .ok_or("no such op")?;
    let dtype = DType::ALL.into_iter().find(|d| d.suffix() == dtype).ok_or("no such dtype")?;
    let (sizes, strides, dims) = (list(sizes)?, list(strides)?, list(dims)?);
    let (offset, reps): (usize, usize) = (offset.parse()?, reps.parse()?);
    let strides: Vec<isize> = strides.into_iter().map(|s| s as isize).collect();
    let reach: usize = sizes.iter().zip(&strides).map(|(n, s)| (n - 1) * *s as usize).sum();
    let layout = Layout::from_parts(sizes.as_slice().into(), strides.as_slice().into(), offset);
    let device = runtime.device(0)?;
    let stream = device.device().stream_from_pool(0)?;
    let storage = Storage::device(runtime, (offset + reach + 1) * dtype.size(), &stream)?;
    let bytes = storage.bytes();
    let here = std::panic::Location::caller();
    let zero = warpline_cuda_sys_safe::MemsetValue::U8(0);
    warpline_runtime::launch::memset(&stream, (&storage, 0), zero, bytes, "zero_", here)?;
    let kept: Vec<usize> = (0..sizes.len())
        .filter(|d| !dims.is_empty() && !dims.contains(d))
        .map(|d| sizes[d])
        .collect();
    let result = Layout::contiguous(&kept)?;
    let out_dtype = op.result_dtype(dtype)?;
    let out = Storage::device(runtime, result.numel() * out_dtype.size(), &stream)?;
    let target = Target::Cuda(runtime, device, &stream);
    let run = || {
        let a = View { storage: &storage, layout: &layout, dtype };
        let out = View { storage: &out, layout: &result, dtype: out_dtype };
        reduce(target, op, a, &dims, out)
    };
    for _ in 0..3 {
        run()?;
    }
    stream.synchronize()?;
    let timing = EventFlags { timing: true, ..EventFlags::default() };
    let mut times = Vec::new();
    for _ in 0..7 {
        let begun = warpline_stream::Event::new(timing);
        let ended = warpline_stream::Event::new(timing);
        begun.record(&stream)?;
        for _ in 0..reps {
            run()?;
        }
        ended.record(&stream)?;
        ended.synchronize()?;
        times.push(f64::from(begun.elapsed_time(&ended)?) / reps as f64);
    }
    times.sort_by(f64::total_cmp);
    let read = sizes.iter().product::<usize>() * dtype.size();
    println!("{line} | {:.4} ms {:.0} GB/s", times[3], read as f64 / times[3] / 1e6);
    Ok(())
}
