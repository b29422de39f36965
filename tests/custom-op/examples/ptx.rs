//! Compiles the op's CUDA source with NVRTC if the source or its PTX has changed.

use std::path::PathBuf;

use custom_op::embedding_bag::PROGRAM;
use warpline_runtime::module::{Compiler, update};

fn main() -> warpline_runtime::Result<()> {
    // Use the folder at run time, because the checkout may have moved since the build.
    let root = std::env::var_os("CARGO_MANIFEST_DIR");
    let root = root.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let folder = root.join("ptx");
    let change = update(&folder, &PROGRAM, &Compiler::find()?)?;
    println!("{}: {change:?}", PROGRAM.name());
    Ok(())
}
