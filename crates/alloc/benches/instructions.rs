//! A program for callgrind: runs one kind of work as often as the command line says, on a backend
//! that does nothing. The difference between two counts is the cost of the operations between them:
//!
//! ```text
//! cargo bench -p warpline-alloc --bench instructions --no-run
//! valgrind --tool=callgrind target/release/deps/instructions-… WORK POLICY TIMES
//! ```
//!
//! *WORK* is `hit` (a malloc of 4 KiB and its free), `mixed` (10 000 steps over 1 000 live blocks
//! of 512 B to 32 MiB; each step replaces one block), or the name of a trace (one replay of the
//! trace; only the first replay starts with an empty cache).
//! *POLICY* is a string for `AllocatorConfig::parse`. For a trace, the program prints the number of
//! its operations.
#![allow(dead_code, unreachable_pub)] // modules that are shared with the examples

mod common;
#[path = "../examples/replay/moe.rs"]
mod moe;
#[path = "../examples/replay/run.rs"]
mod run;
#[path = "../examples/replay/trace.rs"]
mod trace;
#[path = "../examples/versus_torch/work.rs"]
mod work;

use std::error::Error;
use std::path::PathBuf;

use common::Null;
use trace::Trace;
use work::{Mixed, cached};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    let [work, policy, times] = &arguments[..] else {
        println!("usage: instructions hit|mixed|TRACE POLICY TIMES");
        return Ok(());
    };
    let times: usize = times.parse()?;
    let allocator = Null::allocator(policy);
    match work.as_str() {
        "hit" => {
            cached(&allocator, &0, 4 << 10, times)?;
        }
        "mixed" => {
            // The setup is the same for every count, so it cancels in the difference of two counts.
            let mut mixed = Mixed::new(&allocator, &0, 1_000, 10_000)?;
            for _ in 0..times {
                mixed.run(&allocator, &0)?;
            }
        }
        name => {
            // Prefer the folder at run time, because the checkout may have moved since the build.
            let root = std::env::var_os("CARGO_MANIFEST_DIR");
            let root = root.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
            let trace = Trace::open(&root.join(format!("traces/{name}.csv.gz")))?;
            println!("{} operations", trace.ops.len());
            for _ in 0..times {
                run::replay(&allocator, &trace, &trace.streams, &mut (), &mut |_| {})?;
            }
        }
    }
    Ok(())
}
