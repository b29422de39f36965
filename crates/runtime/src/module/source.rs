//! The text of a module's CUDA source.

use std::fmt::Write;

use super::{CudaType, Definitions};
use crate::DType;

/// CUDA source of element types in memory and in arithmetic, of conversions, and of scalar operands.
pub const ELEMENT: &str = include_str!("../cuda/element.cuh");
/// CUDA source of the function `check_index`. A kernel reports failed checks with this function, and
/// the kernel's parameters begin with a [`Report`](crate::launch::Report).
pub const REPORT: &str = include_str!("../cuda/report.cuh");
/// CUDA source of functions that find the elements that a kernel of the iteration layer visits. Push
/// it after [`ELEMENT`].
pub const SPACE: &str = include_str!("../cuda/space.cuh");

/// CUDA source of the function `walk`, which computes offsets from a [`Walk`](crate::iter::Walk).
pub const WALK: &str = include_str!("../cuda/walk.cuh");
/// CUDA source of the function `resolve`, which computes the starting point of a random op from a
/// [`PhiloxState`](crate::graph::PhiloxState).
pub const PHILOX: &str = include_str!("../cuda/philox.cuh");

/// CUDA source at the start of every [`Source`]: Rust's names of number types.
const TYPES: &str = include_str!("../cuda/types.cuh");

/// CUDA source without includes: type names, the dtypes' codes, generated structs, then text in the
/// order of [`Source::push`] calls.
#[derive(Debug, Default)]
pub struct Source {
    definitions: Definitions,
    body: String,
}

impl Source {
    /// Creates a source with only the type names and the dtypes' codes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the definition of a struct, and of the structs that it contains, before all text.
    #[must_use]
    pub fn with<T: CudaType>(mut self) -> Self {
        T::define(&mut self.definitions);
        self
    }

    /// Appends text.
    #[must_use]
    pub fn push(mut self, text: &str) -> Self {
        self.body += text;
        self.body.push('\n');
        self
    }

    /// Returns the complete source text.
    #[must_use]
    pub fn text(self) -> String {
        let mut text = TYPES.to_owned();
        for dtype in DType::ALL {
            let _ = writeln!(text, "#define DTYPE_{} {}", dtype.suffix(), dtype as u8);
        }
        text += &self.definitions.into_text();
        text + &self.body
    }
}
