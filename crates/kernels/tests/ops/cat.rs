//! Tests of `cat` that run on every target.

use proptest::prelude::*;
use warpline_kernels::cat::*;
use warpline_runtime::DType::{BF16, F32, F64, I8, I64};
use warpline_runtime::testing::{Tensor, on_every_target, on_gpu, samples};
use warpline_runtime::{DType, ErrorKind, Layout, Target, View};

/// Concatenates with plain loops. Each part has its values and its size in the dimension.
fn expected(parts: &[(Vec<f64>, usize)], rows: usize, inner: usize) -> Vec<f64> {
    let row = |r: usize| {
        parts
            .iter()
            .flat_map(move |(values, n)| values[r * n * inner..(r + 1) * n * inner].to_vec())
    };
    (0..rows).flat_map(row).collect()
}

fn joins(
    target: Target<'_>,
    dtype: DType,
    rows: usize,
    inner: usize,
    sizes: &[usize],
    offset: usize,
) {
    let context =
        format!("{sizes:?} of {rows} × … × {inner} {dtype}, {offset} after the beginning");
    let tensors: Vec<Tensor> = sizes
        .iter()
        .map(|&n| {
            let numel = rows * n * inner;
            let values = samples(dtype, numel + offset, 5 + n as u64);
            Tensor::new(target, dtype, &[numel + offset], &values).with(|memory| {
                let part = memory.narrow(0, offset as isize, numel)?;
                Ok(part.view(&[rows, n, inner]).unwrap())
            })
        })
        .collect();
    let parts: Vec<(Vec<f64>, usize)> =
        tensors.iter().zip(sizes).map(|(t, n)| (t.floats(target), *n)).collect();
    let out = Tensor::garbage(target, dtype, &[rows, sizes.iter().sum(), inner]);
    let views: Vec<View<'_>> = tensors.iter().map(Tensor::view).collect();
    cat(target, &views, 1, out.view()).unwrap();
    let bits = |values: Vec<f64>| values.into_iter().map(f64::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(out.floats(target)), bits(expected(&parts, rows, inner)), "{context}");
}

fn units_of_every_width(target: Target<'_>) {
    for dtype in [I8, BF16, F32, F64] {
        for (rows, inner) in [(1, 64), (3, 16), (5, 1), (2, 3)] {
            for sizes in [&[2, 2][..], &[16, 48, 16], &[1, 7, 2, 5]] {
                for offset in [0, 1, 4] {
                    joins(target, dtype, rows, inner, sizes, offset);
                }
            }
        }
    }
}

fn more_than_a_block_and_a_launch(target: Target<'_>) {
    joins(target, F32, 1, 1, &[5000, 3, 1025], 0);
    joins(target, I8, 3, 1, &[16 * 300, 16], 0);
    let many: Vec<usize> = (0..2 * SOURCES + 1).map(|k| k % 5).collect();
    joins(target, I64, 3, 2, &many, 0);
    joins(target, F32, 2, 2, &[7], 0);
    joins(target, F32, 2, 2, &[0, 0], 0);
}

/// Inputs of other dtypes and layouts among inputs that are moved unchanged.
fn what_cannot_be_moved_is_copied(target: Target<'_>) {
    let of = |dtype, sizes: &[usize], first: f64| {
        let n = sizes.iter().product::<usize>();
        let values: Vec<f64> = (0..n).map(|i| first + i as f64).collect();
        Tensor::new(target, dtype, sizes, &values)
    };
    let plain = of(F32, &[2, 2], 0.0);
    let turned = of(F32, &[3, 2], 10.0).with(|l| l.transpose(0, 1));
    let wide = of(F64, &[2, 1], 20.0);
    let out = Tensor::garbage(target, F32, &[2, 8]);
    let all = [plain.view(), plain.view(), turned.view(), wide.view()];
    cat(target, &all, 1, out.view()).unwrap();
    let rows = [
        [0.0, 1.0, 0.0, 1.0, 10.0, 12.0, 14.0, 20.0],
        [2.0, 3.0, 2.0, 3.0, 11.0, 13.0, 15.0, 21.0],
    ];
    assert_eq!(out.floats(target), rows.concat());
    let turned = Tensor::garbage(target, F32, &[8, 2]).with(|l| l.transpose(0, 1));
    cat(target, &all, 1, turned.view()).unwrap();
    assert_eq!(turned.floats(target), rows.concat());
}

fn everything(target: Target<'_>) {
    units_of_every_width(target);
    more_than_a_block_and_a_launch(target);
    what_cannot_be_moved_is_copied(target);
}

#[test]
fn tensors_are_joined_on_every_target() {
    on_every_target(everything);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_tensors_are_joined_on_every_target() {
    on_gpu(everything);
}

#[test]
fn bad_input_is_an_error() {
    on_every_target(|target| {
        let t = |sizes: &[usize]| Tensor::garbage(target, F32, sizes);
        let (a, b, out) = (t(&[2, 3]), t(&[2, 4]), t(&[2, 7]));
        let wrong = |inputs: &[View<'_>], dim, out| cat(target, inputs, dim, out).unwrap_err();
        let both = [a.view(), b.view()];
        assert!(matches!(wrong(&both, 2, out.view()).kind(), ErrorKind::DimOutOfRange { .. }));
        let error = wrong(&both, 0, out.view());
        assert!(
            matches!((error.op(), error.kind()), ("cat", ErrorKind::ShapeMismatch { .. })),
            "{error}"
        );
        let error = wrong(&both[..1], 1, out.view());
        assert!(
            error.to_string().contains(
                "sizes [[2, 3]], joined along dimension 1, do not give a result of sizes [2, 7]"
            ),
            "{error}"
        );
        let part = out.with(|l| l.narrow(1, 0, 3));
        let error = wrong(&[part.view(), b.view()], 1, out.view());
        assert!(matches!(error.kind(), ErrorKind::OverlappingOperands), "{error}");
        let repeated = Layout::contiguous(&[1, 7]).unwrap().expand(&[2, 7]).unwrap();
        let error = wrong(&both, 1, View { layout: &repeated, ..out.view() });
        assert!(matches!(error.kind(), ErrorKind::OverlappingWrite), "{error}");
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn tensors_of_any_sizes_are_joined(
        sizes in prop::collection::vec(0usize..40, 1..12),
        rows in 1usize..5,
        inner in 1usize..9,
        offset in 0usize..3,
    ) {
        on_every_target(|target| joins(target, BF16, rows, inner, &sizes, offset));
    }
}
