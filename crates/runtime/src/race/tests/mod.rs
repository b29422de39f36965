//! Tests of single races, and of random programs against a model.

mod cases;
mod logged;
mod model;
mod moved;
mod program;
