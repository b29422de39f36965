//! `warpline-alloc` in a program that uses cudarc: the context, streams and launches are the
//! program's own, and the memory comes from a caching allocator.
//!
//! [`Cudarc`] is the backend, the same text as in the crate's README. `pages.rs` adds virtual
//! memory, which the allocator's default policy uses. [`program::run`] is a program over both.

#[rustfmt::skip] // as the README shows it
mod backend;
mod pages;
pub mod program;

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};

pub use backend::{Cudarc, Memory};

/// Opens the context of a device.
///
/// # Errors
/// A message if there is no CUDA driver, and cudarc's error if the device does not exist.
pub fn open(ordinal: usize) -> Result<Arc<CudaContext>, Box<dyn Error>> {
    // SAFETY: the check only loads libcuda, as every later call of cudarc does.
    if !unsafe { sys::is_culib_present() } {
        return Err("there is no CUDA driver (libcuda) here".into());
    }
    Ok(CudaContext::new(ordinal)?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_readme_shows_the_backend() {
        let source = include_str!("backend.rs");
        let backend = &source[source.find("pub struct").unwrap()..];
        assert!(
            include_str!("../../../README.md").contains(&format!("```rust,ignore\n{backend}```\n")),
            "the README of warpline-alloc shows another backend than src/backend.rs:\n{backend}"
        );
    }
}
