//! An op of another crate than Warpline's, on `warpline-runtime` alone.

pub mod embedding_bag;
#[cfg(test)]
mod tests;
