//! Compiles the CUDA source of the op by NVRTC, where it or its PTX has changed.

use std::path::Path;

use custom_op::embedding_bag::PROGRAM;
use warpline_runtime::module::{Compiler, update};

fn main() -> warpline_runtime::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("ptx");
    let change = update(&folder, &PROGRAM, &Compiler::find()?)?;
    println!("{}: {change:?}", PROGRAM.name());
    Ok(())
}
