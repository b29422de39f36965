//! Adjacent elements that are moved as one unit.

use super::tests::{assert_same, expected, spread};
use super::*;
use warpline_runtime::DType::{BF16, F32, F64, I64};
use warpline_runtime::testing::{Tensor, on_every_target, on_gpu, samples};

/// Rows that are moved in units of 16 bytes, in smaller units, and by element.
fn rows_of_any_length_and_place(target: Target<'_>) {
    for dtype in [DType::U8, BF16, F32, F64] {
        for (length, offset) in [(5, 0), (6, 0), (24, 2), (32, 4), (32, 1), (48, 8), (64, 0)] {
            let base = Tensor::new(target, dtype, &[3, 7, 64], &samples(dtype, 3 * 7 * 64, 5));
            let input = base.with(|l| l.narrow(2, offset, length));
            let index = Tensor::new(target, I64, &[5], &[6.0, 0.0, 3.0, 3.0, 1.0]);
            let out = Tensor::garbage(target, dtype, &[3, 5, 64]);
            let to = out.with(|l| l.narrow(2, offset, length));
            index_select(target, input.view(), 1, index.view(), to.view()).unwrap();
            let spread = spread(target, &index, &[3, 5, length], 1);
            let all = expected(&input, 1, &spread, target);
            let context = format!("{dtype}, {length} behind {offset}");
            assert_same(to.floats(target), all, &context);
            let untouched = Tensor::garbage(target, dtype, &[1]).floats(target)[0];
            let others = out.floats(target).into_iter().filter(|v| *v == untouched).count();
            assert!(others >= 15 * (64 - length), "{context}");
        }
    }
}

#[test]
fn rows_of_any_length_and_place_are_selected() {
    on_every_target(rows_of_any_length_and_place);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_rows_of_any_length_and_place_are_selected() {
    on_gpu(rows_of_any_length_and_place);
}

#[test]
fn rows_are_moved_in_the_widest_parts_that_fit() {
    on_every_target(|target| {
        let base = Tensor::garbage(target, BF16, &[7, 64]);
        let index = Tensor::new(target, I64, &[7], &[0.0; 7]);
        let seen = |view: &Tensor| {
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
        assert_eq!(seen(&base), Some((8, 1)));
        for (start, length, times) in [(0, 24, 8), (4, 24, 4), (0, 20, 4), (2, 8, 2), (0, 5, 1)] {
            assert_eq!(seen(&base.with(|l| l.narrow(1, start, length))), Some((times, 1)));
        }
        assert_eq!(seen(&base.with(|l| l.slice(1, 0, 64, 2))), None);
    });
}
