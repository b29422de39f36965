//! The categories of ops in a region, by PyTorch's lists (`ATen/autocast_mode.h`).

/// Treatment of the operands of an op in a region of autocast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// Converts `float32` and halves to the region's dtype.
    Low,
    /// Converts halves to `float32`.
    F32,
    /// Converts `float32` and halves to the dtype to which they promote together.
    Widest,
    /// Fails, because the op is not safe in the region's dtype.
    Refuse,
    /// Leaves operands as they are. The inner ops of this op have policies of their own.
    Keep,
    /// Leaves operands as they are, also in the inner ops of this op, because PyTorch computes this op in one kernel.
    KeepAll,
}

use Policy::{F32, Keep, KeepAll, Low, Refuse, Widest};

/// Name of an op, its policy on GPUs and its policy on the CPU, in the order of names. Ops that are missing here keep
/// their operands. An op that computes by calling ops of this list, such as `softmin`, needs no line, because the
/// called ops convert their operands.
const POLICIES: &[(&str, Policy, Policy)] = &[
    ("acos", F32, Keep),
    ("adaptive_avg_pool3d", Keep, F32),
    ("adaptive_max_pool3d", Keep, F32),
    ("addcdiv", Widest, Keep),
    ("addcmul", Widest, Keep),
    ("addmm", Low, Low),
    ("addmv", Low, KeepAll),
    ("asin", F32, Keep),
    ("atan2", Widest, Keep),
    ("avg_pool3d", Keep, F32),
    ("baddbmm", Low, Low),
    ("binary_cross_entropy", Refuse, F32),
    ("binary_cross_entropy_with_logits", F32, F32),
    ("bmm", Low, Low),
    ("cdist", F32, F32),
    ("conv1d", Low, Low),
    ("conv2d", Low, Low),
    ("conv3d", Low, Low),
    ("conv_transpose1d", Low, Low),
    ("conv_transpose2d", Low, Low),
    ("conv_transpose3d", Low, Low),
    ("cosh", F32, Keep),
    ("cosine_similarity", F32, Keep),
    ("cross_entropy", F32, F32),
    ("cumprod", F32, Keep),
    ("cumsum", F32, Keep),
    ("dot", Widest, KeepAll),
    ("einsum", Low, Keep),
    ("erfinv", F32, Keep),
    ("exp", F32, Keep),
    ("expm1", F32, Keep),
    ("group_norm", F32, Keep),
    ("huber_loss", F32, F32),
    ("index_copy", Keep, Widest),
    ("index_put", Widest, Keep),
    ("interpolate", F32, Keep),
    ("kl_div", F32, F32),
    ("l1_loss", F32, F32),
    ("layer_norm", F32, Keep),
    ("linear", Low, Low),
    ("log", F32, Keep),
    ("log10", F32, Keep),
    ("log1p", F32, Keep),
    ("log2", F32, Keep),
    ("log_softmax", F32, Keep),
    ("logsumexp", F32, Keep),
    ("matmul", Low, Low),
    ("max_pool3d", Keep, F32),
    ("mm", Low, Low),
    ("mse_loss", F32, F32),
    ("mv", Low, KeepAll),
    ("nll_loss", F32, F32),
    ("norm", F32, Keep),
    ("normalize", F32, Keep),
    ("pow", F32, Keep),
    ("prod", F32, F32),
    ("reciprocal", F32, Keep),
    ("reflection_pad", Keep, F32),
    ("rsqrt", F32, Keep),
    ("scaled_dot_product_attention", Low, Low),
    ("scatter_add", Widest, Keep),
    ("sinh", F32, Keep),
    ("smooth_l1_loss", F32, F32),
    ("softmax", F32, Keep),
    ("softplus", F32, Keep),
    ("square", F32, Keep),
    ("sum", F32, Keep),
    ("tan", F32, Keep),
    ("tensordot", Widest, Keep),
    ("trace", Keep, F32),
];

/// Returns whether an op is in the table.
pub(crate) fn has_policy(op: &str) -> bool {
    POLICIES.binary_search_by_key(&op, |entry| entry.0).is_ok()
}

/// Returns the policy of an op.
pub(super) fn policy(op: &str, on_gpu: bool) -> Policy {
    match POLICIES.binary_search_by_key(&op, |entry| entry.0) {
        Ok(found) if on_gpu => POLICIES[found].1,
        Ok(found) => POLICIES[found].2,
        Err(_) => Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_unique() {
        assert!(POLICIES.is_sorted_by(|a, b| a.0 < b.0));
    }
}
