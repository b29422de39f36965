//! The categories of ops in a region of autocast, by PyTorch's lists (`ATen/autocast_mode.h`).

/// Treatment of the operands of an op in a region of autocast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Converts `float32` and halves to the region's dtype.
    Low,
    /// Converts halves to `float32`.
    F32,
    /// Converts `float32` and halves to the dtype to which they promote together with the region's dtype.
    Widest,
    /// Fails. Only for `binary_cross_entropy`, which is not safe in the region's dtype.
    Refuse,
    /// Leaves operands as they are. The inner ops of this op have policies of their own.
    Keep,
    /// Leaves operands as they are, also in the inner ops of this op, because PyTorch computes this op in one kernel.
    KeepAll,
}
