//! Tests of scattering, on every target.

use warpline_kernels::scatter::*;
use warpline_runtime::testing::{Tensor, assert_close, on_every_target, on_gpu, samples, stored};
use warpline_runtime::{DType, ErrorKind, IndexCheck, Layout, Target};

/// Creates a tensor of small integers, whose sums and products are exact in every dtype, or wrap as
/// in the reference.
fn numbers(target: Target<'_>, dtype: DType, sizes: &[usize], salt: usize) -> Tensor {
    let n: usize = sizes.iter().product();
    let values: Vec<f64> = (0..n).map(|i| ((i * 5 + salt) % 4) as f64).collect();
    let values: Vec<f64> = values.into_iter().map(|v| stored(dtype, v)).collect();
    Tensor::new(target, dtype, sizes, &values)
}

fn indices(target: Target<'_>, sizes: &[usize], below: usize) -> Tensor {
    let n: usize = sizes.iter().product();
    let values: Vec<f64> = (0..n).map(|i| ((i * 7 + i / 3) % below.max(1)) as f64).collect();
    Tensor::new(target, DType::I64, sizes, &values)
}

fn places(sizes: &[usize]) -> Vec<Vec<usize>> {
    let step = |d: usize| sizes[d + 1..].iter().product::<usize>();
    let place = |i: usize| (0..sizes.len()).map(|d| i / step(d) % sizes[d]).collect();
    (0..sizes.iter().product()).map(place).collect()
}

fn number(sizes: &[usize], place: &[usize]) -> usize {
    sizes.iter().zip(place).fold(0, |n, (size, at)| n * size + at)
}

/// Scatters with plain loops over row-major values.
fn expected(
    reduce: Reduce,
    (mut out, to): (Vec<f64>, &[usize]),
    dim: usize,
    (index, at): (&[f64], &[usize]),
    (source, from): (&[f64], &[usize]),
    dtype: DType,
) -> Vec<f64> {
    for (n, place) in places(at).iter().enumerate() {
        let mut target = place.clone();
        target[dim] = index[n] as usize;
        let (old, new) = (&mut out[number(to, &target)], source[number(from, place)]);
        let value = match reduce {
            Reduce::Sum => *old + new,
            Reduce::Prod => *old * new,
            Reduce::Max => old.max(new),
            Reduce::Min => old.min(new),
            Reduce::Assign => new,
        };
        *old = stored(dtype, value);
    }
    out
}

fn every_reduction_and_dtype(target: Target<'_>) {
    for dtype in DType::ALL {
        for (dim, reduce) in (0..3).flat_map(|dim| Reduce::ALL.map(|reduce| (dim, reduce))) {
            let mut to = [4, 5, 6];
            to[dim] = if reduce == Reduce::Assign { 7 } else { 3 };
            let memory = numbers(target, dtype, &to, 1);
            let source = numbers(target, dtype, &[6, 7, 5], 2).with(|l| l.permute(&[2, 0, 1]));
            let from = [5, 6, 7];
            let index = match reduce {
                // Use distinct indices, because any of several elements with the same index may be
                // assigned last.
                Reduce::Assign => {
                    let back: Vec<f64> =
                        places(&[4, 5, 6]).iter().map(|at| (6 - at[dim]) as f64).collect();
                    Tensor::new(target, DType::I64, &[4, 5, 6], &back)
                }
                _ => indices(target, &[4, 5, 6], 3),
            };
            let should = expected(
                reduce,
                (memory.floats(target), &to),
                dim,
                (&index.floats(target), &[4, 5, 6]),
                (&source.floats(target), &from),
                dtype,
            );
            scatter(target, "scatter", memory.view(), dim, index.view(), source.view(), reduce)
                .unwrap();
            let context = format!("{reduce:?} of {dtype} over {dim}");
            assert_close(dtype, &memory.floats(target), &should, &context);
        }
    }
}

/// Tests two numbers of indices: for the first, a GPU has one thread per element of the result; for
/// the second, it uses atomics. The values are small integers, whose sums are exact.
fn many(target: Target<'_>) {
    for (n, rows) in [(50, 20), (70_000, 1000)] {
        many_into(target, n, rows);
    }
}

fn many_into(target: Target<'_>, n: usize, rows: usize) {
    let of = |dtype| Reduce::ALL.map(|reduce| (dtype, reduce));
    for (dtype, reduce) in DType::ALL.into_iter().flat_map(of) {
        // Half-width floats cannot represent such sums, and any of several elements with the same
        // index may be assigned last.
        if matches!(dtype, DType::F16 | DType::BF16) && reduce == Reduce::Sum
            || reduce == Reduce::Assign
        {
            continue;
        }
        let out = numbers(target, dtype, &[rows], 3);
        let index = indices(target, &[n], rows);
        let source = match reduce {
            Reduce::Prod => Tensor::new(target, dtype, &[n], &vec![1.0; n]),
            _ => numbers(target, dtype, &[n], 1),
        };
        let all = (out.floats(target), index.floats(target), source.floats(target));
        let should = expected(reduce, (all.0, &[rows]), 0, (&all.1, &[n]), (&all.2, &[n]), dtype);
        scatter(target, "scatter", out.view(), 0, index.view(), source.view(), reduce).unwrap();
        assert_close(dtype, &out.floats(target), &should, &format!("{reduce:?} of {dtype}"));
    }
}

/// Neutral elements change no value. The values include the least and greatest value of an integer
/// dtype.
fn neutral_elements(target: Target<'_>) {
    for (dtype, reduce) in DType::ALL.into_iter().flat_map(|d| Reduce::ALL.map(|r| (d, r))) {
        let Some(neutral) = reduce.neutral(dtype) else {
            assert_eq!(reduce, Reduce::Assign);
            continue;
        };
        let end = 2f64.powi(8 * dtype.size() as i32 - 1);
        let mut values = samples(dtype, 100, 5);
        values.extend([-end, end - 1.0, 255.0].map(|value| stored(dtype, value)));
        let n = values.len();
        let source = Tensor::new(target, dtype, &[n], &values);
        let index: Vec<f64> = (0..n).map(|i| i as f64).collect();
        let index = Tensor::new(target, DType::I64, &[n], &index);
        let out = Tensor::new(target, dtype, &[n], &vec![neutral.to_f64(); n]);
        scatter(target, "scatter", out.view(), 0, index.view(), source.view(), reduce).unwrap();
        assert_close(dtype, &out.floats(target), &values, &format!("{reduce:?} of {dtype}"));
    }
}

fn rows_added(target: Target<'_>) {
    for dtype in DType::ALL {
        // Results with few and with many rows. The second case has more columns than a block has
        // threads.
        for (rows, columns, n) in [(5, 3, 40), (3, 300, 2100), (8200, 2, 50), (4, 1, 0)] {
            let index = indices(target, &[n], rows.min(6));
            let source = numbers(target, dtype, &[columns, n], 2).with(|l| l.transpose(0, 1));
            let (of, from) = (index.floats(target), source.floats(target));
            let spread: Vec<f64> = of.iter().flat_map(|&k| vec![k; columns]).collect();
            for from_zero in [false, true] {
                let out = numbers(target, dtype, &[rows, columns], 1);
                let begin = if from_zero { vec![0.0; rows * columns] } else { out.floats(target) };
                let sizes = [n, columns];
                let should = expected(
                    Reduce::Sum,
                    (begin, &[rows, columns]),
                    0,
                    (&spread, &sizes),
                    (&from, &sizes),
                    dtype,
                );
                // A GPU rounds sums of half-width floats once. The host rounds after each addition.
                let exact = !matches!(dtype, DType::F16 | DType::BF16) || n < 100;
                if from_zero {
                    embedding_backward(target, out.view(), index.view(), source.view(), None)
                } else {
                    index_add(target, out.view(), 0, index.view(), source.view())
                }
                .unwrap();
                if exact {
                    assert_close(dtype, &out.floats(target), &should, &format!("{dtype}, {rows}"));
                }
            }
        }
    }
}

fn padding_and_other_dimensions(target: Target<'_>) {
    let source = Tensor::new(target, DType::F32, &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let index = Tensor::new(target, DType::I64, &[3], &[1.0, 0.0, 1.0]);
    let out = Tensor::garbage(target, DType::F32, &[3, 2]);
    embedding_backward(target, out.view(), index.view(), source.view(), Some(0)).unwrap();
    assert_eq!(out.floats(target), [0.0, 0.0, 6.0, 8.0, 0.0, 0.0]);
    let out = Tensor::new(target, DType::F32, &[2, 2], &[0.0; 4]).with(|l| l.transpose(0, 1));
    let source = source.with(|l| l.transpose(0, 1));
    index_add(target, out.view(), 1, index.view(), source.view()).unwrap();
    assert_eq!(out.floats(target), [3.0, 6.0, 4.0, 8.0]);
    let scalar = Tensor::new(target, DType::F32, &[], &[2.0]);
    let zero = Tensor::new(target, DType::I64, &[], &[0.0]);
    scatter(
        target,
        "scatter",
        scalar.view(),
        0,
        zero.view(),
        scalar_of(target).view(),
        Reduce::Sum,
    )
    .unwrap();
    assert_eq!(scalar.floats(target), [7.0]);
}

fn scalar_of(target: Target<'_>) -> Tensor {
    Tensor::new(target, DType::F32, &[], &[5.0])
}

fn numbers_of_places(target: Target<'_>) {
    let rows = Tensor::new(target, DType::I64, &[3], &[1.0, -1.0, 0.0]);
    let columns = Tensor::new(target, DType::I64, &[3], &[-4.0, 3.0, 2.0]);
    let out = Tensor::garbage(target, DType::I64, &[3]);
    linear_index(target, "index", out.view(), rows.view(), (0, 3), true).unwrap();
    linear_index(target, "index", out.view(), columns.view(), (1, 4), false).unwrap();
    assert_eq!(out.floats(target), [4.0, 11.0, 2.0]);
}

/// Indices out of range are reported, and all other elements are still added.
fn out_of_range(target: Target<'_>) {
    let source = Tensor::new(target, DType::F32, &[3, 1], &[1.0, 2.0, 4.0]);
    let one = [1.0, 0.0];
    for (bad, rows) in [(-1.0, 2), (2.0, 2), (5.0, 0)] {
        let index = Tensor::new(target, DType::I64, &[3, 1], &[0.0, bad, 0.0]);
        let vector = index.with(|l| l.squeeze(1));
        let begin = &one[..rows];
        for kind in 0..4 {
            let out = Tensor::new(target, DType::F32, &[rows, 1], begin);
            let number = Tensor::garbage(target, out.dtype, &[]);
            let scalars = (number.view(), number.view());
            fails!(
                embedding_backward(target, scalars.0, vector.view(), scalars.1, None),
                ErrorKind::ShapeMismatch { .. }
            );
            let to = Tensor::garbage(target, DType::I64, &[3]);
            let at_once = match kind {
                0 => scatter(
                    target,
                    "scatter",
                    out.view(),
                    0,
                    index.view(),
                    source.view(),
                    Reduce::Sum,
                ),
                1 => index_add(target, out.view(), 0, vector.view(), source.view()),
                2 => embedding_backward(target, out.view(), vector.view(), source.view(), None),
                _ if bad < 0.0 => continue,
                _ => linear_index(target, "i", to.view(), vector.view(), (0, rows), true),
            };
            let error = match target {
                Target::Cpu(_) => at_once.expect_err("at once"),
                Target::Cuda(_, _, stream) => {
                    at_once.expect("not at once");
                    stream.synchronize().expect_err("the first wait")
                }
            };
            let failed = IndexCheck::of(&error).expect("a failed check");
            // If there are no rows, any index may be the reported one.
            assert!(failed.index == bad as i64 || rows == 0 && failed.index == 0, "{failed:?}");
            assert_eq!(failed.size, rows);
            if rows > 0 && kind < 3 {
                let from = if kind == 2 { 0.0 } else { 1.0 };
                assert_eq!(out.unmarked().floats(target), [from + 5.0, 0.0], "{kind}");
            }
        }
    }
}

#[test]
fn scatters_are_right_on_the_cpu_and_on_simulated_devices() {
    on_every_target(every_reduction_and_dtype);
    on_every_target(many);
    on_every_target(neutral_elements);
    on_every_target(rows_added);
    on_every_target(padding_and_other_dimensions);
    on_every_target(numbers_of_places);
    on_every_target(out_of_range);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_scatters_are_right() {
    on_gpu(every_reduction_and_dtype);
    on_gpu(many);
    on_gpu(neutral_elements);
    on_gpu(rows_added);
    on_gpu(padding_and_other_dimensions);
    on_gpu(numbers_of_places);
    on_gpu(out_of_range);
}

#[test]
fn bad_arguments_are_refused() {
    on_every_target(|target| {
        let make = |dtype, sizes: &[usize]| Tensor::garbage(target, dtype, sizes);
        let zero = |sizes: &[usize]| {
            Tensor::new(target, DType::I64, sizes, &vec![0.0; sizes.iter().product()])
        };
        let (out, source) = (make(DType::F32, &[2, 3]), make(DType::F32, &[2, 3]));
        let run = |out: &Tensor, dim, index: &Tensor, source: &Tensor| {
            scatter(target, "s", out.view(), dim, index.view(), source.view(), Reduce::Sum)
        };
        fails!(run(&out, 2, &zero(&[2, 3]), &source), ErrorKind::DimOutOfRange { dim: 2, .. });
        fails!(run(&out, 0, &zero(&[3, 3]), &source), "s": ErrorKind::ShapeMismatch { .. });
        fails!(
            run(&out, 1, &zero(&[3, 3]), &make(DType::F32, &[3, 3])),
            ErrorKind::ShapeMismatch { .. }
        );
        fails!(run(&out, 0, &make(DType::I32, &[2, 3]), &source), ErrorKind::DTypeMismatch { .. });
        fails!(
            run(&out, 0, &zero(&[2, 3]), &make(DType::F64, &[2, 3])),
            ErrorKind::DTypeMismatch { .. }
        );
        fails!(run(&out, 0, &zero(&[2, 3]), &out), ErrorKind::OverlappingOperands);
        let expanded = make(DType::F32, &[1, 3]).with(|l: &Layout| l.expand(&[2, 3]));
        fails!(run(&expanded, 0, &zero(&[2, 3]), &source), ErrorKind::OverlappingWrite);
        let add = |index: &Tensor| index_add(target, out.view(), 0, index.view(), source.view());
        fails!(add(&zero(&[3])), "index_add": ErrorKind::ShapeMismatch { .. });
        fails!(add(&zero(&[2, 1])), ErrorKind::ShapeMismatch { .. });
    });
}
