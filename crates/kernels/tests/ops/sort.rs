//! Tests of sorting and searching, on every target.

use warpline_kernels::sort::{searchsorted, sort, sort_in_parts};
use warpline_runtime::testing::{Tensor, on_every_target, on_gpu, samples};
use warpline_runtime::{DType, ErrorKind, Result, Target};

/// Sorts each row along the middle of three dimensions with the standard library. Returns values
/// and indices.
fn expected(values: &[f64], [a, b, c]: [usize; 3], descending: bool) -> [Vec<f64>; 2] {
    let (mut out, mut index) = (values.to_vec(), values.to_vec());
    for (i, k) in (0..a).flat_map(|i| (0..c).map(move |k| (i, k))) {
        let at = |j: usize| (i * b + j) * c + k;
        let mut order: Vec<usize> = (0..b).collect();
        // A NaN is larger than all numbers, and both zeros are equal.
        let compare = |x: f64, y: f64| match (x.is_nan(), y.is_nan()) {
            (false, false) => x.partial_cmp(&y).unwrap(),
            (x, y) => x.cmp(&y),
        };
        order.sort_by(|&x, &y| {
            let order = compare(values[at(x)], values[at(y)]);
            if descending { order.reverse() } else { order }
        });
        for (j, &from) in order.iter().enumerate() {
            (out[at(j)], index[at(j)]) = (values[at(from)], from as f64);
        }
    }
    [out, index]
}

#[track_caller]
fn check(target: Target<'_>, a: &Tensor, sizes: [usize; 3], descending: bool) {
    check_with(target, a, sizes, descending, |values, index| {
        sort(target, a.view(), 1, descending, values.view(), index.view())
    });
}

#[track_caller]
fn check_with(
    target: Target<'_>,
    a: &Tensor,
    sizes: [usize; 3],
    descending: bool,
    sort: impl FnOnce(&Tensor, &Tensor) -> Result<()>,
) {
    let values = Tensor::garbage(target, a.dtype, &sizes);
    let index = Tensor::garbage(target, DType::I64, &sizes);
    sort(&values, &index).unwrap();
    let [sorted, places] = expected(&a.floats(target), sizes, descending);
    let context = format!("{} of {sizes:?}, descending {descending}", a.dtype);
    assert_eq!(index.floats(target), places, "{context}");
    let bits = |values: Vec<f64>| values.into_iter().map(f64::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(values.floats(target)), bits(sorted), "{context}");
}

fn every_dtype_and_length(target: Target<'_>) {
    let lengths = [[3, 1, 2], [2, 37, 3], [1, 2048, 1], [2, 2049, 2], [1, 9000, 1], [2, 0, 2]];
    for (sizes, dtype) in lengths.into_iter().flat_map(|s| DType::ALL.map(|d| (s, d))) {
        let n: usize = sizes.iter().product();
        let mut values = samples(dtype, n, 7);
        if let Some(v) = values.get_mut(n / 2).filter(|_| dtype.is_float()) {
            *v = -0.0;
        }
        let a = Tensor::new(target, dtype, &sizes, &values);
        check(target, &a, sizes, false);
        check(target, &a, sizes, true);
    }
}

fn views(target: Target<'_>) {
    for n in [5, 3000] {
        let values: Vec<f64> = (0..2 * n).map(|i| ((i * 37) % 1009) as f64).collect();
        let a = Tensor::new(target, DType::I32, &[n, 2, 1], &values);
        check(target, &a.with(|l| l.permute(&[2, 0, 1])), [1, n, 2], false);
    }
}

/// Tests several long rows, which a GPU sorts as pairs in scratch memory.
fn in_parts(target: Target<'_>) {
    let (rows, n) = (3, 5000);
    let values: Vec<f64> = (0..rows * n).map(|i| ((i * 37) % 1009) as f64).collect();
    let a = Tensor::new(target, DType::F32, &[rows, n, 1], &values);
    // A row of 5,000 elements has 8,192 pairs: one row at a time, then two, then all.
    for max_pairs in [1 << 13, 1 << 14, 1 << 15] {
        check_with(target, &a, [rows, n, 1], true, |values, index| {
            sort_in_parts(target, a.view(), 1, true, [values.view(), index.view()], max_pairs)
        });
    }
}

fn searches(target: Target<'_>) {
    let sorted = [1.0, 3.0, 3.0, 5.0];
    let values = [0.0, 1.0, 3.0, 4.0, 5.0, 6.0];
    for dtype in DType::ALL.into_iter().filter(|d| *d != DType::Bool) {
        let row = Tensor::new(target, dtype, &[4], &sorted);
        let of = Tensor::new(target, dtype, &[2, 3], &values);
        for (right, should) in
            [(false, [0.0, 0.0, 1.0, 3.0, 3.0, 4.0]), (true, [0.0, 1.0, 3.0, 3.0, 4.0, 4.0])]
        {
            let out = Tensor::garbage(target, DType::I64, &[2, 3]);
            searchsorted(target, row.view(), of.view(), out.view(), right).unwrap();
            assert_eq!(out.floats(target), should, "{dtype}");
        }
    }
    let rows = Tensor::new(target, DType::F32, &[2, 2], &[1.0, 10.0, 2.0, 20.0]);
    let rows = rows.with(|l| l.transpose(0, 1));
    let of = Tensor::new(target, DType::F32, &[2, 2], &[1.5, f64::NAN, 15.0, 30.0]);
    let out = Tensor::garbage(target, DType::I64, &[2, 2]);
    searchsorted(target, rows.view(), of.view(), out.view(), false).unwrap();
    assert_eq!(out.floats(target), [1.0, 2.0, 1.0, 2.0]);
    let none = Tensor::new(target, DType::F32, &[0], &[]);
    searchsorted(target, none.view(), of.view(), out.view(), false).unwrap();
    assert_eq!(out.floats(target), [0.0; 4]);
}

#[test]
fn rows_are_sorted_on_the_cpu_and_on_simulated_devices() {
    on_every_target(every_dtype_and_length);
    on_every_target(views);
    on_every_target(in_parts);
    on_every_target(searches);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_rows_are_sorted() {
    on_gpu(every_dtype_and_length);
    on_gpu(views);
    on_gpu(in_parts);
    on_gpu(searches);
}

#[test]
fn bad_arguments_are_refused() {
    on_every_target(|target| {
        let make = |dtype, sizes: &[usize]| Tensor::garbage(target, dtype, sizes);
        let (a, index) = (make(DType::F32, &[2]), make(DType::I64, &[2]));
        let run =
            |values: &Tensor, dim| sort(target, a.view(), dim, false, values.view(), index.view());
        let find = |values: &Tensor| {
            searchsorted(
                target,
                make(DType::F32, &[2, 3]).view(),
                values.view(),
                index.view(),
                true,
            )
        };
        fails!(run(&make(DType::F64, &[2]), 0), "sort": ErrorKind::DTypeMismatch { .. });
        fails!(run(&make(DType::F32, &[3]), 0), ErrorKind::ShapeMismatch { .. });
        fails!(run(&make(DType::F32, &[2]), 1), ErrorKind::DimOutOfRange { .. });
        fails!(run(&a, 0), ErrorKind::OverlappingOperands);
        fails!(find(&make(DType::F64, &[2])), "searchsorted": ErrorKind::DTypeMismatch { .. });
        fails!(find(&make(DType::F32, &[2])), ErrorKind::ShapeMismatch { .. });
    });
}
