//! Ops in a crate outside Warpline. Of Warpline's crates, `embedding_bag` needs only `warpline-runtime`.

pub mod embedding_bag;
#[cfg(test)]
mod squareplus;
#[cfg(test)]
mod tests;
