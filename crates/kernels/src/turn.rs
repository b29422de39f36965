//! Blocks that share a result: each block writes its partial result to scratch memory, and the last
//! block to finish combines all of them.
//!
//! The blocks count their arrivals in that scratch memory, which is not initialized. Each launch
//! has a unique ticket. The first block to arrive replaces the arbitrary bytes by the ticket, so no
//! launch has to clear the counters, and one launch is enough.
//!
//! Reductions, batch norm, the gradients of layer-norm weights and biases, and attention of few
//! queries share results this way.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::scratch::ScratchTensor;
use warpline_runtime::{DType, Operand, View};

/// CUDA function that tells a block whether it is the last to finish.
pub(crate) const TURN: &str = include_str!("turn.cuh");

/// Returns a ticket that no other launch of the process has. A counter in uninitialized scratch
/// memory is valid if its upper 48 bits equal the ticket. The lower 16 bits hold the count.
pub(crate) fn ticket() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // An odd factor keeps tickets distinct and makes them unlikely to equal leftover memory
    // contents.
    NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) << 16
}

/// Returns the operand for the scratch memory, in words of eight bytes: arrival counters, then
/// partial results. If the launch needs no scratch memory, returns `out` as an operand that the
/// kernel does not touch.
pub(crate) fn scratch_operand<'a>(
    scratch: Option<&'a ScratchTensor>,
    out: View<'a>,
) -> Operand<'a> {
    match scratch {
        Some(scratch) => scratch.view().read_write(),
        None => View { dtype: DType::I64, ..out }.untouched(),
    }
}
