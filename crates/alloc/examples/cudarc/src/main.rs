//! Runs the program on the first device, under a policy: `alloc-over-cudarc [OPTIONS]`, where options are
//! `warpline-alloc`'s, such as `policy:torch`.

use std::error::Error;

use warpline_alloc::AllocatorConfig;

fn main() -> Result<(), Box<dyn Error>> {
    let options = std::env::args().nth(1).unwrap_or_default();
    let context = alloc_over_cudarc::open(0)?;
    println!("{}", alloc_over_cudarc::program::run(&context, AllocatorConfig::parse(&options)?)?);
    Ok(())
}
