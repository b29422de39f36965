//! Collectives on simulated devices.
