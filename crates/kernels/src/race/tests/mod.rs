//! Races of all kinds, and random programs against a model.

mod cases;
mod model;
