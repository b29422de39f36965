//! Dimensions of any size that a kernel walks, in the caller's order.

use bytemuck::Zeroable;
use smallvec::SmallVec;

use super::space::MAX_DIMS;
use crate::{ErrorKind, Result, cuda_struct};

/// A dimension of `N` operands: its size, and their strides in elements.
pub type Dim<const N: usize> = (usize, [isize; N]);

/// Merges neighbouring dimensions that are contiguous for all operands, and removes dimensions of
/// size 1. Arguments and results begin with the innermost dimension.
pub(super) fn merged<const N: usize>(
    dims: impl IntoIterator<Item = Dim<N>>,
) -> SmallVec<[Dim<N>; 4]> {
    let mut merged: SmallVec<[Dim<N>; 4]> = SmallVec::new();
    for (size, strides) in dims.into_iter().filter(|(size, _)| *size != 1) {
        match merged.last_mut() {
            Some((n, inner))
                if (0..N).all(|k| strides[k] == inner[k].wrapping_mul(*n as isize)) =>
            {
                *n = n.wrapping_mul(size);
            }
            _ => merged.push((size, strides)),
        }
    }
    merged
}

cuda_struct! {
    /// Dimensions of `N` operands in 64-bit form, for kernels over more elements than 32 bits can
    /// count; [`Index`](super::Index) is faster for fewer. CUDA's `walk` computes the offset of an
    /// element.
    pub struct Walk<const N: usize> {
        ndim: u64,
        sizes: [u64; MAX_DIMS],
        /// Multipliers with which a GPU divides by `sizes`, together with `shift`.
        magic: [u64; MAX_DIMS],
        shift: [u64; MAX_DIMS],
        strides: [[i64; MAX_DIMS]; N],
    }
}

impl<const N: usize> Walk<N> {
    /// Creates a walk of these dimensions, from the innermost out. Merges neighbouring dimensions
    /// that are contiguous for all operands.
    ///
    /// # Errors
    /// [`ErrorKind::TooManyDims`] if there are more dimensions than a kernel supports.
    #[track_caller]
    pub fn new(op: &'static str, dims: impl IntoIterator<Item = Dim<N>>) -> Result<Self> {
        let dims = merged(dims);
        if dims.len() > MAX_DIMS {
            return Err(ErrorKind::TooManyDims { ndim: dims.len(), max: MAX_DIMS }.of(op));
        }
        let mut walk = Self { ndim: dims.len() as u64, ..Self::zeroed() };
        for (d, (size, strides)) in dims.into_iter().enumerate() {
            walk.sizes[d] = size as u64;
            (walk.magic[d], walk.shift[d]) = magic(size as u64);
            for (to, stride) in walk.strides.iter_mut().zip(strides) {
                to[d] = stride as i64;
            }
        }
        Ok(walk)
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn numel(&self) -> usize {
        self.sizes[..self.ndim as usize].iter().fold(1u64, |n, &size| n.saturating_mul(size))
            as usize
    }

    /// Returns the dimensions, from the innermost out.
    pub fn dims(&self) -> impl Iterator<Item = Dim<N>> {
        (0..self.ndim as usize).map(|d| {
            let strides = std::array::from_fn(|k| self.strides[k][d] as isize);
            (self.sizes[d] as usize, strides)
        })
    }

    /// Returns the innermost dimension. For a walk without dimensions, returns a dimension of size
    /// 1.
    #[must_use]
    pub fn inner(&self) -> Dim<N> {
        match self.ndim {
            0 => (1, [0; N]),
            _ => (self.sizes[0] as usize, std::array::from_fn(|k| self.strides[k][0] as isize)),
        }
    }

    /// Returns the offset of element `index` in each operand, in elements.
    #[inline]
    #[must_use]
    pub fn offsets(&self, mut index: usize) -> [isize; N] {
        let mut at = [0isize; N];
        for d in 0..self.ndim as usize {
            let size = self.sizes[d] as usize;
            // The outermost dimension needs no division, because `index` is below its size.
            let i = if d + 1 == self.ndim as usize { index } else { index % size };
            for (at, strides) in at.iter_mut().zip(&self.strides) {
                // Offsets of elements fit. A view without elements may have any strides.
                *at = at.wrapping_add((i as isize).wrapping_mul(strides[d] as isize));
            }
            index /= size.max(1);
        }
        at
    }
}

/// Returns multiplier and shift with `i / d == (mulhi(i, m) + i) >> s` for every `i < 2⁶³`. A `d`
/// of 0 is treated as 1.
fn magic(d: u64) -> (u64, u64) {
    let d = d.max(1);
    let shift = u64::BITS - (d - 1).leading_zeros();
    let multiplier = ((1u128 << 64) * ((1u128 << shift) - u128::from(d))) / u128::from(d) + 1;
    (multiplier as u64, shift.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ResultExt as _;

    proptest! {
        #[test]
        fn division_by_multiplication_is_exact(d in 1u64..1 << 63, i in 0u64..1 << 63, small in 1u64..1000) {
            for d in [d, small, d >> 31 | 1] {
                let (m, s) = magic(d);
                let high = ((u128::from(i) * u128::from(m)) >> 64) as u64;
                prop_assert_eq!((high + i) >> s, i / d);
            }
        }

        /// Kernels that count in 32 bits derive their multiplier from the upper half of the 64-bit
        /// multiplier (`reduce.cuh`). The result equals the multiplier of `Index`.
        #[test]
        fn the_upper_half_divides_numbers_of_31_bits(d in 1u32..1 << 31, small in 1u32..1000) {
            for d in [d, small, d.next_power_of_two()] {
                let (m, s) = magic(d.into());
                let half = (((m - 1) >> 32) as u32).wrapping_add(1);
                prop_assert_eq!((half, s as u32), super::super::space::magic(d));
            }
        }
    }

    #[test]
    fn offsets_are_those_of_nested_loops() {
        let dims = [(3, [2, -1]), (1, [9, 9]), (2, [6, -3]), (4, [100, 0])];
        let walk = Walk::new("test", dims).unwrap();
        assert_eq!((walk.ndim, walk.numel(), walk.inner()), (2, 24, (6, [2, -1])));
        assert!(walk.dims().eq([(6, [2, -1]), (4, [100, 0])]));
        let mut index = 0;
        for d in 0..4 {
            for c in 0..2 {
                for a in 0..3 {
                    let expected = [2 * a + 6 * c + 100 * d, -a - 3 * c];
                    assert_eq!(walk.offsets(index), expected);
                    index += 1;
                }
            }
        }
        assert_eq!(Walk::<1>::new("test", []).unwrap().offsets(0), [0]);
    }

    #[test]
    fn too_many_dimensions_are_an_error() {
        let dims = (0..17).map(|d| (2, [3isize.pow(d)]));
        assert!(matches!(
            Walk::new("test", dims).kind(),
            Some(ErrorKind::TooManyDims { ndim: 17, .. })
        ));
    }
}
