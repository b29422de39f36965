//! Placeholder until its layer lands.
