//! The order in which a tensor is filled.

use warpline_runtime::iter::Walk;
use warpline_runtime::{Layout, Result};

/// Returns the elements of a tensor in memory order. Random values are assigned in this order.
/// As in PyTorch, filling a transposed tensor gives the same memory contents as filling its base.
#[track_caller]
pub(super) fn order(op: &'static str, layout: &Layout) -> Result<Walk<1>> {
    let dims = layout.by_stride();
    Walk::new(op, dims.into_iter().map(|d| (layout.sizes()[d], [layout.strides()[d]])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(layout: &Layout) -> Vec<isize> {
        let order = order("test", layout).unwrap();
        (0..layout.numel()).map(|i| order.offsets(i)[0]).collect()
    }

    #[test]
    fn random_numbers_follow_memory_order_in_any_view() {
        let base = Layout::contiguous(&[2, 3, 4]).unwrap();
        let all: Vec<isize> = (0..24).collect();
        assert_eq!(offsets(&base), all);
        assert_eq!(offsets(&base.permute(&[2, 0, 1]).unwrap()), all);
        let narrow = base.narrow(2, 1, 2).unwrap();
        assert_eq!(offsets(&narrow)[..5], [0, 1, 4, 5, 8]);
        assert_eq!(offsets(&narrow.transpose(0, 2).unwrap()), offsets(&narrow));
    }

    #[test]
    fn contiguous_dimensions_merge() {
        let base = Layout::contiguous(&[2; 10]).unwrap();
        assert_eq!(order("test", &base).unwrap().inner(), (1024, [1]));
        let gaps = Layout::contiguous(&[3; 17]).unwrap();
        let gaps = (0..17).fold(gaps, |l, d| l.narrow(d, 0, 2).unwrap());
        assert!(order("test", &gaps).is_err());
    }

    #[test]
    fn order_is_that_of_the_layouts_memory() {
        let layout = Layout::contiguous(&[3, 1, 5]).unwrap().permute(&[2, 1, 0]).unwrap();
        let order = order("test", &layout).unwrap();
        assert!((0..15).map(|i| order.offsets(i)[0]).eq(0..15));
    }
}
