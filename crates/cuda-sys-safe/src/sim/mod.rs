//! The simulated driver: CUDA devices in host memory.
