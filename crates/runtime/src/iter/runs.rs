//! Distribution of a strided kernel's elements among threads.
//!
//! A thread takes a *run*: the elements of one vector in the innermost dimension, starting where
//! the result's vectors start. For each operand, a run is one vector, one element (broadcast), or
//! elements that lie apart.
//!
//! If an operand is denser in a different dimension than the innermost, as in a transpose, blocks take tiles of two
//! dimensions, so that whole memory sectors of all operands are read through the first-level cache. Shared memory would
//! be no faster. Grids have a thread for each run instead of threads that loop (`Variant::enqueue`).

use super::space::{Index, IterPlan, magic};
use super::walk::Dim;
use crate::{Result, cuda_struct};

/// Number of lanes of a warp.
const LANES: usize = 32;
/// Number of bits of a thread's number within its block.
const BLOCK_BITS: u32 = super::BLOCK.ilog2();

cuda_struct! {
    /// Distribution of elements among threads. Each thread takes a *run*: as many elements of the
    /// innermost dimension as a vector has. The elements of a run are adjacent in that dimension, with
    /// one exception: if the rows are long and the result's elements have gaps between them, the
    /// elements of a run are the width of a warp apart, so that the threads of a warp write neighbours.
    ///
    /// If an operand is denser in a different dimension than the innermost, a block takes a tile of two dimensions, so
    /// that it reads whole memory sectors of each operand. Otherwise runs are numbered from row to row.
    #[derive(Default, PartialEq, Eq)]
    pub struct Runs {
        /// Number of threads, some of which may have nothing to do.
        threads: u32,
        /// Whether runs begin at the vector boundaries of the result instead of at the start of each row. Set for long
        /// rows that may start between two boundaries.
        aligned: u16,
        /// Distance between the elements of a run: 1, or the number of lanes of a warp.
        apart: u16,
        /// Binary logarithm of the number of lanes of a warp that lie side by side in a tile; `warps`
        /// is the same for the warps of a block. Without tiles, `lanes` is `BLOCK_BITS` and `warps` is
        /// 0.
        lanes: u32,
        warps: u32,
        /// Number of runs per row, or with tiles, the number of tiles along each of the two
        /// dimensions.
        count: [u32; 2],
        /// Multipliers with which a GPU divides by `count`, together with `shift`.
        magic: [u32; 2],
        shift: [u32; 2],
    }
}

impl Runs {
    /// Returns the number of threads, some of which may have nothing to do.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads as usize
    }

    /// Creates the distribution over dimensions with `numel` elements in total. With `tiled`, tiles
    /// span the first two dimensions.
    fn new<const N: usize>(
        dims: &[Dim<N>],
        numel: usize,
        vector: usize,
        aligned: bool,
        tiled: bool,
    ) -> Self {
        let side_by_side = Self { apart: 1, ..Self::default() };
        let Some(&(row, strides)) = dims.first() else {
            return side_by_side.counting([1, 1], BLOCK_BITS, 0, 1);
        };
        // If the result is dense in the innermost dimension, its rows may begin between two vector boundaries. Starting
        // runs at the boundaries pays only in rows of several vectors.
        let dense = strides[N - 1] == 1 && row >= 4 * vector;
        let whole = dims[1..].iter().all(|(_, s)| s[N - 1].unsigned_abs().is_multiple_of(vector));
        let shifted = dense && !(aligned && whole);
        let mut runs = (row + if shifted { vector - 1 } else { 0 }).div_ceil(vector);
        let others = numel / row;
        let mut this = Self { aligned: shifted.into(), ..side_by_side };
        if tiled {
            let second = dims[1].0;
            let bits = |n: usize| n.next_power_of_two().ilog2();
            let rows = (BLOCK_BITS - bits(runs).min(2)).min(bits(second));
            let across = BLOCK_BITS - rows;
            let lanes = across.min(2).max(5u32.saturating_sub(rows));
            let count = [runs.div_ceil(1 << across), second.div_ceil(1 << rows)];
            let threads = (count[0] * count[1] * (others / second)) << BLOCK_BITS;
            if threads / 8 <= numel.div_ceil(vector) && threads <= i32::MAX as usize {
                return this.counting(count, lanes, across - lanes, threads);
            }
        }
        if strides[N - 1] != 1 && vector > 1 && row >= LANES * vector {
            this.apart = LANES as u16;
            runs = row.div_ceil(LANES * vector) * LANES;
        }
        let threads = runs * others;
        if threads > i32::MAX as usize {
            let runs = row.div_ceil(vector);
            return side_by_side.counting([runs, 1], BLOCK_BITS, 0, runs * others);
        }
        this.counting([runs, 1], BLOCK_BITS, 0, threads)
    }

    fn counting(self, count: [usize; 2], lanes: u32, warps: u32, threads: usize) -> Self {
        // Each count is below 2³¹, because the number of threads is.
        let count = count.map(|n| n as u32);
        let [(m0, s0), (m1, s1)] = count.map(magic);
        let threads = threads as u32;
        Self { threads, lanes, warps, count, magic: [m0, m1], shift: [s0, s1], ..self }
    }
}

impl<const N: usize> IterPlan<N> {
    /// Creates a kernel's parameters as [`IterPlan::index`] does, for a kernel whose threads take runs
    /// of `vector` elements. `start` is the result's offset in its storage, in elements. The
    /// boundaries of the result's vectors follow from `start`.
    ///
    /// # Errors
    /// [`crate::ErrorKind::TooManyDims`] if there are more dimensions than a kernel supports.
    #[track_caller]
    pub fn in_runs(mut self, op: &'static str, vector: usize, start: usize) -> Result<Index<N>> {
        let aligned = start.is_multiple_of(vector);
        let second = self.other_way();
        if let Some(d) = second {
            self.dims[1..=d].rotate_right(1);
        }
        let mut index = self.index(op)?;
        index.runs = Runs::new(&self.dims, self.numel, vector, aligned, second.is_some());
        Ok(index)
    }

    /// Returns the dimension in which an operand has a smaller stride than in the innermost dimension. If there are
    /// several such dimensions, returns the one with the smallest stride.
    fn other_way(&self) -> Option<usize> {
        let (_, inner) = self.dims.first()?;
        let denser = |(d, (_, strides)): (usize, &Dim<N>)| {
            let of = |k: usize| (strides[k].unsigned_abs(), inner[k].unsigned_abs());
            let least = (0..N).map(of).filter(|&(s, first)| s != 0 && s < first).min()?;
            Some((least.0, d))
        };
        self.dims.iter().enumerate().skip(1).filter_map(denser).min().map(|(_, d)| d)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Computes the same as `run_of` in `space.cuh`: the elements of a thread's run, for a result
    /// that begins `start` elements after a vector boundary.
    fn run_of<const N: usize>(
        p: &Index<N>,
        dims: &[Dim<N>],
        i: u32,
        v: usize,
        start: usize,
    ) -> Vec<[isize; N]> {
        let over = |i: u32, m: u32, s: u32| (((u64::from(i) * u64::from(m)) >> 32) as u32 + i) >> s;
        let r = &p.runs;
        let (mut x, mut y, mut next) = (i, 0, over(i, r.magic[0], r.shift[0]));
        let across = r.lanes + r.warps;
        if across < 8 {
            let (lane, warp) = (i % 32, i / 32 % 8);
            let tile = i / 256;
            let first = over(tile, r.magic[0], r.shift[0]);
            next = over(first, r.magic[1], r.shift[1]);
            x = (tile - first * r.count[0]) << across;
            x |= (warp & ((1 << r.warps) - 1)) << r.lanes | (lane & ((1 << r.lanes) - 1));
            y = (first - next * r.count[1]) << (8 - across);
            y |= (warp >> r.warps) << (5 - r.lanes) | lane >> r.lanes;
            if y as usize >= dims[1].0 {
                return Vec::new();
            }
        } else {
            x -= next * r.count[0];
        }
        let (mut rest, mut at) = (next as usize, [0isize; N]);
        for (d, (size, strides)) in dims.iter().enumerate().skip(1) {
            let step = if across < 8 && d == 1 { y as usize } else { rest % size };
            rest = if across < 8 && d == 1 { rest } else { rest / size };
            (0..N).for_each(|k| at[k] += step as isize * strides[k]);
        }
        let head =
            if r.aligned != 0 { (start as isize + at[N - 1]).rem_euclid(v as isize) } else { 0 };
        let apart = u32::from(r.apart);
        let first = (x & !(apart - 1)) as isize * v as isize + (x & (apart - 1)) as isize - head;
        let row = dims.first().map_or((1, [0; N]), |&d| d);
        (0..v as isize)
            .map(|k| first + k * apart as isize)
            .filter(|&x| x >= 0 && x < row.0 as isize)
            .map(|x| std::array::from_fn(|k| at[k] + x * row.1[k]))
            .collect()
    }

    proptest! {
        #[test]
        fn runs_cover_every_element_once(
            sizes in prop::collection::vec(prop::sample::select(vec![1usize, 2, 3, 5, 33, 64, 70, 300]), 0..4),
            vector in prop::sample::select(vec![1usize, 2, 4, 8]),
            start in 0usize..8,
            first in any::<prop::sample::Index>(),
            gap in 0usize..3,
            step in 1isize..3,
        ) {
            prop_assume!(sizes.iter().product::<usize>() <= 70_000);
            // The operand's dimensions lie in a different order than the result's.
            let mut order: Vec<usize> = (0..sizes.len()).collect();
            if !order.is_empty() {
                let n = order.len();
                order.rotate_left(first.index(n));
            }
            let mut strides = [vec![0isize; sizes.len()], vec![0isize; sizes.len()]];
            let mut next = [1isize, step];
            for d in (0..sizes.len()).rev() {
                (strides[0][order[d]], strides[1][d]) = (next[0], next[1]);
                next = [next[0] * sizes[order[d]] as isize, next[1] * (sizes[d] + gap) as isize];
            }
            let plan = IterPlan::new(&sizes, [&strides[0], &strides[1]]);
            let index = plan.clone().in_runs("test", vector, start).unwrap();
            let dims: Vec<Dim<2>> =
                (0..index.ndim()).map(|d| (index.size(d), index.strides(d))).collect();
            let mut runs: Vec<[isize; 2]> = (0..index.runs.threads)
                .flat_map(|i| run_of(&index, &dims, i, vector, start))
                .collect();
            let mut all: Vec<[isize; 2]> = (0..index.numel()).map(|i| index.offsets(i)).collect();
            runs.sort_unstable();
            all.sort_unstable();
            prop_assert_eq!(runs, all);
        }
    }

    #[test]
    fn tiles_are_used_where_an_operand_is_transposed() {
        let of = |sizes: &[usize], a: &[isize], out: &[isize]| {
            IterPlan::new(sizes, [a, out]).in_runs("test", 4, 0).unwrap().runs
        };
        // Both operands are row-major, and the first has gaps between its rows. There are no tiles.
        let rows = of(&[100, 64], &[80, 1], &[64, 1]);
        assert_eq!((rows.threads, rows.lanes, rows.aligned), (1600, 8, 0));
        // One operand is transposed: a tile has 4 runs of 4 elements in each of 64 rows.
        let tiles = of(&[128, 64], &[1, 128], &[64, 1]);
        assert_eq!((tiles.threads, tiles.lanes, tiles.warps), (128 * 64 / 4, 2, 0));
        assert_eq!(tiles.count, [4, 2]);
        // The result has 3 rows, so a tile has 4 rows, the next power of two.
        let planes = of(&[3, 1000], &[1, 3], &[1000, 1]);
        assert_eq!((planes.lanes, planes.warps, planes.count), (3, 3, [4, 1]));
        // The rows begin between vector boundaries, so the first and the last run of a row may be
        // cut.
        let odd = of(&[100, 65], &[80, 1], &[65, 1]);
        assert_eq!((odd.threads, odd.aligned, odd.apart), (1700, 1, 1));
        // The result has stride 2: each of the four writes of a warp stores 32 consecutive
        // elements.
        let strided = of(&[2, 300], &[300, 1], &[700, 2]);
        assert_eq!((strided.threads, strided.apart, strided.count), (2 * 96, 32, [96, 1]));
    }

    #[test]
    fn tiles_whose_thread_count_overflows_are_not_used() {
        let plan = IterPlan::new(&[1 << 27, 2, 2], [&[4, 1, 2], &[4, 2, 1]]);
        let runs = plan.in_runs("test", 1, 0).unwrap().runs;
        assert_eq!((runs.lanes, runs.threads), (8, 1 << 29));
    }
}
