//! `warpline-alloc` in a program of cudarc's: the program's own context, streams and launches, on memory
//! of a caching allocator.
//!
//! [`Cudarc`] is the backend, as the crate's README shows it; `pages.rs` is what it may offer beyond that,
//! for the allocator's default policy. [`program::run`] is a program that uses it.

#[rustfmt::skip] // as the README shows it
mod backend;
mod pages;
pub mod program;

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};

pub use backend::{Cudarc, Memory};

/// cudarc's context of a device.
///
/// # Errors
/// Where there is no driver, or no such device.
pub fn open(ordinal: usize) -> Result<Arc<CudaContext>, Box<dyn Error>> {
    // SAFETY: it loads libcuda, which any call of cudarc's does.
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
