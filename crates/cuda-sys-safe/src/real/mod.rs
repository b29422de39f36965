//! The real driver: `libcuda`, found and loaded at run time.
