//! Tests of sizes and numbers at the limits of their types, on the CPU and on a simulated GPU.

use warpline::data::{DataLoader, Dataset};
use warpline::functional::{BatchNormOptions, DropoutOptions, batch_norm, dropout};
use warpline::{
    DType, Element, ErrorKind, Result, ResultExt, Tensor, apply_elementwise, arange, cat, full,
    ones, simulated, tensor, with_runtime, zeros,
};

use crate::common::bad_calls::everywhere;

#[test]
fn empty_tensors_whose_sizes_overflow_are_refused() -> Result<()> {
    everywhere(|at| {
        let huge = 1 << 40;
        for sizes in [[huge, huge, 0], [0, huge, huge], [huge, 0, huge]] {
            assert!(
                matches!(zeros(sizes, at).kind(), Some(ErrorKind::SizeOverflow { .. })),
                "{sizes:?}"
            );
        }
        let none = zeros([0], at)?;
        assert!(none.reshape([isize::MAX, isize::MAX, 0]).is_err());
        let wide = zeros([1, 0], at)?.expand([1isize << 62, 0])?;
        assert!(matches!(
            cat(&[&wide, &wide, &wide, &wide], 0).kind(),
            Some(ErrorKind::SizeOverflow { .. })
        ));
        let one = ones([1], at)?.expand([isize::MAX])?;
        assert!(matches!(cat(&[&one, &one, &one], 0).kind(), Some(ErrorKind::SizeOverflow { .. })));
        assert!(none.chunk(1 << 62, 0).is_err());
        let (a, b) = (zeros([1 << 40, 1, 1, 0], at)?, zeros([1, 1 << 40, 0, 1], at)?);
        assert!(matches!(a.matmul(&b).kind(), Some(ErrorKind::SizeOverflow { .. })));
        Ok(())
    })
}

#[test]
fn bounds_of_a_slice_beyond_the_end_are_clamped() -> Result<()> {
    everywhere(|at| {
        let t = arange(6, at)?.reshape([2, 3])?;
        assert_eq!(t.slice(0, usize::MAX - 1..usize::MAX, 1)?.size(), [0, 3], "cut off");
        assert_eq!(t.slice(0, 0..2, usize::MAX / 2)?.to_vec::<i64>()?, [0, 1, 2]);
        assert_eq!(t.slice(1, 1..100, 1)?.to_vec::<i64>()?, [1, 2, 4, 5]);
        assert_eq!(t.slice(1, -100..=-2, 1)?.to_vec::<i64>()?, [0, 1, 3, 4]);
        assert_eq!(t.slice(1, -2.., 1)?.to_vec::<i64>()?, [1, 2, 4, 5]);
        let (from, to) = (2, 1);
        assert_eq!(t.slice(1, from..to, 1)?.size(), [2, 0]);
        assert_eq!(t.slice(1, ..=-1, 2)?.to_vec::<i64>()?, [0, 2, 3, 5]);
        assert!(t.slice(1, .., 0).is_err());
        assert!(t.slice(2, .., 1).is_err());
        Ok(())
    })
}

/// A value that does not fit the requested type is an error, when it is read and when a tensor is
/// made from it.
#[test]
fn a_value_that_the_type_cannot_hold_is_an_error() -> Result<()> {
    fn refused<T: Element>(t: &Tensor) {
        let error = t.item::<T>().expect_err("it does not fit");
        assert!(
            matches!((error.op(), error.kind()), ("item", ErrorKind::ValueDoesNotFit { .. })),
            "{error}"
        );
        assert!(error.to_string().contains(T::DTYPE.name()), "{error}");
    }
    everywhere(|at| {
        let large = tensor(300i64, at)?;
        refused::<u8>(&large);
        refused::<i8>(&large);
        assert_eq!(large.item::<i16>()?, 300);
        let negative = tensor(-1i32, at)?;
        refused::<u8>(&negative);
        assert_eq!((negative.item::<i8>()?, negative.item::<f64>()?), (-1, -1.0));
        for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
            for odd in [f64::NAN, f64::INFINITY, 1.5] {
                let t = full([], odd, (dtype, at))?;
                refused::<u8>(&t);
                refused::<i8>(&t);
                refused::<i16>(&t);
                refused::<i32>(&t);
                refused::<i64>(&t);
                assert!(t.item::<bool>()?);
                assert!((t.item::<f32>()? - odd as f32).abs() == 0.0 || !odd.is_finite());
            }
        }
        refused::<half::f16>(&tensor(70_000i64, at)?);
        refused::<f32>(&tensor(1e300f64, at)?);
        // `to_vec` converts no elements, unlike `item`.
        let error = tensor([300i64, 1], at)?.to_vec::<u8>().expect_err("another dtype");
        assert!(
            matches!((error.op(), error.kind()), ("to_vec", ErrorKind::DTypeMismatch { .. })),
            "{error}"
        );
        let error = tensor([300i64, 1], at)?.to_vec_async::<u8>().expect_err("another dtype");
        assert!(
            matches!((error.op(), error.kind()), ("to_vec_async", ErrorKind::DTypeMismatch { .. })),
            "{error}"
        );
        // Making a tensor from values outside the range of its dtype is also an error.
        assert!(tensor([300i64, 1], (DType::U8, at)).is_err());
        assert!(tensor([f32::NAN], (DType::I32, at)).is_err());
        assert_eq!(tensor([255i64, 1], (DType::U8, at))?.to_vec::<u8>()?, [255, 1]);
        assert!(arange(300, (DType::U8, at)).is_err());
        assert_eq!(arange(256, (DType::U8, at))?.numel(), 256);
        Ok(())
    })
}

#[test]
fn a_fill_value_that_the_dtype_cannot_hold_is_an_error() -> Result<()> {
    everywhere(|at| {
        assert!(full([1], 1_000_000, (DType::F16, at)).is_err());
        assert!(full([1], -9.25e18, (DType::I64, at)).is_err());
        assert!(full([1], 65504, (DType::F16, at)).is_ok());
        let least = full([1], i64::MIN as f64, (DType::I64, at))?;
        assert_eq!(least.item::<i64>()?, i64::MIN);
        Ok(())
    })
}

#[test]
fn a_cpu_scalar_may_be_combined_with_a_gpu_tensor() -> Result<()> {
    everywhere(|at| {
        let bytes = tensor([1u8], at)?;
        assert_eq!(bytes.add(&tensor(300i64, "cpu")?)?.to_vec::<u8>()?, [45]);
        Ok(())
    })?;
    with_runtime(&simulated(1)?, || {
        let (host, gpu) = (ones([], "cpu")?, ones([], "cuda")?);
        assert!(matches!(host.add_(&gpu).kind(), Some(ErrorKind::DeviceMismatch { .. })));
        assert_eq!(gpu.add_(&host)?.item::<f32>()?, 2.0);
        assert_eq!(host.item::<f32>()?, 1.0);
        Ok(())
    })
}

struct Count(usize);

impl Dataset for Count {
    type Sample = i64;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<i64> {
        Ok(index as i64)
    }
}

#[test]
fn a_loader_accepts_the_largest_numbers() -> Result<()> {
    for len in [isize::MAX as usize, usize::MAX] {
        let loader = DataLoader::new(Count(len)).batch_size(2)?;
        let batches: Vec<_> = loader.iter()?.take(2).collect::<Result<_>>()?;
        assert_eq!(batches[1].to_vec::<i64>()?, [2, 3]);
    }
    let loader = DataLoader::new(Count(10)).batch_size(4)?.num_workers(2);
    assert_eq!(loader.prefetch_factor(usize::MAX).iter()?.count(), 3);
    Ok(())
}

#[test]
fn integers_stay_integers_in_dropout_and_are_refused_by_batch_norm() -> Result<()> {
    everywhere(|at| {
        let integers = arange(6, at)?.reshape([3, 2])?;
        let dropped = dropout(&integers, DropoutOptions::new().p(1.0))?;
        assert_eq!((dropped.dtype(), dropped.to_vec::<i64>()?), (DType::I64, vec![0; 6]));
        let (mean, var) = (zeros([2], at)?, ones([2], at)?);
        for training in [false, true] {
            let options = BatchNormOptions::new().training(training);
            let error = batch_norm(&integers, &mean, &var, options).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::UnsupportedDType { .. }), "{error}");
        }
        Ok(())
    })
}

#[test]
fn an_op_without_operands_is_refused() {
    for op in warpline_kernels::elementwise::table() {
        let error = apply_elementwise(op, &[]).unwrap_err();
        // Without operands the dtype is `float32`, which some ops refuse first.
        let kinds = matches!(
            error.kind(),
            ErrorKind::InvalidArgument { .. } | ErrorKind::UnsupportedDType { .. }
        );
        assert!(kinds, "{error}");
    }
}

#[test]
fn extreme_strides_of_views_without_elements_have_no_effect() -> Result<()> {
    everywhere(|at| {
        for stride in [1 << 32, 1 << 62, isize::MAX as usize] {
            let empty = zeros([0], at)?.as_strided([0, 3], [stride, stride], 0)?.unsqueeze(1)?;
            assert_eq!(empty.sum(0)?.to_vec::<f32>()?, [0.0; 3]);
            assert_eq!(empty.prod(0)?.to_vec::<f32>()?, [1.0; 3]);
            assert_eq!(empty.cumsum(0)?.size(), [0, 1, 3]);
            assert_eq!(cat(&[&empty, &empty], 0)?.size(), [0, 1, 3]);
            assert_eq!(empty.softmax(0)?.size(), [0, 1, 3]);
            assert_eq!(empty.sort(0)?.0.size(), [0, 1, 3]);
        }
        Ok(())
    })
}
