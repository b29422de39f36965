//! Which elements go into which result, and how the work is shared out.

use bytemuck::{Pod, Zeroable};
use smallvec::SmallVec;

use warpline_runtime::cuda_struct;
use warpline_runtime::iter::{Dim, Walk};
use warpline_runtime::{Error, Result, View};

/// Threads per block.
pub(super) const BLOCK: u64 = 256;

/// Elements that a lane should have to itself before a result is split among blocks.
const PER_LANE: u64 = 16;

/// The parameter block of every reduction.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Plan {
    /// Results, and elements that go into each.
    pub(super) outputs: u64,
    pub(super) extent: u64,
    /// Threads per result, and results, in a block.
    lanes: u64,
    outs: u64,
    /// Whether neighbouring threads work on neighbouring results.
    outs_first: u64,
    /// Blocks that share a result, and elements each of them takes.
    pub(super) splits: u64,
    pub(super) chunk: u64,
    pub(super) source_dtype: u64,
    pub(super) result_dtype: u64,
    /// What a sum is divided by, and its reciprocal.
    pub(super) divisor: f64,
    pub(super) scale: f64,
    /// Of the source and of the result.
    pub(super) kept: Walk<2>,
    /// Of the source.
    pub(super) reduced: Walk<1>,
}

cuda_struct!(Plan {
    outputs,
    extent,
    lanes,
    outs,
    outs_first,
    splits,
    chunk,
    source_dtype,
    result_dtype,
    divisor,
    scale,
    kept,
    reduced,
});

impl Plan {
    /// `dims` are to be reduced, all of them if there are none. `ordered` says that the elements'
    /// row-major order counts.
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
            return Err(Error::DimOutOfRange { dim: dim as isize, ndim });
        }
        let kept: SmallVec<[usize; 6]> = (0..ndim).filter(|&d| !is_reduced(d)).collect();
        // The result has the dimensions that are kept, or all of them with size 1 where reduced.
        let keepdim = out.sizes().len() == ndim
            && !kept.len().eq(&ndim)
            && (0..ndim).all(|d| out.sizes()[d] == if is_reduced(d) { 1 } else { a.sizes()[d] });
        let plain = out.sizes().len() == kept.len()
            && kept.iter().zip(out.sizes()).all(|(&d, &size)| a.sizes()[d] == size);
        if !keepdim && !plain {
            return Err(Error::ShapeMismatch {
                op,
                reason: format!(
                    "{:?} reduced over {dims:?} does not give {:?}",
                    a.sizes(),
                    out.sizes()
                ),
            });
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
        // Neighbours in memory belong together wherever the order does not count.
        kept_dims.sort_by_key(|d| d.1[0].unsigned_abs());
        if !ordered {
            reduced_dims.sort_by_key(|d| d.1[0].unsigned_abs());
        }
        let extent: usize = reduced_dims.iter().map(|d| d.0).product();
        Ok(Self {
            outputs: out.numel() as u64,
            extent: extent as u64,
            lanes: 1,
            outs: BLOCK,
            outs_first: 0,
            splits: 1,
            chunk: extent as u64,
            source_dtype: a.dtype as u64,
            result_dtype: out.dtype as u64,
            divisor: 1.0,
            scale: 1.0,
            kept: Walk::new(op, kept_dims)?,
            reduced: Walk::new(op, reduced_dims)?,
        })
    }

    /// Shares the work out to the blocks of a GPU that has `resident` at a time.
    pub(super) fn share_out(&mut self, resident: u64) {
        let outs_first =
            self.outputs > 1 && self.kept.inner().1[0].abs() < self.reduced.inner().1[0].abs();
        let lanes = self.extent.max(1).next_power_of_two();
        self.lanes = if outs_first {
            lanes.min(BLOCK / self.outputs.next_power_of_two().min(64))
        } else {
            lanes.min(BLOCK)
        };
        // A grid has fewer than 2³¹ blocks in x.
        while self.lanes > 1 && self.outputs.div_ceil(BLOCK / self.lanes) > i32::MAX as u64 {
            self.lanes /= 2;
        }
        self.outs = BLOCK / self.lanes;
        self.outs_first = outs_first.into();
        let wanted = resident / self.blocks().max(1);
        let useful = self.extent / (self.lanes * PER_LANE);
        if wanted > 1 && useful > 1 {
            self.chunk = self.extent.div_ceil(wanted.min(useful).min(u16::MAX.into()));
            self.splits = self.extent.div_ceil(self.chunk);
        }
    }

    /// Blocks that all results take, where each is one block's.
    pub(super) fn blocks(&self) -> u64 {
        self.outputs.div_ceil(self.outs)
    }

    /// Elements of its result's extent that split `index` takes.
    pub(super) fn split(&self, index: usize) -> std::ops::Range<usize> {
        let begin = index * self.chunk as usize;
        begin..(begin + self.chunk as usize).min(self.extent as usize)
    }
}
