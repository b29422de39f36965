//! Settings of cuDNN.

use std::sync::atomic::{AtomicBool, Ordering};

/// The cuDNN settings of a runtime (`torch.backends.cudnn`), except the precisions, which
/// [`Precision`](crate::Precision) has. Any thread may change a setting. The change applies to later
/// calls.
#[derive(Debug)]
pub struct CudnnSettings {
    enabled: AtomicBool,
    benchmark: AtomicBool,
    deterministic: AtomicBool,
}

impl Default for CudnnSettings {
    /// Returns PyTorch's defaults: enabled, with plans by heuristics.
    fn default() -> Self {
        Self {
            enabled: AtomicBool::new(true),
            benchmark: AtomicBool::new(false),
            deterministic: AtomicBool::new(false),
        }
    }
}

macro_rules! switches {
    ($($(#[$doc:meta])* $field:ident $get:ident $(#[$set_doc:meta])* $set:ident;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $get(&self) -> bool {
            self.$field.load(Ordering::Relaxed)
        }

        $(#[$set_doc])*
        pub fn $set(&self, value: bool) {
            self.$field.store(value, Ordering::Relaxed);
        }
    )*};
}

impl CudnnSettings {
    switches! {
        /// Returns whether cuDNN is used where it is found (`cudnn.enabled`). Default: `true`.
        enabled enabled
        /// Sets whether cuDNN is used where it is found. Otherwise Warpline's own kernels run.
        set_enabled;
        /// Returns whether the plan of a new convolution is chosen by trial (`cudnn.benchmark`).
        /// Default: `false`.
        benchmark benchmark
        /// Sets whether the plan of a new convolution is chosen by trial: the first call outside of
        /// captures times several plans on its operands, and waits for them. Otherwise cuDNN's
        /// heuristics choose. A plan is kept for later calls.
        set_benchmark;
        /// Returns whether cuDNN uses only plans that give the same bits in each run
        /// (`cudnn.deterministic`). Default: `false`.
        deterministic deterministic
        /// Sets whether cuDNN uses only plans that give the same bits in each run. With `benchmark`, two processes may
        /// still choose different plans.
        set_deterministic;
    }
}
