//! Elements written, or added to others, where indices say: `scatter`, `index_add` and their like.
//!
//! Sums have a fixed order wherever that is cheap. A block of `index_add` owns rows of the result
//! and searches all indices for its own; the gradient of an embedding always runs this way.
//! `scatter` gives each element of the result one thread. Atomics are used only where that would be
//! too much work.
//!
//! An index that is out of range, as negative ones are, is reported as [`ErrorKind::IndexCheck`] says,
//! and marks the result; its element is left out.

mod elements;
mod index_add;
mod linear;
#[cfg(test)]
mod tests;

use std::panic::Location;

use warpline_runtime::module::Program;
use warpline_runtime::{DType, Error, ErrorKind, Result, View};

pub use elements::{Reduce, scatter};
pub use index_add::{embedding_backward, index_add, index_add_as};
pub use linear::linear_index;

pub(crate) const PROGRAMS: &[&Program] =
    &[&elements::SCATTER, &elements::SCATTER_REDUCE, &index_add::INDEX_ADD, &linear::LINEAR];

#[track_caller]
fn check_index_dtype(op: &'static str, index: View<'_>) -> Result<()> {
    if index.dtype == DType::I64 {
        return Ok(());
    }
    Err(Error::invalid(op, format!("the indices are {}; they must be int64", index.dtype)))
}

#[track_caller]
fn check_same_dtype(op: &'static str, out: View<'_>, source: View<'_>) -> Result<()> {
    if out.dtype == source.dtype {
        return Ok(());
    }
    let (location, expected, actual) = (Location::caller(), out.dtype, source.dtype);
    Err(ErrorKind::DTypeMismatch { expected, actual }.of(op).at(location))
}
