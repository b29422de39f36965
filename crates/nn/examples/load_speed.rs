//! Measures how fast a safetensors file is loaded from the page cache to a GPU, and compares with safetensors' own
//! loader for PyTorch in the same run:
//!
//! ```text
//! cargo run --release -p warpline-nn --example load_speed -- --gib 4 --python python3
//! ```
//!
//! The first load allocates the memory; later loads reuse the memory of the previous load.
//! `WARPLINE_DRIVER=sim:1` only checks that the program runs; its times are meaningless.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::Parser;
use warpline::{DType, cuda, full};
use warpline_nn::{StateDict, load_file, save_file};

#[derive(Debug, Parser)]
struct Args {
    /// Size of the file, in GiB.
    #[arg(long, default_value_t = 1.0)]
    gib: f64,
    /// Size of each tensor, in MiB.
    #[arg(long, default_value_t = 32)]
    mib: usize,
    /// Folder for the temporary file. Default: the system's.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Python interpreter with PyTorch and safetensors, for the comparison.
    #[arg(long)]
    python: Option<PathBuf>,
}

const LOADS: usize = 6;

const PYTORCH: &str = "
import sys, time, torch
from safetensors.torch import load_file
torch.zeros(1, device='cuda')
for _ in range(int(sys.argv[2])):
    start = time.perf_counter()
    tensors = load_file(sys.argv[1], device='cuda')
    torch.cuda.synchronize()
    print(time.perf_counter() - start)
    del tensors
";

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let folder = args.folder.clone().unwrap_or_else(std::env::temp_dir);
    let path = folder.join(format!("load_speed-{}.safetensors", std::process::id()));
    let outcome = compare(&args, &path);
    // Remove the file even after an error.
    let removed = std::fs::remove_file(&path);
    outcome?;
    Ok(removed?)
}

fn compare(args: &Args, path: &Path) -> anyhow::Result<()> {
    let each = args.mib << 20;
    let count = ((args.gib * f64::from(1 << 30)) as usize).div_ceil(each).max(1);
    let mut state = StateDict::new();
    for i in 0..count {
        let tensor = full([each / 4], i as f64, DType::F32)?;
        state.insert(format!("layer.{i}.weight"), tensor);
    }
    save_file(&state, path, ())?;
    drop(state);
    let bytes = (count * each) as f64;
    cuda::synchronize(())?;
    let mut ours = Vec::new();
    for _ in 0..LOADS {
        let start = Instant::now();
        let loaded = load_file(path, "cuda")?;
        cuda::synchronize(())?;
        ours.push(start.elapsed().as_secs_f64());
        drop(loaded);
    }
    report("here", bytes, ours);
    if let Some(python) = &args.python {
        let output =
            Command::new(python).args(["-c", PYTORCH]).arg(path).arg(LOADS.to_string()).output()?;
        anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout)?;
        let times = text.lines().map(str::parse).collect::<Result<Vec<f64>, _>>()?;
        report("PyTorch", bytes, times);
    }
    Ok(())
}

fn report(name: &str, bytes: f64, mut seconds: Vec<f64>) {
    let first = seconds.remove(0);
    seconds.sort_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2];
    println!(
        "{name}: {:.2} GB, first {:.1} GB/s, then {:.1} GB/s (median of {})",
        bytes / 1e9,
        bytes / first / 1e9,
        bytes / median / 1e9,
        seconds.len()
    );
}
