//! Runs the program on the first device: `alloc-over-cudarc [OPTIONS]`. The options are allocator
//! options, such as `policy:torch`.

use std::error::Error;

use warpline_alloc::AllocatorConfig;

fn main() -> Result<(), Box<dyn Error>> {
    let options = std::env::args().nth(1).unwrap_or_default();
    let context = alloc_over_cudarc::open(0)?;
    println!("{}", alloc_over_cudarc::program::run(&context, AllocatorConfig::parse(&options)?)?);
    Ok(())
}
