//! The order in which a tensor of any strides is filled.

use bytemuck::{Pod, Zeroable};
use smallvec::SmallVec;

use warpline_runtime::{Error, Layout, Result};

/// Dimensions a kernel can walk, after merging.
pub(super) const MAX_DIMS: usize = 8;

/// A tensor's elements in the order in which random values are given to them, which is that of
/// memory, as in PyTorch: filling a transposed tensor fills its base. Innermost dimension first.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Order {
    ndim: u64,
    sizes: [u64; MAX_DIMS],
    /// In elements.
    strides: [i64; MAX_DIMS],
}

warpline_runtime::cuda_struct!(Order { ndim, sizes, strides });

impl Order {
    pub(super) fn new(op: &'static str, layout: &Layout) -> Result<Self> {
        let mut dims: SmallVec<[(usize, isize); 6]> = SmallVec::new();
        for (&size, &stride) in layout.sizes().iter().zip(layout.strides()).rev() {
            if size == 1 {
                continue;
            }
            // Insertion that keeps the order of dimensions that tell nothing, of stride zero.
            dims.push((size, stride));
            let mut at = dims.len() - 1;
            for before in (0..at).rev() {
                let (a, b) = (dims[before], dims[at]);
                if a.1 == 0 || b.1 == 0 || (a.1 == b.1 && a.0 <= b.0) {
                    continue;
                }
                if a.1 < b.1 {
                    break;
                }
                dims.swap(before, at);
                at = before;
            }
        }
        let mut merged: SmallVec<[(usize, isize); 6]> = SmallVec::new();
        for (size, stride) in dims {
            match merged.last_mut() {
                Some((s, t)) if stride == *t * *s as isize => *s *= size,
                _ => merged.push((size, stride)),
            }
        }
        if merged.len() > MAX_DIMS {
            return Err(Error::invalid(
                op,
                format!(
                    "a tensor whose {} dimensions cannot be merged to {MAX_DIMS} or fewer; make it contiguous first",
                    merged.len()
                ),
            ));
        }
        let mut order = Self { ndim: merged.len() as u64, ..Self::zeroed() };
        for (d, (size, stride)) in merged.into_iter().enumerate() {
            (order.sizes[d], order.strides[d]) = (size as u64, stride as i64);
        }
        Ok(order)
    }

    /// Where element `index` is, in elements from the first.
    #[inline]
    pub(super) fn offset(&self, index: usize) -> isize {
        if self.ndim == 1 {
            return index as isize * self.strides[0] as isize;
        }
        let (mut rest, mut offset) = (index, 0);
        for d in 0..self.ndim as usize {
            let size = self.sizes[d] as usize;
            offset += (rest % size) as isize * self.strides[d] as isize;
            rest /= size;
        }
        offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(layout: &Layout) -> Vec<isize> {
        let order = Order::new("test", layout).unwrap();
        (0..layout.numel()).map(|i| order.offset(i)).collect()
    }

    #[test]
    fn memory_order_whatever_the_view() {
        let base = Layout::contiguous(&[2, 3, 4]).unwrap();
        let all: Vec<isize> = (0..24).collect();
        assert_eq!(offsets(&base), all);
        assert_eq!(offsets(&base.permute(&[2, 0, 1]).unwrap()), all);
        let narrow = base.narrow(2, 1, 2).unwrap();
        assert_eq!(offsets(&narrow)[..5], [0, 1, 4, 5, 8]);
        assert_eq!(offsets(&narrow.transpose(0, 2).unwrap()), offsets(&narrow));
    }

    #[test]
    fn dimensions_merge() {
        let base = Layout::contiguous(&[2; 10]).unwrap();
        assert_eq!(Order::new("test", &base).unwrap().ndim, 1);
        let gaps = Layout::contiguous(&[3; 9]).unwrap();
        let gaps = (0..9).fold(gaps, |l, d| l.narrow(d, 0, 2).unwrap());
        assert!(Order::new("test", &gaps).is_err());
    }
}
