//! Ops of another crate than Warpline's. `embedding_bag` needs `warpline-runtime` alone.

pub mod embedding_bag;
#[cfg(test)]
mod squareplus;
#[cfg(test)]
mod tests;
