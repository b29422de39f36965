//! Tests of ops by their public functions, which run on every target. Unit tests in `src/` are few, because they compile
//! the CPU kernels that they reach a second time.

mod any_view;
mod attention;
mod batch_norm;
mod cat;
mod collective;
mod columns;
mod conv;
mod copy;
mod elementwise;
mod fill;
mod indexing;
mod indexing_wide;
mod kv_cache;
mod loss;
mod matmul;
mod normalization;
mod optim;
mod placed;
mod pool;
mod programs;
mod random;
mod reduce;
mod reduce_loops;
mod resample;
mod rotary;
mod scan;
mod scatter;
mod softmax;
