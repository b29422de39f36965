//! Ops that write or add elements at indices: `scatter`, `index_add` and related ops.
//!
//! Elements are added in a fixed order unless this takes too long. In `index_add` and the gradient
//! of an embedding, each block computes some rows of the result and searches all indices for these
//! rows. In `scatter`, each element of the result, or each line along the indexed dimension, belongs
//! to one thread, which goes through the indices. `index_add` and `scatter` use atomics, in any order,
//! if this would take too long.
//!
//! An index out of range, which includes a negative index, causes [`ErrorKind::IndexCheck`] and
//! marks the result as invalid. The kernel skips the element of this index. Only [`linear_index`]
//! accepts negative indices, which count from the end, and computes with 0 in the place of an index
//! out of range.

mod cpu;
mod elements;
mod index_add;
mod linear;

#[cfg(doc)]
use warpline_runtime::ErrorKind;
use warpline_runtime::module::Program;
use warpline_runtime::{DType, Result, View};

pub use elements::{Reduce, scatter};
pub use index_add::{embedding_backward, index_add, index_add_as};
pub use linear::linear_index;

pub(crate) const PROGRAMS: &[&Program] =
    &[&elements::SCATTER, &elements::SCATTER_REDUCE, &index_add::INDEX_ADD, &linear::LINEAR];

#[track_caller]
fn check_index_dtype(op: &'static str, index: View<'_>) -> Result<()> {
    index.check_operand_dtype(op, "the index", DType::I64)
}
