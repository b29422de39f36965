//! Sorting of pairs in scratch memory, for long rows and for random permutations on a GPU.

use warpline_cuda_sys_safe::HostLaunch;

use crate::programs::kernels;
use warpline_runtime::host::SharedPtr;
use warpline_runtime::launch::{Grid, Kernel};
use warpline_runtime::module::{Program, Source};
use warpline_runtime::{Result, Target, View, cuda_struct};

/// Number of pairs that one block sorts in shared memory. The block has half as many threads.
pub(crate) const TILE: usize = 2048;

cuda_struct! {
    /// A key and an index. Pairs are ordered by key, then by index.
    #[derive(PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) struct SortPair {
        pub(crate) key: u64,
        pub(crate) index: u64,
    }
}

cuda_struct! {
    /// A pass over `pairs` pairs in rows of `padded` pairs. The pass is a step of a merge to sorted
    /// runs of `size` pairs; it compares pairs that are `distance` apart.
    struct Pass {
        pairs: u64,
        padded: u64,
        size: u64,
        distance: u64,
    }
}

// SAFETY, for the three kernels: only `sort_pairs` makes `Pass`es, with the number of pairs of the
// launch. Its callers pass whole rows, and the number of pairs of a row is a power of two, so each
// pair belongs to one thread.
kernels! {
    pub(super) PASSES = "sort_passes", &[""], |_, _| {
        let of = Source::new().with::<Pass>().with::<SortPair>().push(&format!("#define TILE {TILE}"));
        of.push(include_str!("pairs.cuh")).push(include_str!("passes.cuh"))
    } => {
        unsafe TILES: Kernel<Pass, 1> = any self::sort_passes_tiles;
        unsafe LATER: [Kernel<Pass, 1>; 2] = any self::sort_passes[step, merge];
    }
}

/// Sorts each row of `pairs` on a GPU, for the op `op`. A row has `padded` pairs, which must be a
/// power of two and at least [`TILE`]. `pairs` must be contiguous, have two `int64` elements per
/// pair, and consist of whole rows.
///
/// # Errors
/// The errors of [`Kernel::launch`].
#[track_caller]
pub(crate) fn sort_pairs(
    target: Target<'_>,
    op: &'static str,
    pairs: View<'_>,
    padded: usize,
) -> Result<()> {
    const THREADS: usize = 256;
    let count = pairs.numel() / 2;
    let both = [pairs.read_write()];
    let tiles = Grid::linear(count / TILE, TILE as u32 / 2);
    let mut pass = Pass { pairs: count as u64, padded: padded as u64, size: 0, distance: 0 };
    let [step, merge] = &LATER;
    TILES.launch(target, op, &both, &pass, tiles)?;
    for size in (TILE.ilog2() + 1..=padded.ilog2()).map(|log| 1usize << log) {
        pass.size = size as u64;
        let mut distance = size / 2;
        while distance >= TILE {
            pass.distance = distance as u64;
            let grid = Grid::linear(count / 2 / THREADS, THREADS as u32);
            step.launch(target, op, &both, &pass, grid)?;
            distance /= 2;
        }
        merge.launch(target, op, &both, &pass, tiles)?;
    }
    Ok(())
}

/// Sorts whole rows, so that the later passes have nothing to do.
///
/// # Safety
/// The conditions of [`warpline_cuda_sys_safe::HostKernel`]. The operand consists of pairs.
unsafe fn sort_passes_tiles(launch: &HostLaunch<'_>, p: &Pass) {
    let pairs = SharedPtr::<SortPair>::operand(launch, 0);
    // SAFETY: the operand has `p.pairs` pairs, and no other thread accesses them meanwhile.
    let pairs = unsafe { std::slice::from_raw_parts_mut(pairs.0, p.pairs as usize) };
    pairs.chunks_exact_mut(p.padded as usize).for_each(<[SortPair]>::sort_unstable);
}

/// The CPU implementation of the later passes, which does nothing: [`sort_passes_tiles`] has
/// already sorted whole rows.
unsafe fn sort_passes(_: &HostLaunch<'_>, _: &Pass) {}
