//! The order of elements: cumulative sums, products and extremes, sorting, ranks, searching, distinct values, reversing
//! and shifting. Also random indices.

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
