//! Adjacent elements that are moved as one unit.

use warpline_kernels::indexing::*;
use warpline_runtime::DType::{BF16, F32, F64, I64};
use warpline_runtime::testing::{Tensor, on_every_target, on_gpu, samples};
use warpline_runtime::{DType, Target};

use crate::indexing::{assert_same, expected, spread};

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
