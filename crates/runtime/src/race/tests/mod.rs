//! Races of all kinds, and random programs against a model.

mod cases;
mod logged;
mod model;
mod moved;
mod program;
