//! Draws where memory is while a program runs: addresses from top to bottom, requests from left to
//! right. What each request of a short program did is printed too.
//!
//! ```text
//! cargo run -p warpline-alloc --example memory_map -- map.svg
//! cargo run -p warpline-alloc --example memory_map -- --trace TRACE.csv.gz --policy policy:torch map.svg
//! ```
//!
//! Each page has the colour of the stream that it was made for, dark where a block is and light
//! where it is free. Where it is mapped too, but not used, is grey. So a page that migrates is one
//! colour among another, and an alias is colour among grey. `docs/default-policy.md` walks through
//! the program that is drawn unless a trace is named.

#![allow(unreachable_pub)] // tests use the modules too

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

/// Draws where memory is while a program runs.
#[derive(Debug, Parser)]
struct Options {
    /// A trace, as the replay tool reads it; else a short program of this example's own.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Options of the allocator.
    #[arg(long, default_value = "policy:default")]
    policy: String,
    /// Where the picture goes.
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
