//! A driver that does nothing, to measure what the layers above it cost.
