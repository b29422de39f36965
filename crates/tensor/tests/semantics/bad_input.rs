//! Bad input: a typed error, nothing changed, counters exact.

use warpline::{
    DType, Error, Result, Tensor, TensorOptions, arange, arange_start_step, cuda, empty, linspace,
    ones, randint, tensor, zeros,
};

use crate::common::World;

rows! {
    worlds(1) bad_devices gpu_bad_devices => devices;
    worlds(1) bad_sizes gpu_bad_sizes => sizes;
    worlds(1) bad_shapes gpu_bad_shapes => shapes;
    worlds(1) bad_numbers gpu_bad_numbers => numbers;
    worlds(1) bad_dtypes gpu_bad_dtypes => dtypes;
}

macro_rules! fails {
    ($result:expr, $pattern:pat) => {
        match $result {
            Err($pattern) => {}
            other => panic!("{}: {other:?}", stringify!($result)),
        }
    };
}

fn devices(world: &World) -> Result<()> {
    for name in ["cudaa", "cuda:-1", "gpu", "cuda:x"] {
        fails!(ones([1], name), Error::InvalidDeviceString { .. });
        fails!(ones([1], ())?.to(name), Error::InvalidDeviceString { .. });
        fails!(ones([1], TensorOptions::new().device(name)), Error::InvalidDeviceString { .. });
    }
    fails!(ones([1], world.devices), Error::NoSuchDevice { .. });
    fails!(ones([1], ())?.to("cuda:99"), Error::NoSuchDevice { index: 99, .. });
    fails!(cuda::memory_allocated("cpu"), Error::InvalidArgument { .. });
    Ok(())
}

fn sizes(world: &World) -> Result<()> {
    for at in world.places() {
        let kept = ones([100], at)?;
        let before = cuda::memory_allocated(())?;
        fails!(empty([usize::MAX, 2], at), Error::SizeOverflow { .. });
        fails!(empty([1 << 62], (DType::F64, at)), Error::SizeOverflow { .. });
        fails!(empty([isize::MAX as usize], at), Error::SizeOverflow { .. });
        // Over 1 EB, and more than any device has.
        assert!(empty([1 << 59], at).is_err());
        if at.is_cuda() {
            let error = empty([1 << 45], at).expect_err("128 TiB");
            assert!(matches!(error, Error::Alloc { .. }), "{error}");
            assert!(error.to_string().contains("memory"), "{error}");
        }
        assert_eq!(cuda::memory_allocated(())?, before);
        assert_eq!((&kept + 1.0)?.sum(())?.item::<f32>()?, 200.0);
    }
    Ok(())
}

fn shapes(world: &World) -> Result<()> {
    for at in world.places() {
        let a = ones([2, 3], at)?;
        fails!(&a + &ones([2], at)?, Error::BroadcastMismatch { a: 3, b: 2, dim: 1, .. });
        fails!(a.matmul(&a), Error::ShapeMismatch { .. });
        let text = a.matmul(&a).expect_err("2x3 and 2x3").to_string();
        assert!(text.contains("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"), "{text}");
        fails!(a.reshape([4]), Error::InvalidReshape { .. });
        fails!(a.reshape([-1, -1]), Error::InvalidArgument { .. });
        fails!(a.reshape([-2]), Error::InvalidReshape { .. });
        fails!(zeros([0], at)?.reshape([0, -1]), Error::InvalidReshape { .. });
        fails!(a.t()?.view([6]), Error::ViewNeedsCopy { .. });
        fails!(a.select(0, 2), Error::IndexOutOfRange { .. });
        fails!(a.select(0, -3), Error::IndexOutOfRange { .. });
        fails!(a.i((0, 3)), Error::IndexOutOfRange { .. });
        fails!(a.i((0, 0, 0)), Error::InvalidArgument { .. });
        fails!(a.narrow(1, 2, 2), Error::IndexOutOfRange { .. });
        fails!(a.narrow(1, 4, 0), Error::IndexOutOfRange { .. });
        fails!(a.transpose(0, 2), Error::DimOutOfRange { .. });
        fails!(a.permute([0, 0]), Error::InvalidArgument { .. });
        fails!(a.permute([0]), Error::InvalidArgument { .. });
        fails!(a.expand([2, 4]), Error::ExpandMismatch { .. });
        fails!(a.expand([3]), Error::ExpandMismatch { .. });
        fails!(a.expand([-1, 2, 3]), Error::InvalidArgument { .. });
        fails!(a.sum(2), Error::DimOutOfRange { .. });
        fails!(a.sum([0, -2]), Error::InvalidArgument { .. });
        fails!(a.softmax(5), Error::DimOutOfRange { .. });
        fails!(a.index_select(5, &a), Error::DimOutOfRange { .. });
        let row = a.select(0, 0)?;
        fails!(a.index_select(0, &row), Error::InvalidArgument { op: "index_select", .. });
        fails!(a.gather(0, &a), Error::InvalidArgument { op: "gather", .. });
        fails!(warpline::embedding(&a, &a), Error::InvalidArgument { op: "embedding", .. });
        let zero = zeros([2], (DType::I64, at))?;
        fails!(a.index_select(0, &zero.unsqueeze(0)?), Error::ShapeMismatch { .. });
        fails!(a.gather(0, &zero), Error::ShapeMismatch { .. });
        fails!(warpline::embedding(&zero, &zero), Error::ShapeMismatch { op: "embedding", .. });
        fails!(a.split(0, 0), Error::InvalidArgument { .. });
        fails!(a.chunk(0, 0), Error::InvalidArgument { .. });
        fails!(a.flatten(1, 0), Error::InvalidArgument { .. });
        fails!(a.item::<f32>(), Error::NotAScalar { numel: 6, .. });
        fails!(warpline::cat::<Tensor>(&[], 0), Error::InvalidArgument { .. });
        fails!(warpline::stack::<Tensor>(&[], 0), Error::InvalidArgument { .. });
        fails!(warpline::cat(&[&a, &ones([2, 2], at)?], 0), Error::ShapeMismatch { .. });
        fails!(warpline::stack(&[&a, &ones([2, 2], at)?], 0), Error::ShapeMismatch { .. });
        let scalar = ones([], at)?;
        fails!(scalar.select(0, 0), Error::ShapeMismatch { .. });
        fails!(scalar.matmul(&scalar), Error::ShapeMismatch { .. });
        fails!(ones([1, 3], at)?.add_(&a), Error::ShapeMismatch { .. });
        fails!(zeros([0], at)?.amax(()), Error::InvalidArgument { .. });
    }
    fails!(tensor(vec![vec![1f32], vec![1.0, 2.0]], ()), Error::ShapeMismatch { .. });
    Ok(())
}

fn numbers(world: &World) -> Result<()> {
    for at in world.places() {
        fails!(arange(f64::INFINITY, at), Error::InvalidArgument { .. });
        fails!(arange(f64::NAN, at), Error::InvalidArgument { .. });
        fails!(arange(-1, at), Error::InvalidArgument { .. });
        fails!(arange_start_step(0, 5, 0, at), Error::InvalidArgument { .. });
        fails!(arange_start_step(0, 5, -1, at), Error::InvalidArgument { .. });
        fails!(arange_start_step(0.0, 1.0, 1e-300, at), Error::InvalidArgument { .. });
        assert!(arange_start_step(i64::MIN, i64::MAX, 1, at).is_err());
        fails!(linspace(0, f64::NAN, 3, at), Error::InvalidArgument { .. });
        fails!(randint(3, 3, [1], at), Error::InvalidArgument { .. });
        let bytes = ones([2], (DType::U8, at))?;
        fails!(bytes.lt(300), Error::InvalidArgument { .. });
        fails!(cuda::set_per_process_memory_fraction(1.5, ()), Error::InvalidArgument { .. });
        fails!(cuda::set_per_process_memory_fraction(f64::NAN, ()), Error::InvalidArgument { .. });
        // Division by zero is no error.
        assert_eq!((ones([1], at)? / 0)?.item::<f32>()?, f32::INFINITY);
    }
    Ok(())
}

fn dtypes(world: &World) -> Result<()> {
    for at in world.places() {
        let (ints, bools) = (ones([2], (DType::I64, at))?, ones([2], (DType::Bool, at))?);
        fails!(ints.to_vec::<f32>(), Error::DTypeMismatch { .. });
        fails!(ints.mean(()), Error::UnsupportedDType { .. });
        fails!(ints.add_(0.5), Error::CannotCast { .. });
        fails!(ints.div_(2), Error::CannotCast { .. });
        fails!(bools.sub(&bools), Error::UnsupportedDType { .. });
        fails!(&ints - true, Error::UnsupportedDType { .. });
        fails!(-&bools, Error::UnsupportedDType { .. });
        fails!(ints.matmul(&ones([2], at)?), Error::OperandDTypes { .. });
        assert_eq!(ints.to_vec::<i64>()?, [1, 1], "untouched");
        assert_eq!(ones([2], at)?.add_(&ints)?.to_vec::<f32>()?, [2.0; 2]);
    }
    Ok(())
}
