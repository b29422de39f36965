//! The text of a module's CUDA source.

use std::fmt::Write;

use super::{CudaType, Definitions};
use crate::DType;

/// Element types in memory and what they are computed in, conversion, scalar operands.
pub const ELEMENT: &str = include_str!("../cuda/element.cuh");
/// `check_index`, by which a kernel says that a check failed, of parameters that begin with a
/// [`Report`](crate::launch::Report).
pub const REPORT: &str = include_str!("../cuda/report.cuh");
/// The elements that a kernel of the iteration layer goes over; after [`ELEMENT`].
pub const SPACE: &str = include_str!("../cuda/space.cuh");

/// Where elements of a [`Walk`](crate::iter::Walk) lie.
pub const WALK: &str = include_str!("../cuda/walk.cuh");
/// Where random ops start, from the [`Place`](crate::graph::Place) that they are given.
pub const PHILOX: &str = include_str!("../cuda/philox.cuh");

/// What every source begins with: names for numbers' types, as Rust calls them, and dtypes' codes.
const TYPES: &str = include_str!("../cuda/types.cuh");

/// CUDA source that includes nothing: types' names, generated structs, then text in the order in
/// which it was added.
#[derive(Debug, Default)]
pub struct Source {
    definitions: Definitions,
    body: String,
}

impl Source {
    /// The types' names and nothing else yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Defines a struct, and those that it holds, before all text.
    #[must_use]
    pub fn with<T: CudaType>(mut self) -> Self {
        T::define(&mut self.definitions);
        self
    }

    /// Adds text.
    #[must_use]
    pub fn push(mut self, text: &str) -> Self {
        self.body += text;
        self.body.push('\n');
        self
    }

    /// All of it.
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
