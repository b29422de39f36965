//! Blocks that share a result: each leaves its part in scratch memory, and the last block to finish
//! folds all parts.
//!
//! The blocks count themselves in that scratch memory, which holds arbitrary bytes at first. The
//! first block writes the launch's number there, which no other launch has. So nothing has to be
//! cleared, and one launch is enough.
//!
//! Reductions, and the gradients of layer norms' weights and biases, share results this way.

use std::sync::atomic::{AtomicU64, Ordering};

use warpline_runtime::{DType, Layout, Operand, Result, Runtime, Storage, Stream, View};

/// How blocks find out which of them is the last.
pub(crate) const TURN: &str = include_str!("turn.cuh");

/// A number that no other launch of the process has: blocks that share results count themselves in
/// memory that holds anything, and what they find there is theirs if it has this number. The lower 16
/// bits are the count.
pub(crate) fn ticket() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // An odd factor keeps numbers apart, and unlike those that memory is full of.
    NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15) << 16
}

/// Words of eight bytes that hold anything: counters, and what blocks leave.
#[derive(Debug)]
pub(crate) struct Scratch {
    storage: Storage,
    layout: Layout,
}

impl Scratch {
    #[track_caller]
    pub(crate) fn new(runtime: &Runtime, stream: &Stream, words: usize) -> Result<Self> {
        let storage = Storage::device(runtime, words * 8, stream)?;
        Ok(Self { storage, layout: Layout::contiguous(&[words])? })
    }

    /// As an operand. Where there is none, nothing of `out` stands for it.
    pub(crate) fn operand<'a>(scratch: Option<&'a Self>, out: View<'a>) -> Operand<'a> {
        match scratch {
            Some(Self { storage, layout }) => {
                View { storage, layout, dtype: DType::I64 }.read_write()
            }
            None => View { dtype: DType::I64, ..out }.untouched(),
        }
    }
}
