//! Comparisons.

use crate::elementwise_ops as ops;

ops! {
    // SAFETY: the CUDA expressions access only their operands.
    unsafe ptx crate::programs::committed;

    /// `torch.eq`.
    EQ = "eq"(x, y), ALL => Bool, Keep, "x == y", { all => x == y }
    /// `torch.ne`.
    NE = "ne"(x, y), ALL => Bool, Keep, "x != y", { all => x != y }
    /// `torch.lt`.
    LT = "lt"(x, y), ALL => Bool, Keep, "x < y", { all => x < y }
    /// `torch.le`.
    LE = "le"(x, y), ALL => Bool, Keep, "x <= y", { all => x <= y }
    /// `torch.gt`.
    GT = "gt"(x, y), ALL => Bool, Keep, "x > y", { all => x > y }
    /// `torch.ge`.
    GE = "ge"(x, y), ALL => Bool, Keep, "x >= y", { all => x >= y }
}
