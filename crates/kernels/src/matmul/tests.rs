//! Tests of the choice among implementations.

use super::*;
use warpline_runtime::testing::{Tensor, on_every_target};

/// Creates matrices of sizes `[2, 4, 5]` with memory layout number `kind`.
fn matrix(target: Target<'_>, kind: usize) -> Tensor {
    let make = |sizes: [usize; 3]| Tensor::garbage(target, DType::F32, &sizes);
    match kind {
        0 => make([2, 4, 5]),
        1 => make([2, 5, 4]).with(|l| l.transpose(1, 2)),
        2 => make([2, 4, 8]).with(|l| l.narrow(2, 2, 5)),
        3 => make([4, 2, 5]).with(|l| l.transpose(0, 1)),
        4 => make([1, 4, 5]).with(|l| l.expand(&[2, 4, 5])),
        // Neither rows nor columns are contiguous.
        _ => make([2, 4, 10]).with(|l| l.slice(2, 0, 10, 2)),
    }
}

#[test]
fn few_rows_have_a_kernel_if_their_loads_are_whole_vectors() {
    on_every_target(|target| {
        let takes = |dtype, [m, k]: [usize; 2], from: usize| {
            let a = Tensor::garbage(target, dtype, &[m, k]);
            let weight = Tensor::garbage(target, dtype, &[64, k + 8]);
            let b = weight.with(|l| l.narrow(1, from as isize, k)).with(|l| l.transpose(0, 1));
            let out = Tensor::garbage(target, dtype, &[m, 64]);
            let product = check(a.view(), b.view(), out.view()).unwrap();
            FewRows::new(target, [a.view(), b.view()], out.view(), &product, false).is_some()
        };
        let is_device = matches!(target, Target::Cuda(..));
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            for (sizes, from, expected) in [
                ([1, 512], 0, true),
                ([16, 512], 8, true),
                ([17, 512], 0, false),
                ([2, 510], 0, false),
                ([2, 512], 1, false),
            ] {
                assert_eq!(
                    takes(dtype, sizes, from),
                    expected && is_device,
                    "{dtype} {sizes:?} {from}"
                );
            }
        }
        assert!(!takes(DType::F64, [1, 512], 0));
    });
}

#[test]
fn cublas_reads_five_of_six_layouts_in_place() {
    on_every_target(|target| {
        for (kind, expected) in
            [(0, false), (1, false), (2, false), (3, false), (4, false), (5, true)]
        {
            let a = matrix(target, kind);
            assert_eq!(needs_contiguous(a.view()), expected, "kind {kind}");
            let b = Tensor::garbage(target, DType::F32, &[2, 5, 6]);
            let out = Tensor::garbage(target, DType::F32, &[2, 4, 6]);
            let params = check(a.view(), b.view(), out.view()).unwrap();
            let precision = warpline_runtime::Precision::default();
            let of = |dtype| Gemm::new([dtype; 2], &params, &precision, 0);
            assert_eq!(of(DType::F32).is_none(), expected, "kind {kind}");
            assert!(of(DType::I32).is_none());
        }
    });
}
