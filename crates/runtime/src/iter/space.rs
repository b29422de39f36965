//! The elements that an elementwise kernel visits.

use bytemuck::{Pod, Zeroable};
use smallvec::SmallVec;

use super::runs::Runs;
use super::walk::{Dim, merged};
use crate::layout::is_row_major;
use crate::{ErrorKind, Result, cuda_struct};

/// Maximum number of dimensions of a kernel, after merging neighbours.
pub(super) const MAX_DIMS: usize = 16;

cuda_struct! {
    /// Elements of operands that are all contiguous and aligned to whole vectors.
    pub struct Flat {
        /// Number of elements of each operand, fewer than 2³¹.
        pub numel: u32,
    }
}

cuda_struct! {
    /// A number of up to 64 bits among a kernel's arguments. It is stored in two halves, so that
    /// its alignment adds no padding to the parameters: the time of short kernels depends on the
    /// number of cache lines that their parameters take.
    #[derive(Default, PartialEq, Eq)]
    pub struct Bits {
        low: u32,
        high: u32,
    }
}

impl From<u64> for Bits {
    fn from(bits: u64) -> Self {
        Self { low: bits as u32, high: (bits >> 32) as u32 }
    }
}

impl From<Bits> for u64 {
    fn from(bits: Bits) -> Self {
        Self::from(bits.high) << 32 | Self::from(bits.low)
    }
}

cuda_struct! {
    /// A dimension of an [`Index`].
    struct IndexDim<const N: usize> {
        size: u32,
        /// Multiplier with which a GPU divides by `size`, together with `shift`.
        magic: u32,
        shift: u32,
        /// Stride of each operand, in elements.
        strides: [i32; N],
    }
}

cuda_struct! {
    /// Elements of `N` operands of common sizes, from the innermost dimension out. The fields of a
    /// dimension are stored together, because a small kernel waits for each cache line of
    /// parameters that it reads.
    ///
    /// There are at least 1 and fewer than 2³¹ elements, and every offset fits `i32`.
    pub struct Index<const N: usize> {
        numel: u32,
        ndim: u32,
        pub(super) runs: Runs,
        dims: [IndexDim<N>; MAX_DIMS],
    }
}

impl<const N: usize> Index<N> {
    /// Returns the number of elements of each operand.
    #[must_use]
    pub fn numel(&self) -> usize {
        self.numel as usize
    }

    /// Returns the number of dimensions.
    #[must_use]
    pub fn ndim(&self) -> usize {
        self.ndim as usize
    }

    /// Returns the size of a dimension. 1 beyond the last dimension.
    pub fn size(&self, d: usize) -> usize {
        self.dims[d].size.max(1) as usize
    }

    /// Returns the offset of element `i` in each operand, in elements.
    pub fn offsets(&self, mut i: usize) -> [isize; N] {
        let mut at = [0isize; N];
        for d in 0..self.ndim() {
            let size = self.size(d);
            for (at, stride) in at.iter_mut().zip(self.strides(d)) {
                *at += (i % size) as isize * stride;
            }
            i /= size;
        }
        at
    }

    /// Returns the distribution among threads. Empty unless [`IterPlan::in_runs`] made the index.
    #[must_use]
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Returns the operands' strides of a dimension, in elements. 0 beyond the last dimension.
    pub fn strides(&self, d: usize) -> [isize; N] {
        self.dims[d].strides.map(|stride| stride as isize)
    }

    /// Returns the operands' strides of the innermost dimension, in elements.
    pub fn inner_strides(&self) -> [isize; N] {
        self.strides(0)
    }
}

/// A description of the elements of `N` operands.
pub trait Space<const N: usize>: Pod {
    /// Returns the elements as an [`Index`], which the strided kernel takes.
    fn index(&self) -> Index<N>;
}

impl<const N: usize> Space<N> for Index<N> {
    fn index(&self) -> Index<N> {
        *self
    }
}

impl<const N: usize> Space<N> for Flat {
    fn index(&self) -> Index<N> {
        let mut index = Index::<N>::zeroed();
        (index.numel, index.ndim) = (self.numel, 1);
        (index.dims[0].size, index.dims[0].strides) = (index.numel, [1; N]);
        index
    }
}

/// Sizes and strides of `N` operands after normalization: dimensions of size 1 are removed, the
/// others sorted by stride, and neighbours merged. The innermost dimension comes first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IterPlan<const N: usize> {
    pub(super) dims: SmallVec<[Dim<N>; 4]>,
    pub(super) numel: usize,
}

impl<const N: usize> IterPlan<N> {
    /// Creates a plan for `N` operands of these sizes. `strides` are in elements; the last operand
    /// is written. Every element is visited exactly once, in the order that suits the operands'
    /// memory.
    pub fn new(sizes: &[usize], strides: [&[isize]; N]) -> Self {
        let numel = sizes.iter().product();
        let mut dims: SmallVec<[Dim<N>; 4]> = SmallVec::new();
        if numel == 0 {
            return Self { dims, numel };
        }
        if numel > 1 && strides.iter().all(|strides| is_row_major(sizes, strides)) {
            dims.push((numel, [1; N]));
            return Self { dims, numel };
        }
        // Insertion sort from the innermost dimension outwards. Dimensions in row-major order need no swaps.
        for d in (0..sizes.len()).rev().filter(|&d| sizes[d] != 1) {
            dims.push((sizes[d], std::array::from_fn(|k| strides[k][d])));
            let mut at = dims.len() - 1;
            while at > 0 && goes_inside(&dims[at], &dims[at - 1]) {
                dims.swap(at, at - 1);
                at -= 1;
            }
        }
        let dims = merged(dims);
        Self { dims, numel }
    }

    /// Returns whether every operand is contiguous in memory.
    pub fn is_contiguous(&self) -> bool {
        match self.dims.as_slice() {
            [] => true,
            [(_, strides)] => *strides == [1; N],
            _ => false,
        }
    }

    /// Returns whether 32-bit integers can number the elements and hold every offset.
    pub fn fits(&self) -> bool {
        let reach = |k: usize| {
            self.dims.iter().fold(0usize, |sum, (size, strides)| {
                sum.saturating_add((size - 1).saturating_mul(strides[k].unsigned_abs()))
            })
        };
        self.numel <= i32::MAX as usize && (0..N).all(|k| reach(k) <= i32::MAX as usize)
    }

    /// Returns the plan as a kernel's parameters. Valid only if [`IterPlan::fits`] returns `true`; otherwise sizes and
    /// strides are cut to 32 bits.
    ///
    /// # Errors
    /// [`ErrorKind::TooManyDims`] if there are more than 16 dimensions.
    #[track_caller]
    pub fn index(&self, op: &'static str) -> Result<Index<N>> {
        if self.dims.len() > MAX_DIMS {
            return Err(ErrorKind::TooManyDims { ndim: self.dims.len(), max: MAX_DIMS }.of(op));
        }
        let mut index = Index::<N>::zeroed();
        (index.numel, index.ndim) = (self.numel as u32, self.dims.len() as u32);
        for (to, (size, strides)) in index.dims.iter_mut().zip(&self.dims) {
            let (magic, shift) = magic(*size as u32);
            let strides = strides.map(|stride| stride as i32);
            *to = IndexDim { size: *size as u32, magic, shift, strides };
        }
        Ok(index)
    }
}

/// Returns whether dimension `a` belongs inside dimension `b`: by the strides of the written
/// operand, or else of the other operands. Returns `false`, which keeps the order, if no operand
/// decides.
fn goes_inside<const N: usize>(a: &Dim<N>, b: &Dim<N>) -> bool {
    for k in (0..N).rev() {
        let (x, y) = (a.1[k].unsigned_abs(), b.1[k].unsigned_abs());
        if x == 0 || y == 0 || x == y {
            continue;
        }
        return x < y;
    }
    false
}

/// Returns the constants with which a GPU divides by `d`: a multiplier and a shift such that
/// `i / d == (mulhi(i, m) + i) >> s` for every `i < 2³¹` (`quotient` in `space.cuh`). A `d` of 0 is
/// treated as 1.
#[must_use]
pub fn magic(d: u32) -> (u32, u32) {
    let d = d.max(1);
    let shift = 32 - (d - 1).leading_zeros();
    let multiplier = (((1u64 << 32) * ((1u64 << shift) - u64::from(d))) / u64::from(d)) + 1;
    (multiplier as u32, shift)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::ResultExt as _;

    fn naive(sizes: &[usize], strides: [&[isize]; 2]) -> Vec<[isize; 2]> {
        let mut all = vec![[0isize; 2]];
        for d in 0..sizes.len() {
            let steps = 0..sizes[d] as isize;
            all = all
                .iter()
                .flat_map(|at| {
                    steps.clone().map(|i| [at[0] + i * strides[0][d], at[1] + i * strides[1][d]])
                })
                .collect();
        }
        all.sort_unstable();
        all
    }

    /// Computes the offsets as a GPU does from the parameters.
    fn device_offsets(index: &Index<2>, mut i: u32) -> [isize; 2] {
        let mut at = [0isize; 2];
        for d in 0..index.ndim() {
            let IndexDim { size, magic, shift, .. } = index.dims[d];
            let high = ((u64::from(i) * u64::from(magic)) >> 32) as u32;
            let next = (high + i) >> shift;
            let r = (i - next * size) as isize;
            for (at, stride) in at.iter_mut().zip(index.strides(d)) {
                *at += r * stride;
            }
            i = next;
        }
        at
    }

    proptest! {
        #[test]
        fn every_element_is_visited_once(
            dims in prop::collection::vec((0usize..5, -9isize..9, 0isize..40), 0..6),
            permutation in any::<u64>(),
        ) {
            let sizes: Vec<usize> = dims.iter().map(|d| d.0).collect();
            let a: Vec<isize> = dims.iter().map(|d| d.1).collect();
            let mut b: Vec<isize> = dims.iter().map(|d| d.2).collect();
            if !b.is_empty() {
                let n = b.len();
                b.rotate_left(permutation as usize % n);
            }
            let plan = IterPlan::new(&sizes, [&a, &b]);
            let expected = naive(&sizes, [&a, &b]);
            prop_assert_eq!(plan.numel, expected.len());
            if plan.numel == 0 {
                return Ok(());
            }
            let index = plan.index("test").unwrap();
            let mut host = Vec::new();
            crate::host::rows(&index, 0..index.numel(), |at, n| {
                let s = index.inner_strides();
                host.extend((0..n as isize).map(|i| [at[0] + i * s[0], at[1] + i * s[1]]));
            });
            let device: Vec<_> = (0..plan.numel as u32).map(|i| device_offsets(&index, i)).collect();
            prop_assert_eq!(&host, &device);
            host.sort_unstable();
            prop_assert_eq!(host, expected);
        }

        #[test]
        fn rows_of_ranges_make_up_the_whole(
            sizes in prop::collection::vec(1usize..6, 1..5),
            cut in any::<prop::sample::Index>(),
        ) {
            let strides: Vec<isize> = (0..sizes.len()).map(|d| 7 * d as isize + 2).collect();
            let index = IterPlan::new(&sizes, [&strides]).index("test").unwrap();
            let cut = cut.index(index.numel());
            let walk = |ends: &[usize]| {
                let mut seen = Vec::new();
                for ends in ends.windows(2) {
                    crate::host::rows(&index, ends[0]..ends[1], |[at], n| {
                        seen.extend((0..n as isize).map(|i| at + i * index.inner_strides()[0]));
                    });
                }
                seen
            };
            prop_assert_eq!(walk(&[0, index.numel()]), walk(&[0, cut, index.numel()]));
        }

        #[test]
        fn division_by_multiplication_is_exact(d in 1u32..=i32::MAX as u32, i in 0u32..=i32::MAX as u32) {
            let (m, s) = magic(d);
            let high = (u64::from(i) * u64::from(m)) >> 32;
            prop_assert_eq!((high + u64::from(i)) >> s, u64::from(i / d));
        }
    }

    #[test]
    fn neighbours_merge_and_order_follows_the_result() {
        // Contiguous operands with four dimensions merge into one dimension.
        let plan = IterPlan::new(&[2, 3, 1, 4], [&[12, 4, 77, 1], &[12, 4, 5, 1]]);
        assert!(plan.is_contiguous());
        assert_eq!(plan.dims.as_slice(), [(24, [1, 1])]);
        // Operands that are transposed in the same way also merge into one dimension.
        assert!(IterPlan::new(&[3, 4], [&[1, 3], &[1, 3]]).is_contiguous());
        // Two dimensions remain if a row is broadcast over rows.
        let plan = IterPlan::new(&[5, 4], [&[0, 1], &[4, 1]]);
        assert_eq!(plan.dims.as_slice(), [(4, [1, 1]), (5, [0, 4])]);
        // The strides of the written operand determine the order.
        let plan = IterPlan::new(&[3, 4], [&[1, 3], &[4, 1]]);
        assert_eq!(plan.dims.as_slice(), [(4, [3, 1]), (3, [1, 4])]);
        // A single element needs no dimension.
        assert!(IterPlan::<2>::new(&[1, 1], [&[0, 0], &[9, 9]]).is_contiguous());
    }

    #[test]
    fn too_many_dimensions_are_an_error() {
        let sizes = [2usize; 17];
        let strides: Vec<isize> = (0..17).map(|d| 3isize.pow(d)).collect();
        let plan = IterPlan::new(&sizes, [&strides]);
        assert!(matches!(plan.index("add").kind(), Some(ErrorKind::TooManyDims { ndim: 17, .. })));
        let distinct: BTreeSet<_> = strides.iter().collect();
        assert_eq!(distinct.len(), 17);
    }

    #[test]
    fn offsets_beyond_32_bits_do_not_fit() {
        assert!(IterPlan::new(&[1 << 30, 1], [&[1, 1]]).fits());
        assert!(!IterPlan::new(&[1 << 31], [&[1]]).fits());
        assert!(!IterPlan::new(&[3, 2], [&[1 << 30, 1]]).fits());
    }
}
