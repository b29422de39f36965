//! Plans a reduction: which elements each result has, and how the work is distributed over threads
//! and blocks.
//!
//! Each fold has three programs. *rows* loads vectors of neighbouring elements of one result.
//! *columns* loads vectors of elements that belong to neighbouring results. *strided* loads single
//! elements, for any strides and number of dimensions. Each program has a second kernel (`_split`)
//! for blocks that share a result. The kernels are separate because the second is a third longer,
//! and the driver takes a third longer to compile it. To keep the code short, the kernels load up to
//! four vectors at a time but fold only one or two at a time, in a loop.
//!
//! The plan chooses three numbers: the threads per result, the blocks that share each run of a
//! result, and the blocks that share the segments of a result. Blocks that share a result write
//! partial results to scratch memory, and the last block folds these in the order of the blocks
//! (`turn.rs`). Sums are therefore the same in each run.

use bytemuck::Zeroable;
use smallvec::SmallVec;

use warpline_runtime::cuda_struct;
use warpline_runtime::iter::{Dim, Walk, magic};
use warpline_runtime::{Error, ErrorKind, Result, View};

cuda_struct! {
    /// The parameters of every reduction.
    ///
    /// A result has `segments` segments. Each is a run of `run` elements with a common stride; the
    /// last run may be shorter. Blocks in y share each run, and blocks in z process different
    /// segments.
    pub(super) struct Plan {
        /// Threads per result, or per vector of results. `across` of them share a run.
        pub(super) lanes: u32,
        pub(super) across: u32,
        pub(super) run: u32,
        pub(super) last_run: u32,
        pub(super) segments: u32,
        /// Segments per block.
        pub(super) segment_chunk: u32,
        pub(super) outputs: u64,
        /// Distance between neighbouring segments if at most two dimensions are reduced. Otherwise 0,
        /// and the kernel computes the position of a segment from the dimensions of `reduced`,
        /// beginning with dimension `outer`.
        pub(super) segment_stride: i64,
        /// The first two dimensions of `kept`.
        pub(super) two: Two,
        /// The launch's ticket (`turn.rs`), which the counters of blocks that share a result
        /// contain.
        pub(super) ticket: u64,
        /// Factor of a sum.
        pub(super) scale: f64,
        /// The bits of the neutral element, which changes no result, repeated to fill eight bytes.
        pub(super) neutral: u64,
        /// All bits set if the kernel flips the elements and the result, as for a minimum.
        /// Otherwise 0.
        pub(super) flip: u32,
        /// 1 if neighbouring threads work on neighbouring results, 0 if they work on the same
        /// result.
        pub(super) outs_first: u32,
        pub(super) outer: u64,
        /// Elements per result. The CUDA kernels do not read this field and the next two.
        pub(super) extent: u64,
        /// Divisor of a sum.
        pub(super) divisor: f64,
        pub(super) result_dtype: u64,
        /// Dimensions that are kept, with the strides of source and result.
        pub(super) kept: Walk<2>,
        /// Dimensions that are reduced, with the strides of the source.
        pub(super) reduced: Walk<1>,
    }
}

cuda_struct! {
    /// The positions of results in at most two dimensions. Kernels that load vectors read this copy
    /// instead of the [`Walk`], because a kernel waits for each line of 64 bytes of its parameters
    /// that it reads, and the fields of a walk are in different lines.
    pub(super) struct Two {
        /// Size of the inner dimension.
        pub(super) size: u32,
        /// Multiplier for the division by `size` on a GPU. `shift` is its shift.
        pub(super) magic: u32,
        pub(super) shift: u64,
        /// Strides of source and result, those of the inner dimension first.
        pub(super) strides: [[i64; 2]; 2],
    }
}

impl Two {
    fn new(kept: &Walk<2>) -> Self {
        let (size, inner) = kept.inner();
        let outer = kept.dims().nth(1).map_or([0; 2], |(_, strides)| strides);
        // On a GPU there are fewer than 2³¹ results, so the size fits 32 bits.
        let (magic, shift) = magic(size as u32);
        let strides = std::array::from_fn(|k| [inner[k] as i64, outer[k] as i64]);
        Self { size: size as u32, magic, shift: shift.into(), strides }
    }
}

/// The access pattern of a kernel. Each pattern has its own program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Vectors of neighbouring elements of one result.
    Rows,
    /// Vectors of elements that belong to neighbouring results.
    Columns,
    /// Single elements, with any strides.
    Strided,
}

/// Returns the number of elements per vector load, as `reduce.cuh` defines it: 8 elements of one
/// byte, otherwise 16 bytes but at most `most` elements.
pub(super) const fn vector(item_size: usize, most: usize) -> usize {
    match item_size {
        1 => 8,
        _ if 16 / item_size < most => 16 / item_size,
        _ => most,
    }
}

/// Maximum length of a run, and maximum number of segments, because kernels count them in 32 bits.
const MAX_COUNT: u64 = 1 << 30;
/// A launch on a GPU has fewer results than this. A reduction with as many or more results is divided
/// into several launches (`halves`).
pub(super) const RESULTS_LIMIT: u64 = 1 << 31;

impl Access {
    /// Returns the desired number of loads per thread, for a result that takes `loads` loads in
    /// all.
    const fn share(self, loads: u64) -> u64 {
        match self {
            Self::Rows if loads >= 2048 => 32,
            Self::Rows | Self::Columns => 16,
            Self::Strided => 8,
        }
    }

    /// Returns the minimum number of threads per result if blocks share results. The split kernels
    /// rely on this minimum.
    fn lanes_to_split(self, item_size: usize) -> u64 {
        match self {
            Self::Rows => BLOCK.into(),
            Self::Columns | Self::Strided => self.neighbours(item_size),
        }
    }

    /// Returns the number of neighbouring results per thread.
    fn neighbours(self, item_size: usize) -> u64 {
        if self == Self::Columns { vector(item_size, 4) as u64 } else { 1 }
    }
}

/// Threads per block.
pub(super) const BLOCK: u32 = 256;
/// Number of vectors that a thread loads before it uses the first of them.
pub(super) const UNROLL: u32 = 4;

/// Number of threads per multiprocessor that keep the memory busy if each loads four vectors at a
/// time.
const BUSY: u64 = 1024;

/// Number of loads per thread up to which sharing a result among blocks costs more time than it
/// saves.
const WORTH_SHARING: u64 = 32;

/// Returns the number of blocks of `threads` threads that share `loads` loads, so that each thread
/// has at least four loads. At least 1.
fn useful(loads: u64, threads: u64) -> u64 {
    (loads / (threads * 4)).max(1)
}

impl Plan {
    /// Plans the reduction of the dimensions `dims`, or of all dimensions if `dims` is empty. If
    /// `ordered` is true, the elements of a result are numbered in row-major order, for indices.
    #[track_caller]
    pub(super) fn new(
        op: &'static str,
        a: View<'_>,
        dims: &[usize],
        out: View<'_>,
        ordered: bool,
    ) -> Result<Self> {
        let is_reduced = |d: usize| dims.is_empty() || dims.contains(&d);
        let ndim = a.sizes().len();
        if let Some(&dim) = dims.iter().find(|&&d| d >= ndim.max(1)) {
            return Err(ErrorKind::DimOutOfRange { dim: dim as isize, ndim }.of(op));
        }
        let kept: SmallVec<[usize; 6]> = (0..ndim).filter(|&d| !is_reduced(d)).collect();
        // The result has only the kept dimensions, or all dimensions with size 1 for each reduced
        // dimension.
        let keepdim = out.sizes().len() == ndim
            && !kept.len().eq(&ndim)
            && (0..ndim).all(|d| out.sizes()[d] == if is_reduced(d) { 1 } else { a.sizes()[d] });
        let plain = out.sizes().len() == kept.len()
            && kept.iter().zip(out.sizes()).all(|(&d, &size)| a.sizes()[d] == size);
        if !keepdim && !plain {
            return Err(Error::shape(
                op,
                format!(
                    "sizes {:?}, reduced over dimensions {dims:?}, do not give a result of sizes \
                     {:?}",
                    a.sizes(),
                    out.sizes()
                ),
            ));
        }
        let mut kept_dims: SmallVec<[Dim<2>; 6]> = kept
            .iter()
            .enumerate()
            .map(|(i, &d)| {
                (a.sizes()[d], [a.strides()[d], out.strides()[if keepdim { d } else { i }]])
            })
            .rev()
            .collect();
        let mut reduced_dims: SmallVec<[Dim<1>; 6]> = (0..ndim)
            .filter(|&d| is_reduced(d))
            .map(|d| (a.sizes()[d], [a.strides()[d]]))
            .rev()
            .collect();
        // Dimensions with small strides become inner dimensions. The reduced dimensions keep their
        // order if `ordered` is true.
        kept_dims.sort_by_key(|d| d.1[0].unsigned_abs());
        if !ordered {
            reduced_dims.sort_by_key(|d| d.1[0].unsigned_abs());
        }
        let extent: usize = reduced_dims.iter().map(|d| d.0).product();
        let reduced = Walk::new(op, reduced_dims)?;
        let kept = Walk::new(op, kept_dims)?;
        Ok(Self {
            lanes: 1,
            across: 1,
            outputs: out.numel() as u64,
            two: Two::new(&kept),
            scale: 1.0,
            extent: extent as u64,
            divisor: 1.0,
            result_dtype: out.dtype as u64,
            kept,
            reduced,
            ..Self::zeroed()
        })
    }

    /// Returns the access pattern for a source at `address`.
    pub(super) fn access(&self, address: u64, item_size: usize) -> Access {
        let [run_stride] = self.reduced.inner().1;
        // The kernels that load vectors support at most two dimensions.
        if self.kept.dims().count() > 2 || self.reduced.dims().count() > 2 {
            return Access::Strided;
        }
        if run_stride == 1 {
            return Access::Rows;
        }
        let (neighbouring, [stride, _]) = self.kept.inner();
        let vector = vector(item_size, 4);
        let whole = |stride: isize| stride.unsigned_abs().is_multiple_of(vector);
        let aligned = address.is_multiple_of((vector * item_size) as u64)
            && neighbouring.is_multiple_of(vector)
            && self.kept.dims().skip(1).all(|(_, strides)| whole(strides[0]))
            && self.reduced.dims().all(|(_, strides)| whole(strides[0]));
        if self.outputs > 1 && stride == 1 && aligned { Access::Columns } else { Access::Strided }
    }

    /// Distributes the work over the blocks of a GPU. Returns the grid.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if a result has more elements than a kernel can count.
    #[track_caller]
    pub(super) fn distribute(
        &mut self,
        op: &'static str,
        access: Access,
        item_size: usize,
        multiprocessors: u64,
    ) -> Result<[u32; 3]> {
        let block = u64::from(BLOCK);
        let [run, segments] = self.cut(op)?;
        let per_load = if access == Access::Rows { vector(item_size, 8) as u64 } else { 1 };
        let loads = run.div_ceil(per_load);
        let groups = self.outputs.div_ceil(access.neighbours(item_size));
        let outs_first = access == Access::Columns
            || access == Access::Strided
                && self.outputs > 1
                && self.kept.inner().1[0].abs() < self.reduced.inner().1[0].abs();
        self.outs_first = outs_first.into();
        // Choose the number of threads per run. Each thread has several loads, but fewer if there
        // would otherwise be too few threads for the GPU. Neighbouring threads read adjacent
        // memory.
        let busy = multiprocessors * BUSY;
        let together = |n: u64| if outs_first { groups.next_power_of_two().min(n) } else { 1 };
        let bytes = access.neighbours(item_size) * item_size as u64;
        let (limit, most) = (block / together(32), block / together((128 / bytes).clamp(8, 32)));
        let lanes_for = |loads: u64, others: u64| {
            let mut lanes = loads.div_ceil(access.share(loads)).next_power_of_two();
            lanes = lanes.max(loads.div_ceil(4).next_power_of_two().min(4));
            lanes = lanes.min((limit / others).max(1));
            let threads = |lanes: u64| groups.saturating_mul(lanes * others);
            // Do not split fewer than four loads per thread. If the threads have few loads, do not
            // start more blocks than run at the same time.
            while lanes * 4 < loads
                && threads(lanes) < if lanes * others < limit { busy } else { busy / 8 }
                && lanes * others < most
                && (threads(lanes * 2) <= busy || loads > lanes * 32)
            {
                lanes *= 2;
            }
            lanes
        };
        let mut across = lanes_for(loads, 1);
        if access == Access::Strided && !outs_first {
            across = across.max(loads.next_power_of_two().min(32));
        }
        let of_segments = loads.div_ceil(across).saturating_mul(segments);
        let mut lanes = across * lanes_for(of_segments, across);
        lanes = lanes.min(across * segments.max(1).next_power_of_two());
        // Choose the number of blocks. If there are few results, several blocks share each result.
        // A block counts indices in 32 bits.
        let most_segments = (MAX_COUNT / run.max(1)).max(1);
        let fill = busy / block;
        let share = |across: u64, lanes: u64| {
            let blocks = groups.div_ceil(block / lanes).max(1);
            // Loads per thread if blocks do not share results.
            let own = of_segments.div_ceil(lanes / across);
            let all = (own * blocks / WORTH_SHARING).clamp(multiprocessors, fill);
            let wanted = match blocks {
                _ if own <= WORTH_SHARING => 1,
                _ if blocks * 2 <= all => all / blocks,
                _ if blocks * 4 <= all * 3 => 2,
                _ => 1,
            };
            let by_segments = wanted.min(useful(of_segments, lanes / across)).min(segments.max(1));
            let by_runs = (wanted / by_segments).min(useful(loads, across));
            let chunk = segments.div_ceil(by_segments).clamp(1, most_segments);
            (chunk, [blocks, by_runs, segments.div_ceil(chunk).max(1)])
        };
        let (mut chunk, mut grid) = share(across, lanes);
        let needed = access.lanes_to_split(item_size);
        if grid[1] * grid[2] > 1 && lanes < needed {
            lanes = needed;
            across = if segments > 1 { across } else { needed };
            (chunk, grid) = share(across, lanes);
        }
        (self.lanes, self.across, self.segment_chunk) = (lanes as u32, across as u32, chunk as u32);
        if grid[1] * grid[2] > u16::MAX.into() {
            return Err(self.too_many(op));
        }
        Ok(grid.map(|n| n as u32))
    }

    /// Splits the elements of a result into segments, so that lengths and numbers fit 32 bits.
    /// Returns the length of a run and the number of segments.
    #[track_caller]
    fn cut(&mut self, op: &'static str) -> Result<[u64; 2]> {
        let (run, [stride]) = self.reduced.inner();
        let mut dims = self.reduced.dims().skip(1);
        let second = dims.next();
        let run = (run as u64).min(if second.is_none() { MAX_COUNT } else { u64::MAX });
        let segments = self.extent.div_ceil(run.max(1));
        if run > MAX_COUNT || segments > MAX_COUNT {
            return Err(self.too_many(op));
        }
        let last = self.extent - run * segments.saturating_sub(1);
        (self.run, self.last_run, self.segments) = (run as u32, last as u32, segments as u32);
        let stride = second.map_or((run as i64).wrapping_mul(stride as i64), |(_, [s])| s as i64);
        (self.segment_stride, self.outer) =
            if dims.next().is_some() { (0, 1) } else { (stride, 2) };
        Ok([run, segments])
    }

    #[cold]
    #[track_caller]
    fn too_many(&self, op: &'static str) -> Error {
        Error::invalid(
            op,
            format!("a kernel cannot reduce as many as {} elements to one result", self.extent),
        )
    }
}
