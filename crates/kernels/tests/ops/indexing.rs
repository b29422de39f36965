//! Tests of indexing that run on every target.

use std::panic::Location;

use warpline_kernels::indexing::*;
use warpline_runtime::DType::{BF16, F32, F64, I8, I16, I32, I64};
use warpline_runtime::testing::{Tensor, on_every_target, on_gpu, samples, shapes};
use warpline_runtime::{DType, ErrorKind, IndexCheck, Layout, Result, Sizes, Strides, Target};

/// Row-major strides of sizes.
fn steps(sizes: &[usize]) -> Vec<usize> {
    (0..sizes.len()).map(|d| sizes[d + 1..].iter().product()).collect()
}

/// The indices of each element of a row-major tensor.
fn places(sizes: &[usize]) -> Vec<Vec<usize>> {
    let steps = steps(sizes);
    let place = |i: usize| sizes.iter().zip(&steps).map(|(n, step)| i / step % n).collect();
    (0..sizes.iter().product()).map(place).collect()
}

/// Computes `gather` with plain loops.
pub(crate) fn expected(input: &Tensor, dim: usize, index: &Tensor, target: Target<'_>) -> Vec<f64> {
    let (values, indices) = (input.floats(target), index.floats(target));
    let steps = steps(input.view().sizes());
    let places = places(index.view().sizes());
    let of = |(place, k): (&Vec<usize>, &f64)| {
        let mut at = place.clone();
        at[dim] = *k as usize;
        values[at.iter().zip(&steps).map(|(i, step)| i * step).sum::<usize>()]
    };
    places.iter().zip(&indices).map(of).collect()
}

/// Compares bits, because NaNs are moved unchanged.
#[track_caller]
pub(crate) fn assert_same(actual: Vec<f64>, expected: Vec<f64>, context: &str) {
    let bits = |values: Vec<f64>| values.into_iter().map(f64::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(actual), bits(expected), "{context}");
}

fn indices(target: Target<'_>, dtype: DType, sizes: &[usize], below: usize, salt: usize) -> Tensor {
    let n: usize = sizes.iter().product();
    let values: Vec<f64> = (0..n).map(|i| ((i * 7 + salt) % below.max(1)) as f64).collect();
    Tensor::new(target, dtype, sizes, &values)
}

fn every_view_and_dtype(target: Target<'_>) {
    for shape in shapes() {
        for dtype in DType::ALL {
            let n = shape.memory[0].iter().product();
            let input = Tensor::new(target, dtype, shape.memory[0], &samples(dtype, n, 5));
            let input = input.with(shape.views[0]);
            let sizes = input.view().sizes().to_vec();
            for (dim, of) in (0..sizes.len()).flat_map(|dim| [(dim, I32), (dim, I64)]) {
                let context = format!("{}, {dtype} over {dim} by {of}", shape.name);
                let index = indices(target, of, &sizes, sizes[dim], dim);
                let out = Tensor::garbage(target, dtype, &sizes);
                gather(target, input.view(), dim, index.view(), out.view()).unwrap();
                let all = expected(&input, dim, &index, target);
                assert_same(out.floats(target), all, &format!("gather, {context}"));
                let count = if sizes[dim] == 0 { 0 } else { 3 };
                let which = indices(target, of, &[count * 2], sizes[dim], 1)
                    .with(|l| l.slice(0, 0, count * 2, 2));
                let mut to = sizes.clone();
                to[dim] = count;
                let out = Tensor::garbage(target, dtype, &to);
                index_select(target, input.view(), dim, which.view(), out.view()).unwrap();
                let spread = spread(target, &which, &to, dim);
                let all = expected(&input, dim, &spread, target);
                assert_same(out.floats(target), all, &format!("index_select, {context}"));
            }
        }
    }
}

/// Expands a vector of indices to other sizes.
pub(crate) fn spread(target: Target<'_>, which: &Tensor, sizes: &[usize], dim: usize) -> Tensor {
    let values = which.floats(target);
    let all: Vec<f64> = places(sizes).iter().map(|at| values[at[dim]]).collect();
    Tensor::new(target, which.dtype, sizes, &all)
}

fn smaller_indices_and_written_views(target: Target<'_>) {
    let base = Tensor::new(target, F32, &[6, 5, 4], &samples(F32, 120, 1));
    let index = indices(target, I32, &[7, 3, 2], 6, 2).with(|l| l.permute(&[0, 2, 1]));
    let out = Tensor::garbage(target, F32, &[3, 7, 2]).with(|l| l.permute(&[1, 2, 0]));
    let input = base.with(|l| l.permute(&[0, 2, 1]));
    gather(target, input.view(), 0, index.view(), out.view()).unwrap();
    assert_same(out.floats(target), expected(&input, 0, &index, target), "gather");
    let weight = base.with(|l| l.narrow(2, 1, 1)?.squeeze(2));
    for dtype in [I32, I64] {
        let index = indices(target, dtype, &[3, 4], 6, 3).with(|l| l.transpose(0, 1));
        let out = Tensor::garbage(target, F32, &[4, 3, 5]);
        embedding(target, weight.view(), index.view(), out.view()).unwrap();
        let (rows, all) = (index.floats(target), weight.floats(target));
        let should = rows.iter().flat_map(|&r| all[r as usize * 5..][..5].to_vec()).collect();
        assert_same(out.floats(target), should, "embedding");
    }
}

fn scalars_and_nothing(target: Target<'_>) {
    let (zero, none) = (Tensor::new(target, I64, &[], &[0.0]), Tensor::new(target, I64, &[0], &[]));
    let scalar = Tensor::new(target, F64, &[], &[7.0]);
    let row = Tensor::new(target, F64, &[3], &[1.0, 2.0, 3.0]);
    let out = || Tensor::garbage(target, F64, &[]);
    for (input, value) in [(&scalar, 7.0), (&row, 1.0)] {
        let to = out();
        gather(target, input.view(), 0, zero.view(), to.view()).unwrap();
        assert_eq!(to.floats(target), [value]);
    }
    let to = out();
    index_select(target, scalar.view(), 0, zero.view(), to.view()).unwrap();
    assert_eq!(to.floats(target), [7.0]);
    let zeros = Tensor::new(target, I64, &[4], &[0.0; 4]);
    let to = Tensor::garbage(target, F64, &[4]);
    gather(target, scalar.view(), 0, zeros.view(), to.view()).unwrap();
    assert_eq!(to.floats(target), [7.0; 4]);
    let to = Tensor::garbage(target, F64, &[1]);
    index_select(target, row.view(), 0, zero.view(), to.view()).unwrap();
    assert_eq!(to.floats(target), [1.0]);
    let weight = Tensor::new(target, F64, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let to = Tensor::garbage(target, F64, &[3]);
    embedding(target, weight.view(), zero.view(), to.view()).unwrap();
    assert_eq!(to.floats(target), [1.0, 2.0, 3.0]);
    let to = Tensor::garbage(target, F64, &[0]);
    gather(target, row.view(), 0, none.view(), to.view()).unwrap();
    index_select(target, row.view(), 0, none.view(), to.view()).unwrap();
}

/// An index out of range gives 0 and an error that names it. All other elements are correct.
fn out_of_range(target: Target<'_>) {
    let input = Tensor::new(target, F32, &[4, 3], &(1..13).map(f64::from).collect::<Vec<_>>());
    let nothing = Tensor::new(target, I16, &[0, 3], &[]);
    for (bad, dtype) in [(-1, I64), (4, I32), (i64::MIN, I64), (1 << 40, I64), (i64::MAX, I64)] {
        let index = Tensor::new(target, dtype, &[3], &[0.0, 77.0, 2.0]);
        let one = index.with(|l| l.narrow(0, 1, 1));
        warpline_kernels::fill::fill(target, one.view(), warpline_runtime::Scalar::Int(bad))
            .unwrap();
        let out = Tensor::garbage(target, F32, &[3, 3]);
        let line = line!() + 1;
        let at_once = index_select(target, input.view(), 0, index.view(), out.view());
        let error = reported(target, at_once);
        assert_eq!((error.op, error.index, error.dim, error.size), ("index_select", bad, 0, 4));
        assert_eq!((error.location.file(), error.location.line()), (file!(), line));
        let expected = [1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 7.0, 8.0, 9.0];
        assert_marked(target, &out, &error);
        assert_eq!(out.unmarked().floats(target), expected, "index {bad}");
        let out = Tensor::garbage(target, I16, &[1, 3]);
        let at_once = index_select(target, nothing.view(), 0, one.view(), out.view());
        let error = reported(target, at_once);
        assert_eq!((error.index, error.size), (bad, 0));
        assert_marked(target, &out, &error);
        assert_eq!(out.unmarked().floats(target), [0.0; 3]);
    }
}

/// A result whose index check failed cannot be read, not even in part, until it is overwritten.
/// This holds on the CPU and on a device.
fn assert_marked(target: Target<'_>, out: &Tensor, error: &IndexCheck) {
    let copy = Tensor::garbage(target, out.dtype, out.view().sizes());
    for _ in 0..2 {
        let used = warpline_kernels::copy::copy(target, out.view(), copy.view());
        assert_eq!(used.as_ref().err().and_then(IndexCheck::of).as_ref(), Some(error), "{used:?}");
        let read = match target {
            Target::Cpu(_) => warpline_runtime::launch::read_bytes((&out.storage, 0), &mut [0]),
            Target::Cuda(runtime, _, stream) => {
                let host = warpline_runtime::Storage::pageable(runtime, 1).unwrap();
                let here = Location::caller();
                warpline_runtime::launch::copy_bytes(
                    stream,
                    (&host, 0),
                    (&out.storage, 0),
                    1,
                    false,
                    here,
                )
            }
        };
        assert_eq!(read.as_ref().err().and_then(IndexCheck::of).as_ref(), Some(error), "{read:?}");
    }
    assert_eq!(copy.floats(target), vec![77.0; copy.view().numel()], "what was refused changed it");
}

/// A result in existing memory: only that part of the memory is marked.
fn marked_in_part(target: Target<'_>) {
    let input = Tensor::new(target, F32, &[2], &[5.0, 6.0]);
    let index = Tensor::new(target, I64, &[2], &[1.0, 2.0]);
    let all = Tensor::garbage(target, F32, &[6]);
    let part = |from| all.with(|l| l.narrow(0, from, 2));
    let at_once = index_select(target, input.view(), 0, index.view(), part(2).view());
    let error = reported(target, at_once);
    let copy = Tensor::garbage(target, F32, &[2]);
    for from in [1, 2, 3] {
        let used = warpline_kernels::copy::copy(target, part(from).view(), copy.view());
        assert_eq!(used.as_ref().err().and_then(IndexCheck::of).as_ref(), Some(&error), "{used:?}");
    }
    for from in [0, 4] {
        warpline_kernels::copy::copy(target, part(from).view(), copy.view()).unwrap();
        assert_eq!(copy.floats(target), [77.0; 2]);
    }
    for from in [1, 3] {
        warpline_kernels::fill::fill(
            target,
            part(from).view(),
            warpline_runtime::Scalar::Float(1.0),
        )
        .unwrap();
    }
    assert_eq!(all.floats(target), [77.0, 1.0, 1.0, 1.0, 1.0, 77.0]);
}

#[test]
fn a_part_is_marked() {
    on_every_target(marked_in_part);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_a_part_is_marked() {
    on_gpu(marked_in_part);
}

/// Returns the index check of an op, from the op itself or from a wait.
fn reported(target: Target<'_>, at_once: Result<()>) -> IndexCheck {
    let error = match target {
        Target::Cpu(_) => at_once.expect_err("on the host it is known at once"),
        Target::Cuda(_, _, stream) => {
            at_once.expect("on a device it is not");
            let error = stream.synchronize().expect_err("the first wait");
            stream.synchronize().expect("it is reported once");
            error
        }
    };
    IndexCheck::of(&error).unwrap_or_else(|| panic!("{error}"))
}

#[test]
fn rows_are_selected_on_the_cpu_and_on_simulated_devices() {
    on_every_target(every_view_and_dtype);
    on_every_target(smaller_indices_and_written_views);
    on_every_target(scalars_and_nothing);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_rows_are_selected() {
    on_gpu(every_view_and_dtype);
    on_gpu(smaller_indices_and_written_views);
    on_gpu(scalars_and_nothing);
}

#[test]
fn an_index_out_of_range_is_reported() {
    on_every_target(out_of_range);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_an_index_out_of_range_is_reported() {
    on_gpu(out_of_range);
}

/// Failures of several threads give one report.
fn many_out_of_range(target: Target<'_>) {
    let n = 200_000;
    let input = Tensor::garbage(target, I8, &[9]);
    let index = Tensor::new(target, I32, &[n], &(0..n).map(|i| i as f64).collect::<Vec<_>>());
    let out = Tensor::garbage(target, I8, &[n]);
    let at_once = gather(target, input.view(), 0, index.view(), out.view());
    let error = reported(target, at_once);
    assert!((9..n as i64).contains(&error.index), "{error:?}");
    let out = out.unmarked().floats(target);
    assert!(out[..9] == [77.0; 9] && out[9..].iter().all(|v| *v == 0.0));
}

#[test]
fn many_failed_indices_are_one_report() {
    on_every_target(many_out_of_range);
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_many_failed_indices_are_one_report() {
    on_gpu(many_out_of_range);
}

/// Offsets beyond signed 32 bits split the launch.
#[test]
fn elements_far_apart_are_indexed() {
    let reason = warpline_cuda_sys_safe::DriverError::NoDevice { reason: "not needed".into() };
    let runtime = warpline_runtime::Runtime::without_cuda(
        reason,
        &warpline_runtime::RuntimeConfig::default(),
    );
    let target = Target::Cpu(&runtime);
    // The test touches only little of this memory.
    let far = Tensor {
        storage: warpline_runtime::Storage::pageable(&runtime, (3 << 30) + 2).unwrap(),
        layout: Layout::from_parts(
            Sizes::from_slice(&[4, 2]),
            Strides::from_slice(&[1 << 30, 1]),
            0,
        ),
        dtype: I8,
    };
    let values = Tensor::new(target, I8, &[4, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    warpline_kernels::copy::copy(target, values.view(), far.view()).unwrap();
    let index = Tensor::new(target, I32, &[4, 1], &[1.0, 0.0, 1.0, 0.0]);
    let out = Tensor::garbage(target, I8, &[4, 1]);
    gather(target, far.view(), 1, index.view(), out.view()).unwrap();
    assert_eq!(out.floats(target), [2.0, 3.0, 6.0, 7.0]);
    let rows = Tensor::garbage(target, I8, &[4, 2]);
    let back = Tensor::new(target, I32, &[4], &[3.0, 1.0, 2.0, 0.0]);
    index_select(target, far.view(), 0, back.view(), rows.view()).unwrap();
    assert_eq!(rows.floats(target), [7.0, 8.0, 3.0, 4.0, 5.0, 6.0, 1.0, 2.0]);
    index_select(target, rows.view(), 0, back.view(), far.view()).unwrap();
    warpline_kernels::copy::copy(target, far.view(), rows.view()).unwrap();
    assert_eq!(rows.floats(target), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
}

/// A driver that runs nothing reports nothing.
#[test]
fn nothing_runs_on_null() {
    let driver = std::sync::Arc::new(warpline_cuda_sys_safe::null::NullDriver::new(1));
    let runtime =
        warpline_runtime::Runtime::new(driver, warpline_runtime::RuntimeConfig::default()).unwrap();
    let device = runtime.device(0).unwrap();
    let stream = device.device().default_stream();
    let target = Target::Cuda(&runtime, device, stream);
    let (weight, out) =
        (Tensor::garbage(target, F32, &[2, 3]), Tensor::garbage(target, F32, &[1, 3]));
    let index = Tensor::garbage(target, I64, &[1]);
    embedding(target, weight.view(), index.view(), out.view()).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn bad_arguments_are_refused() {
    on_every_target(|target| {
        let make = |dtype, sizes: &[usize]| Tensor::garbage(target, dtype, sizes);
        let (a, out) = (make(F32, &[2, 3]), make(F32, &[2, 3]));
        let zero =
            |sizes: &[usize]| Tensor::new(target, I64, sizes, &vec![0.0; sizes.iter().product()]);
        let index = zero(&[2]);
        let select = |a: &Tensor, dim, index: &Tensor, out: &Tensor| {
            index_select(target, a.view(), dim, index.view(), out.view())
        };
        fails!(select(&a, 2, &index, &out), ErrorKind::DimOutOfRange { dim: 2, ndim: 2, .. });
        fails!(select(&a, 1, &index, &out), "index_select": ErrorKind::ShapeMismatch { .. });
        fails!(select(&a, 0, &zero(&[1, 2]), &out), ErrorKind::ShapeMismatch { .. });
        fails!(select(&make(F32, &[]), 0, &index, &out), ErrorKind::ShapeMismatch { .. });
        fails!(select(&a, 0, &make(F32, &[2]), &out), ErrorKind::DTypeMismatch { .. });
        fails!(select(&a, 0, &make(I16, &[2]), &out), ErrorKind::DTypeMismatch { .. });
        fails!(select(&a, 0, &index, &make(BF16, &[2, 3])), ErrorKind::DTypeMismatch { .. });
        fails!(select(&a, 0, &index, &a), ErrorKind::OverlappingOperands);
        let expanded = make(F32, &[1, 3]).with(|l| l.expand(&[2, 3]));
        fails!(select(&a, 0, &index, &expanded), ErrorKind::OverlappingWrite);
        let gather = |a: &Tensor, dim, index: &Tensor, out: &Tensor| {
            gather(target, a.view(), dim, index.view(), out.view())
        };
        let large = zero(&[2, 4]);
        fails!(gather(&a, 0, &large, &make(F32, &[2, 4])), ErrorKind::ShapeMismatch { .. });
        gather(&a, 1, &large, &make(F32, &[2, 4])).unwrap();
        fails!(gather(&a, 0, &index, &make(F32, &[2])), ErrorKind::ShapeMismatch { .. });
        fails!(gather(&a, 0, &zero(&[2, 3]), &make(F32, &[2])), ErrorKind::ShapeMismatch { .. });
        let embed =
            |w: &Tensor, out: &Tensor| embedding(target, w.view(), index.view(), out.view());
        fails!(embed(&make(F32, &[2]), &out), "embedding": ErrorKind::ShapeMismatch { .. });
        fails!(embed(&a, &make(F32, &[2, 2])), ErrorKind::ShapeMismatch { .. });
    });
}
