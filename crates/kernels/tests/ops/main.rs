//! Tests of the ops' public functions on every target. Unit tests in `src/` are few, because they compile the CPU
//! kernels that they reach a second time.

/// Asserts that a call fails with an error of this kind, and of this op if one is given.
macro_rules! fails {
    ($call:expr, $op:literal: $kind:pat) => {
        let error = $call.unwrap_err();
        assert!(matches!((error.op(), error.kind()), ($op, $kind)), "{error}");
    };
    ($call:expr, $kind:pat) => {
        let error = $call.unwrap_err();
        assert!(matches!(error.kind(), $kind), "{error}");
    };
}

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
mod sort;
