//! The order of elements: running sums and extremes, sorting, searching, turning round.

mod cumulative;
mod multinomial;
mod search;
mod select;
mod sort;
mod turn;
mod unique;

pub use search::{isin, searchsorted};
