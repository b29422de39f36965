//! Writes the memory and the history of an allocator to files that PyTorch's viewers open:
//!
//! ```sh
//! cargo run -p warpline-alloc --example memory_snapshot -- --driver sim before.pickle after.pickle
//! python -m torch.cuda._memory_viz trace_plot after.pickle -o after.html
//! ```

use std::error::Error;
use std::fs::File;

use clap::Parser;
use warpline_alloc::{AllocatorConfig, CudaAllocator, CudaBackend, TraceConfig};
use warpline_cuda_sys_safe::owned::Stream;

#[derive(Parser)]
struct Args {
    /// `cuda` or `sim`
    #[arg(long, default_value = "cuda")]
    driver: String,
    /// File of the first snapshot
    before: String,
    /// File of the second snapshot
    after: String,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let driver = warpline_cuda_sys_safe::open(Some(&args.driver), None)?;
    let allocator =
        CudaAllocator::new(CudaBackend::new(driver.clone(), 0), AllocatorConfig::default());
    let stream = Stream::default_of(&driver, 0);
    allocator.record_memory_history(Some(TraceConfig::default()));

    let mut kept: Vec<_> =
        (1..=8).map(|i| allocator.malloc(i << 20, &stream)).collect::<Result<_, _>>()?;
    allocator.snapshot().write_pickle(File::create(&args.before)?)?;
    allocator.annotate("half of it goes");
    kept.truncate(4);
    kept.push(allocator.malloc(20 << 20, &stream)?);
    allocator.snapshot().write_pickle(File::create(&args.after)?)?;
    println!("{} bytes are reserved", allocator.memory_reserved());
    Ok(())
}
