//! Tests of the size of the units in which adjacent elements are copied.

use super::*;
use warpline_runtime::DType::{BF16, I64};
use warpline_runtime::testing::{Tensor, on_every_target};

#[test]
fn rows_are_copied_in_the_widest_units_that_fit() {
    on_every_target(|target| {
        let base = Tensor::garbage(target, BF16, &[7, 64]);
        let index = Tensor::new(target, I64, &[7], &[0.0; 7]);
        let unit = |view: &Tensor| {
            let (sizes, strides) = (view.view().sizes(), view.view().strides());
            let along = IndexedDim { dim: 0, size: 7, step: strides[0], indexed: 0..1 };
            let of = |strides: &[isize]| {
                Layout::from_parts(sizes.into(), strides.into(), view.layout.offset())
            };
            let (source, which) = (of(&[0, strides[1]]), of(&[1, 0]));
            let source = View { layout: &source, ..view.view() };
            let which = View { layout: &which, ..index.view() };
            wide(&[source, which, view.view()], &along)
        };
        assert_eq!(unit(&base), Some((8, 1)));
        for (start, length, times) in [(0, 24, 8), (4, 24, 4), (0, 20, 4), (2, 8, 2), (0, 5, 1)] {
            assert_eq!(unit(&base.with(|l| l.narrow(1, start, length))), Some((times, 1)));
        }
        assert_eq!(unit(&base.with(|l| l.slice(1, 0, 64, 2))), None);
    });
}
