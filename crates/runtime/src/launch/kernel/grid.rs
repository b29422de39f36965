//! Grids of kernels.

use crate::launch::blocks;

/// Number of blocks and threads of a launch. Not used on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub(super) blocks: [u32; 3],
    pub(super) threads: u32,
}

impl Grid {
    /// Creates a grid with `blocks` blocks in x, y and z, and `threads` threads per block.
    #[inline]
    #[must_use]
    pub const fn new(blocks: [u32; 3], threads: u32) -> Self {
        Self { blocks, threads }
    }

    /// Creates a grid with `count` blocks in x and `threads` threads per block. If a GPU does not
    /// support that many blocks, the launch fails (see [`blocks`]).
    #[inline]
    #[must_use]
    pub fn linear(count: usize, threads: u32) -> Self {
        Self::new([blocks(count), 1, 1], threads)
    }

    /// Creates a grid with enough blocks in x for `count` threads in total. If there are too many
    /// for a GPU, the launch fails, as for [`Grid::linear`].
    #[inline]
    #[must_use]
    pub fn cover(count: usize, threads: u32) -> Self {
        Self::linear(count.div_ceil(threads as usize), threads)
    }
}
