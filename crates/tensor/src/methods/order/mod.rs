//! The order of elements: cumulative sums and extremes, sorting, searching, reversing.

mod cumulative;
mod flip;
mod multinomial;
mod search;
mod select;
mod sort;
mod unique;

pub use search::{isin, searchsorted};
pub use sort::{SortOptions, TopkOptions};
pub use unique::UniqueOptions;
