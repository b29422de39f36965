//! Draws memory over time: addresses from top to bottom, requests from left to right. For a short
//! program, also prints the effect of each request.
//!
//! ```text
//! cargo run -p warpline-alloc --example memory_map -- map.svg
//! cargo run -p warpline-alloc --example memory_map -- --trace TRACE.csv.gz --policy policy:torch map.svg
//! ```
//!
//! A page has the colour of the stream that it was created for: dark inside a block, light if it is
//! free. Addresses with a mapped but unused page are grey. A migrated page therefore shows one
//! colour among another, and an alias shows colour among grey. `docs/default-policy.md` explains
//! the program that is drawn by default.

#![allow(unreachable_pub)] // the tests also use the modules

#[path = "../../tests/common/mod.rs"]
mod common;
mod map;
#[allow(dead_code)] // the replay tool uses more of these
#[path = "../replay/moe.rs"]
mod moe;
#[allow(dead_code)]
#[path = "../replay/run.rs"]
mod run;
mod svg;
#[allow(dead_code)]
#[path = "../replay/trace.rs"]
mod trace;

use std::error::Error;
use std::path::PathBuf;

use clap::Parser;

/// Draws memory while a program runs.
#[derive(Debug, Parser)]
struct Options {
    /// A trace, in the format of the replay tool. Default: this example's short program.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Options of the allocator.
    #[arg(long, default_value = "policy:default")]
    policy: String,
    /// The output file.
    #[arg(value_name = "FILE.svg")]
    svg: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let trace = match &options.trace {
        Some(path) => trace::Trace::open(path)?,
        None => map::program(),
    };
    let map = map::record(&trace, &options.policy)?;
    if map.is_short() {
        print!("{}", map.table());
    }
    Ok(std::fs::write(options.svg, svg::draw(&map))?)
}
