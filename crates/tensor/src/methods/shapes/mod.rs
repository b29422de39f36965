//! Shapes: views with other sizes and strides, functions that split, join, repeat and rotate tensors, and diagonals and
//! triangles of matrices.

mod diagonals;
mod join;
mod repeat;
mod rotate;
mod split;
mod strided;
mod triangles;

pub(crate) use split::list;

pub use diagonals::{DiagEmbedOptions, block_diag};
pub use join::{MeshIndexing, cat, dstack, hstack, meshgrid, stack, vstack};
pub use rotate::Rot90Options;
pub use strided::DiagonalOptions;
pub use triangles::{tril_indices, triu_indices};
